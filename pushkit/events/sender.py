"""What a sender tells: of `notify()`, of attempts, and of what follows from them.

Each is told once it is on disk; with `notify(connection=...)` before that transaction commits, or
is rolled back.
"""

from __future__ import annotations

import logging
from dataclasses import dataclass
from datetime import timedelta
from enum import StrEnum
from typing import ClassVar, Final

from pushkit.events.model import Event, EventKind

# The subscription that gets the operator's alerts; what becomes of its deliveries raises none.
ALERTS_OWNER: Final = "pushkit:alerts"
ALERTS_TASK: Final = "pushkit-alerts"


@dataclass(frozen=True, slots=True, kw_only=True)
class SenderEvent(Event):
    """Something that concerns a subscription; `at` is by the database's clock.

    Attributes:
        tenant: The tenant of the subscription.
        owner: The owner of the subscription.
        task_id: The task.
        subscription_id: The subscription.
    """

    tenant: str
    owner: str
    task_id: str
    subscription_id: str


@dataclass(frozen=True, slots=True, kw_only=True)
class Enqueued(SenderEvent):
    """`notify()` stored an update; of an update that is repeated by its key, once more."""

    kind: ClassVar[EventKind] = EventKind.ENQUEUED
    usual_level: ClassVar[int] = logging.DEBUG

    delivery_id: str


@dataclass(frozen=True, slots=True, kw_only=True)
class RecipientRefused(SenderEvent):
    """`notify()` stored an update for others, but not for this subscription.

    Attributes:
        origin: The destination.
        error: Why, as a code.
    """

    kind: ClassVar[EventKind] = EventKind.RECIPIENT_REFUSED

    origin: str
    error: str


@dataclass(frozen=True, slots=True, kw_only=True)
class DeliveryEvent(SenderEvent):
    """Something that came of an attempt, or of one that could not be made.

    Attributes:
        delivery_id: The delivery.
        origin: The destination.
    """

    delivery_id: str
    origin: str


@dataclass(frozen=True, slots=True, kw_only=True)
class AttemptMade(DeliveryEvent):
    """A webhook was asked, or was to be: its address may be one where nobody may go.

    Attributes:
        seq: The delivery's number in its subscription.
        attempt: 1, 2, 3… of this delivery.
        outcome: What it means for the delivery: `delivered`, `retry`, `dead` or `gone`.
        status: The status of the answer; None if there was none.
        error: What was wrong, as a code; None if nothing was.
        took: How long it took, signing included.
        trace_id: The trace that `notify()` was in, if it was in one.
    """

    kind: ClassVar[EventKind] = EventKind.ATTEMPT

    seq: int
    attempt: int
    outcome: str
    status: int | None
    error: str | None
    took: timedelta
    trace_id: str | None = None

    @property
    def level(self) -> int:
        """What went well is for who wants to see everything."""
        return logging.INFO if self.error is None else logging.WARNING


@dataclass(frozen=True, slots=True, kw_only=True)
class Delivered(DeliveryEvent):
    """The webhook has it.

    Attributes:
        attempts: How many attempts that took.
        waited: How long after `notify()`, or after it was redriven.
    """

    kind: ClassVar[EventKind] = EventKind.DELIVERED

    attempts: int
    waited: timedelta


@dataclass(frozen=True, slots=True, kw_only=True)
class DeliveryDead(DeliveryEvent):
    """Given up: the delivery is a dead letter.

    Attributes:
        error: Why, as a code.
    """

    kind: ClassVar[EventKind] = EventKind.DELIVERY_DEAD
    usual_level: ClassVar[int] = logging.WARNING

    error: str | None


@dataclass(frozen=True, slots=True, kw_only=True)
class LocalFault(DeliveryEvent):
    """A delivery waits because something failed on this side; it is tried again by itself.

    A key, a KMS, a sealed secret, the database, an application's function.

    Attributes:
        error: What, as a code.
    """

    kind: ClassVar[EventKind] = EventKind.LOCAL_FAULT

    error: str | None


@dataclass(frozen=True, slots=True, kw_only=True)
class BreakerOpened(DeliveryEvent):
    """A destination failed too often in a row, or its probe did; it is left alone for a while.

    Attributes:
        error: How it failed last, as a code.
    """

    kind: ClassVar[EventKind] = EventKind.BREAKER_OPENED
    usual_level: ClassVar[int] = logging.WARNING

    error: str | None


@dataclass(frozen=True, slots=True, kw_only=True)
class BreakerClosed(DeliveryEvent):
    """A destination works again."""

    kind: ClassVar[EventKind] = EventKind.BREAKER_CLOSED
    usual_level: ClassVar[int] = logging.WARNING


@dataclass(frozen=True, slots=True, kw_only=True)
class SubscriptionDisabled(DeliveryEvent):
    """The webhook is gone, or only failed for too long; pending deliveries are cancelled.

    Attributes:
        error: `gone` or `failing`.
    """

    kind: ClassVar[EventKind] = EventKind.SUBSCRIPTION_DISABLED
    usual_level: ClassVar[int] = logging.WARNING

    error: str


class SubscriptionChange(StrEnum):
    """What somebody did with a subscription."""

    REGISTERED = "registered"
    REPLACED = "replaced"
    PAUSED = "paused"
    RESUMED = "resumed"
    DISABLED = "disabled"
    ENABLED = "enabled"
    REMOVED = "removed"


@dataclass(frozen=True, slots=True, kw_only=True)
class SubscriptionChanged(SenderEvent):
    """Somebody, a client or an operator, registered or changed a subscription by this process.

    Attributes:
        change: What was done.
        origin: The destination.
    """

    kind: ClassVar[EventKind] = EventKind.SUBSCRIPTION_CHANGED
    usual_level: ClassVar[int] = logging.INFO

    change: SubscriptionChange
    origin: str


@dataclass(frozen=True, slots=True, kw_only=True)
class SigningKeyChanged(Event):
    """This process signs with another key from now on; or with its first one.

    Attributes:
        kid: The key.
        algorithm: What it signs with.
        before: The key before; None for the first one.
    """

    kind: ClassVar[EventKind] = EventKind.SIGNING_KEY_CHANGED
    usual_level: ClassVar[int] = logging.INFO

    kid: str
    algorithm: str
    before: str | None


@dataclass(frozen=True, slots=True, kw_only=True)
class SigningKeyNearEnd(Event):
    """The key that signs is old or soon revoked, and none follows; looked for as `HealthFault`.

    Attributes:
        kid: The key.
        algorithm: What it signs with.
        reason: Why, and what to do.
    """

    kind: ClassVar[EventKind] = EventKind.SIGNING_KEY_NEAR_END

    kid: str
    algorithm: str
    reason: str


class OutboxChange(StrEnum):
    """What an operator did with deliveries."""

    REDRIVEN = "redriven"
    RESENT = "resent"
    RETRIED = "retried"
    CANCELLED = "cancelled"
    PURGED = "purged"
    ERASED = "erased"


@dataclass(frozen=True, slots=True, kw_only=True)
class OutboxChanged(Event):
    """An operator, or housekeeping, changed deliveries, by this process: told once of all of them.

    Attributes:
        change: What was done.
        count: With how many.
    """

    kind: ClassVar[EventKind] = EventKind.OUTBOX_CHANGED
    usual_level: ClassVar[int] = logging.INFO

    change: OutboxChange
    count: int


class KeyRingChange(StrEnum):
    """What somebody did with a signing key."""

    PUBLISHED = "published"
    SCHEDULED = "scheduled"
    REVOKED = "revoked"
    FORGOTTEN = "forgotten"


@dataclass(frozen=True, slots=True, kw_only=True)
class KeyRingChanged(Event):
    """The key file was changed, by a command for example, and this process has read it.

    Attributes:
        change: What was done.
        kid: The key.
        algorithm: What it signs with.
    """

    kind: ClassVar[EventKind] = EventKind.KEY_RING_CHANGED
    usual_level: ClassVar[int] = logging.INFO

    change: KeyRingChange
    kid: str
    algorithm: str
