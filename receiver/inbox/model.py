"""What the inbox hands out: notifications, where they stand, and who had them."""

from __future__ import annotations

from collections.abc import Mapping
from datetime import datetime
from enum import StrEnum
from typing import TYPE_CHECKING

from pushkit.a2a import TaskState, TaskUpdate, UpdateKind, decode_update
from pushkit.record import field, record

if TYPE_CHECKING:
    from pushkit.schemas import DataVerdict


class InboxStatus(StrEnum):
    """Where a notification stands."""

    RECEIVED = "received"
    IN_PROGRESS = "in_progress"
    DONE = "done"
    DEAD = "dead"


@record(frozen=True, slots=True, kw_only=True)
class _Accepted:
    """What is known of every notification that is accepted; see `Notification`."""

    sender: str
    kid: str
    delivery_id: str
    task_id: str | None
    config_id: str | None
    seq: int | None
    missing: int
    late: bool
    issued_at: datetime
    received_at: datetime
    body: bytes = field(repr=False)
    traceparent: str | None = None


@record(frozen=True, slots=True, kw_only=True)
class Notification(_Accepted):
    """One accepted notification, as a callback gets it.

    Attributes:
        id: Its place in the inbox; grows.
        idempotency_key: The same whenever this notification is handed out: a process that dies
            inside a callback must run it again.
        sender: The name of the trusted sender.
        kid: The key that signed it; empty if its sender does not sign.
        delivery_id: The sender's id of it: `jti`, the same on every retry.
        update: What happened, version-free.
        task_id: The task, from the body or the signature.
        config_id: The subscription's config id, if the sender states one.
        seq: 1, 2, 3… per subscription and task, if the sender states one.
        missing: How many updates before this one never came (dead, cancelled or superseded).
        late: An update with a higher `seq` was accepted before this one.
        issued_at: When this attempt was signed; when it was accepted, if its sender does not sign.
        received_at: When it was accepted.
        body: The raw bytes that were signed.
        data: Of its data parts that name a schema, whether they fit it; nothing where the sender's
            card is not known. What does not fit is handed out all the same: to refuse it is the
            client's own affair.
        traceparent: The trace that it belongs to, if it came in one.
    """

    id: int
    idempotency_key: str
    update: TaskUpdate = field(repr=False)
    data: tuple[DataVerdict, ...] = ()

    @property
    def kind(self) -> UpdateKind:
        """What kind of update it is."""
        return self.update.kind

    @property
    def state(self) -> TaskState | None:
        """The task's state, where the update has one."""
        return self.update.state

    def decode(self) -> Notification:
        """Return it as it is: it is decoded."""
        return self


@record(frozen=True, slots=True, kw_only=True)
class StoredNotification(_Accepted):
    """A notification as it lies in the inbox."""

    id: int

    def decode(self) -> Notification:
        """Return it with its body read. Not in the thread that writes: a body may be large.

        Raises:
            InboundError: The body is none that this code reads: other code accepted it.
        """
        return notification_of(self, self.id, decode_update(self.body))


@record(frozen=True, slots=True, kw_only=True)
class Lease:
    """Who has a notification in hand, and until when without being heard of."""

    worker: str
    until: datetime  # until when, by the database's clock
    taken: float  # when it was taken, by the clock of this process that nobody sets


@record(frozen=True, slots=True, kw_only=True)
class NewNotification(_Accepted):
    """A notification that is to be stored."""

    head: bool  # whether nothing that is unfinished of its task is before it
    lease: Lease | None = None  # who has it in hand from the start; None if it waits for a claim


def notification_of(
    accepted: NewNotification | StoredNotification, notification_id: int, update: TaskUpdate
) -> Notification:
    """Return what was accepted as it is called back."""
    return Notification(
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
        late=accepted.late,
        issued_at=accepted.issued_at,
        received_at=accepted.received_at,
        body=accepted.body,
        traceparent=accepted.traceparent,
    )


@record(frozen=True, slots=True, kw_only=True)
class CallbackState:
    """What one callback did with one notification."""

    callback: str
    done: bool  # whether it had the notification: it does not get it again
    attempts: int  # how often it was called, as far as it came to an end
    last_error: str | None  # the type of what it raised last; None once it is done
    last_at: datetime | None  # when it ended last


@record(frozen=True, slots=True, kw_only=True)
class ClaimedNotification:
    """A notification under a lease, and what was done of it before."""

    # The notification, decoded already if it was handed over as it was stored.
    stored: StoredNotification | Notification
    attempts: int  # how often it was handed out, this time included; a redrive begins anew
    since: datetime  # when it was accepted, or redriven
    # Whether the attempt before this one came to no end: its process died, or was out of reach
    # until its lease ended.
    broken_off: bool
    callbacks: Mapping[str, CallbackState]  # what its callbacks did so far, by name
    leased_at: float  # when its lease was taken, by the clock of this process that nobody sets

    def had_by(self, callback: str) -> bool:
        """Say whether a callback had it already."""
        found = self.callbacks.get(callback)
        return found is not None and found.done
