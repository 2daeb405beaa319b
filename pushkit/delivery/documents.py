"""Deliveries, subscriptions and keys as JSON: for `--json` of the commands, and the dashboard."""

from __future__ import annotations

from collections.abc import Sequence
from datetime import datetime, timedelta
from typing import Annotated

from pushkit.delivery.error_codes import meaning, remedy
from pushkit.keys.ring import KeyRing, KeyState, RingKey
from pushkit.outbox.attempts import LoggedAttempt
from pushkit.outbox.inspection import DeliveryReport, DeliverySummary
from pushkit.subscriptions.model import Subscription, SubscriptionKey
from pushkit.url import masked_url
from pushkit.webui.api import Document, Members

_SUBSCRIPTION = (
    "id state version origin profile has_token has_credentials last_seq failing_since disabled_by"
    " disabled_at created_at"
)


class KeyDocument(Document):
    """A signing key."""

    kid: str
    alg: str
    state: KeyState
    signs: bool
    published_at: datetime | None
    activates_at: datetime | None
    retires_at: datetime | None
    revoked_at: datetime | None


class WhyDocument(Document):
    """The last error of a delivery."""

    code: str
    means: str
    remedy: str
    answer: str | None


class AttemptDocument(Document):
    """An attempt of a delivery."""

    began: Annotated[LoggedAttempt, Members("number started_at", inline=True)]
    duration_seconds: float
    resolve_seconds: float | None
    connect_seconds: float | None
    wait_seconds: float | None
    body_seconds: float | None
    address: str | None
    ended: Annotated[LoggedAttempt, Members("outcome status error", inline=True)]


class ReportDocument(Document):
    """A delivery with its attempts."""

    summary: Annotated[DeliverySummary, Members(inline=True)]
    why: WhyDocument | None
    log: Sequence[AttemptDocument]


class SubscriptionDocument(Document):
    """A subscription; it says whether it has a token and credentials, but not which."""

    subscription: Annotated[Subscription, Members(_SUBSCRIPTION, inline=True)]
    key: Annotated[SubscriptionKey, Members(inline=True)]
    url: Annotated[str, "Its query is masked."]
    schemes: Sequence[str]
    states: Sequence[str] | None
    kinds: Sequence[str] | None
    last_chunk_only: bool
    min_interval_seconds: Annotated[float | None, "Chunks are gathered, and posted once in it."]
    task_ended: bool


def report_document(report: DeliveryReport) -> ReportDocument:
    """Return a delivery with its attempts, without its body and the webhook's answers."""
    return ReportDocument(
        summary=report.delivery,
        why=why_document(report),
        log=[
            AttemptDocument(
                began=each,
                duration_seconds=each.duration.total_seconds(),
                resolve_seconds=_seconds(each.timing.resolve),
                connect_seconds=_seconds(each.timing.connect),
                wait_seconds=_seconds(each.timing.wait),
                body_seconds=_seconds(each.timing.body),
                address=each.timing.address,
                ended=each,
            )
            for each in report.attempts
        ],
    )


def shown_answer(attempt: LoggedAttempt) -> str | None:
    """Return the answer that was kept with an attempt as text; None if none was."""
    if attempt.is_sealed:
        return "(sealed with a secret key that this process does not have)"
    return None if attempt.answer is None else attempt.answer.decode("utf-8", "backslashreplace")


def why_document(report: DeliveryReport) -> WhyDocument | None:
    """Return a delivery's last error with its meaning, its remedy, and the webhook's last answer.

    None if it has no error. The answer is that of the last failed attempt, if it was kept.
    """
    code = report.delivery.last_error
    if code is None:
        return None
    failed = [each for each in report.attempts if each.error is not None]
    answer = shown_answer(failed[-1]) if failed else None
    return WhyDocument(code=code, means=meaning(code), remedy=remedy(code), answer=answer)


def _seconds(duration: timedelta | None) -> float | None:
    return None if duration is None else duration.total_seconds()


def subscription_document(subscription: Subscription) -> SubscriptionDocument:
    """Return a subscription."""
    wanted, authentication = subscription.wanted, subscription.config.authentication
    return SubscriptionDocument(
        subscription=subscription,
        key=subscription.key,
        # Clients put keys into the query.
        url=masked_url(subscription.config.url),
        schemes=list(authentication.schemes) if authentication else [],
        states=None if wanted.states is None else sorted(wanted.states),
        kinds=None if wanted.kinds is None else sorted(wanted.kinds),
        last_chunk_only=wanted.last_chunk_only,
        min_interval_seconds=_seconds(wanted.min_interval),
        task_ended=subscription.ended,
    )


def key_document(ring: KeyRing, entry: RingKey, now: datetime) -> KeyDocument:
    """Return the name and the times of a key in a ring, without the key itself."""
    state = ring.state(entry.kid, now)
    return KeyDocument(
        kid=entry.kid,
        alg=entry.algorithm,
        state=state,
        signs=state is KeyState.ACTIVE and entry.algorithm is ring.default_algorithm,
        published_at=entry.published_at,
        activates_at=entry.activates_at,
        retires_at=None if state is KeyState.REVOKED else ring.retires_at(entry.kid),
        revoked_at=entry.revoked_at,
    )
