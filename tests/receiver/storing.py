"""One notification stored as the receiver stores it, without its verification."""

from __future__ import annotations

from datetime import datetime

from pushkit.errors import InboundError
from pushkit.storage.script import Script
from receiver.inbox.model import Lease, NewNotification
from receiver.inbox.store import Inbox, TaskQueues
from receiver.replay.memory import Replay, ReplayMemory, Seen


def store(
    *,
    sender: str,
    delivery_id: str,
    kid: str,
    issued_at: datetime,
    task_id: str | None,
    config_id: str | None,
    seq: int | None,
    body: bytes,
    now: datetime,
    lease: Lease | None = None,
) -> Script[int | None]:
    """Store one notification, and return its id; None if the inbox has the delivery already."""
    queues, missing, late = TaskQueues(), 0, False
    if task_id is not None:
        key = (sender, task_id, config_id or "")
        yield from queues.read([key])
        if seq is not None:
            missing, late = queues.compare(key, seq)
    new = NewNotification(
        sender=sender,
        delivery_id=delivery_id,
        kid=kid,
        issued_at=issued_at,
        task_id=task_id,
        config_id=config_id,
        seq=seq,
        missing=missing,
        late=late,
        body=body,
        received_at=now,
        head=not queues.unfinished,
        lease=lease,
    )
    ids = yield from Inbox().store([new])
    if ids:
        yield from queues.write(now)
    return ids.get((sender, delivery_id))


def remember(memory: ReplayMemory, reservation: Seen, now: datetime) -> Script[Replay]:
    """Remember one id, or raise why it is refused."""
    [found] = yield from memory.remember([reservation], now)
    if isinstance(found, InboundError):
        raise found
    return found
