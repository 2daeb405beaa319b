"""One notification stored and settled as the receiver does, without its verification."""

from __future__ import annotations

import time
from collections import Counter
from collections.abc import Mapping, Sequence
from datetime import datetime, timedelta

from pushkit.errors import InboundError
from pushkit.storage.script import Script, to_micros
from receiver.inbox.model import ClaimedNotification, InboxStatus, Lease, NewNotification
from receiver.inbox.store import Inbox, TaskQueues
from receiver.replay.memory import Replay, Seen, remember_ids


def store(
    task_id: str | None,
    seq: int | None = 1,
    *,
    body: bytes,
    now: datetime,
    sender: str = "agent",
    delivery_id: str | None = None,  # by default of task and number
    kid: str = "key-1",
    config_id: str | None = "config-1",
    lease: Lease | None = None,
) -> Script[int | None]:
    """Store one notification, and return its id; None if the inbox has the delivery already."""
    queues, missing, late = TaskQueues(), 0, False
    delivery_id = delivery_id or f"{task_id}#{seq}"
    if task_id is not None:
        key = (sender, task_id, config_id or "")
        yield from queues.read([key])
        if seq is not None:
            missing, late = queues.compare(key, seq)
    moment = to_micros(now)
    new = NewNotification(
        sender=sender,
        delivery_id=delivery_id,
        kid=kid,
        issued_at=moment,
        task_id=task_id,
        config_id=config_id,
        seq=seq,
        missing=missing,
        late=int(late),
        body=body,
        received_at=moment,
        not_before=moment,
        head=int(not queues.unfinished),
        traceparent=None,
    )
    if lease is not None:
        new = NewNotification(*new[:14], *lease.columns())
    ids = yield from Inbox().store([new])
    if ids:
        yield from queues.write(now)
    return ids.get((sender, delivery_id))


def claim(
    worker: str, *, limit: int, now: datetime, until: datetime, held: Sequence[int] = ()
) -> Script[list[ClaimedNotification]]:
    """Claim as a worker whose senders get equal shares."""
    lease = Lease(worker=worker, until=until, taken=time.perf_counter())
    return Inbox().claim(lease, limit=limit, now=now, divide=_evenly, held=held)


def _evenly(due: Sequence[str], free: int, taken: Mapping[str, int]) -> Sequence[tuple[str, int]]:
    given: Counter[str] = Counter()
    for _ in range(free):
        given[min(due, key=lambda sender: taken.get(sender, 0) + given[sender])] += 1
    return list(given.items())


def remember(seen: Seen, now: datetime) -> Script[Replay]:
    """Remember one id, or raise why it is refused."""
    [found] = yield from remember_ids([seen], now)
    if isinstance(found, InboundError):
        raise found
    return found


def settle_one(
    claimed: ClaimedNotification,
    worker: str,
    status: InboxStatus,
    *,
    now: datetime,
    retry_in: float | None = None,
    error: str = "",
) -> Script[bool]:
    """Settle one notification, as the dispatcher does; return whether its worker held it."""
    inbox, stored = Inbox(), claimed.stored
    if status is not InboxStatus.DONE:
        retry_at = None if retry_in is None else now + timedelta(seconds=retry_in)
        return (
            yield from inbox.settle_failed(claimed, worker, now=now, retry_at=retry_at, error=error)
        )
    settled = yield from inbox.settle_done([claimed], worker, now=now)
    if settled and stored.task_id is not None:
        following = yield from inbox.oldest_unfinished([(stored.sender, stored.task_id)])
        yield from inbox.make_heads(list(following))
    return bool(settled)
