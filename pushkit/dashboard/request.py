"""The request of an attempt, rebuilt from stored rows, with its secrets masked.

It lacks what no row holds: the operator's own credentials for a destination, signature schemes
other than the JWT, and the signature itself, which is made for each attempt and never stored.
"""

from __future__ import annotations

from dataclasses import replace
from datetime import datetime

from pushkit.bounded_json import JsonObject, JsonValue
from pushkit.errors import InvalidUrlError, NoSigningKeyError
from pushkit.keys.jwk import Algorithm
from pushkit.keys.ring import KeyRing
from pushkit.net.authorization import credential_header
from pushkit.outbox.inspection import DeliverySummary
from pushkit.signing.notification_jwt import SIGNATURE_HEADER, body_sha256, static_claims
from pushkit.signing.standard_webhooks import ID_HEADER, TIMESTAMP_HEADER
from pushkit.signing.times import TOKEN_LIFETIME
from pushkit.signing.token import token_headers
from pushkit.subscriptions.model import Profile, Subscription
from pushkit.url import Url, masked_url
from pushkit.version import USER_AGENT

MASK = "***"


def rebuilt_request(
    delivery: DeliverySummary,
    subscription: Subscription | None,
    *,
    body: bytes | None,  # None if this process has no key to open it
    sent_at: datetime,
    ring: KeyRing | None,  # the signing keys; None if the dashboard was not given them
    issuer: str | None,  # `iss`; None if the dashboard was not given it
) -> JsonObject | None:
    """Return the request of one attempt; None if its subscription was removed."""
    if subscription is None:
        return None
    try:
        url = Url.parse(subscription.config.url)
    except InvalidUrlError:
        return None
    authentication = subscription.config.authentication
    credentials = None
    if authentication is not None and subscription.has_credentials:
        credentials = credential_header(replace(authentication, credentials=MASK))
    issued_at = int(sent_at.timestamp())
    fields = [
        ("Host", url.authority),
        ("Content-Type", delivery.content_type),
        ("User-Agent", USER_AGENT),
        ("Accept-Encoding", "identity"),
        *token_headers(MASK if subscription.has_token else None),
        *([credentials] if credentials else []),
    ]
    taken = credentials is not None and credentials[0] == "Authorization"
    jwt = f"<JWT {MASK}>"
    fields.append((SIGNATURE_HEADER, jwt) if taken else ("Authorization", f"Bearer {jwt}"))
    fields += [(ID_HEADER, delivery.id), (TIMESTAMP_HEADER, str(issued_at))]
    return {
        "line": f"POST {masked_url(url.target)} HTTP/1.1",
        "headers": [{"name": name, "value": value} for name, value in fields],
        "jwt_header": _jwt_header(subscription, ring, sent_at),
        "jwt_claims": {
            **_static(delivery, subscription, url, issuer),
            "iat": issued_at,
            "exp": issued_at + int(TOKEN_LIFETIME.total_seconds()),
            "jti": delivery.id,
            "seq": delivery.seq,
            "request_body_sha256": "<sealed>" if body is None else body_sha256(body),
        },
    }


def _static(
    delivery: DeliverySummary, subscription: Subscription, url: Url, issuer: str | None
) -> dict[str, JsonValue]:
    samples = subscription.profile is Profile.A2A_SAMPLES
    return dict(
        static_claims(
            issuer=issuer or "<the issuer>",
            audience=None if samples else masked_url(url.audience),
            task_id=delivery.task_id,
            config_id=delivery.config_id,
        )
    )


def _jwt_header(
    subscription: Subscription, ring: KeyRing | None, sent_at: datetime
) -> JsonObject | None:
    if ring is None:
        return None
    wanted = Algorithm.RS256 if subscription.profile is Profile.A2A_SAMPLES else None
    try:
        key = ring.active_key(sent_at, wanted)
    except NoSigningKeyError:
        return None
    return {"alg": key.algorithm.value, "kid": key.kid, "typ": "JWT"}
