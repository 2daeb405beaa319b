"""Refuses public keys under which anybody can sign, or nobody.

The libraries accept them: OpenSSL reads any 32 bytes as an Ed25519 key, and any number as the
modulus of an RSA key. They do refuse an EC point that is not on its curve.
"""

from __future__ import annotations

import functools
import math
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
