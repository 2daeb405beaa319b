"""The queues of subscriptions, while updates are added: rows are written in few statements."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from datetime import datetime
from typing import Final

from pushkit.outbox.idempotency import IdempotencyKey
from pushkit.outbox.model import Claim, NewDelivery, StatusMark
from pushkit.outbox.states import DeliveryState
from pushkit.outbox.store import OutboxStore
from pushkit.storage.script import Script
from pushkit.subscriptions.model import Recipient
from pushkit.subscriptions.store import SubscriptionStore

_MAX_UNWRITTEN: Final = 2**20  # bytes


@dataclass(slots=True, eq=False)
class Queue:
    """The unfinished deliveries of one subscription, in `seq` order."""

    recipient: Recipient  # the subscription, whose row is locked
    last_seq: int  # the `seq` of the newest delivery, finished or not
    oldest: int | None  # the `seq` of the head; None if the queue is empty
    # Whether the task has ended: then the delivery reserved for its end is stored.
    ended: bool

    @property
    def length(self) -> int:
        """An upper bound of the number of deliveries: some behind the head may be finished."""
        return 0 if self.oldest is None else self.last_seq - self.oldest + 1


class Queues:
    """The queues of some subscriptions, whose rows are locked until the transaction ends.

    `write` writes the added deliveries: before stored deliveries are read, when `is_full`, and at
    the end.
    """

    def __init__(self, outbox: OutboxStore, subscriptions: SubscriptionStore) -> None:
        self._outbox = outbox
        self._subscriptions = subscriptions
        self._of_task: dict[tuple[str, str], list[Queue]] = {}
        self._new: list[NewDelivery] = []
        self._taken: dict[str, int] = {}  # how many of them each subscription has
        self._bytes = 0
        self._ended: list[str] = []
        self._withdrawn: list[str] = []

    @property
    def is_full(self) -> bool:
        """Whether the deliveries held in memory should be written now, for their size."""
        return self._bytes >= _MAX_UNWRITTEN

    def open(self, recipients: Sequence[Recipient]) -> Script[None]:
        """Read the heads of some subscriptions."""
        oldest = yield from self._outbox.oldest([recipient.id for recipient in recipients])
        for recipient in recipients:
            queue = Queue(recipient, recipient.last_seq, oldest[recipient.id], recipient.ended)
            self._of_task.setdefault((recipient.tenant, recipient.task_id), []).append(queue)

    def of_task(self, task: tuple[str, str]) -> Sequence[Queue]:
        """Return the queues of a task, given its tenant and id, in the order of recipients."""
        return self._of_task.get(task, ())

    def add(
        self,
        queue: Queue,
        delivery_id: str,
        body: bytes,  # as its row stores it
        *,
        now: datetime,
        status: StatusMark | None = None,
        idempotency_key: IdempotencyKey | None = None,
        claim: Claim | None = None,
        traceparent: str | None = None,
    ) -> NewDelivery:
        """Add a delivery at the end of a queue: in flight if there is a claim, else pending."""
        recipient = queue.recipient
        head = queue.oldest is None and not recipient.paused
        is_claimed = claim is not None
        queue.last_seq += 1
        if queue.oldest is None:
            queue.oldest = queue.last_seq
        self._bytes += len(body)
        new = NewDelivery(
            id=delivery_id,
            subscription_id=recipient.id,
            tenant=recipient.tenant,
            owner=recipient.owner,
            task_id=recipient.task_id,
            config_id=recipient.config_id,
            seq=queue.last_seq,
            origin=recipient.origin,
            content_type=recipient.version.content_type,
            body=body,
            state=DeliveryState.IN_FLIGHT if is_claimed else DeliveryState.PENDING,
            claims=int(is_claimed),
            # A delivery behind another may never be attempted: that claim is not fruitless.
            fruitless_claims=int(is_claimed and head),
            notified_at=now,
            not_before=now,
            head=head,
            status=status,
            idempotency_key=idempotency_key.key if idempotency_key else None,
            update_sha256=idempotency_key.update_sha256 if idempotency_key else None,
            claim=claim,
            traceparent=traceparent,
        )
        self._new.append(new)
        self._taken[recipient.id] = self._taken.get(recipient.id, 0) + 1
        return new

    def end_task(self, task: tuple[str, str]) -> None:
        """Note that a task has ended: subscriptions are withdrawn once their queues are empty."""
        queues = self._of_task.pop(task, [])
        self._ended += [queue.recipient.id for queue in queues]
        self._withdrawn += [queue.recipient.id for queue in queues if queue.oldest is None]
        remaining = [queue for queue in queues if queue.oldest is not None]
        for queue in remaining:
            queue.ended = True
        if remaining:
            self._of_task[task] = remaining

    def refresh(self, queue: Queue) -> Script[None]:
        """Read the head of a queue again, after some of its deliveries were superseded."""
        oldest = yield from self._outbox.oldest([queue.recipient.id])
        queue.oldest = oldest[queue.recipient.id]

    def write(self, now: datetime) -> Script[None]:
        """Write the deliveries that were added, and the ends of tasks."""
        if self._new:
            new, self._new, self._bytes = self._new, [], 0
            taken, self._taken = self._taken, {}
            yield from self._outbox.add(new)
            yield from self._subscriptions.take_seqs(taken)
        if self._ended:
            ended, self._ended = self._ended, []
            yield from self._subscriptions.end(ended)
            withdrawn, self._withdrawn = self._withdrawn, []
            yield from self._subscriptions.withdraw(withdrawn, now)
