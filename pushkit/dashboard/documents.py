"""The documents of the sender's dashboard: what its pages show, and its API returns.

`pushkit.delivery.documents` makes those that are `TypedDict`s, for the commands, too.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from datetime import datetime
from enum import StrEnum
from typing import Annotated, TypedDict

from pushkit.events.sender import PushConfigRefused
from pushkit.outbox.browsing import DestinationStanding, OutboxFigures
from pushkit.outbox.inspection import DeliverySummary, QueueStanding
from pushkit.storage.paging import AtMost
from pushkit.subscriptions.model import SubscriptionState
from pushkit.webui.api import Document, Members
from pushkit.webui.overview import Finding, Headline, NewestFirst, Percentiles

_REFUSED = "at code reason tenant owner task_id host"
_FIGURES = "now pending in_flight dead oldest_pending_at"


class Key(TypedDict):
    """A signing key."""

    kid: str
    alg: str
    state: str
    signs: bool
    published_at: datetime
    activates_at: datetime | None
    retires_at: datetime | None
    revoked_at: datetime | None


class Keys(Document):
    """The signing keys, if the dashboard was given them."""

    is_known: bool
    keys: Sequence[Key]


class Ended(Document):
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


class RefusedConfigs(Document):
    """The push configs that this process refused."""

    since: datetime
    counts: Mapping[str, int]
    newest: Annotated[Sequence[PushConfigRefused], Members(_REFUSED)]


class Overview(Document):
    """Whether the sender is healthy, and its main figures."""

    headline: Annotated[Headline, Members(inline=True)]
    findings: Sequence[Finding]
    figures: Annotated[OutboxFigures, Members(_FIGURES, inline=True)]
    failing_destinations: AtMost
    measured_since: datetime
    delivered: int
    delivered_per_minute: float
    latency_seconds: Percentiles
    ended: Sequence[Ended]
    errors: Sequence[ErrorCount]
    refused_configs: Annotated[RefusedConfigs | None, "Null: this process registers none."]
    signing_key: Key | None


class Deliveries(NewestFirst):
    """A page of deliveries."""

    deliveries: Sequence[DeliverySummary]


class Why(TypedDict):
    """The last error of a delivery."""

    code: str
    means: str
    remedy: str
    answer: str | None


class Attempt(TypedDict):
    """An attempt of a delivery."""

    number: int
    started_at: datetime
    duration_seconds: float
    resolve_seconds: float | None
    connect_seconds: float | None
    wait_seconds: float | None
    body_seconds: float | None
    address: str | None
    outcome: str
    status: int | None
    error: str | None


class WebhookAnswer(Document):
    """What a webhook answered to an attempt."""

    number: int
    answer: str | None


class Field(Document):
    """A header field."""

    name: str
    value: str


class Request(Document):
    """The request of the last attempt, rebuilt, with masked secrets."""

    line: str
    headers: Sequence[Field]
    jwt_header: Mapping[str, object] | None
    jwt_claims: Mapping[str, object]


class Subscription(TypedDict):
    """A subscription, without its secrets."""

    id: str
    state: SubscriptionState
    tenant: str
    task_id: str
    owner: str
    config_id: str
    version: str
    url: Annotated[str, "Its query is masked."]
    origin: str
    profile: str
    has_token: bool
    has_credentials: bool
    schemes: Sequence[str]
    states: Sequence[str] | None
    kinds: Sequence[str] | None
    last_chunk_only: bool
    min_interval_seconds: Annotated[float | None, "Chunks are gathered, and posted once in it."]
    last_seq: int
    task_ended: bool
    failing_since: datetime | None
    disabled_by: str | None
    disabled_at: datetime | None
    created_at: datetime


class Delivery(Document):
    """A delivery with its attempts."""

    summary: Annotated[DeliverySummary, Members(inline=True)]
    why: Why | None
    log: Sequence[Attempt]
    answers: Sequence[WebhookAnswer] | None
    body: str | None
    is_sealed: bool
    subscription: Subscription | None
    request: Request | None


class Subscriptions(NewestFirst):
    """A page of subscriptions."""

    subscriptions: Sequence[Subscription]


class SubscriptionReport(Document):
    """A subscription with its deliveries."""

    subscription: Annotated[Subscription, Members(inline=True)]
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


class Destination(Document):
    """A destination that failed last, or asked to wait."""

    standing: Annotated[DestinationStanding, Members("tenant owner origin failures", inline=True)]
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

    destinations: Sequence[Destination]
    after: str | None
    lately: Sequence[Speed]


class Queues(Document):
    """A page of queues."""

    queues: Sequence[QueueStanding]
    after: str | None


class Done(Document):
    """The result of a change."""

    ids: Sequence[str]
    not_done: Annotated[Mapping[str, int], "How many were not changed, by reason."]
