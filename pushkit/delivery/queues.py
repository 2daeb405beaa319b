"""The queues of recipients, while updates are added: rows are written in few statements."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from datetime import datetime
from typing import Final

from pushkit.outbox import store as outbox
from pushkit.outbox.model import IdempotencyKey, NewDelivery, StatusContent
from pushkit.queue.rules import Handed, Queue, appended
from pushkit.storage.script import Script, from_micros, to_micros
from pushkit.subscriptions import store as subscriptions
from pushkit.subscriptions.model import OUTBOX, Recipient

_MAX_UNWRITTEN: Final = 2**20  # bytes


@dataclass(slots=True, eq=False)
class OpenQueue:
    """The queue of a recipient, whose row is locked."""

    recipient: Recipient
    row: Queue
    # Whether the task has ended: then the delivery reserved for its end is stored.
    ended: bool
    has_new: bool = False  # whether a delivery was added in this transaction

    def hurry(self, now: int) -> None:
        """Have a claim look at the queue now, if one is to look at it later."""
        if self.row.is_due_later(now):
            self.row = self.row._replace(due_at=now)

    @property
    def length(self) -> int:
        """An upper bound of the number of deliveries: some may be finished."""
        return self.row.last_seq - self.row.settled_to


class Queues:
    """The queues of some recipients, whose rows are locked until the transaction ends.

    `write` writes the added deliveries: before stored deliveries are read, when `is_full`, and at
    the end.
    """

    def __init__(self, recipients: Sequence[Recipient]) -> None:
        self._of_task: dict[tuple[str, str], list[OpenQueue]] = {}
        self._new: list[NewDelivery] = []
        self._changed: dict[str, OpenQueue] = {}
        self._bytes = 0
        self._ended: list[str] = []
        for recipient in recipients:
            queue = OpenQueue(recipient, recipient.queue, recipient.ended)
            self._of_task.setdefault((recipient.tenant, recipient.task_id), []).append(queue)

    @property
    def is_full(self) -> bool:
        """Whether the deliveries held in memory should be written now, for their size."""
        return self._bytes >= _MAX_UNWRITTEN

    def of_task(self, task: tuple[str, str]) -> Sequence[OpenQueue]:
        """Return the queues of a task, given its tenant and id, in the order of recipients."""
        return self._of_task.get(task, ())

    def add(
        self,
        queue: OpenQueue,
        delivery_id: str,
        body: bytes,  # as its row stores it
        *,
        now: datetime,
        status: StatusContent | None = None,
        idempotency_key: IdempotencyKey | None = None,
        traceparent: str | None = None,
        worker: str | None = None,  # which has room for it in its memory, if any has
        until: int = 0,  # how long its lease would last
        probation_from: int = 1,
        not_before: int = 0,  # when it may be sent, if not now; microseconds
        may_be_joined: bool = False,  # with a newer one, as long as no worker has it
    ) -> tuple[NewDelivery, Handed | None]:
        """Add a delivery at the end of a queue; return whether it was handed to the worker."""
        recipient = queue.recipient
        queue.row, handed = appended(
            queue.row,
            worker,
            now=to_micros(now),
            until=until,
            probation_from=probation_from,
            not_before=not_before,
            version=recipient.revision,
        )
        queue.has_new = True
        self._bytes += len(body)
        new = NewDelivery(
            id=delivery_id,
            subscription_id=recipient.id,
            tenant=recipient.tenant,
            owner=recipient.owner,
            task_id=recipient.task_id,
            config_id=recipient.config_id,
            seq=queue.row.last_seq,
            origin=recipient.origin,
            version=recipient.version,
            body=body,
            notified_at=now,
            not_before=from_micros(not_before) if not_before else now,
            waits=may_be_joined and handed is None,
            status=status,
            idempotency_key=idempotency_key.key if idempotency_key else None,
            update_sha256=idempotency_key.update_sha256 if idempotency_key else None,
            traceparent=traceparent,
        )
        self._new.append(new)
        self._changed[recipient.id] = queue
        return new, handed

    def end_task(self, task: tuple[str, str], now: datetime) -> Script[None]:
        """Note that a task has ended: subscriptions are withdrawn once their queues are empty."""
        remaining = []
        for queue in self._of_task.pop(task, ()):
            queue.ended = True
            self._ended.append(queue.recipient.id)
            if queue.has_new or (yield from outbox.has_unfinished(queue.recipient.id)):
                remaining.append(queue)
            else:
                yield from subscriptions.withdraw([queue.recipient.id], now)
        if remaining:
            self._of_task[task] = remaining

    def write(self) -> Script[None]:
        """Write the deliveries that were added, and the ends of tasks."""
        if self._new:
            new, self._new, self._bytes = self._new, [], 0
            changed, self._changed = self._changed, {}
            yield from outbox.add(new)
            yield from OUTBOX.write([queue.row for queue in changed.values()])
        if self._ended:
            ended, self._ended = self._ended, []
            yield from subscriptions.end(ended)
