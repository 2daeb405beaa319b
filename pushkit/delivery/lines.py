"""What waits for each of some recipients, while updates are added: written in few statements."""

from __future__ import annotations

from collections import Counter
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

_HEAVY: Final = 2**20  # bytes


@dataclass(slots=True, eq=False)
class Line:
    """What waits for one recipient."""

    recipient: Recipient  # whose row is held
    last_seq: int  # the `seq` of the newest
    oldest: int | None  # the `seq` of the oldest that is unfinished; None if nothing is
    # Whether the task has ended, and with that whether its reserved place may be taken.
    ended: bool

    @property
    def is_free(self) -> bool:
        """Whether what is added now is the next to go."""
        return self.oldest is None and not self.recipient.paused

    @property
    def length(self) -> int:
        """How many are unfinished at most: of those behind the oldest, some may be finished."""
        return 0 if self.oldest is None else self.last_seq - self.oldest + 1


class Lines:
    """The lines of some recipients, whose rows are held until the transaction ends.

    What is added is written by `write`: before anybody looks at what is stored, when it becomes
    heavy, and at the end.
    """

    def __init__(self, outbox: OutboxStore, subscriptions: SubscriptionStore) -> None:
        self._outbox = outbox
        self._subscriptions = subscriptions
        self._of_task: dict[tuple[str, str], list[Line]] = {}
        self._new: list[NewDelivery] = []
        self._bytes = 0
        self._ended: list[str] = []
        self._withdrawn: list[str] = []

    def open(self, recipients: Sequence[Recipient]) -> Script[None]:
        """Look at what waits for some recipients."""
        oldest = yield from self._outbox.oldest([recipient.id for recipient in recipients])
        for recipient in recipients:
            line = Line(recipient, recipient.last_seq, oldest[recipient.id], recipient.ended)
            self._of_task.setdefault((recipient.tenant, recipient.task_id), []).append(line)

    def of_task(self, tenant: str, task_id: str) -> Sequence[Line]:
        """Return the lines of a task, in the order of their recipients."""
        return self._of_task.get((tenant, task_id), ())

    def add(
        self,
        line: Line,
        delivery_id: str,
        body: bytes,  # as its row holds it
        *,
        now: datetime,
        status: StatusMark | None = None,
        idempotency_key: IdempotencyKey | None = None,
        claim: Claim | None = None,
        traceparent: str | None = None,
    ) -> NewDelivery:
        """Put a delivery at the end of a line, in flight already if there is a claim."""
        recipient = line.recipient
        head, is_claimed = line.is_free, claim is not None
        line.last_seq += 1
        if line.oldest is None:
            line.oldest = line.last_seq
        self._bytes += len(body)
        new = NewDelivery(
            id=delivery_id,
            subscription_id=recipient.id,
            tenant=recipient.tenant,
            owner=recipient.owner,
            task_id=recipient.task_id,
            config_id=recipient.config_id,
            seq=line.last_seq,
            origin=recipient.origin,
            content_type=recipient.version.content_type,
            body=body,
            state=DeliveryState.IN_FLIGHT if is_claimed else DeliveryState.PENDING,
            claims=int(is_claimed),
            # Behind another one it may come to nothing by no fault of its own.
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
        return new

    def end(self, tenant: str, task_id: str) -> None:
        """Note that a task has ended: its recipients go once nothing of them is unfinished."""
        lines = self._of_task.pop((tenant, task_id), [])
        self._ended += [line.recipient.id for line in lines]
        self._withdrawn += [line.recipient.id for line in lines if line.oldest is None]
        staying = [line for line in lines if line.oldest is not None]
        for line in staying:
            line.ended = True
        if staying:
            self._of_task[tenant, task_id] = staying

    @property
    def is_heavy(self) -> bool:
        """Whether so much was added that it should be written now: it is held in memory."""
        return self._bytes >= _HEAVY

    def look_again(self, line: Line) -> Script[None]:
        """Find the oldest of a line anew, after some of it were dropped."""
        oldest = yield from self._outbox.oldest([line.recipient.id])
        line.oldest = oldest[line.recipient.id]

    def write(self, now: datetime) -> Script[None]:
        """Write what was added and noted."""
        if self._new:
            new, self._new, self._bytes = self._new, [], 0
            yield from self._outbox.add(new)
            taken = Counter([each.subscription_id for each in new])
            yield from self._subscriptions.take_seqs(taken)
        if self._ended:
            ended, self._ended = self._ended, []
            yield from self._subscriptions.end(ended)
            withdrawn, self._withdrawn = self._withdrawn, []
            yield from self._subscriptions.withdraw(withdrawn, now)
