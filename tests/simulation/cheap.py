"""Signatures that cost nothing, for worlds in which it is not signing that is looked at.

A hash of the key's name and of what is signed stands for the signature: another key, or another
byte, and it does not hold. Three worlds of four have it; the fourth signs in earnest.
"""

from __future__ import annotations

import hashlib

from pushkit.keys.jwk import SigningKey, VerificationKey
from pushkit.keys.primitives import JOSE, Methods

__all__ = ["sign_bytes", "signature_holds"]


def sign_bytes(key: SigningKey | VerificationKey, data: bytes, methods: Methods = JOSE) -> bytes:
    """Stand for the signature over some bytes; as long as one of ES256."""
    del methods  # both spell a signature of ES256 alike
    return hashlib.sha512(key.kid.encode() + b"\n" + data).digest()


def signature_holds(
    key: VerificationKey, data: bytes, signature: bytes, methods: Methods = JOSE
) -> bool:
    """Say whether it is by this key."""
    return signature == sign_bytes(key, data, methods)
