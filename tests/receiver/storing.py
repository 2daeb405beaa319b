"""One notification stored as the receiver stores it, without its verification."""

from __future__ import annotations

from datetime import datetime

from pushkit.errors import InboundError
from pushkit.storage.script import Script
from receiver.inbox.model import Lease, NewNotification
from receiver.inbox.store import Inbox, Sequences
from receiver.replay.memory import Replay, ReplayMemory, Reservation


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
    tasks, sequences = [] if task_id is None else [(sender, task_id)], Sequences()
    missing, late = 0, False
    if task_id is not None and seq is not None:
        key = (sender, task_id, config_id or "")
        yield from sequences.read([key])
        missing, late = sequences.next(key, seq)
    behind = yield from Inbox().unfinished_tasks(tasks)
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
        head=not behind,
        lease=lease,
    )
    ids = yield from Inbox().store([new])
    if ids:
        yield from sequences.write(now)
    return ids.get((sender, delivery_id))


def remember(memory: ReplayMemory, reservation: Reservation, now: datetime) -> Script[Replay]:
    """Remember one id, or raise why it is refused."""
    [found] = yield from memory.remember([reservation], now)
    if isinstance(found, InboundError):
        raise found
    return found
