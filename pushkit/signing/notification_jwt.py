"""The notification JWT: the default signature of a push notification (wire profile §3).

A JWS in compact form (RFC 7515) whose claims (RFC 7519) bind one attempt to one delivery, one
webhook and one body. The algorithm is the key's, never the header's choice.

Verification is in pieces, because the receiver must know the sender before it can look for a key:

1. `read_unverified` parses the token, and says which `kid` and issuer it claims.
2. `verify_signature` proves the claims with the key that the caller trusts for them
   (both in `jwt_reading.py`).
3. `check_body`, `check_times`, `check_issuer` and `check_audience` hold the proven claims against
   the request (`jwt_checks.py`).

`verify_notification` does all of it, for callers with one sender and one key set.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass
from datetime import datetime, timedelta

import jwt

from pushkit.errors import InvalidSignatureError
from pushkit.keys.jwk import SigningKey, VerificationKey
from pushkit.keys.remote import RemoteKey
from pushkit.signing.jwt_checks import (
    EXPIRY_LEEWAY,
    TOLERANCE,
    body_sha256,
    check_audience,
    check_body,
    check_expiry,
    check_issuer,
    check_times,
    check_timestamp,
    check_webhook_id,
)
from pushkit.signing.jwt_reading import (
    SIGNATURE_HEADER,
    JwtClaims,
    UnverifiedJwt,
    VerifiedJwt,
    find_jwt,
    read_unverified,
    read_unverified_claims,
    verify_signature,
)
from pushkit.signing.signatures import sign
from pushkit.webhook import WebhookRequest

__all__ = [
    "EXPIRY_LEEWAY",
    "SIGNATURE_HEADER",
    "TOKEN_LIFETIME",
    "JwtClaims",
    "NotificationClaims",
    "UnverifiedJwt",
    "VerifiedJwt",
    "body_sha256",
    "check_audience",
    "check_body",
    "check_expiry",
    "check_issuer",
    "check_times",
    "check_timestamp",
    "check_webhook_id",
    "find_jwt",
    "read_unverified",
    "read_unverified_claims",
    "sign_notification",
    "sign_notification_with",
    "verify_notification",
    "verify_signature",
]

TOKEN_LIFETIME = timedelta(seconds=300)


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
