"""A key service that signs as a test says."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Mapping

from cryptography.hazmat.primitives import hashes
from cryptography.hazmat.primitives.asymmetric import ec, ed25519, padding, rsa

from pushkit.bounded_json import JsonValue
from pushkit.keys.jwk import Algorithm, SigningKey, generate_key, public_jwk

__all__ = ["Kms", "der"]


def der(data: bytes, key: SigningKey) -> bytes:
    """Sign as key services do: ECDSA signatures are DER."""
    private = key.private_key
    if isinstance(private, ec.EllipticCurvePrivateKey):
        hash_ = hashes.SHA384() if key.algorithm is Algorithm.ES384 else hashes.SHA256()
        return private.sign(data, ec.ECDSA(hash_))
    if isinstance(private, ed25519.Ed25519PrivateKey):
        return private.sign(data)
    assert isinstance(private, rsa.RSAPrivateKey)
    if key.algorithm is Algorithm.RS256:
        return private.sign(data, padding.PKCS1v15(), hashes.SHA256())
    salt = padding.PSS(padding.MGF1(hashes.SHA256()), padding.PSS.DIGEST_LENGTH)
    return private.sign(data, salt, hashes.SHA256())


class Kms:
    def __init__(self, algorithm: Algorithm = Algorithm.ES256) -> None:
        self.key = generate_key(algorithm)
        self.signs: Callable[[bytes, SigningKey], bytes] = der
        self.fails = self.hangs = False
        self.asked: list[bytes] = []
        self.cancelled = 0

    @property
    def public_jwk(self) -> Mapping[str, JsonValue]:
        return public_jwk(self.key)

    async def sign(self, data: bytes) -> bytes:
        self.asked.append(data)
        if self.fails:
            raise ConnectionError("canary")
        try:
            await (asyncio.Event().wait() if self.hangs else asyncio.sleep(0))
        except asyncio.CancelledError:
            self.cancelled += 1
            raise
        return self.signs(data, self.key)
