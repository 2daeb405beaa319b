"""A subscription: one push-notification config of one owner for one task."""

from __future__ import annotations

from collections.abc import Collection
from dataclasses import dataclass
from datetime import datetime, timedelta
from enum import StrEnum
from typing import Annotated, Final, NamedTuple

from pushkit.a2a import AnyUpdate, PushConfig, TaskState, UpdateKind, WireVersion
from pushkit.options import Bounds, check_options
from pushkit.queue.rules import Queue
from pushkit.queue.tables import QueueTables
from pushkit.record import field, record

OUTBOX: Final = QueueTables(
    queues="pushkit_subscriptions",
    jobs="pushkit_deliveries",
    queue_id="subscription_id",
    groups="pushkit_destinations",
)
"""The queues of the outbox: a subscription's row is its queue, its deliveries are the jobs."""

Interval = Annotated[timedelta, Bounds(above=timedelta(0), most=timedelta(hours=1))]


@dataclass(frozen=True, slots=True, kw_only=True)
class Filter:
    """The updates that a subscription wants; by default, all.

    Attributes:
        states: Drop updates with another state than these; None for all states. Artifacts and
            messages have no state: leave them out by `kinds`.
        kinds: Only these kinds; None for all.
        last_chunk_only: Drop artifact updates that are not marked as the last chunk. Agents stream
            an artifact token by token, and each chunk would be a notification. An artifact that is
            sent whole but not marked so is dropped too.
        min_interval: Gather chunks of an artifact that follow one another, and in 0.3 whole tasks
            of the same state that say all of the ones before: one post of them in this time, up to
            an hour, with what they say together. Others are sent at once, behind them. The receiver
            sees gaps in `seq`.

    Raises:
        ConfigError: A state or a kind is unknown, or a member has a wrong type.
    """

    states: Collection[TaskState | str] | None = None
    kinds: Collection[UpdateKind | str] | None = None
    last_chunk_only: bool = False
    min_interval: Interval | None = None

    def __post_init__(self) -> None:
        check_options(self, of="filter: ")

    def accepts(self, update: AnyUpdate) -> bool:
        """Return whether an update is wanted."""
        if self.kinds is not None and update.kind not in self.kinds:
            return False
        if self.last_chunk_only and update.is_partial:
            return False
        return self.states is None or update.state is None or update.state in self.states

    def narrowed(self, other: Filter) -> Filter:
        """Return the filter of the updates that both want, with the longer interval."""
        return Filter(
            states=_common(self.states, other.states),
            kinds=_common(self.kinds, other.kinds),
            last_chunk_only=self.last_chunk_only or other.last_chunk_only,
            min_interval=max(filter(None, (self.min_interval, other.min_interval)), default=None),
        )


def _common(one: Collection[str] | None, other: Collection[str] | None) -> Collection[str] | None:
    """Return what is in both; None is everything."""
    if one is None or other is None:
        return other if one is None else one
    return frozenset(one).intersection(other)


EVERYTHING = Filter()


class Profile(StrEnum):
    """The way in which notifications of a subscription are signed (wire profile §3)."""

    STANDARD = "standard"
    A2A_SAMPLES = "a2a-samples"
    """RS256 without `aud`: the verifier of the first samples refuses a token that has one."""


class SubscriptionState(StrEnum):
    """The state of a subscription."""

    ACTIVE = "active"
    PAUSED = "paused"
    """Its deliveries wait until it is resumed."""
    DISABLED = "disabled"
    """It gets no updates until it is enabled or registered again."""
    WITHDRAWN = "withdrawn"
    """Its task has ended and all its deliveries are finished: it is kept for redrives."""


class DisabledBy(StrEnum):
    """Who or what disabled a subscription."""

    GONE = "gone"
    """Its webhook answered 410."""
    FAILING = "failing"
    """Every attempt failed for too long."""
    OPERATOR = "operator"
    """`pushkit subscriptions disable`, or `PushSender.disable()`."""


class Owner(NamedTuple):
    """An owner; the same name in another tenant is another owner."""

    tenant: str
    name: str


class SubscriptionKey(NamedTuple):
    """The key of a subscription: setting the same key again changes it, and keeps its `seq`."""

    tenant: str
    task_id: str
    owner: str
    config_id: str


@record(frozen=True, slots=True, kw_only=True)
class Subscription:
    """A registered config."""

    id: str  # the row's own id, new for each subscription that is created
    key: SubscriptionKey
    version: WireVersion  # of its bodies, chosen when it was registered
    config: PushConfig  # URL and schemes; token and credentials are there only during an attempt
    origin: str  # scheme, host and port of the URL
    profile: Profile  # how its notifications are signed
    last_seq: int  # the `seq` of its newest update; 0 before the first
    wanted: Filter = EVERYTHING  # which updates it wants
    active: bool  # whether it is not disabled (see `DisabledBy`)
    paused: bool = False  # whether its deliveries wait until it is resumed
    # Whether its task has ended: it is withdrawn once all its deliveries are finished.
    ended: bool = False
    failing_since: datetime | None = None  # the first failure after the last success, if any
    created_at: datetime  # when it was first registered
    has_token: bool = False
    has_credentials: bool = False
    # Who or what disabled it, if it is disabled and that is known.
    disabled_by: DisabledBy | None = None
    disabled_at: datetime | None = None
    withdrawn: bool = False  # see `SubscriptionState`
    # Whether registering it changed an existing one; False when it is read back.
    replaced: bool = False
    revision: int = 0  # it grows whenever URL, secrets, version or profile may have changed

    @property
    def state(self) -> SubscriptionState:
        """The state."""
        if self.withdrawn:
            return SubscriptionState.WITHDRAWN
        if not self.active:
            return SubscriptionState.DISABLED
        return SubscriptionState.PAUSED if self.paused else SubscriptionState.ACTIVE


@record(frozen=True, slots=True, kw_only=True)
class StoredSubscription:
    """A subscription with its secrets as its row holds them, sealed or plain, for an attempt."""

    subscription: Subscription
    token: str | None = field(repr=False)
    credentials: str | None = field(repr=False)


class Recipient(NamedTuple):
    """What storing an update, and settling an attempt, need of a subscription (see there)."""

    queue: Queue
    task_id: str
    config_id: str
    version: WireVersion
    wanted: Filter
    url: str
    revision: int
    active: bool
    ended: bool
    failing_since: datetime | None

    @property
    def id(self) -> str:
        """Its id, which is its queue's."""
        return self.queue.id

    @property
    def tenant(self) -> str:
        """The tenant of its task."""
        return self.queue.tenant

    @property
    def owner(self) -> str:
        """Its owner."""
        return self.queue.owner

    @property
    def origin(self) -> str:
        """Where its updates are sent."""
        return self.queue.origin
