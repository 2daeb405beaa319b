"""How each algorithm signs and verifies: one table, and the only code that does it.

The key determines the algorithm, never a message (RFC 8725 §3.1).
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Final, NamedTuple, TypeAlias

from cryptography.exceptions import InvalidSignature
from cryptography.hazmat.primitives import hashes, serialization
from cryptography.hazmat.primitives.asymmetric import ec, ed25519, padding
from cryptography.hazmat.primitives.asymmetric.utils import decode_dss_signature

from pushkit.errors import ConfigError
from pushkit.keys.jwk import Algorithm, SigningKey, VerificationKey


class Method(NamedTuple):
    """The parameters of an algorithm."""

    name: str  # its name on the wire
    # The arguments of `sign` and `verify` besides data and signature.
    arguments: tuple[object, ...] = ()
    # The size of its curve, if a signature is two numbers of that size.
    curve_bits: int | None = None


Methods: TypeAlias = Mapping[Algorithm, Method]


def _pss(digest: hashes.HashAlgorithm) -> padding.PSS:
    return padding.PSS(mgf=padding.MGF1(digest), salt_length=digest.digest_size)


_SHA256, _SHA384, _SHA512 = hashes.SHA256(), hashes.SHA384(), hashes.SHA512()

# RFC 7518 §3.1, RFC 8037 §3.1.
JOSE: Final[Methods] = {
    Algorithm.ES256: Method("ES256", (ec.ECDSA(_SHA256),), 256),
    Algorithm.ES384: Method("ES384", (ec.ECDSA(_SHA384),), 384),
    Algorithm.EDDSA: Method("EdDSA"),
    Algorithm.RS256: Method("RS256", (padding.PKCS1v15(), _SHA256)),
    Algorithm.PS256: Method("PS256", (_pss(_SHA256), _SHA256)),
}
# RFC 9421 §6.2.2. Its registry has no RSASSA-PSS with SHA-256: a PS256 key signs with SHA-512 here.
HTTP: Final[Methods] = {
    Algorithm.ES256: Method("ecdsa-p256-sha256", (ec.ECDSA(_SHA256),), 256),
    Algorithm.ES384: Method("ecdsa-p384-sha384", (ec.ECDSA(_SHA384),), 384),
    Algorithm.EDDSA: Method("ed25519"),
    Algorithm.RS256: Method("rsa-v1_5-sha256", (padding.PKCS1v15(), _SHA256)),
    Algorithm.PS256: Method("rsa-pss-sha512", (_pss(_SHA512), _SHA512)),
}


def sign_bytes(key: SigningKey, data: bytes, methods: Methods = JOSE) -> bytes:
    """Sign bytes with the key's algorithm."""
    sign: Callable[..., bytes] = key.private_key.sign
    _, arguments, curve_bits = methods[key.algorithm]
    signature = sign(data, *arguments)
    return ecdsa_from_der(signature, curve_bits) if curve_bits else signature


def signature_holds(
    key: VerificationKey, data: bytes, signature: bytes, methods: Methods = JOSE
) -> bool:
    """Return whether a signature over bytes is by this key, with its algorithm."""
    _, arguments, curve_bits = methods[key.algorithm]
    if curve_bits is not None:
        if len(signature) != 2 * curve_bits // 8:
            return False
        signature = _to_der(signature)
    verify: Callable[..., None] = key.public_key.verify
    try:
        verify(signature, data, *arguments)
    except InvalidSignature:
        return False
    return True


def _to_der(signature: bytes) -> bytes:
    """Return the DER form of r and s, of up to 384 bits each, which `cryptography` verifies."""
    size, written = len(signature) // 2, b""
    for part in (signature[:size], signature[size:]):
        number = part.lstrip(b"\0")
        if not number or number[0] & 0x80:  # otherwise it would be read as negative
            number = b"\0" + number
        written += b"\x02%c%b" % (len(number), number)
    return b"\x30%c%b" % (len(written), written)


def ecdsa_from_der(signature: bytes, curve_bits: int) -> bytes:
    """Return r and s side by side (RFC 7518 §3.4, RFC 9421 §3.3.4) from DER.

    Raises:
        ValueError: It is not DER.
        OverflowError: A number is negative, or larger than the curve.
    """
    r, s = decode_dss_signature(signature)
    return r.to_bytes(curve_bits // 8, "big") + s.to_bytes(curve_bits // 8, "big")


def ed25519_signing_key(seed: bytes) -> SigningKey:
    """Return the key of a 32-byte seed (RFC 8032 §5.1.5)."""
    return SigningKey.of(ed25519.Ed25519PrivateKey.from_private_bytes(seed))


def ed25519_verification_key(point: bytes) -> VerificationKey:
    """Return the public key in 32 bytes (RFC 8032 §5.1.2).

    Raises:
        ConfigError: The point does not have 32 bytes.
    """
    try:
        return VerificationKey.of(ed25519.Ed25519PublicKey.from_public_bytes(point))
    except ValueError as exc:
        raise ConfigError(f"an Ed25519 key of {len(point)} bytes, expected 32") from exc


def ed25519_public_bytes(key: SigningKey | VerificationKey) -> bytes:
    """Return the 32 bytes of an Ed25519 key's public half.

    Raises:
        ConfigError: The key is of another type.
    """
    public_key = key.to_verification_key().public_key
    if not isinstance(public_key, ed25519.Ed25519PublicKey):
        raise ConfigError(f"the key is for {key.algorithm}, expected an Ed25519 key")
    return public_key.public_bytes(serialization.Encoding.Raw, serialization.PublicFormat.Raw)
