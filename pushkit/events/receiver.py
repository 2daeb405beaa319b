"""Events of a receiver: notifications accepted and refused, and outcomes of callbacks."""

from __future__ import annotations

from datetime import timedelta

from pushkit.events.model import Event, EventKind
from pushkit.record import record


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
