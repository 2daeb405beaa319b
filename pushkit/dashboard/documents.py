"""The documents of the sender's dashboard: what its pages show, and its API returns.

Those of keys, attempts and subscriptions, which commands show, too, are in
`pushkit.delivery.documents`.
"""

from __future__ import annotations

from collections import defaultdict, deque
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from datetime import datetime
from enum import StrEnum
from typing import Annotated, Final, NamedTuple

from pushkit.clock import utc_now
from pushkit.delivery.documents import KeyDocument, ReportDocument, SubscriptionDocument
from pushkit.events.model import Event
from pushkit.events.sender import PushConfigRefused
from pushkit.outbox.inspection import DeliverySummary, OutboxQueue
from pushkit.outbox.stats import FailingDestination, OutboxStats
from pushkit.storage.paging import AtMost
from pushkit.webui.api import Document, Members
from pushkit.webui.parts import Headline, HealthFinding, NewestFirst, Percentiles

_REFUSED = "at code reason tenant owner task_id host"
_KEPT: Final = 20  # refused configs, for each reason
_MOST_CHARS: Final = 256
_OF_CLIENT: Final = ("reason", "tenant", "owner", "task_id", "host")  # and of any length
_STATS = "now pending in_flight dead oldest_pending_at"


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
