"""The data of the inbox: notifications, their states and calls, and the jobs of its queues."""

from __future__ import annotations

from collections.abc import Mapping
from datetime import datetime
from enum import StrEnum
from typing import TYPE_CHECKING, NamedTuple

from pushkit.a2a import (
    ArtifactUpdate,
    Part,
    StatusUpdate,
    TaskSnapshot,
    TaskState,
    TaskUpdate,
    UpdateKind,
    decode_update,
)
from pushkit.bounded_json import JsonValue
from pushkit.record import field, record

if TYPE_CHECKING:
    from pushkit.schemas import DataVerdict


class InboxStatus(StrEnum):
    """The state of a notification."""

    RECEIVED = "received"
    IN_PROGRESS = "in_progress"
    """With the process that leases its queue: being called back, or next."""
    DONE = "done"
    DEAD = "dead"


@record(frozen=True, slots=True, kw_only=True)
class _Accepted:
    """The members of every accepted notification; see `Notification`."""

    sender: str
    kid: str
    delivery_id: str
    task_id: str | None
    config_id: str | None
    seq: int | None
    missing: int
    late: bool
    generation_before: int | None = None
    issued_at: datetime
    received_at: datetime
    body: bytes = field(repr=False)
    traceparent: str | None = None


@record(frozen=True, slots=True, kw_only=True)
class Notification(_Accepted):
    """One accepted notification, as a callback gets it.

    Attributes:
        id: Its id in the inbox; grows in the order of acceptance.
        idempotency_key: The same in every call with this notification: after a process died in a
            callback, it is called again.
        sender: The name of the trusted sender.
        kid: The key that signed it; empty if unsigned, or signed by Standard Webhooks alone.
        delivery_id: The sender's id for it: `jti`, the same on every retry.
        update: What happened, version-free.
        task_id: The task, from the body or the signature.
        config_id: The subscription's config id, if the sender states one.
        seq: 1, 2, 3… per subscription and task, if the sender states one.
        missing: How many updates before this one never arrived (dead, cancelled or superseded).
        late: Whether an update with a higher `seq` was accepted before this one; if there is no
            `seq`, one with a higher generation.
        generation_before: The last generation of the task that was accepted before, if this one
            does not follow on it: changes between them were not pushed, or not accepted; if it is
            the higher one, the agent counts anew.
        issued_at: When this attempt was signed; when it was accepted, if its sender does not sign.
        received_at: When it was accepted.
        body: The raw bytes that were signed.
        data: Whether its data parts that name a schema fit it; empty unless the sender's card is
            known. Callbacks also get data that does not fit: the client decides what to do with it.
        traceparent: The trace that it belongs to, if it arrived in one.
    """

    id: int
    idempotency_key: str
    update: TaskUpdate = field(repr=False)
    data: tuple[DataVerdict, ...] = ()

    @property
    def kind(self) -> UpdateKind:
        """The kind of its update."""
        return self.update.kind

    @property
    def state(self) -> TaskState | None:
        """The task's state, if the update has one."""
        return self.update.state

    @property
    def parts(self) -> tuple[Part, ...]:
        """The parts of its update: of the status's message, of the artifact, or of the message.

        A whole task has those of its status's message, then those of its artifacts.
        """
        return self.update.parts

    def text(self) -> str:
        """Return the text of these parts, joined by line feeds; empty if there is none."""
        return self.update.text()

    def data_values(self) -> list[JsonValue]:
        """Return the values of the data parts among them, in order."""
        return self.update.data_values()

    @property
    def generation(self) -> int | None:
        """How often the task has changed, if the agent counts: 1, 2, 3…."""
        return self.update.generation

    @property
    def follows_gap(self) -> bool:
        """Whether updates before it are missing, by `seq` or by generation."""
        return self.missing > 0 or self.generation_before is not None

    def decode(self) -> Notification:
        """Return the notification itself, as `StoredNotification` has the method, too."""
        return self


@record(frozen=True, slots=True, kw_only=True)
class StatusNotification(Notification):
    """A notification of a task's state, as `on_status` calls back: it always has task and state.

    Its update is a status update, or a whole task (A2A 0.3).
    """

    task_id: str
    update: StatusUpdate | TaskSnapshot = field(repr=False)

    @property
    def state(self) -> TaskState:
        """The task's state."""
        return self.update.state


@record(frozen=True, slots=True, kw_only=True)
class ArtifactNotification(Notification):
    """A notification of an artifact or a chunk, as `on_artifact` calls back: it has a task."""

    task_id: str
    update: ArtifactUpdate = field(repr=False)


_CLASSES: dict[UpdateKind, type[Notification]] = {
    UpdateKind.TASK: StatusNotification,
    UpdateKind.STATUS_UPDATE: StatusNotification,
    UpdateKind.ARTIFACT_UPDATE: ArtifactNotification,
    UpdateKind.MESSAGE: Notification,
    UpdateKind.UNKNOWN: Notification,
}


@record(frozen=True, slots=True, kw_only=True)
class StoredNotification(_Accepted):
    """A notification as the inbox stores it, its body not decoded."""

    id: int
    version: str  # what the body was read as

    def decode(self) -> Notification:
        """Decode the body. Call it outside of the thread that writes: a body may be large.

        Raises:
            InboundError: This version cannot decode the body: another one accepted it.
        """
        return notification_of(
            self,
            self.id,
            decode_update(self.body, self.version),
            issued_at=self.issued_at,
            received_at=self.received_at,
        )


class NewNotification(NamedTuple):
    """A notification to store: the columns of its row, in this order."""

    queue_id: str
    place: int
    sender: str
    delivery_id: str
    task_id: str | None
    config_id: str | None
    seq: int | None
    missing: int
    late: int
    version: str
    generation_before: int | None
    kid: str
    issued_at: int
    received_at: int
    body: bytes
    body_bytes: int
    body_sha256: str
    traceparent: str | None
    not_before: int
    scheduled_at: int


def notification_of(
    accepted: NewNotification | StoredNotification,
    notification_id: int,
    update: TaskUpdate,
    *,
    issued_at: datetime,
    received_at: datetime,
) -> Notification:
    """Return an accepted notification as callbacks get it, in the class of its kind of update."""
    return _CLASSES[update.kind](
        id=notification_id,
        idempotency_key=f"{accepted.sender}:{accepted.delivery_id}",
        sender=accepted.sender,
        kid=accepted.kid,
        delivery_id=accepted.delivery_id,
        update=update,
        task_id=accepted.task_id,
        config_id=accepted.config_id,
        seq=accepted.seq,
        missing=accepted.missing,
        late=bool(accepted.late),
        generation_before=accepted.generation_before,
        issued_at=issued_at,
        received_at=received_at,
        body=accepted.body,
        traceparent=accepted.traceparent,
    )


@record(frozen=True, slots=True, kw_only=True)
class CallbackState:
    """The calls of one callback with one notification."""

    callback: str
    done: bool  # whether a call succeeded: the callback does not get the notification again
    attempts: int  # how many calls ended
    last_error: str | None  # the type of what the last call raised; None once it is done
    last_at: datetime | None  # when the last call ended


class Call(NamedTuple):
    """How one call of a callback ended."""

    notification_id: int
    callback: str
    error: str | None


class CallbackOutcome(StrEnum):
    """What the calls of one attempt mean for their notification."""

    DONE = "done"
    """Every callback has had it."""
    UNMATCHED = "unmatched"
    """No callback wants it: it is done."""
    FAILED = "failed"
    """A callback failed: it is called back again, as the schedule says, or is a dead letter."""
    DEAD = "dead"
    """It is a dead letter, however few its attempts are."""
    PUT_OFF = "put_off"
    """A callback's share is used up: it waits, and that was no attempt."""
    LOST = "lost"
    """Its lease may have ended: nothing is known."""


class Attempted(NamedTuple):
    """The result of one attempt: what was called, and what that means."""

    outcome: CallbackOutcome
    call: Call | None = None  # the last call, which is not recorded yet
    error: str | None = None
    pause: float = 0.0  # seconds that it waits, if it was put off


@record(frozen=False, slots=True, kw_only=True, eq=False)
class NotificationJob:
    """A notification in the memory of the process that leases its queue."""

    # Decoded already if it has been in memory since it was stored.
    notification: StoredNotification | Notification
    queue_id: str
    seq: int  # its place in its queue
    epoch: int  # of the lease under which it is in memory
    since: datetime  # when it was accepted, or redriven
    attempts: int = 0  # how many attempts ended, since then
    redrives: int = 0
    # Whether the attempt before did not end: its process died, or was out of reach until the lease
    # ended.
    broken_off: bool = False
    callbacks: Mapping[str, CallbackState] = field(default_factory=dict)  # its calls so far
    result: Attempted | None = None
    size: int = field(init=False)

    def __post_init__(self) -> None:
        self.size = len(self.notification.body)

    def had_by(self, callback: str) -> bool:
        """Return whether a callback has had it already."""
        state = self.callbacks.get(callback)
        return state is not None and state.done
