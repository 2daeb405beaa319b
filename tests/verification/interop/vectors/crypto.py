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
from cryptography.hazmat.primitives.asymmetric import ec, ed25519, padding, rsa, utils

__all__ = [
    "FOLDER",
    "b64url",
    "compact",
    "key_of",
    "keys",
    "public_jwk",
    "sign",
    "standard_webhook",
]

FOLDER = Path(__file__).resolve().parents[4] / "docs" / "vectors"

_SHA256 = hashes.SHA256()
_CURVES = {"P-256": (ec.SECP256R1(), _SHA256), "P-384": (ec.SECP384R1(), hashes.SHA384())}
_PRIVATE = ("d", "p", "q", "dp", "dq", "qi")


def keys() -> dict[str, dict[str, Any]]:
    """Return the private JWKs by kid. They were made once, for these vectors alone."""
    found = json.loads((FOLDER / "private-jwks.json").read_bytes())
    return {jwk["kid"]: jwk for jwk in found["keys"]}


def public_jwk(jwk: Mapping[str, Any]) -> dict[str, Any]:
    return {name: value for name, value in jwk.items() if name not in _PRIVATE}


def b64url(data: bytes) -> str:
    return base64.urlsafe_b64encode(data).rstrip(b"=").decode()


def from_b64url(value: str) -> bytes:
    return base64.urlsafe_b64decode(value + "=" * (-len(value) % 4))


def _int(value: str) -> int:
    return int.from_bytes(from_b64url(value), "big")


def key_of(jwk: Mapping[str, Any]) -> Any:
    """Return the private key of a JWK."""
    if jwk["kty"] == "OKP":
        return ed25519.Ed25519PrivateKey.from_private_bytes(from_b64url(jwk["d"]))
    if jwk["kty"] == "EC":
        return ec.derive_private_key(_int(jwk["d"]), _CURVES[jwk["crv"]][0])
    public = rsa.RSAPublicNumbers(_int(jwk["e"]), _int(jwk["n"]))
    p, q, d, dp, dq, qi = (_int(jwk[name]) for name in ("p", "q", "d", "dp", "dq", "qi"))
    return rsa.RSAPrivateNumbers(p, q, d, dp, dq, qi, public).private_key()


def sign(data: bytes, jwk: Mapping[str, Any]) -> bytes:
    """Sign by the key's own algorithm, as JOSE and RFC 9421 have it."""
    key = key_of(jwk)
    if isinstance(key, ed25519.Ed25519PrivateKey):
        return key.sign(data)
    if isinstance(key, ec.EllipticCurvePrivateKey):
        algorithm = ec.ECDSA(_CURVES[jwk["crv"]][1], deterministic_signing=True)
        size = key.curve.key_size // 8
        numbers = utils.decode_dss_signature(key.sign(data, algorithm))
        return b"".join(number.to_bytes(size, "big") for number in numbers)
    if jwk["alg"] == "PS256":
        pss = padding.PSS(mgf=padding.MGF1(_SHA256), salt_length=32)
        return bytes(key.sign(data, pss, _SHA256))
    return bytes(key.sign(data, padding.PKCS1v15(), _SHA256))


def der(signature: bytes) -> bytes:
    """Return an ECDSA signature as X.509 has it, and JOSE must not."""
    half = len(signature) // 2
    return utils.encode_dss_signature(
        int.from_bytes(signature[:half], "big"), int.from_bytes(signature[half:], "big")
    )


def public_pem(jwk: Mapping[str, Any]) -> bytes:
    return bytes(
        key_of(jwk)
        .public_key()
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
