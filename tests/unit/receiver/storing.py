"""One notification stored, claimed and settled as the receiver does, without its verification."""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Collection, Sequence
from datetime import datetime, timedelta

from pushkit.queue.held import Ask
from pushkit.queue.leases import Claims, advance
from pushkit.queue.rules import PendingJob, Room, appended
from pushkit.storage.script import Script, to_micros
from receiver.inbox.model import InboxStatus, NewNotification, NotificationJob
from receiver.inbox.store import (
    INBOX,
    Change,
    PlaceInSequence,
    Sequences,
    accepted_before,
    jobs_of,
    new_queue,
    note_death,
    queue_id_of,
    store_results,
)
from receiver.inbox.store import store as store_notifications


def store(
    task_id: str | None,
    seq: int | None = 1,
    *,
    generation: int | None = None,
    body: bytes,
    now: datetime,
    sender: str = "agent",
    delivery_id: str | None = None,  # by default of task and number
    kid: str = "key-1",
    config_id: str | None = "config-1",
    worker: str | None = None,  # which leases its queue
    until: datetime | None = None,  # of that lease
) -> Script[int | None]:
    """Store one notification, and return its id; None if the inbox has the delivery already."""
    sequences, standing = Sequences(), PlaceInSequence()
    delivery_id = delivery_id or f"{task_id}#{seq}"
    if (yield from accepted_before([(sender, delivery_id)])):
        return None
    queue_id = queue_id_of(sender, task_id, delivery_id)
    if task_id is not None and (seq, generation) != (None, None):
        key = (sender, task_id, config_id or "")
        yield from sequences.read([key])
        standing = sequences.compare(key, seq, generation)
    moment = to_micros(now)
    queues = yield from INBOX.lock([queue_id])
    write = INBOX.write if queues else INBOX.add
    queue, _ = appended(
        queues.get(queue_id) or new_queue(queue_id, sender, moment),
        worker,
        now=moment,
        until=to_micros(until or now),
        probation_from=1,
    )
    new = NewNotification(
        queue_id=queue_id,
        place=queue.last_seq,
        sender=sender,
        delivery_id=delivery_id,
        task_id=task_id,
        config_id=config_id,
        seq=seq,
        missing=standing.missing,
        late=int(standing.late),
        version="1.0",
        generation_before=standing.generation_before,
        kid=kid,
        issued_at=moment,
        received_at=moment,
        body=body,
        body_bytes=len(body),
        body_sha256=hashlib.sha256(body).hexdigest(),
        traceparent=None,
        not_before=moment,
        scheduled_at=moment,
    )
    ids = yield from store_notifications([new])
    yield from write([queue])
    yield from sequences.write(now)
    return ids[sender, delivery_id]


def claim(
    worker: str,
    *,
    limit: int,
    now: datetime,
    until: datetime,
    held: Sequence[str] = (),
    dead: Callable[[Collection[str]], Collection[str]] = lambda _: (),
) -> Script[list[NotificationJob]]:
    """Lease due queues; return the first notification of each."""
    claims, moment = Claims(tables=INBOX, lose=_lose), to_micros(now)
    yield from claims.take_over(worker, held=held, dead=dead, now=moment)
    room = Room(limit, lambda _: limit)
    result = yield from claims.claim(worker, room, now=moment, until=to_micros(until))
    jobs = yield from jobs_of([(each.queue, each.jobs) for each in result.claimed])
    firsts = [jobs[each.jobs[0].id] for each in result.claimed]
    return sorted(firsts, key=lambda job: job.notification.id)


def _lose(lost: Sequence[tuple[PendingJob, str, int]], now: int) -> Script[None]:
    for job, error, _ in lost:
        yield from note_death(job.id, error, None, now=now)


def settle_one(
    job: NotificationJob,
    status: InboxStatus,
    *,
    now: datetime,
    retry_in: float | None = None,
    error: str | None = None,
) -> Script[bool]:
    """Settle one notification, and give its queue back; return whether its lease still held."""
    queue = (yield from INBOX.lock([job.queue_id])).get(job.queue_id)
    if queue is None or queue.epoch != job.epoch:
        return False
    state, due = status.value, None
    if status is InboxStatus.RECEIVED:
        state, due = "pending", to_micros(now + timedelta(seconds=retry_in or 0))
    stored = yield from store_results([(job, Change(state, 1, error, due))], now=now)
    ask = Ask(
        id=job.queue_id,
        epoch=job.epoch,
        version=0,
        results=[job],
        has=(),
        tail=job.seq,
        looks=True,
        releases=True,
        gives_way=False,
        more=8,
    )
    yield from advance(INBOX, [(queue, ask)], stops=lambda _: True, now=to_micros(now))
    return bool(stored)
