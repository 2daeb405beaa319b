"""What each signature scheme proves of a captured request, as `pushkit verify` reports it."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime, timedelta

from pushkit.errors import ConfigError, InvalidSignatureError
from pushkit.keys.jwk import VerificationKey
from pushkit.signing.audience import audience_with_query
from pushkit.signing.content_digest import check_content_digest
from pushkit.signing.http_message_signatures import (
    TAG,
    check_signature_times,
    read_unverified_signatures,
    verify_http_signature,
)
from pushkit.signing.notification_jwt import check_timestamp, verify_notification
from pushkit.signing.scheme import Scheme
from pushkit.signing.standard_webhooks import (
    WebhookVerifier,
    check_webhook_signature,
    read_unverified_webhook,
)
from pushkit.webhook import WebhookRequest

__all__ = ["Expected", "Proof", "prove"]


@dataclass(frozen=True, slots=True, kw_only=True)
class Expected:
    """What a request is held against.

    Attributes:
        keys: The sender's keys by `kid`.
        verifiers: The secrets of Standard Webhooks.
        issuer: The `iss`; None for any.
        audience: The webhook's URL, normalised; None for any.
        now: When it was received.
        tolerance: How far it may have been signed from then.
    """

    keys: Mapping[str, VerificationKey]
    verifiers: Sequence[WebhookVerifier]
    issuer: str | None
    audience: str | None
    now: datetime
    tolerance: timedelta


@dataclass(frozen=True, slots=True, kw_only=True)
class Proof:
    """What holds. What the scheme does not say is None."""

    kid: str | None = None
    issuer: str | None = None
    audience: str | None = None
    issued_at: datetime
    delivery_id: str | None
    task_id: str | None = None
    seq: int | None = None


def prove(scheme: Scheme, request: WebhookRequest, expected: Expected) -> Proof:
    """Verify a request by one scheme.

    Raises:
        InboundError: Something does not hold.
        ConfigError: What the scheme is held against was not given.
    """
    if scheme is Scheme.JWT:
        return _by_jwt(request, expected)
    if scheme is Scheme.STANDARD_WEBHOOKS:
        return _by_secret(request, expected)
    return _by_http_signature(request, expected)


def _by_jwt(request: WebhookRequest, expected: Expected) -> Proof:
    verified = verify_notification(
        request,
        expected.keys,
        issuer=expected.issuer,
        audience=expected.audience,
        now=expected.now,
        tolerance=expected.tolerance,
    )
    return Proof(
        kid=verified.kid,
        issuer=verified.issuer,
        audience=", ".join(verified.audience) or None,
        issued_at=verified.issued_at,
        delivery_id=verified.delivery_id,
        task_id=verified.task_id,
        seq=verified.seq,
    )


def _by_http_signature(request: WebhookRequest, expected: Expected) -> Proof:
    if expected.audience is None:
        raise ConfigError("--audience: expected the URL of the webhook, which is signed")
    own = [one for one in read_unverified_signatures(request.headers) if one.keyid in expected.keys]
    if not own:
        raise InvalidSignatureError(f"no signature with tag {TAG} by a known key")
    url = audience_with_query(expected.audience, request.target)
    verified = verify_http_signature(
        own[0],
        expected.keys[own[0].keyid],
        method=request.method,
        target_uris=[url],
        headers=request.headers,
    )
    check_content_digest(verified.digests, request.body)
    check_signature_times(verified, expected.now, tolerance=expected.tolerance)
    return Proof(
        kid=verified.keyid,
        audience=url,
        issued_at=verified.created,
        delivery_id=verified.delivery_id,
    )


def _by_secret(request: WebhookRequest, expected: Expected) -> Proof:
    if not expected.verifiers:
        raise ConfigError(
            f"--webhook-secrets-file: expected the secrets of {Scheme.STANDARD_WEBHOOKS}"
        )
    webhook = read_unverified_webhook(request.headers)
    check_webhook_signature(webhook, request.body, expected.verifiers)
    check_timestamp(webhook.timestamp, expected.now, expected.tolerance)
    return Proof(issued_at=webhook.timestamp, delivery_id=webhook.delivery_id)
