"""What a sender tells: of `notify()`, of attempts, and of what follows from them.

Each is told once it is on disk; with `notify(connection=...)` before that transaction commits, or
is rolled back.
"""

from __future__ import annotations

import logging
from datetime import timedelta
from enum import StrEnum
from typing import Final

from pushkit.events.model import Event, EventKind
from pushkit.record import record

# The subscription that gets the operator's alerts; what becomes of its deliveries raises none.
ALERTS_OWNER: Final = "pushkit:alerts"
ALERTS_TASK: Final = "pushkit-alerts"


@record(frozen=True, slots=True, kw_only=True)
class SenderEvent(Event):
    """Something that concerns a subscription; `at` is by the database's clock."""

    tenant: str  # the tenant of the subscription
    owner: str  # the owner of the subscription
    task_id: str  # the task
    subscription_id: str  # the subscription


@record(frozen=True, slots=True, kw_only=True)
class Enqueued(SenderEvent, kind=EventKind.ENQUEUED, level=logging.DEBUG):
    """`notify()` stored an update; of an update that is repeated by its key, once more."""

    delivery_id: str


@record(frozen=True, slots=True, kw_only=True)
class RecipientRefused(SenderEvent, kind=EventKind.RECIPIENT_REFUSED):
    """`notify()` stored an update for others, but not for this subscription."""

    origin: str  # the destination
    error: str  # why, as a code


@record(frozen=True, slots=True, kw_only=True)
class DeliveryEvent(SenderEvent):
    """Something that came of an attempt, or of one that could not be made."""

    delivery_id: str  # the delivery
    origin: str  # the destination


@record(frozen=True, slots=True, kw_only=True)
class AttemptMade(DeliveryEvent, kind=EventKind.ATTEMPT):
    """A webhook was asked, or was to be: its address may be one where nobody may go."""

    seq: int  # the delivery's number in its subscription
    attempt: int  # 1, 2, 3… of this delivery
    outcome: str  # what it means for the delivery: `delivered`, `retry`, `dead` or `gone`
    status: int | None  # the status of the answer; None if there was none
    error: str | None  # what was wrong, as a code; None if nothing was
    took: timedelta  # how long it took, signing included
    trace_id: str | None = None  # the trace that `notify()` was in, if it was in one

    @property
    def level(self) -> int:
        """What went well is for who wants to see everything."""
        return logging.INFO if self.error is None else logging.WARNING


@record(frozen=True, slots=True, kw_only=True)
class Delivered(DeliveryEvent, kind=EventKind.DELIVERED):
    """The webhook has it."""

    attempts: int  # how many attempts that took
    waited: timedelta  # how long after `notify()`, or after it was redriven


@record(frozen=True, slots=True, kw_only=True)
class DeliveryDead(DeliveryEvent, kind=EventKind.DELIVERY_DEAD, level=logging.WARNING):
    """Given up: the delivery is a dead letter."""

    error: str | None  # why, as a code


@record(frozen=True, slots=True, kw_only=True)
class LocalFault(DeliveryEvent, kind=EventKind.LOCAL_FAULT):
    """A delivery waits because something failed on this side; it is tried again by itself.

    A key, a KMS, a sealed secret, the database, an application's function.
    """

    error: str | None  # what, as a code


@record(frozen=True, slots=True, kw_only=True)
class BreakerOpened(DeliveryEvent, kind=EventKind.BREAKER_OPENED, level=logging.WARNING):
    """A destination failed too often in a row, or its probe did; it is left alone for a while."""

    error: str | None  # how it failed last, as a code


@record(frozen=True, slots=True, kw_only=True)
class BreakerClosed(DeliveryEvent, kind=EventKind.BREAKER_CLOSED, level=logging.WARNING):
    """A destination works again."""


@record(frozen=True, slots=True, kw_only=True)
class SubscriptionDisabled(
    DeliveryEvent, kind=EventKind.SUBSCRIPTION_DISABLED, level=logging.WARNING
):
    """The webhook is gone, or only failed for too long; pending deliveries are cancelled."""

    error: str  # `gone` or `failing`


class SubscriptionChange(StrEnum):
    """What somebody did with a subscription."""

    REGISTERED = "registered"
    REPLACED = "replaced"
    PAUSED = "paused"
    RESUMED = "resumed"
    DISABLED = "disabled"
    ENABLED = "enabled"
    REMOVED = "removed"


@record(frozen=True, slots=True, kw_only=True)
class SubscriptionChanged(SenderEvent, kind=EventKind.SUBSCRIPTION_CHANGED, level=logging.INFO):
    """Somebody, a client or an operator, registered or changed a subscription by this process."""

    change: SubscriptionChange  # what was done
    origin: str  # the destination


@record(frozen=True, slots=True, kw_only=True)
class SigningKeyChanged(Event, kind=EventKind.SIGNING_KEY_CHANGED, level=logging.INFO):
    """This process signs with another key from now on; or with its first one."""

    kid: str  # the key
    algorithm: str  # what it signs with
    before: str | None  # the key before; None for the first one


@record(frozen=True, slots=True, kw_only=True)
class SigningKeyNearEnd(Event, kind=EventKind.SIGNING_KEY_NEAR_END):
    """The key that signs is old or soon revoked, and none follows; looked for as `HealthFault`."""

    kid: str  # the key
    algorithm: str  # what it signs with
    reason: str  # why, and what to do


class OutboxChange(StrEnum):
    """What an operator did with deliveries."""

    REDRIVEN = "redriven"
    RESENT = "resent"
    RETRIED = "retried"
    CANCELLED = "cancelled"
    PURGED = "purged"
    ERASED = "erased"


@record(frozen=True, slots=True, kw_only=True)
class OutboxChanged(Event, kind=EventKind.OUTBOX_CHANGED, level=logging.INFO):
    """An operator, or housekeeping, changed deliveries by this process: told once of them all."""

    change: OutboxChange  # what was done
    count: int  # with how many


class KeyRingChange(StrEnum):
    """What somebody did with a signing key."""

    PUBLISHED = "published"
    SCHEDULED = "scheduled"
    REVOKED = "revoked"
    FORGOTTEN = "forgotten"


@record(frozen=True, slots=True, kw_only=True)
class KeyRingChanged(Event, kind=EventKind.KEY_RING_CHANGED, level=logging.INFO):
    """The key file was changed, by a command for example, and this process has read it."""

    change: KeyRingChange  # what was done
    kid: str  # the key
    algorithm: str  # what it signs with
