"""The data of the inbox: notifications, their states, leases and calls."""

from __future__ import annotations

from collections.abc import Mapping
from datetime import datetime
from enum import StrEnum
from typing import TYPE_CHECKING, NamedTuple

from pushkit.a2a import TaskState, TaskUpdate, UpdateKind, decode_update
from pushkit.record import field, record
from pushkit.storage.script import to_micros

if TYPE_CHECKING:
    from pushkit.schemas import DataVerdict


class InboxStatus(StrEnum):
    """The state of a notification."""

    RECEIVED = "received"
    IN_PROGRESS = "in_progress"
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
        late: Whether an update with a higher `seq` was accepted before this one.
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

    def decode(self) -> Notification:
        """Return the notification itself, as `StoredNotification` has the method, too."""
        return self


@record(frozen=True, slots=True, kw_only=True)
class StoredNotification(_Accepted):
    """A notification as the inbox stores it, its body not decoded."""

    id: int

    def decode(self) -> Notification:
        """Decode the body. Call it outside of the thread that writes: a body may be large.

        Raises:
            InboundError: This version cannot decode the body: another one accepted it.
        """
        return notification_of(
            self,
            self.id,
            decode_update(self.body),
            issued_at=self.issued_at,
            received_at=self.received_at,
        )


@record(frozen=True, slots=True, kw_only=True)
class Lease:
    """A worker's right to call back a notification, until it ends or is renewed."""

    worker: str
    until: datetime  # by the database's clock
    taken: float  # when it began, by this process's monotonic clock

    def columns(self) -> tuple[str, int, str, int]:
        """Return the last columns of a notification that is stored with it."""
        return InboxStatus.IN_PROGRESS.value, 1, self.worker, to_micros(self.until)


class NewNotification(NamedTuple):
    """A notification to store: the columns of its row, in this order."""

    sender: str
    delivery_id: str
    task_id: str | None
    config_id: str | None
    seq: int | None
    missing: int
    late: int
    kid: str
    issued_at: int
    received_at: int
    not_before: int
    body: bytes
    traceparent: str | None
    head: int  # whether its task has no unfinished notification before it
    # `Lease.columns()`; without them, it waits for a claim.
    status: str = InboxStatus.RECEIVED.value
    attempts: int = 0
    lease_worker: str | None = None
    lease_until: int | None = None


def notification_of(
    accepted: NewNotification | StoredNotification,
    notification_id: int,
    update: TaskUpdate,
    *,
    issued_at: datetime,
    received_at: datetime,
) -> Notification:
    """Return an accepted notification as callbacks get it."""
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
        late=bool(accepted.late),
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


@record(frozen=True, slots=True, kw_only=True)
class ClaimedNotification:
    """A notification under a lease, with its calls so far."""

    # The notification, decoded already if it has been held since it was stored.
    stored: StoredNotification | Notification
    since: datetime  # when it was accepted, or redriven
    leased_at: float  # when its lease began, by this process's monotonic clock
    attempts: int = 1  # how often it was claimed, this time included; a redrive begins anew
    # Whether the previous attempt did not end: its process died, or was suspended or out of reach
    # of the database until the lease ended.
    broken_off: bool = False
    callbacks: Mapping[str, CallbackState] = field(default_factory=dict)  # its calls, by callback

    def had_by(self, callback: str) -> bool:
        """Return whether a callback has had it already."""
        found = self.callbacks.get(callback)
        return found is not None and found.done
