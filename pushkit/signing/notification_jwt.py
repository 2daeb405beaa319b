"""The notification JWT: the default signature of a push notification (wire profile §3).

A JWS in compact form (RFC 7515) whose claims (RFC 7519) bind one attempt to one delivery, one
webhook and one body. The algorithm is the key's, never the header's choice.

Verification is in pieces, because the receiver must know the sender before it can look for a key:

1. `read_unverified` parses the token, and says which `kid` and issuer it claims.
2. `verify_signature` proves the claims with the key that the caller trusts for them.
3. `check_body`, `check_times`, `check_issuer` and `check_audience` hold the proven claims against
   the request.

`verify_notification` does all of it, for callers with one sender and one key set.
"""

from __future__ import annotations

import hashlib
import hmac
import json
import re
from collections.abc import Collection, Mapping
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta

import jwt

from pushkit.bounded_json import JsonObject, JsonValue, read_json_object
from pushkit.errors import (
    AudienceError,
    DigestMismatchError,
    InvalidSignatureError,
    IssuerError,
    MalformedJsonError,
    MalformedRequestError,
    TimestampError,
)
from pushkit.keys.jwk import Algorithm, SigningKey, VerificationKey
from pushkit.keys.remote import RemoteKey
from pushkit.signing.audience import audience_with_query
from pushkit.signing.signatures import sign
from pushkit.webhook import Headers, WebhookRequest

__all__ = [
    "SIGNATURE_HEADER",
    "TOKEN_LIFETIME",
    "NotificationClaims",
    "UnverifiedJwt",
    "VerifiedJwt",
    "body_sha256",
    "check_audience",
    "check_body",
    "check_issuer",
    "check_times",
    "check_timestamp",
    "check_webhook_id",
    "find_jwt",
    "read_unverified",
    "sign_notification",
    "sign_notification_with",
    "verify_notification",
    "verify_signature",
]

SIGNATURE_HEADER = "X-A2A-Signature"
TOKEN_LIFETIME = timedelta(seconds=300)
TOLERANCE = timedelta(seconds=300)
EXPIRY_LEEWAY = timedelta(seconds=60)

# A header field has 8190 bytes at most; the longest URL with the longest ids takes most of them.
_MAX_TOKEN_CHARS = 8000
_MAX_SEQ = 2**63 - 1  # what a database column holds
_MAX_EPOCH_SECONDS = 253402300799  # 9999-12-31: beyond it, no datetime

# Strict: a lenient decoder would give one token many spellings.
_BASE64URL = re.compile(r"[A-Za-z0-9_-]+")

_jws = jwt.PyJWS(algorithms=[algorithm.value for algorithm in Algorithm])
_jws.register_algorithm("Ed25519", jwt.algorithms.OKPAlgorithm())  # RFC 9864's name for EdDSA


@dataclass(frozen=True, slots=True, kw_only=True)
class NotificationClaims:
    """What the sender states about one attempt of one delivery.

    Attributes:
        issuer: `iss`: the sender, as configured.
        audience: `aud`: the webhook URL, normalised; None only in the `a2a-samples` profile.
        issued_at: `iat`: this attempt; written in whole seconds, rounded down.
        delivery_id: `jti`: the same on every retry.
        task_id: `taskId`.
        config_id: `configId`.
        seq: 1, 2, 3… per subscription and task.
        body_sha256: `request_body_sha256`: lower-case hex of the raw body.
        lifetime: How long after `issued_at` the token expires; at most 300 s.
    """

    issuer: str
    audience: str | None
    issued_at: datetime
    delivery_id: str
    task_id: str
    config_id: str
    seq: int
    body_sha256: str
    lifetime: timedelta = TOKEN_LIFETIME


@dataclass(frozen=True, slots=True, kw_only=True)
class UnverifiedJwt:
    """A token that is well-formed, and what it claims to be. Nothing here is proven."""

    token: str
    kid: str | None
    algorithm: str
    issuer: str | None


@dataclass(frozen=True, slots=True, kw_only=True)
class VerifiedJwt:
    """Claims under a signature that holds. What a sender left out is None.

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


# --- signing ------------------------------------------------------------------------------------


def body_sha256(body: bytes) -> str:
    """Return the lower-case hex SHA-256 of a raw body."""
    return hashlib.sha256(body).hexdigest()


def sign_notification(claims: NotificationClaims, key: SigningKey) -> str:
    """Return the compact JWS of the claims."""
    return jwt.encode(
        _payload(claims), key.private_key, algorithm=key.algorithm.value, headers={"kid": key.kid}
    )


async def sign_notification_with(claims: NotificationClaims, key: SigningKey | RemoteKey) -> str:
    """Return the compact JWS of the claims, by a key that is here or elsewhere.

    Raises:
        SigningError: The remote key did not sign, or not this.
    """
    if isinstance(key, SigningKey):
        return sign_notification(claims, key)
    header = {"alg": key.algorithm.value, "kid": key.kid, "typ": "JWT"}
    segments = [json.dumps(part, separators=(",", ":")) for part in (header, _payload(claims))]
    signing_input = b".".join(jwt.utils.base64url_encode(part.encode()) for part in segments)
    signature = jwt.utils.base64url_encode(await sign(signing_input, key))
    return (signing_input + b"." + signature).decode("ascii")


def _payload(claims: NotificationClaims) -> dict[str, str | int]:
    issued_at = int(claims.issued_at.timestamp())
    payload: dict[str, str | int] = {
        "iss": claims.issuer,
        "iat": issued_at,
        "exp": issued_at + int(min(claims.lifetime, TOKEN_LIFETIME).total_seconds()),
        "jti": claims.delivery_id,
        "taskId": claims.task_id,
        "configId": claims.config_id,
        "seq": claims.seq,
        "request_body_sha256": claims.body_sha256,
    }
    if claims.audience is not None:
        payload["aud"] = claims.audience
    return payload


# --- verifying ----------------------------------------------------------------------------------


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
    return _read_claims(_read_object(payload, "payload"), key.kid)


def check_body(verified: VerifiedJwt, body: bytes) -> None:
    """Hold the body against the signed hash.

    Raises:
        DigestMismatchError: The signature is over another body.
    """
    if not hmac.compare_digest(verified.body_sha256.encode(), body_sha256(body).encode()):
        raise DigestMismatchError("request_body_sha256 is not the SHA-256 of the body received")


def check_times(
    verified: VerifiedJwt,
    now: datetime,
    *,
    tolerance: timedelta = TOLERANCE,
    leeway: timedelta = EXPIRY_LEEWAY,
) -> None:
    """Hold `iat` and `exp` against the clock.

    Raises:
        TimestampError: Issued more than `tolerance` ago or ahead, or expired by over `leeway`.
    """
    check_timestamp(verified.issued_at, now, tolerance)
    # The leeway goes to the clock's side: at the end of the calendar there is none to add.
    if verified.expires_at is not None and now - leeway > verified.expires_at:
        raise TimestampError("the JWT has expired")


def check_timestamp(moment: datetime, now: datetime, tolerance: timedelta) -> None:
    """Refuse a moment that is further than `tolerance` from now, either way."""
    age = now - moment
    if abs(age) > tolerance:
        seconds = int(tolerance.total_seconds())
        found = f"{int(abs(age).total_seconds())} s {'ago' if age > timedelta(0) else 'ahead'}"
        raise TimestampError(f"issued {found}, expected within {seconds} s: check the clocks")


def check_issuer(verified: VerifiedJwt, issuer: str) -> None:
    """Refuse another issuer than the one that is trusted."""
    if verified.issuer != issuer:
        raise IssuerError("`iss` is not the issuer that is trusted for this sender")


def check_audience(verified: VerifiedJwt, audiences: Collection[str], target: str) -> None:
    """Refuse a notification that was signed for another webhook.

    Args:
        verified: The proven claims.
        audiences: The receiver's own URLs, normalised, from its configuration.
        target: The request target: its query may stand in `aud`.
    """
    accepted = {*audiences, *(audience_with_query(own, target) for own in audiences)}
    if not accepted.intersection(verified.audience):
        raise AudienceError("`aud` is not a URL of this receiver")


def verify_notification(
    request: WebhookRequest,
    keys: Mapping[str, VerificationKey],
    *,
    issuer: str | None,
    audience: str | None,
    now: datetime,
    tolerance: timedelta = TOLERANCE,
) -> VerifiedJwt:
    """Verify one request against one sender's keys: signature, body, times, issuer, audience.

    Args:
        request: The request, with the raw body.
        keys: The sender's keys by `kid`.
        issuer: The `iss` to expect; None accepts any (legacy senders have none).
        audience: The webhook's own URL, normalised; None accepts any.
        now: The receiver's clock.
        tolerance: How far `iat` may be from now.

    Raises:
        InvalidSignatureError: No token, an unknown key, or a signature that does not hold.
        ClaimError: Outside the window, or for another issuer or audience.
    """
    token = find_jwt(request.headers)
    if token is None:
        raise InvalidSignatureError(f"no JWT in {SIGNATURE_HEADER} or Authorization")
    unverified = read_unverified(token)
    key = keys.get(unverified.kid or "")
    if key is None:
        raise InvalidSignatureError("the JWS header's `kid` names no known key")
    verified = verify_signature(unverified, key)
    check_body(verified, request.body)
    check_times(verified, now, tolerance=tolerance)
    if issuer is not None:
        check_issuer(verified, issuer)
    if audience is not None:
        check_audience(verified, [audience], request.target)
    check_webhook_id(verified, request.headers)
    return verified


def check_webhook_id(verified: VerifiedJwt, headers: Headers) -> None:
    """Refuse a request whose `webhook-id` is not its signed `jti` (wire profile §2)."""
    webhook_id = headers.one("webhook-id")
    if webhook_id is not None and verified.delivery_id not in (None, webhook_id):
        raise MalformedRequestError("`webhook-id` and the signed `jti` differ")


# --- parsing ------------------------------------------------------------------------------------


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


def _read_claims(claims: JsonObject, kid: str) -> VerifiedJwt:
    issued_at = _moment(claims, "iat")
    digest = _text(claims, "request_body_sha256")
    if issued_at is None or digest is None:
        raise InvalidSignatureError("the JWT must state `iat` and `request_body_sha256`")
    seq = claims.get("seq")
    if seq is not None and (
        not isinstance(seq, int) or isinstance(seq, bool) or not 1 <= seq <= _MAX_SEQ
    ):
        raise InvalidSignatureError("claim `seq`: expected a positive integer of 64 bits")
    return VerifiedJwt(
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
