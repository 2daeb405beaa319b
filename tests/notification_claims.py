"""A notification JWT from all that it states, for tests that change one thing of it."""

from __future__ import annotations

from dataclasses import dataclass
from datetime import datetime

from pushkit.keys.jwk import RemoteKey, SigningKey
from pushkit.signing import notification_jwt
from pushkit.signing.notification_jwt import static_claims


@dataclass(frozen=True, slots=True, kw_only=True)
class NotificationClaims:
    """What the sender states about one attempt of one delivery."""

    issuer: str = "https://agent.example.com"  # `iss`: the sender, as configured
    # `aud`: the webhook URL, normalised; None only in the `a2a-samples` profile.
    audience: str | None = "https://client.example.com/hook"
    issued_at: datetime  # `iat`: this attempt; written in whole seconds, rounded down
    delivery_id: str = "dlv_1"  # `jti`: the same on every retry
    task_id: str = "task-1"  # `taskId`
    config_id: str = "config-1"  # `configId`
    seq: int = 1  # 1, 2, 3… per subscription and task
    body_sha256: str = "0" * 64  # `request_body_sha256`: lower-case hex of the raw body


async def sign_notification(claims: NotificationClaims, key: SigningKey | RemoteKey) -> str:
    """Return the compact JWS of the claims."""
    static = static_claims(
        issuer=claims.issuer,
        audience=claims.audience,
        task_id=claims.task_id,
        config_id=claims.config_id,
    )
    return await notification_jwt.sign_notification(
        static,
        key,
        issued_at=int(claims.issued_at.timestamp()),
        delivery_id=claims.delivery_id,
        seq=claims.seq,
        body_sha256=claims.body_sha256,
    )
