"""Signatures of the vectors, made without any code of pushkit, which they are to judge.

ECDSA is deterministic (RFC 6979): a second run writes the same file. PS256 alone has a salt.
"""

from __future__ import annotations

import base64
import hashlib
import hmac
import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from cryptography.hazmat.primitives import hashes, serialization
from cryptography.hazmat.primitives.asymmetric import ec
from jwt import PyJWK
from jwt.utils import der_to_raw_signature

__all__ = [
    "FOLDER",
    "b64url",
    "compact",
    "keys",
    "public_jwk",
    "public_pem",
    "sign",
    "standard_webhook",
]

FOLDER = Path(__file__).resolve().parents[4] / "docs" / "vectors"

_HASHES = {"ES256": hashes.SHA256(), "ES384": hashes.SHA384()}
_PRIVATE = ("d", "p", "q", "dp", "dq", "qi")


def keys() -> dict[str, dict[str, Any]]:
    """Return the private JWKs by kid. They were made once, for these vectors alone."""
    found = json.loads((FOLDER / "private-jwks.json").read_bytes())
    return {jwk["kid"]: jwk for jwk in found["keys"]}


def public_jwk(jwk: Mapping[str, Any]) -> dict[str, Any]:
    return {name: value for name, value in jwk.items() if name not in _PRIVATE}


def b64url(data: bytes) -> str:
    return base64.urlsafe_b64encode(data).rstrip(b"=").decode()


def sign(data: bytes, jwk: Mapping[str, Any]) -> bytes:
    """Sign by the key's own algorithm, as JOSE and RFC 9421 have it."""
    key = PyJWK(dict(jwk))
    if isinstance(key.key, ec.EllipticCurvePrivateKey):
        algorithm = ec.ECDSA(_HASHES[jwk["alg"]], deterministic_signing=True)
        return der_to_raw_signature(key.key.sign(data, algorithm), key.key.curve)
    return bytes(key.Algorithm.sign(data, key.key))


def public_pem(jwk: Mapping[str, Any]) -> bytes:
    return bytes(
        PyJWK(dict(jwk))
        .key.public_key()
        .public_bytes(serialization.Encoding.PEM, serialization.PublicFormat.SubjectPublicKeyInfo)
    )


def compact(header: Mapping[str, Any], payload: bytes, jwk: Mapping[str, Any] | bytes) -> str:
    """Return a compact JWS; bytes for a key are an HMAC's, and none at all leave it unsigned."""
    signed = f"{b64url(json.dumps(header, separators=(',', ':')).encode())}.{b64url(payload)}"
    if not jwk:
        return f"{signed}."
    if isinstance(jwk, bytes):
        return f"{signed}.{b64url(hmac.digest(jwk, signed.encode(), hashlib.sha256))}"
    return f"{signed}.{b64url(sign(signed.encode(), jwk))}"


def standard_webhook(secret: str, signed: bytes, jwk: Mapping[str, Any] | None = None) -> str:
    """Return an entry of `webhook-signature`: v1 by a secret, v1a by a key."""
    if jwk is not None:
        return f"v1a,{base64.b64encode(sign(signed, jwk)).decode()}"
    key = base64.b64decode(secret.removeprefix("whsec_"))
    return f"v1,{base64.b64encode(hmac.digest(key, signed, hashlib.sha256)).decode()}"
