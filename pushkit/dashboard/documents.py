"""What the sender's dashboard shows, and its API returns: documents, and findings of health.

The findings follow from numbers and keys by a pure rule, each with a remedy. The documents of keys,
attempts and subscriptions, which commands show, too, are in `pushkit.delivery.documents`.
"""

from __future__ import annotations

from collections import defaultdict, deque
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from datetime import datetime, timedelta
from enum import StrEnum
from typing import Annotated, Final, NamedTuple

from pushkit.clock import TOKEN_LIFETIME, utc_now
from pushkit.delivery.documents import KeyDocument, ReportDocument, SubscriptionDocument
from pushkit.delivery.error_codes import meaning, remedy
from pushkit.errors import InvalidUrlError, NoSigningKeyError
from pushkit.events import Event, PushConfigRefused
from pushkit.keys.jwk import Algorithm
from pushkit.keys.ring import KeyRing
from pushkit.net.authorization import credential_header
from pushkit.outbox.inspection import DeliveryReport, DeliverySummary, OutboxQueue
from pushkit.outbox.states import DeliveryState
from pushkit.outbox.stats import FailingDestination, OutboxStats
from pushkit.signing.notification_jwt import SIGNATURE_HEADER, body_sha256, static_claims
from pushkit.signing.standard_webhooks import ID_HEADER, TIMESTAMP_HEADER
from pushkit.storage.paging import AtMost
from pushkit.subscriptions.model import Profile, Subscription
from pushkit.url import Url, masked_url
from pushkit.version import USER_AGENT
from pushkit.webhook import A2A_VERSION, token_headers
from pushkit.webui.api import Document, Members
from pushkit.webui.parts import (
    Headline,
    HealthFinding,
    NewestFirst,
    Percentiles,
    Severity,
    Verdict,
    first_that_holds,
    is_overdue,
)

_REFUSED = "at code reason tenant owner task_id host"
_KEPT: Final = 20  # refused configs, for each reason
_MOST_CHARS: Final = 256
_OF_CLIENT: Final = ("reason", "tenant", "owner", "task_id", "host")  # and of any length
_STATS = "now pending in_flight dead oldest_pending_at"
_MASK: Final = "***"
_OLD = timedelta(hours=1)


class Keys(Document):
    """The signing keys, if the dashboard was given them."""

    is_known: bool
    keys: Sequence[KeyDocument]


class Ended(NamedTuple):
    """How many deliveries ended in a minute, or so."""

    at: datetime
    delivered: int
    other: int


class ErrorCount(Document):
    """How many deliveries have an error."""

    code: str
    means: str
    remedy: str
    deliveries: int


@dataclass(slots=True)
class ConfigRefusals:
    """A listener that counts refused push configs, and keeps the newest: no database has them.

    For each reason a bounded number is kept, so that neither a flood nor one frequent reason pushes
    out the others.
    """

    since: datetime = field(default_factory=utc_now)
    counts: defaultdict[str, int] = field(default_factory=lambda: defaultdict(int))
    _kept: defaultdict[str, deque[PushConfigRefused]] = field(
        default_factory=lambda: defaultdict(lambda: deque(maxlen=_KEPT))
    )

    def record(self, event: Event) -> None:
        """Keep a refusal; ignore any other event."""
        if isinstance(event, PushConfigRefused):
            self.counts[event.code] += 1
            of_client = {name: getattr(event, name)[:_MOST_CHARS] for name in _OF_CLIENT}
            self._kept[event.code].append(replace(event, **of_client))

    @property
    def newest(self) -> Annotated[Sequence[PushConfigRefused], Members(_REFUSED)]:
        """The newest refusals."""
        kept = [each for of_code in self._kept.values() for each in of_code]
        return sorted(kept, key=lambda each: each.at, reverse=True)[:_KEPT]


class OverviewDocument(Document):
    """Whether the sender is healthy, and its main numbers."""

    headline: Annotated[Headline, Members(inline=True)]
    findings: Sequence[HealthFinding]
    stats: Annotated[OutboxStats, Members(_STATS, inline=True)]
    failing_destinations: AtMost
    measured_since: datetime
    delivered: int
    delivered_per_minute: float
    latency_seconds: Percentiles
    ended: Sequence[Ended]
    errors: Sequence[ErrorCount]
    refused_configs: Annotated[
        ConfigRefusals | None,
        Members("since counts newest"),
        "Null: this process registers none.",
    ]
    signing_key: KeyDocument | None


class Deliveries(NewestFirst):
    """A page of deliveries."""

    deliveries: Sequence[DeliverySummary]


class WebhookAnswer(Document):
    """What a webhook answered to an attempt."""

    number: int
    answer: str | None


class FieldDocument(Document):
    """A header field."""

    name: str
    value: str


class RequestDocument(Document):
    """The request of the last attempt, rebuilt, with masked secrets."""

    line: str
    headers: Sequence[FieldDocument]
    jwt_header: Mapping[str, object] | None
    jwt_claims: Mapping[str, object]


class DeliveryDocument(Document):
    """A delivery with its attempts, its subscription, and its request."""

    report: Annotated[ReportDocument, Members(inline=True)]
    answers: Sequence[WebhookAnswer] | None
    body: str | None
    is_sealed: bool
    subscription: SubscriptionDocument | None
    request: RequestDocument | None


class Subscriptions(NewestFirst):
    """A page of subscriptions."""

    subscriptions: Sequence[SubscriptionDocument]


class SubscriptionReportDocument(Document):
    """A subscription with its deliveries."""

    subscription: Annotated[SubscriptionDocument, Members(inline=True)]
    states_of_deliveries: Mapping[str, int]
    newest: Sequence[DeliverySummary]


class BreakerState(StrEnum):
    """What the failures of a destination hold back."""

    FAILING = "failing"
    """Nothing: its last attempt failed."""
    WAITS = "waits"
    """Everything, as it asked to."""
    OPEN = "open"
    """Everything, after failures in a row."""
    HALF_OPEN = "half_open"
    """All but one delivery at a time."""


class DestinationDocument(Document):
    """A destination that failed last, or asked to wait."""

    destination: Annotated[FailingDestination, Members("tenant owner origin failures", inline=True)]
    state: BreakerState
    waits_until: datetime | None
    attempt_seconds: Sequence[float]


class Speed(Document):
    """How long the last attempts of a destination took."""

    origin: str
    attempt_seconds: Sequence[float]
    p50: float | None


class Destinations(Document):
    """A page of destinations."""

    destinations: Sequence[DestinationDocument]
    after: str | None
    lately: Sequence[Speed]


class QueuesDocument(Document):
    """A page of queues."""

    queues: Sequence[OutboxQueue]
    after: str | None


class Done(Document):
    """The result of a change."""

    ids: Sequence[str]
    not_done: Annotated[Mapping[str, int], "How many were not changed, by reason."]


def request_document(
    report: DeliveryReport, subscription: Subscription, ring: KeyRing | None, issuer: str | None
) -> RequestDocument | None:
    """Return the request of the last attempt, rebuilt from stored rows, with masked secrets.

    It lacks what no row holds: the operator's own credentials for a destination, signature
    schemes other than the JWT, and the signature itself, which is made for each attempt and
    never stored. None if the URL cannot be read.
    """
    try:
        url = Url.parse(subscription.config.url)
    except InvalidUrlError:
        return None
    delivery, body = report.delivery, report.body
    sent_at = report.attempts[-1].started_at if report.attempts else utc_now()
    issued_at = int(sent_at.timestamp())
    is_samples = subscription.profile is Profile.A2A_SAMPLES
    authentication = subscription.config.authentication
    credentials = None
    if authentication is not None and subscription.has_credentials:
        credentials = credential_header(replace(authentication, credentials=_MASK))
    taken = credentials is not None and credentials[0] == "Authorization"
    jwt = f"<JWT {_MASK}>"
    fields = [
        ("Host", url.authority),
        ("Content-Type", delivery.content_type),
        (A2A_VERSION, delivery.version.value),
        ("User-Agent", USER_AGENT),
        ("Accept-Encoding", "identity"),
        *token_headers(_MASK if subscription.has_token else None),
        *([credentials] if credentials else []),
        (SIGNATURE_HEADER, jwt) if taken else ("Authorization", f"Bearer {jwt}"),
        (ID_HEADER, delivery.id),
        (TIMESTAMP_HEADER, str(issued_at)),
    ]
    claims = static_claims(
        issuer=issuer or "<the issuer>",
        audience=None if is_samples else masked_url(url.audience),
        task_id=delivery.task_id,
        config_id=delivery.config_id,
    )
    return RequestDocument(
        line=f"POST {masked_url(url.target)} HTTP/1.1",
        headers=[FieldDocument(name=name, value=value) for name, value in fields],
        jwt_header=_jwt_header(ring, Algorithm.RS256 if is_samples else None, sent_at),
        jwt_claims={
            **claims,
            "iat": issued_at,
            "exp": issued_at + int(TOKEN_LIFETIME.total_seconds()),
            "jti": delivery.id,
            "seq": delivery.seq,
            "request_body_sha256": "<sealed>" if body is None else body_sha256(body),
        },
    )


def _jwt_header(
    ring: KeyRing | None, wanted: Algorithm | None, sent_at: datetime
) -> dict[str, str] | None:
    if ring is None:
        return None
    try:
        key = ring.active_key(sent_at, wanted)
    except NoSigningKeyError:
        return None
    return {"alg": key.algorithm.value, "kid": key.kid, "typ": "JWT"}


# --- health ---------------------------------------------------------------------------------------


def findings(stats: OutboxStats, ring: KeyRing | None) -> Iterator[HealthFinding]:
    """Yield what an operator should know."""
    yield from _of_deliveries(stats)
    if ring is not None:
        try:
            ring.active_key(stats.now)
        except NoSigningKeyError as exc:
            says = f"Nothing can be signed: {exc}."
            yield HealthFinding(Severity.FAILURE, says, remedy("no_signing_key"), "/keys")


def headline(
    stats: OutboxStats,
    found: Sequence[HealthFinding],  # the worst first
) -> Headline:
    """Return the verdict of the overview: its sentence says only what was observed."""
    worst = found[0].severity if found else Severity.NOTE
    fault, warned = worst is Severity.FAILURE, worst is Severity.WARNING
    quiet = Verdict.ATTENTION if warned else Verdict.IDLE
    # Within the last hour. Failed is also what waits after a failed attempt.
    delivered = any(each.state is DeliveryState.DELIVERED for each in stats.finished)
    failed = stats.died.number + stats.retrying
    waiting = stats.pending.number + stats.in_flight.number
    # fmt: off
    rows = (  # the first that holds
        (_is_unclaimed(stats), Verdict.FAILING, "Nothing is sent: no worker claims what is due."),
        (fault and delivered, Verdict.FAILING,
         "Deliveries arrived within the last hour, but something on this side fails."),
        (fault, Verdict.FAILING, "Nothing arrives: something on this side fails."),
        (failed and delivered, Verdict.ATTENTION,
         "Deliveries arrive, but some fail."),
        (failed, Verdict.FAILING, "Nothing arrives: every attempt fails."),
        (delivered and warned, Verdict.ATTENTION,
         "Deliveries arrive, but something needs attention."),
        (delivered, Verdict.HEALTHY, "Healthy: deliveries arrive."),
        (waiting, quiet, "Deliveries wait; none arrived within the last hour."),
        (True, quiet, "Nothing waits, and nothing was sent within the last hour."),
    )
    # fmt: on
    return first_that_holds(rows)


def _is_unclaimed(stats: OutboxStats) -> bool:
    return is_overdue(stats.due_since, stats.now) and not stats.local_faults


def _of_deliveries(stats: OutboxStats) -> Iterator[HealthFinding]:
    if _is_unclaimed(stats):
        yield HealthFinding(
            Severity.FAILURE,
            "Deliveries are due, and no worker claims them.",
            "Check that a worker runs (pushkit worker, or the agent's own). If one does, it is"
            " short of CPU, or its `concurrency` is used up.",
            "/deliveries?state=pending",
        )
    for code, number in stats.local_faults.items():
        waits = "delivery waits" if number == 1 else "deliveries wait"
        yield HealthFinding(
            Severity.FAILURE,
            f"{number} {waits} because of an error on this side: {meaning(code)}.",
            remedy(code),
            f"/deliveries?state=pending&error={code}",
        )
    if number := stats.failing.number:
        says = "One destination failed last, or asked to wait."
        if number > 1:
            says = f"{stats.failing} destinations failed last, or asked to wait."
        yield HealthFinding(
            Severity.WARNING,
            says,
            "Deliveries to them are retried automatically; deliveries to others continue.",
            "/destinations",
        )
    if number := stats.died.number:
        yield HealthFinding(
            Severity.WARNING,
            f"{stats.died} dead {'letter' if number == 1 else 'letters'} within the last hour.",
            "Look at their errors; redrive them once their webhook works again.",
            "/deliveries?state=dead",
        )
    elif stats.dead.number:
        yield HealthFinding(
            Severity.NOTE,
            "There are dead letters, none of the newest within the last hour.",
            "Redrive them, or leave them: they are deleted when their retention ends.",
            "/deliveries?state=dead",
        )
    oldest = stats.oldest_pending_at
    if oldest is not None and stats.now - oldest > _OLD:
        yield HealthFinding(
            Severity.NOTE,
            "The oldest delivery that is next in its queue has waited for more than an hour.",
            "It is attempted again by the retry schedule.",
            "/deliveries?state=pending",
        )
