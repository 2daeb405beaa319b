"""Keys for signatures: generation, PEM, JSON Web Keys (RFC 7517, 7518 §6, 8037) and thumbprints.

The only module that imports jwcrypto. A key carries its algorithm, so that no message header
chooses it (RFC 8725 §3.1).
"""

from __future__ import annotations

import re
from collections.abc import Collection, Mapping
from dataclasses import dataclass, field
from datetime import datetime
from enum import StrEnum
from pathlib import Path
from typing import Final, Protocol, Self, TypeAlias, cast, runtime_checkable

from cryptography.exceptions import UnsupportedAlgorithm
from cryptography.hazmat.primitives import serialization
from cryptography.hazmat.primitives.asymmetric import ec, ed25519, rsa
from jwcrypto.common import JWException  # type: ignore[import-untyped]
from jwcrypto.jwk import JWK  # type: ignore[import-untyped]

from pushkit.bounded_json import JsonObject, JsonValue
from pushkit.errors import ConfigError, JwksError, KeyFileError
from pushkit.keys.validation import check_public_key, is_rsassa_pss

PrivateKey: TypeAlias = ec.EllipticCurvePrivateKey | ed25519.Ed25519PrivateKey | rsa.RSAPrivateKey
PublicKey: TypeAlias = ec.EllipticCurvePublicKey | ed25519.Ed25519PublicKey | rsa.RSAPublicKey

# Every verifier accepts the least that RFC 7518 §3.3 allows, and signing costs a quarter of that
# with 3072 bits; ES256, the default, is stronger.
_GENERATED_RSA_BITS: Final = 2048

_PUBLIC_PEM: Final = re.compile(rb"-----BEGIN (RSA PUBLIC KEY|PUBLIC KEY|CERTIFICATE)-----")
_PUBLIC_KEYS: Final = re.compile(
    rb"(?:\s*-----BEGIN PUBLIC KEY-----[A-Za-z0-9+/=\s]+-----END PUBLIC KEY-----\s*)+"
)
MAX_JWKS_KEYS: Final = 32
"""Of a JWK Set: a ring publishes no more, and no more are read."""

_MAX_KID_CHARACTERS: Final = 256
_MAX_PASSPHRASE_BYTES: Final = 1023  # OpenSSL takes no longer one
_SHOWN_CHARACTERS: Final = 40

# RFC 7518 §6.2.1 and §6.3.1, RFC 8037 §2.
_MATERIAL: Final[Mapping[str, tuple[str, ...]]] = {
    "EC": ("kty", "crv", "x", "y"),
    "OKP": ("kty", "crv", "x"),
    "RSA": ("kty", "n", "e"),
}
# RFC 7518 §6.2.2, §6.3.2 and §6.4, RFC 8037 §2.
_PRIVATE: Final = frozenset({"d", "p", "q", "dp", "dq", "qi", "oth", "k"})

# The errors of jwcrypto and cryptography for contents that are no key.
_NO_KEY: Final = (
    JWException,
    LookupError,
    OverflowError,
    TypeError,
    UnsupportedAlgorithm,
    ValueError,
)


class Algorithm(StrEnum):
    """A signature algorithm (RFC 7518 §3.1, RFC 8037 §3.1); the value is its name on the wire."""

    ES256 = "ES256"
    ES384 = "ES384"
    EDDSA = "EdDSA"
    RS256 = "RS256"
    PS256 = "PS256"

    @classmethod
    def parse(cls, name: str) -> Algorithm | None:
        """Read an algorithm's name, also `Ed25519` (RFC 9864); None if it is not a known one."""
        return _BY_NAME.get(name)


_BY_NAME: Final = {"Ed25519": Algorithm.EDDSA, **{each.value: each for each in Algorithm}}

# The key types (kty, crv) with the algorithms that they sign with; the first one is the default.
_ALGORITHMS: Final[Mapping[tuple[str, str | None], tuple[Algorithm, ...]]] = {
    ("EC", "P-256"): (Algorithm.ES256,),
    ("EC", "P-384"): (Algorithm.ES384,),
    ("OKP", "Ed25519"): (Algorithm.EDDSA,),
    ("RSA", None): (Algorithm.RS256, Algorithm.PS256),
}


@dataclass(frozen=True, slots=True, kw_only=True)
class VerificationKey:
    """A public key, with the only algorithm that it verifies."""

    kid: str
    algorithm: Algorithm
    public_key: PublicKey = field(repr=False, hash=False)

    def __post_init__(self) -> None:
        _require_fit(self.kid, self.algorithm, self.public_key)

    @classmethod
    def of(
        cls, public_key: PublicKey, *, kid: str | None = None, algorithm: Algorithm | None = None
    ) -> VerificationKey:
        """Return a key, by default with its thumbprint as `kid` and the algorithm of its type."""
        kid = thumbprint(public_key) if kid is None else kid
        return cls(kid=kid, algorithm=algorithm or _fitting(public_key)[0], public_key=public_key)

    def to_verification_key(self) -> Self:
        """Return itself."""
        return self


@dataclass(frozen=True, slots=True, kw_only=True)
class SigningKey:
    """A private key, with the only algorithm that it signs with."""

    kid: str
    algorithm: Algorithm
    private_key: PrivateKey = field(repr=False)

    def __post_init__(self) -> None:
        _require_fit(self.kid, self.algorithm, self.private_key.public_key())

    @classmethod
    def of(
        cls, private_key: PrivateKey, *, kid: str | None = None, algorithm: Algorithm | None = None
    ) -> SigningKey:
        """Return a key, by default with its thumbprint as `kid` and the algorithm of its type."""
        public = VerificationKey.of(private_key.public_key(), kid=kid, algorithm=algorithm)
        return cls(kid=public.kid, algorithm=public.algorithm, private_key=private_key)

    def to_verification_key(self) -> VerificationKey:
        """Return the public half."""
        public_key = self.private_key.public_key()
        return VerificationKey(kid=self.kid, algorithm=self.algorithm, public_key=public_key)


def generate_key(algorithm: Algorithm) -> SigningKey:
    """Generate a key, with its thumbprint as `kid`."""
    private_key: PrivateKey
    match algorithm:
        case Algorithm.ES256:
            private_key = ec.generate_private_key(ec.SECP256R1())
        case Algorithm.ES384:
            private_key = ec.generate_private_key(ec.SECP384R1())
        case Algorithm.EDDSA:
            private_key = ed25519.Ed25519PrivateKey.generate()
        case Algorithm.RS256 | Algorithm.PS256:
            private_key = rsa.generate_private_key(65537, _GENERATED_RSA_BITS)
    return SigningKey.of(private_key, algorithm=algorithm)


def thumbprint(public_key: PublicKey) -> str:
    """Return the SHA-256 thumbprint of a key (RFC 7638 §3), base64url."""
    return cast("str", JWK.from_pyca(public_key).thumbprint())


def verification_key(
    jwk: Mapping[str, JsonValue],
    # Those that its owner may sign with: of a key without `alg`, the first one that fits.
    algorithms: Collection[Algorithm] = frozenset(Algorithm),
) -> VerificationKey:
    """Read a public JWK that may verify signatures; without `kid` it gets its thumbprint.

    A member that is null counts as absent.

    Raises:
        JwksError: The key is symmetric, has private members, is for another use, of an unknown
            type or curve, has an algorithm of another key type, is too weak, or is no key at all.
    """
    jwk = {name: value for name, value in jwk.items() if value is not None}
    algorithm = _algorithm(jwk, algorithms)
    kty, kid = str(jwk["kty"]), jwk.get("kid")
    if not isinstance(kid, str | None):
        raise JwksError(f"kid is {_shown(kid)}, expected a string")
    # Only the key material is imported: `x5u`, `key_ops` and other members must not affect it.
    material = {name: jwk[name] for name in _MATERIAL[kty] if name in jwk}
    try:
        public_key = cast("PublicKey", JWK(**material).get_op_key("verify"))
        return VerificationKey.of(public_key, kid=kid, algorithm=algorithm)
    except ConfigError as exc:
        raise JwksError(str(exc)) from exc
    except _NO_KEY as exc:
        raise JwksError("the members are not a valid public key") from exc


def _algorithm(jwk: Mapping[str, JsonValue], algorithms: Collection[Algorithm]) -> Algorithm:
    """Return the algorithm of a JWK, or raise if it may not verify."""
    kty, crv, alg = jwk.get("kty"), jwk.get("crv"), jwk.get("alg")
    if kty == "oct":
        raise JwksError("the key is symmetric, expected a public key")
    if found := sorted(_PRIVATE & jwk.keys()):
        raise JwksError(f"the key has private members ({', '.join(found)}) and is compromised")
    # RFC 7517 §4.2 and §4.3.
    if jwk.get("use", "sig") != "sig":
        raise JwksError(f"use is {_shown(jwk['use'])}, expected 'sig'")
    operations = jwk.get("key_ops", ["verify"])
    if not isinstance(operations, list) or "verify" not in operations:
        raise JwksError("key_ops does not contain 'verify'")
    if not isinstance(kty, str) or not isinstance(crv, str | None):
        raise JwksError("kty and crv: expected strings")
    fitting = _ALGORITHMS.get((kty, crv if kty != "RSA" else None))
    if fitting is None:
        raise JwksError(f"key type {_shown(kty)} with curve {_shown(crv)} is not supported")
    if alg is None:
        return next((each for each in fitting if each in algorithms), fitting[0])
    algorithm = Algorithm.parse(alg) if isinstance(alg, str) else None
    if algorithm not in fitting:
        raise JwksError(f"alg is {_shown(alg)}, expected {' or '.join(fitting)}")
    return algorithm


def is_public_jwk(value: JsonValue) -> bool:
    """Return whether this is a JWK without private members, of whatever type."""
    return isinstance(value, dict) and "kty" in value and _PRIVATE.isdisjoint(value)


def public_jwk(key: VerificationKey | SigningKey | RemoteKey) -> JsonObject:
    """Write the public JWK (RFC 7517 §4) of a key: public members only, with kid, alg and use."""
    public = key.to_verification_key()
    material = JWK.from_pyca(public.public_key).export_public(as_dict=True)
    return {
        **{name: material[name] for name in _MATERIAL[material["kty"]]},
        "alg": public.algorithm.value,
        "kid": public.kid,
        "use": "sig",
    }


def public_pem(key: VerificationKey | SigningKey | RemoteKey) -> bytes:
    """Write the public key as SubjectPublicKeyInfo PEM (RFC 7468 §13)."""
    return cast("bytes", JWK.from_pyca(key.to_verification_key().public_key).export_to_pem())


def is_public_pem(content: bytes) -> bool:
    """Return whether this is PEM (RFC 7468 §13) with public keys, and nothing else."""
    return bool(_PUBLIC_KEYS.fullmatch(content))


def signing_key_from_pem(
    pem: bytes,  # PKCS#8, or the older forms that OpenSSL writes
    passphrase: bytes | None = None,  # what the key is encrypted with; None if it is not encrypted
    *,
    kid: str | None = None,  # the key's name; its thumbprint if None
    # The algorithm that it signs with; if None, that of its type. An RSA key is for RS256, unless
    # the PEM says that it is for RSASSA-PSS (RFC 4055 §3.1): then it is for PS256.
    algorithm: Algorithm | None = None,
) -> SigningKey:
    """Read a private key in PEM.

    Raises:
        KeyFileError: It is no private key, the passphrase is wrong or missing, or given for a key
            that is not encrypted, the type is not supported, or the algorithm does not fit, or is
            missing for an RSA key that is encrypted: its PEM does not say which it is for.
    """
    try:
        # Not by way of a JWK, which would check an RSA key twice, each time for 40 ms.
        private_key = cast("PrivateKey", serialization.load_pem_private_key(pem, passphrase))
        is_rsa = isinstance(private_key, rsa.RSAPrivateKey)
        if is_rsa and algorithm is None and b"-----BEGIN ENCRYPTED" in pem:
            raise KeyFileError(
                "an RSA key that is encrypted: its PEM does not say which algorithm it is for:"
                f" state it ({Algorithm.RS256} or {Algorithm.PS256}; in a command by --alg)"
            )
        algorithm = _algorithm_of_pem(pem, private_key, algorithm)
        return SigningKey.of(private_key, kid=kid, algorithm=algorithm)
    except ConfigError as exc:
        raise KeyFileError(str(exc)) from exc
    except TypeError as exc:  # cryptography raises it for a missing or needless passphrase
        if passphrase is None:
            raise KeyFileError("the private key is encrypted; a passphrase is needed") from exc
        raise KeyFileError("a passphrase was given, but the key is not encrypted") from exc
    except _NO_KEY as exc:
        if _PUBLIC_PEM.search(pem) and b"PRIVATE KEY-----" not in pem:
            raise KeyFileError("expected a private key in PEM, found a public one") from exc
        reason = "the passphrase is wrong, or it is no" if passphrase else "not a"
        raise KeyFileError(f"{reason} private key in PEM of a supported type") from exc


def verification_key_from_pem(
    pem: bytes, *, kid: str | None = None, algorithm: Algorithm | None = None
) -> VerificationKey:
    """Read a public key in PEM: SubjectPublicKeyInfo, or a certificate, whose dates are ignored.

    `kid` and `algorithm` are as for `signing_key_from_pem`.

    Raises:
        KeyFileError: It is no public key, or a private one, the type is not supported, or the
            algorithm does not fit.
    """
    try:
        jwk = JWK.from_pem(pem)
        if jwk.has_private:
            raise KeyFileError("expected a public key in PEM, found a private one")
        public_key = cast("PublicKey", jwk.get_op_key("verify"))
        algorithm = _algorithm_of_pem(pem, public_key, algorithm)
        return VerificationKey.of(public_key, kid=kid, algorithm=algorithm)
    except ConfigError as exc:
        raise KeyFileError(str(exc)) from exc
    except _NO_KEY as exc:
        raise KeyFileError("not a public key in PEM of a supported type") from exc


def _algorithm_of_pem(
    pem: bytes, key: PrivateKey | PublicKey, given: Algorithm | None
) -> Algorithm | None:
    """Return the algorithm that a PEM itself states for its key, else the given one.

    Raises:
        ConfigError: They differ, or the stated one is not supported.
    """
    if not isinstance(key, rsa.RSAPrivateKey | rsa.RSAPublicKey) or not is_rsassa_pss(pem):
        return given
    if given not in {None, Algorithm.PS256}:
        raise ConfigError(f"the key is for {Algorithm.PS256} (RSASSA-PSS), not for {given}")
    return Algorithm.PS256


def expiry_of_certificate(path: Path) -> datetime | None:
    """Return when the first certificate in a PEM file expires; None if it cannot be read."""
    from cryptography import x509  # few senders have a certificate

    try:
        return x509.load_pem_x509_certificate(Path(path).read_bytes()).not_valid_after_utc
    except ValueError:
        return None


def signing_key_to_pem(key: SigningKey, passphrase: bytes | None = None) -> bytes:
    """Write a private key as PKCS#8 PEM, encrypted if there is a passphrase.

    Raises:
        KeyFileError: The passphrase is empty or too long.
    """
    if passphrase is not None and not 1 <= len(passphrase) <= _MAX_PASSPHRASE_BYTES:
        raise KeyFileError(
            f"the passphrase: expected 1 to {_MAX_PASSPHRASE_BYTES} bytes, found {len(passphrase)}"
        )
    encryption = (
        serialization.NoEncryption()
        if passphrase is None
        else serialization.BestAvailableEncryption(passphrase)
    )
    return key.private_key.private_bytes(
        serialization.Encoding.PEM, serialization.PrivateFormat.PKCS8, encryption
    )


def _require_fit(kid: str, algorithm: Algorithm, public_key: PublicKey) -> None:
    if not 1 <= len(kid) <= _MAX_KID_CHARACTERS:
        raise ConfigError(f"kid: expected 1 to {_MAX_KID_CHARACTERS} characters, found {len(kid)}")
    try:
        kid.encode("utf-8")
    except UnicodeEncodeError as exc:  # neither a key file nor a header could be read back
        raise ConfigError(
            "kid: found half of a surrogate pair (in a terminal: a byte that is not UTF-8),"
            " expected Unicode text"
        ) from exc
    fitting = _fitting(public_key)
    if algorithm not in fitting:
        raise ConfigError(f"the key is for {' or '.join(fitting)}, not for {algorithm}")
    check_public_key(public_key)


def _fitting(public_key: PublicKey) -> tuple[Algorithm, ...]:
    try:
        jwk = JWK.from_pyca(public_key)
    except _NO_KEY as exc:
        raise ConfigError("the key's type is not supported") from exc
    shape = (jwk.get("kty"), jwk.get("crv"))
    if shape not in _ALGORITHMS:
        raise ConfigError(f"the key's curve {shape[1]} is not supported")
    return _ALGORITHMS[shape]


def _shown(value: JsonValue) -> str:
    text = repr(value)
    return text if len(text) <= _SHOWN_CHARACTERS else text[:_SHOWN_CHARACTERS] + "…"


# --- keys outside this process -------------------------------------------------------------------


@runtime_checkable
class RemoteSigner(Protocol):
    """Signs with a private key that it keeps: the adapter to a KMS."""

    @property
    def public_jwk(self) -> Mapping[str, JsonValue]:
        """The public key (RFC 7517), which does not change.

        `kid` is its thumbprint unless it says otherwise; an RSA key is for RS256 unless `alg` says
        PS256.
        """
        ...

    async def sign(self, data: bytes) -> bytes:
        """Sign the data itself, not a hash of it.

        An ECDSA signature may be r and s, each of the curve's length (JOSE, RFC 7518 §3.4), or
        DER, as most services return it, which is converted. It is verified with the public key
        before it is used. The call must not block; one that takes too long is cancelled.
        """
        ...


@dataclass(frozen=True, slots=True, kw_only=True)
class RemoteKey:
    """The key of a remote signer, as an entry of a `KeyRing`."""

    signer: RemoteSigner = field(repr=False, compare=False)
    public: VerificationKey

    @classmethod
    def of(cls, signer: RemoteSigner) -> RemoteKey:
        """Return the key of a signer.

        Raises:
            ConfigError: Its public key cannot be read, or is private.
        """
        jwk, name = signer.public_jwk, f"public_jwk of {type(signer).__name__}"
        if not isinstance(jwk, Mapping):
            raise ConfigError(f"{name}: found {type(jwk).__name__}, expected a mapping")
        try:
            return cls(signer=signer, public=verification_key(jwk))
        except JwksError as exc:
            raise ConfigError(f"{name}: {exc}") from exc

    @property
    def kid(self) -> str:
        """The key's name."""
        return self.public.kid

    @property
    def algorithm(self) -> Algorithm:
        """The algorithm that the key signs with."""
        return self.public.algorithm

    def to_verification_key(self) -> VerificationKey:
        """Return the public half."""
        return self.public
