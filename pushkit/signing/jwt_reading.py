"""Reading a notification JWT: parsed without trust, then proven with a key.

A token that reads has one spelling only: strict base64url, no header members that change what is
signed, claims of the right type.
"""

from __future__ import annotations

import re
from collections.abc import Collection
from dataclasses import dataclass
from datetime import UTC, datetime
from typing import TypeVar

import jwt

from pushkit.bounded_json import JsonObject, JsonValue, read_json_object
from pushkit.errors import InvalidSignatureError, MalformedJsonError
from pushkit.keys.jwk import Algorithm, VerificationKey
from pushkit.webhook import Headers

__all__ = [
    "SIGNATURE_HEADER",
    "JwtClaims",
    "UnverifiedJwt",
    "VerifiedJwt",
    "find_jwt",
    "read_unverified",
    "read_unverified_claims",
    "verify_signature",
]

SIGNATURE_HEADER = "X-A2A-Signature"

# A header field has 8190 bytes at most; the longest URL with the longest ids takes most of them.
_MAX_TOKEN_CHARS = 8000
_MAX_SEQ = 2**63 - 1  # what a database column holds
_MAX_EPOCH_SECONDS = 253402300799  # 9999-12-31: beyond it, no datetime

# Strict: a lenient decoder would give one token many spellings.
_BASE64URL = re.compile(r"[A-Za-z0-9_-]+")

_jws = jwt.PyJWS(algorithms=[algorithm.value for algorithm in Algorithm])
_jws.register_algorithm("Ed25519", jwt.algorithms.OKPAlgorithm())  # RFC 9864's name for EdDSA


@dataclass(frozen=True, slots=True, kw_only=True)
class UnverifiedJwt:
    """A token that is well-formed, and what it claims to be. Nothing here is proven."""

    token: str
    kid: str | None
    algorithm: str
    issuer: str | None


@dataclass(frozen=True, slots=True, kw_only=True)
class JwtClaims:
    """Claims, proven or not. What a sender left out is None.

    Legacy senders (the first A2A samples, trpc-a2a-go) state only `iat` and the body's hash.
    """

    kid: str
    issuer: str | None
    audience: tuple[str, ...]
    issued_at: datetime
    expires_at: datetime | None
    delivery_id: str | None
    task_id: str | None
    config_id: str | None
    seq: int | None
    body_sha256: str


@dataclass(frozen=True, slots=True, kw_only=True)
class VerifiedJwt(JwtClaims):
    """Claims under a signature that holds."""


_Claims = TypeVar("_Claims", bound=JwtClaims)


def find_jwt(headers: Headers) -> str | None:
    """Return the notification JWT of a request: `X-A2A-Signature`, else a Bearer token.

    `Authorization` may carry the client's own static credentials instead; a Bearer value that has
    not the three segments of a compact JWS is those.
    """
    token = headers.one(SIGNATURE_HEADER)
    if token is not None:
        return token
    scheme, _, value = (headers.one("Authorization") or "").partition(" ")
    value = value.strip(" ")
    return value if scheme.lower() == "bearer" and value.count(".") == 2 else None


def read_unverified(token: str) -> UnverifiedJwt:
    """Parse a token without trusting it.

    Raises:
        InvalidSignatureError: Not a compact JWS, or with header members that are not understood.
    """
    if len(token) > _MAX_TOKEN_CHARS:
        raise InvalidSignatureError(f"the JWT is longer than {_MAX_TOKEN_CHARS} characters")
    segments = token.split(".")
    if len(segments) != 3 or not all(map(_BASE64URL.fullmatch, segments)):
        raise InvalidSignatureError("not a compact JWS: expected three segments of base64url")
    _decode(segments[2], "signature")
    header = _decode_object(segments[0], "header")
    # RFC 7515 §4.1.11: an extension that must be understood and is not, refuses the token. `b64`
    # (RFC 7797) would change what is signed.
    if "crit" in header or "b64" in header:
        raise InvalidSignatureError("the JWS header has `crit` or `b64`, which is not supported")
    if str(header.get("typ", "JWT")).upper() != "JWT":
        raise InvalidSignatureError("the JWS header's `typ` is not JWT")
    algorithm, kid = header.get("alg"), header.get("kid")
    if not isinstance(algorithm, str) or not isinstance(kid, str | None):
        raise InvalidSignatureError("the JWS header's `alg` and `kid` must be strings")
    issuer = _decode_object(segments[1], "payload").get("iss")
    return UnverifiedJwt(
        token=token,
        kid=kid,
        algorithm=algorithm,
        issuer=issuer if isinstance(issuer, str) else None,
    )


def verify_signature(
    unverified: UnverifiedJwt,
    key: VerificationKey,
    *,
    algorithms: Collection[Algorithm] = frozenset(Algorithm),
) -> VerifiedJwt:
    """Prove a token with the key that is trusted for its `kid`.

    Args:
        unverified: The parsed token.
        key: The key; its algorithm is the only one that is tried.
        algorithms: Which algorithms the sender may use at all.

    Raises:
        InvalidSignatureError: Another algorithm than the key's, a bad signature, or claims that
            are missing or of the wrong type.
    """
    if key.algorithm not in algorithms:
        raise InvalidSignatureError(f"this sender may not sign with {key.algorithm}")
    if not _names_algorithm(unverified.algorithm, key.algorithm):
        raise InvalidSignatureError("the JWS header names another algorithm than its key has")
    try:
        payload = _jws.decode(unverified.token, key.public_key, algorithms=[unverified.algorithm])
    except (jwt.PyJWTError, ValueError) as exc:
        raise InvalidSignatureError("the signature does not hold") from exc
    return _read_claims(VerifiedJwt, _read_object(payload, "payload"), key.kid)


def read_unverified_claims(unverified: UnverifiedJwt) -> JwtClaims:
    """Return what a token claims: to say why it is refused, and never to accept it.

    Raises:
        InvalidSignatureError: Claims that are missing or of the wrong type.
    """
    payload = _decode_object(unverified.token.split(".")[1], "payload")
    return _read_claims(JwtClaims, payload, unverified.kid or "")


def _names_algorithm(name: str, algorithm: Algorithm) -> bool:
    return name == algorithm.value or (name == "Ed25519" and algorithm is Algorithm.EDDSA)


def _decode_object(segment: str, what: str) -> JsonObject:
    return _read_object(_decode(segment, what), what)


def _decode(segment: str, what: str) -> bytes:
    encoded = segment.encode("ascii")
    try:
        decoded = jwt.utils.base64url_decode(encoded)
    except ValueError as exc:
        raise InvalidSignatureError(f"the JWS {what} is not base64url") from exc
    # RFC 4648 §3.5: bits left over in the last character would spell one signature sixteen ways.
    if jwt.utils.base64url_encode(decoded) != encoded:
        raise InvalidSignatureError(f"the JWS {what} is not canonical base64url")
    return decoded


def _read_object(data: bytes, what: str) -> JsonObject:
    try:
        return read_json_object(data)
    except MalformedJsonError as exc:
        raise InvalidSignatureError(f"the JWS {what}: {exc}") from exc


def _read_claims(kind: type[_Claims], claims: JsonObject, kid: str) -> _Claims:
    issued_at = _moment(claims, "iat")
    digest = _text(claims, "request_body_sha256")
    if issued_at is None or digest is None:
        raise InvalidSignatureError("the JWT must state `iat` and `request_body_sha256`")
    seq = claims.get("seq")
    if seq is not None and (
        not isinstance(seq, int) or isinstance(seq, bool) or not 1 <= seq <= _MAX_SEQ
    ):
        raise InvalidSignatureError("claim `seq`: expected a positive integer of 64 bits")
    return kind(
        kid=kid,
        issuer=_text(claims, "iss"),
        audience=_audience(claims.get("aud")),
        issued_at=issued_at,
        expires_at=_moment(claims, "exp"),
        delivery_id=_text(claims, "jti"),
        task_id=_text(claims, "taskId"),
        config_id=_text(claims, "configId"),
        seq=seq,
        body_sha256=digest,
    )


def _text(claims: JsonObject, name: str) -> str | None:
    value = claims.get(name)
    if value is None or (isinstance(value, str) and value):
        return value
    raise InvalidSignatureError(f"claim `{name}`: expected a non-empty string")


def _moment(claims: JsonObject, name: str) -> datetime | None:
    value = claims.get(name)
    if value is None:
        return None
    if isinstance(value, bool) or not isinstance(value, int | float):
        raise InvalidSignatureError(f"claim `{name}`: expected seconds since the epoch")
    if not 0 <= value <= _MAX_EPOCH_SECONDS:
        raise InvalidSignatureError(f"claim `{name}`: outside the calendar")
    return datetime.fromtimestamp(value, UTC)


def _audience(value: JsonValue) -> tuple[str, ...]:
    values = value if isinstance(value, list) else [] if value is None else [value]
    if not all(isinstance(entry, str) for entry in values):
        raise InvalidSignatureError("claim `aud`: expected a string or a list of strings")
    return tuple(str(entry) for entry in values)
