"""What a receiver tells: what came in, what was refused, and what became of callbacks."""

from __future__ import annotations

from datetime import timedelta

from pushkit.events.model import Event, EventKind
from pushkit.record import record


@record(frozen=True, slots=True, kw_only=True)
class ReceiverEvent(Event):
    """Something that concerns a notification, or what came in place of one.

    Attributes:
        sender: The trusted sender; None if nobody proved to be one.
        task_id: The task, if it is known.
        delivery_id: The delivery, if it is known.
        trace_id: The trace that it came in, if it came in one.
    """

    sender: str | None
    task_id: str | None
    delivery_id: str | None
    trace_id: str | None = None


@record(frozen=True, slots=True, kw_only=True)
class NotificationAccepted(ReceiverEvent, kind=EventKind.NOTIFICATION_ACCEPTED):
    """A notification is in the inbox."""


@record(frozen=True, slots=True, kw_only=True)
class NotificationRepeated(ReceiverEvent, kind=EventKind.NOTIFICATION_REPEATED):
    """A delivery came once more, with the same body: answered 2xx, and nobody is called."""


@record(frozen=True, slots=True, kw_only=True)
class NotificationRefused(ReceiverEvent, kind=EventKind.NOTIFICATION_REFUSED):
    """A request was refused. An id that came before with another body has the code `id_conflict`.

    Attributes:
        status: The status of the answer.
        code: Why.
        peer: The address that it came from.
        reason: What was found and what was expected, as the log says it.
    """

    status: int
    code: str
    peer: str
    reason: str


@record(frozen=True, slots=True, kw_only=True)
class CalledBack(ReceiverEvent, kind=EventKind.CALLED_BACK):
    """A callback was called, and ended.

    Attributes:
        notification_id: The notification.
        callback: The callback's name.
        error: The type of what it raised, or `timed_out`; None if it went well.
        took: How long it took.
    """

    notification_id: int
    callback: str
    error: str | None
    took: timedelta


@record(frozen=True, slots=True, kw_only=True)
class NotificationDead(ReceiverEvent, kind=EventKind.NOTIFICATION_DEAD):
    """Given up: the notification is a dead letter.

    Attributes:
        notification_id: The notification.
        error: Which callback failed, and how.
    """

    notification_id: int
    error: str | None
