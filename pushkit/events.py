"""Typed events of both sides, and their listeners.

Metrics, logs, alerts and `on_event` are listeners. An event without a listener is not created:

    if self._events.wants(DEBUG):
        self._events.emit(Enqueued(...))

A sender emits its events after the commit; those of `notify(connection=...)` before the caller's
transaction commits, or is rolled back.
"""

from __future__ import annotations

import asyncio
import inspect
import logging
from collections.abc import Callable
from dataclasses import fields
from datetime import datetime, timedelta
from enum import StrEnum
from typing import ClassVar, Final, TypeAlias

from pushkit.errors import ConfigError
from pushkit.logs import printable
from pushkit.options import check_callable
from pushkit.record import record

# The names of these members in log lines: shorter, or with their unit.
_SHORT: Final = {"task_id": "task", "took": "seconds", "waited": "seconds"}


class EventKind(StrEnum):
    """The stable code of each event."""

    ENQUEUED = "enqueued"
    ATTEMPT = "attempt"
    DELIVERED = "delivered"
    DELIVERY_DEAD = "delivery_dead"
    RECIPIENT_REFUSED = "recipient_refused"
    PUSH_CONFIG_REFUSED = "push_config_refused"
    PUSH_CONFIG_UNSENT = "push_config_unsent"
    LOCAL_FAULT = "local_fault"
    BREAKER_OPENED = "breaker_opened"
    BREAKER_CLOSED = "breaker_closed"
    SUBSCRIPTION_CHANGED = "subscription_changed"
    SUBSCRIPTION_DISABLED = "subscription_disabled"
    OUTBOX_CHANGED = "outbox_changed"
    KEY_RING_CHANGED = "key_ring_changed"
    SIGNING_KEY_CHANGED = "signing_key_changed"
    SIGNING_KEY_NEAR_END = "signing_key_near_end"
    HEALTH_FAULT = "health_fault"
    NOTIFICATION_ACCEPTED = "notification_accepted"
    NOTIFICATION_REPEATED = "notification_repeated"
    NOTIFICATION_REFUSED = "notification_refused"
    GENERATION_GAP = "generation_gap"
    CALLED_BACK = "called_back"
    NOTIFICATION_DEAD = "notification_dead"


@record(frozen=True, slots=True, kw_only=True)
class Event:
    """Something that happened."""

    kind: ClassVar[EventKind]
    usual_level: ClassVar[int] = logging.NOTSET

    at: datetime  # when it happened

    def __init_subclass__(cls, *, kind: EventKind | None = None, level: int | None = None) -> None:
        # A class with slots is created twice, the second time without these arguments.
        if kind is not None:
            cls.kind = kind
        if level is not None:
            cls.usual_level = level

    @property
    def level(self) -> int:
        """The level at which it is logged; `NOTSET` for not at all, or by a line of its own."""
        return self.usual_level


@record(frozen=True, slots=True, kw_only=True)
class HealthFault(Event, kind=EventKind.HEALTH_FAULT):
    """A part of a sender or a receiver does not work. Emitted only if alerts are configured."""

    part: str  # `storage`, `worker`, `keys` or `callbacks`, as in `/readyz`
    reason: str  # the cause, in a sentence
    about: str = ""  # the sender whose keys, or the callback; empty for the whole part


Listener: TypeAlias = Callable[[Event], None]


class Listeners:
    """Emits events: to a log, if they have a level, and to each listener."""

    def __init__(self, log: logging.Logger) -> None:
        self._log = log
        self._listeners: tuple[Listener, ...] = ()

    def add(self, listener: Listener) -> None:
        """Add a listener of all events.

        It runs on the event loop and must be quick; exceptions that it raises are logged.

        Raises:
            ConfigError: The listener is not callable, or is a coroutine function, whose calls would
                not be awaited.
        """
        check_callable("on_event", listener)
        if inspect.iscoroutinefunction(listener):
            raise ConfigError("on_event: found a coroutine function, expected a plain one")
        self._listeners += (listener,)

    def remove(self, listener: Listener) -> None:
        """Remove a listener."""
        self._listeners = tuple(each for each in self._listeners if each != listener)

    def wants(self, level: int) -> bool:
        """Return whether an event of this level has a listener, and is worth creating."""
        return bool(self._listeners) or (level > 0 and self._log.isEnabledFor(level))

    def emit(self, event: Event) -> None:
        """Log an event, and call the listeners; exceptions that they raise are logged."""
        level = event.level
        if level and self._log.isEnabledFor(level):
            facts = facts_of(event)
            line = "".join(f" {name}={_shown(value)}" for name, value in facts.items())
            extra = {"code": event.kind.value, **facts}
            self._log.log(level, "%s%s", event.kind.value, line, extra=extra)
        for listener in self._listeners:
            try:
                listener(event)
            # A listener must not break its caller. Nothing is awaited here, so a `CancelledError`
            # is not this task's: the listener read the result of a cancelled task or future.
            except (Exception, asyncio.CancelledError):  # noqa: BLE001
                self._log.exception("a listener failed at %s", event.kind.value)


def facts_of(event: Event) -> dict[str, object]:
    """Return the members of an event as plain values, without empty ones and its time."""
    found: dict[str, object] = {}
    for name in (each.name for each in fields(event)):
        value = getattr(event, name)
        if value is None or value == "":
            continue
        if isinstance(value, timedelta):
            value = round(value.total_seconds(), 6)
        elif isinstance(value, datetime):
            continue  # a log line has its own time
        found[_SHORT.get(name, name)] = value
    return found


def _shown(value: object) -> str:
    return printable(value) if isinstance(value, str) else str(value)


# --- the sender ----------------------------------------------------------------------------------

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


# --- the receiver --------------------------------------------------------------------------------


@record(frozen=True, slots=True, kw_only=True)
class ReceiverEvent(Event):
    """An event of one notification, or of a request that should have been one."""

    sender: str | None  # the trusted sender; None if the request was not verified as one's
    task_id: str | None  # the task, if it is known
    delivery_id: str | None  # the delivery, if it is known
    trace_id: str | None = None  # the trace of the request, if it has one


@record(frozen=True, slots=True, kw_only=True)
class NotificationAccepted(ReceiverEvent, kind=EventKind.NOTIFICATION_ACCEPTED):
    """A notification was stored in the inbox."""


@record(frozen=True, slots=True, kw_only=True)
class NotificationRepeated(ReceiverEvent, kind=EventKind.NOTIFICATION_REPEATED):
    """A delivery arrived again, with the same body: answered with 2xx, without callbacks."""


@record(frozen=True, slots=True, kw_only=True)
class NotificationRefused(ReceiverEvent, kind=EventKind.NOTIFICATION_REFUSED):
    """A request was refused; `id_conflict` means that its id was used with another body."""

    status: int  # the status of the answer
    code: str  # the code of the refusal
    # The names of the verification's steps that it came to, in order: the last one refused it.
    # Empty for a request that was no notification.
    steps: tuple[str, ...] = ()
    peer: str  # the address of the client
    reason: str  # what was found and what was expected, as in the log


@record(frozen=True, slots=True, kw_only=True)
class GenerationGap(ReceiverEvent, kind=EventKind.GENERATION_GAP):
    """The generation of an accepted notification does not follow on the one before it."""

    before: int  # the generation of the task that was accepted before
    generation: int  # its own: lower, if the agent counts anew

    @property
    def restarts(self) -> bool:
        """Whether the agent counts anew; otherwise changes are missing."""
        return self.generation < self.before


@record(frozen=True, slots=True, kw_only=True)
class CalledBack(ReceiverEvent, kind=EventKind.CALLED_BACK):
    """A call of a callback ended."""

    notification_id: int  # the notification
    callback: str  # the callback's name
    error: str | None  # the type of the exception, or `timed_out`; None if it succeeded
    took: timedelta  # how long it took


@record(frozen=True, slots=True, kw_only=True)
class NotificationDead(ReceiverEvent, kind=EventKind.NOTIFICATION_DEAD):
    """The receiver gave up: the notification is a dead letter."""

    notification_id: int  # the notification
    error: str | None  # the callback that failed, and its error
