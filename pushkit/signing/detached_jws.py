"""JSON Web Signatures whose payload travels elsewhere (RFC 7515 §7.2, Appendix F).

An agent card carries `protected` and `signature`; the payload is computed from the card.
"""

from __future__ import annotations

import json
import re
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import Final

import jwt

from pushkit.bounded_json import JsonObject, JsonValue, read_json_object
from pushkit.errors import InvalidSignatureError, MalformedJsonError
from pushkit.keys.jwk import Algorithm, SigningKey, VerificationKey
from pushkit.keys.remote import RemoteKey
from pushkit.signing.signatures import sign

__all__ = [
    "DetachedJws",
    "holding_key",
    "protected_header",
    "read_algorithm",
    "sign_detached",
    "sign_detached_with",
]

_MAX_HEADER_CHARS: Final = 8192
_MAX_SIGNATURE_CHARS: Final = 2048  # RSA of 8192 bits takes 1366

# Strict: a lenient decoder would give one signature many spellings.
_BASE64URL: Final = re.compile(r"[A-Za-z0-9_-]+")

_jws = jwt.PyJWS(algorithms=[algorithm.value for algorithm in Algorithm])


@dataclass(frozen=True, slots=True, kw_only=True)
class DetachedJws:
    """The two parts that travel, base64url without padding."""

    protected: str
    signature: str


def sign_detached(payload: bytes, header: Mapping[str, JsonValue], key: SigningKey) -> DetachedJws:
    """Sign a payload.

    Args:
        payload: The bytes; the verifier has to come by the very same.
        header: The protected header, besides `alg` and `kid`, which are the key's.
        key: The key.
    """
    protected = _protected(header, key)
    signer = _jws.get_algorithm_by_name(key.algorithm.value)
    signature = signer.sign(_signing_input(protected, payload), key.private_key)
    return DetachedJws(protected=protected, signature=_encode(signature))


async def sign_detached_with(
    payload: bytes, header: Mapping[str, JsonValue], key: SigningKey | RemoteKey
) -> DetachedJws:
    """Sign the same, by a key that is here or elsewhere.

    Raises:
        SigningError: The remote key did not sign, or not this.
    """
    protected = _protected(header, key)
    signature = await sign(_signing_input(protected, payload), key)
    return DetachedJws(protected=protected, signature=_encode(signature))


def _protected(header: Mapping[str, JsonValue], key: SigningKey | RemoteKey) -> str:
    whole = {"alg": key.algorithm.value, "kid": key.kid, **header}
    return _encode(json.dumps(whole, separators=(",", ":")).encode("ascii"))


def protected_header(protected: str) -> JsonObject:
    """Read a protected header; nothing in it is proven.

    Raises:
        InvalidSignatureError: Not base64url without padding, or no JSON object without duplicates.
    """
    if len(protected) > _MAX_HEADER_CHARS:
        raise InvalidSignatureError(f"`protected` is longer than {_MAX_HEADER_CHARS} characters")
    try:
        return read_json_object(_decode(protected, "protected"))
    except MalformedJsonError as exc:
        raise InvalidSignatureError(f"`protected`: {exc}") from exc


def read_algorithm(header: Mapping[str, JsonValue]) -> Algorithm:
    """Return the `alg` of a header, after the rules on what must be understood.

    Raises:
        InvalidSignatureError: `alg` is missing, `none`, symmetric or unknown; or there is a `crit`
            or `b64`, none of which is supported.
    """
    # RFC 7515 §4.1.11: an extension that must be understood and is not, refuses the signature.
    if "crit" in header:
        raise InvalidSignatureError("the header has `crit`: no extension is understood")
    # RFC 7797 §3: `b64` changes what is signed.
    if "b64" in header:
        raise InvalidSignatureError("the header has `b64`, which is not supported")
    alg = header.get("alg")
    algorithm = Algorithm.parse(alg) if isinstance(alg, str) else None
    if algorithm is None:
        raise InvalidSignatureError(f"`alg`: expected one of {', '.join(Algorithm)}")
    return algorithm


def holding_key(
    jws: DetachedJws, payload: bytes, keys: Iterable[VerificationKey]
) -> VerificationKey | None:
    """Return the first key under which a signature over a payload holds; None if none.

    Each key verifies with its own algorithm, whatever the header says.

    Raises:
        InvalidSignatureError: The signature is not base64url without padding.
    """
    if len(jws.signature) > _MAX_SIGNATURE_CHARS:
        raise InvalidSignatureError(f"`signature` is longer than {_MAX_SIGNATURE_CHARS} characters")
    signature = _decode(jws.signature, "signature")
    signed = _signing_input(jws.protected, payload)
    return next((key for key in keys if _holds(signature, signed, key)), None)


def _holds(signature: bytes, signed: bytes, key: VerificationKey) -> bool:
    try:
        verifier = _jws.get_algorithm_by_name(key.algorithm.value)
        return verifier.verify(signed, key.public_key, signature)
    except ValueError:  # a signature of another length
        return False


def _signing_input(protected: str, payload: bytes) -> bytes:
    return f"{protected}.{_encode(payload)}".encode("ascii")


def _encode(data: bytes) -> str:
    return jwt.utils.base64url_encode(data).decode("ascii")


def _decode(text: str, what: str) -> bytes:
    if not _BASE64URL.fullmatch(text):
        raise InvalidSignatureError(f"`{what}` is not base64url without padding")
    try:
        decoded: bytes = jwt.utils.base64url_decode(text.encode("ascii"))
    except ValueError as exc:
        raise InvalidSignatureError(f"`{what}` is not base64url") from exc
    # RFC 4648 §3.5: bits left over in the last character would spell one signature sixteen ways.
    if _encode(decoded) != text:
        raise InvalidSignatureError(f"`{what}` is not canonical base64url")
    return decoded
