"""Cheap stand-ins for signatures: a hash of the key id and the signed bytes.

They fail for another key or other bytes, as signatures do. Three worlds of four use them.
"""

from __future__ import annotations

import hashlib

from pushkit.keys.jwk import SigningKey, VerificationKey
from pushkit.keys.primitives import JOSE, Methods

__all__ = ["sign_bytes", "signature_holds"]


def sign_bytes(key: SigningKey | VerificationKey, data: bytes, methods: Methods = JOSE) -> bytes:
    """Return a stand-in for a signature, as long as one of ES256."""
    del methods  # both encode a signature of ES256 alike
    return hashlib.sha512(key.kid.encode() + b"\n" + data).digest()


def signature_holds(
    key: VerificationKey, data: bytes, signature: bytes, methods: Methods = JOSE
) -> bool:
    """Return whether a stand-in was made with this key for this data."""
    return signature == sign_bytes(key, data, methods)
