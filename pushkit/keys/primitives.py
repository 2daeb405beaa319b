"""Raw signatures over bytes, for the schemes that are not JOSE, and Ed25519 keys as 32 bytes.

The algorithm is the key's: nothing in a message chooses it. What each one is called in HTTP message
signatures (RFC 9421 §3.3), whose registry has RSASSA-PSS with SHA-512 alone, stands beside it:

    ES256 ecdsa-p256-sha256   ES384 ecdsa-p384-sha384   EdDSA ed25519
    RS256 rsa-v1_5-sha256     PS256 rsa-pss-sha512
"""

from __future__ import annotations

from cryptography.exceptions import InvalidSignature
from cryptography.hazmat.primitives import hashes, serialization
from cryptography.hazmat.primitives.asymmetric import ec, ed25519, padding, rsa
from cryptography.hazmat.primitives.asymmetric.utils import (
    decode_dss_signature,
    encode_dss_signature,
)

from pushkit.errors import ConfigError
from pushkit.keys.jwk import Algorithm, SigningKey, VerificationKey, thumbprint

__all__ = [
    "ed25519_public_bytes",
    "ed25519_signing_key",
    "ed25519_verification_key",
    "sign_bytes",
    "signature_holds",
]

_ED25519_BYTES = 32
_PSS_SALT_BYTES = 64  # RFC 9421 §3.3.1


def sign_bytes(key: SigningKey, data: bytes) -> bytes:
    """Return the signature over some bytes, as RFC 9421 §3.3 writes it."""
    private_key = key.private_key
    if isinstance(private_key, ed25519.Ed25519PrivateKey):
        return private_key.sign(data)
    if isinstance(private_key, ec.EllipticCurvePrivateKey):
        # RFC 9421 §3.3.4: r and s side by side, not in ASN.1.
        size = private_key.key_size // 8
        r, s = decode_dss_signature(private_key.sign(data, ec.ECDSA(_curve_hash(key.algorithm))))
        return r.to_bytes(size, "big") + s.to_bytes(size, "big")
    rsa_padding, digest = _rsa_scheme(key.algorithm)
    return private_key.sign(data, rsa_padding, digest)


def signature_holds(key: VerificationKey, data: bytes, signature: bytes) -> bool:
    """Say whether a signature over some bytes is by this key, by its own algorithm."""
    try:
        _verify(key, data, signature)
    except InvalidSignature:
        return False
    return True


def ed25519_signing_key(seed: bytes) -> SigningKey:
    """Return the key of a 32-byte seed (RFC 8032 §5.1.5).

    Raises:
        ConfigError: Not 32 bytes.
    """
    _require_length(seed)
    private_key = ed25519.Ed25519PrivateKey.from_private_bytes(seed)
    return SigningKey(
        kid=thumbprint(private_key.public_key()),
        algorithm=Algorithm.EDDSA,
        private_key=private_key,
    )


def ed25519_verification_key(point: bytes) -> VerificationKey:
    """Return the public key that 32 bytes spell (RFC 8032 §5.1.2).

    Raises:
        ConfigError: Not 32 bytes.
    """
    _require_length(point)
    public_key = ed25519.Ed25519PublicKey.from_public_bytes(point)
    return VerificationKey(
        kid=thumbprint(public_key), algorithm=Algorithm.EDDSA, public_key=public_key
    )


def ed25519_public_bytes(key: SigningKey | VerificationKey) -> bytes:
    """Return the 32 bytes of an Ed25519 key's public half.

    Raises:
        ConfigError: A key of another type.
    """
    public = key.to_verification_key() if isinstance(key, SigningKey) else key
    if not isinstance(public.public_key, ed25519.Ed25519PublicKey):
        raise ConfigError(f"the key is for {key.algorithm}, expected an Ed25519 key")
    return public.public_key.public_bytes(
        serialization.Encoding.Raw, serialization.PublicFormat.Raw
    )


def _verify(key: VerificationKey, data: bytes, signature: bytes) -> None:
    public_key = key.public_key
    if isinstance(public_key, ed25519.Ed25519PublicKey):
        public_key.verify(signature, data)
    elif isinstance(public_key, ec.EllipticCurvePublicKey):
        size = public_key.key_size // 8
        if len(signature) != 2 * size:
            raise InvalidSignature
        r, s = (int.from_bytes(half, "big") for half in (signature[:size], signature[size:]))
        public_key.verify(encode_dss_signature(r, s), data, ec.ECDSA(_curve_hash(key.algorithm)))
    else:
        _verify_rsa(public_key, key.algorithm, data, signature)


def _verify_rsa(
    public_key: rsa.RSAPublicKey, algorithm: Algorithm, data: bytes, signature: bytes
) -> None:
    rsa_padding, digest = _rsa_scheme(algorithm)
    public_key.verify(signature, data, rsa_padding, digest)


def _curve_hash(algorithm: Algorithm) -> hashes.HashAlgorithm:
    return hashes.SHA384() if algorithm is Algorithm.ES384 else hashes.SHA256()


def _rsa_scheme(
    algorithm: Algorithm,
) -> tuple[padding.PSS | padding.PKCS1v15, hashes.HashAlgorithm]:
    if algorithm is Algorithm.PS256:
        pss = padding.PSS(mgf=padding.MGF1(hashes.SHA512()), salt_length=_PSS_SALT_BYTES)
        return pss, hashes.SHA512()
    return padding.PKCS1v15(), hashes.SHA256()


def _require_length(raw: bytes) -> None:
    if len(raw) != _ED25519_BYTES:
        raise ConfigError(f"an Ed25519 key of {len(raw)} bytes, expected {_ED25519_BYTES}")
