"""What the libraries do not check of a key, or do not tell.

They accept public keys under which anybody can sign, or nobody: OpenSSL reads any 32 bytes as an
Ed25519 key, and any number as the modulus of an RSA key. They do refuse an EC point that is not on
its curve. And of an RSA key that is for RSASSA-PSS alone (RFC 4055 §3.1), they drop the object
identifier that says so: to them, it is an RSA key like others.
"""

from __future__ import annotations

import base64
import functools
import math
import re
from typing import Final

from cryptography.hazmat.primitives import serialization
from cryptography.hazmat.primitives.asymmetric import ec, ed25519, rsa

from pushkit.errors import ConfigError

# RFC 7518 §3.3.
_MIN_RSA_BITS: Final = 2048
# With a huge modulus or exponent, one verification takes seconds.
_MAX_RSA_BITS: Final = 8192
_MAX_RSA_EXPONENT: Final = 2**31 - 1
# NIST SP 800-89 §5.3.3: a modulus has no prime factor below this.
_SMALLEST_FACTOR: Final = 752

# RFC 8032 §5.1: the field and the curve.
_P: Final = 2**255 - 19
_D: Final = -121665 * pow(121666, -1, _P) % _P

_PEM: Final = re.compile(
    rb"-----BEGIN (PRIVATE KEY|PUBLIC KEY|CERTIFICATE)-----([A-Za-z0-9+/=\s]+)-----END"
)
_RSASSA_PSS: Final = bytes.fromhex("2a864886f70d01010a")
_SHA256: Final = bytes.fromhex("0609608648016503040201")
_SEQUENCE: Final = 0x30
# The members of RSASSA-PSS-params, by their tags (RFC 4055 §3.1).
_HASH, _MASK, _SALT_LENGTH = 0xA0, 0xA1, 0xA2
_PS256_SALT_BYTES: Final = 32  # RFC 7518 §3.5


def check_public_key(
    public_key: ec.EllipticCurvePublicKey | ed25519.Ed25519PublicKey | rsa.RSAPublicKey,
) -> None:
    """Raise ConfigError unless only the owner of its private key can sign under a public key."""
    if isinstance(public_key, rsa.RSAPublicKey):
        _check_rsa(public_key)
    elif isinstance(public_key, ed25519.Ed25519PublicKey):
        encoded = public_key.public_bytes(
            serialization.Encoding.Raw, serialization.PublicFormat.Raw
        )
        _check_ed25519(encoded)


def _check_rsa(public_key: rsa.RSAPublicKey) -> None:
    modulus, exponent = public_key.public_numbers().n, public_key.public_numbers().e
    if not _MIN_RSA_BITS <= public_key.key_size <= _MAX_RSA_BITS:
        raise ConfigError(
            f"the RSA key has {public_key.key_size} bits,"
            f" expected {_MIN_RSA_BITS} to {_MAX_RSA_BITS}"
        )
    if not 3 <= exponent <= _MAX_RSA_EXPONENT or exponent % 2 == 0:
        raise ConfigError(
            "the RSA key's exponent is even or out of bounds, expected an odd one from 3 to"
            f" {_MAX_RSA_EXPONENT}"
        )
    if math.gcd(modulus, _small_primes()) != 1 or math.isqrt(modulus) ** 2 == modulus:
        raise ConfigError(
            "the RSA key's modulus is even, a square, or has another small factor, so that anybody"
            " can sign: expected the product of two large primes"
        )


@functools.cache
def _small_primes() -> int:
    """Return the product of the primes below the smallest factor of a modulus."""
    numbers = range(2, _SMALLEST_FACTOR)
    return math.prod(n for n in numbers if all(n % m for m in range(2, math.isqrt(n) + 1)))


def _check_ed25519(encoded: bytes) -> None:
    y = int.from_bytes(encoded, "little") & (1 << 255) - 1  # without the sign of x
    if y >= _P:  # RFC 8032 §5.1.3: the decoding fails
        raise ConfigError("the Ed25519 key is not in its canonical encoding")
    y2 = y * y % _P
    # Of order 1, 2 and 4, or 8: a point whose double has y = 0. Under such a key, a signature can
    # be made that fits every eighth message, or every message, without any private key.
    if y in {0, 1, _P - 1} or (_D * y2 * y2 + 2 * y2 - 1) % _P == 0:
        raise ConfigError("the Ed25519 key is a point of small order, so that anybody can sign")
    # RFC 8032 §5.1.3: x² = (y² - 1) / (dy² + 1) has a root. A product is a square as the quotient.
    if pow((y2 - 1) * (_D * y2 + 1), (_P - 1) // 2, _P) != 1:
        raise ConfigError("the Ed25519 key is no point of the curve")


def is_rsassa_pss(pem: bytes) -> bool:
    """Return whether the first key or certificate in PEM is an RSA key for RSASSA-PSS alone.

    It must have been read as a key by a library; one that is encrypted is not recognised.

    Raises:
        ConfigError: It is, but not with the parameters of PS256.
    """
    found = _PEM.search(pem)
    if found is None:
        return False
    [(_, document)] = _members(base64.b64decode(found[2]))
    if found[1] == b"CERTIFICATE":  # RFC 5280 §4.1
        (_, certificate), *_ = _members(document)
        members = [(tag, value) for tag, value in _members(certificate) if tag != 0xA0]
        document = members[5][1]  # subjectPublicKeyInfo
    # PKCS#8 has a version before it (RFC 5958 §2).
    identifier = next(value for tag, value in _members(document) if tag == _SEQUENCE)
    (_, algorithm), *parameters = _members(identifier)
    if algorithm != _RSASSA_PSS:
        return False
    if parameters and not _allow_ps256(parameters[0][1]):
        raise ConfigError("the key is for RSASSA-PSS with another hash than PS256 has (SHA-256)")
    return True


def _allow_ps256(parameters: bytes) -> bool:
    found = dict(_members(parameters))
    salt = int.from_bytes(found[_SALT_LENGTH][2:], "big") if _SALT_LENGTH in found else 20
    # Both are SHA-1 if they are left out.
    hashes = (found.get(_HASH, b""), found.get(_MASK, b""))
    return all(_SHA256 in each for each in hashes) and salt <= _PS256_SALT_BYTES


def _members(der: bytes) -> list[tuple[int, bytes]]:
    """Return tags and contents of the values in DER (X.690 §8.1), of which none has a long tag."""
    found, at = [], 0
    while at < len(der):
        tag, length, at = der[at], der[at + 1], at + 2
        if length & 0x80:
            of_length = length & 0x7F
            length, at = int.from_bytes(der[at : at + of_length], "big"), at + of_length
        found.append((tag, der[at : at + length]))
        at += length
    return found
