"""What a receiver tells: what came in, what was refused, and what became of callbacks."""

from __future__ import annotations

from datetime import timedelta

from pushkit.events.model import Event, EventKind
from pushkit.record import record


@record(frozen=True, slots=True, kw_only=True)
class ReceiverEvent(Event):
    """Something that concerns a notification, or what came in place of one."""

    sender: str | None  # the trusted sender; None if nobody proved to be one
    task_id: str | None  # the task, if it is known
    delivery_id: str | None  # the delivery, if it is known
    trace_id: str | None = None  # the trace that it came in, if it came in one


@record(frozen=True, slots=True, kw_only=True)
class NotificationAccepted(ReceiverEvent, kind=EventKind.NOTIFICATION_ACCEPTED):
    """A notification is in the inbox."""


@record(frozen=True, slots=True, kw_only=True)
class NotificationRepeated(ReceiverEvent, kind=EventKind.NOTIFICATION_REPEATED):
    """A delivery came once more, with the same body: answered 2xx, and nobody is called."""


@record(frozen=True, slots=True, kw_only=True)
class NotificationRefused(ReceiverEvent, kind=EventKind.NOTIFICATION_REFUSED):
    """A request was refused; `id_conflict` is an id that came before with another body."""

    status: int  # the status of the answer
    code: str  # why
    peer: str  # the address that it came from
    reason: str  # what was found and what was expected, as the log says it


@record(frozen=True, slots=True, kw_only=True)
class CalledBack(ReceiverEvent, kind=EventKind.CALLED_BACK):
    """A callback was called, and ended."""

    notification_id: int  # the notification
    callback: str  # the callback's name
    error: str | None  # the type of what it raised, or `timed_out`; None if it went well
    took: timedelta  # how long it took


@record(frozen=True, slots=True, kw_only=True)
class NotificationDead(ReceiverEvent, kind=EventKind.NOTIFICATION_DEAD):
    """Given up: the notification is a dead letter."""

    notification_id: int  # the notification
    error: str | None  # which callback failed, and how
