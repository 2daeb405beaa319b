"""Events of a sender: of `notify()`, of attempts, and of their side effects.

Events are emitted after the commit. Those of `notify(connection=...)` are emitted before the
caller's transaction commits, or is rolled back.
"""

from __future__ import annotations

import logging
from datetime import timedelta
from enum import StrEnum
from typing import Final

from pushkit.events.model import Event, EventKind
from pushkit.record import record

# The subscription that gets the operator's alerts. Its own deliveries raise no alerts.
ALERTS_OWNER: Final = "pushkit:alerts"
ALERTS_TASK: Final = "pushkit-alerts"


@record(frozen=True, slots=True, kw_only=True)
class SenderEvent(Event):
    """An event of one subscription; `at` is by the database's clock."""

    tenant: str  # the tenant of the subscription
    owner: str  # the owner of the subscription
    task_id: str  # the task
    subscription_id: str  # the subscription


@record(frozen=True, slots=True, kw_only=True)
class Enqueued(SenderEvent, kind=EventKind.ENQUEUED, level=logging.DEBUG):
    """`notify()` stored an update. Emitted again if the update is repeated with its key."""

    delivery_id: str  # the delivery


@record(frozen=True, slots=True, kw_only=True)
class RecipientRefused(SenderEvent, kind=EventKind.RECIPIENT_REFUSED):
    """`notify()` did not store an update for this subscription."""

    origin: str  # the destination
    error: str  # the reason, as a code


@record(frozen=True, slots=True, kw_only=True)
class DeliveryEvent(SenderEvent):
    """An event of one delivery: of an attempt, or of one that could not be made."""

    delivery_id: str  # the delivery
    origin: str  # the destination


@record(frozen=True, slots=True, kw_only=True)
class AttemptMade(DeliveryEvent, kind=EventKind.ATTEMPT):
    """An attempt ended: the webhook was posted to, or its address is not allowed."""

    seq: int  # the delivery's number in its subscription
    attempt: int  # 1, 2, 3… of this delivery
    outcome: str  # what it means for the delivery: `delivered`, `retry`, `dead` or `gone`
    status: int | None  # the status of the answer; None if there was none
    error: str | None  # the failure, as a code; None for a success
    took: timedelta  # how long it took, including signing
    # The wait for the next attempt; None if there is none. A failing destination may wait longer.
    retry_in: timedelta | None = None
    trace_id: str | None = None  # the trace that `notify()` was called in, if any

    @property
    def level(self) -> int:
        """INFO for a success, WARNING for a failure."""
        return logging.INFO if self.error is None else logging.WARNING


@record(frozen=True, slots=True, kw_only=True)
class Delivered(DeliveryEvent, kind=EventKind.DELIVERED):
    """The webhook accepted the delivery."""

    attempts: int  # how many attempts it took
    waited: timedelta  # how long after `notify()`, or after it was redriven


@record(frozen=True, slots=True, kw_only=True)
class DeliveryDead(DeliveryEvent, kind=EventKind.DELIVERY_DEAD, level=logging.WARNING):
    """The sender gave up: the delivery is a dead letter."""

    error: str | None  # the reason, as a code


@record(frozen=True, slots=True, kw_only=True)
class LocalFault(DeliveryEvent, kind=EventKind.LOCAL_FAULT):
    """A delivery waits because of a fault of this side; it is retried automatically.

    The fault is of a key, a KMS, a sealed secret, the database or an application's function.
    """

    error: str | None  # the fault, as a code


@record(frozen=True, slots=True, kw_only=True)
class BreakerOpened(DeliveryEvent, kind=EventKind.BREAKER_OPENED, level=logging.WARNING):
    """A destination failed too often in a row, or at its probe; it is not attempted for a while."""

    error: str | None  # the last failure, as a code


@record(frozen=True, slots=True, kw_only=True)
class BreakerClosed(DeliveryEvent, kind=EventKind.BREAKER_CLOSED, level=logging.WARNING):
    """A destination works again."""


@record(frozen=True, slots=True, kw_only=True)
class SubscriptionDisabled(
    DeliveryEvent, kind=EventKind.SUBSCRIPTION_DISABLED, level=logging.WARNING
):
    """The webhook is gone, or only failed for too long; its pending deliveries are cancelled."""

    error: str  # `gone` or `failing`


class SubscriptionChange(StrEnum):
    """What a client or an operator did with a subscription."""

    REGISTERED = "registered"
    REPLACED = "replaced"
    PAUSED = "paused"
    RESUMED = "resumed"
    DISABLED = "disabled"
    ENABLED = "enabled"
    REMOVED = "removed"


@record(frozen=True, slots=True, kw_only=True)
class SubscriptionChanged(SenderEvent, kind=EventKind.SUBSCRIPTION_CHANGED, level=logging.INFO):
    """A client or an operator registered or changed a subscription through this process."""

    change: SubscriptionChange  # what was done
    origin: str  # the destination


@record(frozen=True, slots=True, kw_only=True)
class PushConfigRefused(Event, kind=EventKind.PUSH_CONFIG_REFUSED):
    """A client's push config, or another of its calls of the push-config API, was refused.

    All members but `code` come from the client.
    """

    code: str  # the reason, for programs
    reason: str  # the reason, for people, as the client was told
    tenant: str  # the tenant that it named
    owner: str  # the client; empty if it is not authenticated
    task_id: str  # the task; empty if the call was refused before that was read
    host: str  # host and port of its URL, unchecked; empty if there is none


@record(frozen=True, slots=True, kw_only=True)
class PushConfigUnsent(Event, kind=EventKind.PUSH_CONFIG_UNSENT):
    """A client registered a push config at an a2a-sdk agent, but nothing sends to it.

    The log says what to do.
    """

    code: str  # the reason: `no_sender`, `unused` or `not_started`
    owner: str  # the client; empty if it is not authenticated
    task_id: str  # the task


@record(frozen=True, slots=True, kw_only=True)
class SigningKeyChanged(Event, kind=EventKind.SIGNING_KEY_CHANGED, level=logging.INFO):
    """This process now signs with another key, or with its first one."""

    kid: str  # the key
    algorithm: str  # its signature algorithm
    before: str | None  # the previous key; None for the first one


@record(frozen=True, slots=True, kw_only=True)
class SigningKeyNearEnd(Event, kind=EventKind.SIGNING_KEY_NEAR_END):
    """The signing key is old or revoked soon, without a successor. Emitted only for alerts."""

    kid: str  # the key
    algorithm: str  # its signature algorithm
    reason: str  # the cause, and what to do


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
    """An operator or housekeeping changed deliveries through this process: one event for all."""

    change: OutboxChange  # what was done
    count: int  # how many deliveries were changed


class KeyRingChange(StrEnum):
    """What an operator did with a signing key."""

    PUBLISHED = "published"
    SCHEDULED = "scheduled"
    REVOKED = "revoked"
    FORGOTTEN = "forgotten"


@record(frozen=True, slots=True, kw_only=True)
class KeyRingChanged(Event, kind=EventKind.KEY_RING_CHANGED, level=logging.INFO):
    """This process has read a changed key file."""

    change: KeyRingChange  # what was done
    kid: str  # the key
    algorithm: str  # its signature algorithm
