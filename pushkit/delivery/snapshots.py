"""The snapshot of a registration: the task as it stands, ahead of the updates that follow.

A client that registers late does not know what it has missed; if it asks for the task, it does not
know which updates its answer holds. Neither order of the two calls helps an agent, either:

- Read, then subscribe: an update in between is neither in what was read, nor sent.
- Subscribe, then read: nothing is lost, if the agent stores a change before it notifies it. What
  was notified before the subscription was there had been stored before that, so it is in what is
  read after it; and everything else is sent. But an update may be sent before the snapshot.

So the place in the queue is taken first, and filled later:

1. The task is read. If there is none yet, all its updates will follow: there is no snapshot.
2. One transaction stores the subscription, and the task as its first delivery, which is *held*: it
   is not due for `HELD_FOR`. Updates of now on queue up behind it, by `seq`.
3. The task is read again: now everything that was not queued is in it.
4. A second transaction replaces the held body by that, and makes it due. It was never in a worker's
   memory, since it was not due: bodies are frozen from the first attempt on.

If the process dies before 4, the client has no answer, and registers again. The task as of 1 goes
out when the hold is over: what is behind it never waits for longer. If 3 takes until then, the
snapshot may have gone: another one is added at the end, in the same way. An update whose change is
in the snapshot already, because it was stored before 3 and notified after 2, still follows it.
Registering a config that is there already adds a snapshot at the end of its queue.
"""

from __future__ import annotations

import contextlib
import functools
from collections.abc import Awaitable, Callable, Iterator
from dataclasses import replace
from datetime import datetime, timedelta
from typing import Final, NamedTuple, TypeAlias

from pushkit.a2a import Task, TaskSnapshot, WireVersion
from pushkit.delivery.bodies import BodyEncoder, SnapshotProvider
from pushkit.delivery.queues import Queues
from pushkit.errors import InvalidUpdateError, StorageError
from pushkit.options import check_type
from pushkit.outbox import store as outbox
from pushkit.outbox.model import StatusContent, new_delivery_id
from pushkit.queue.leases import reschedule
from pushkit.secrets.vault import Vault
from pushkit.storage.database import Database
from pushkit.storage.script import Script, to_micros
from pushkit.subscriptions import store as subscriptions
from pushkit.subscriptions.model import OUTBOX, Subscription

HELD_FOR: Final = timedelta(seconds=30)
_MOST_TRIES: Final = 3


class Held(NamedTuple):
    """A delivery whose body is still to be replaced."""

    subscription_id: str
    delivery_id: str
    seq: int


Registered: TypeAlias = tuple[Subscription, Subscription | None, Held | None]
"""A subscription, the one that it replaced, if any, and its snapshot, if it has one."""


async def register(
    database: Database,
    vault: Vault,
    put: Callable[[bytes | None], Script[Registered]],
    read: Callable[[], Awaitable[bytes | None]],
) -> Registered:
    """Register a subscription with a snapshot.

    Args:
        database: The outbox.
        vault: Seals the bodies.
        put: Stores the subscription and the body of its snapshot, if there is one, which is held.
        read: Returns the task's body; None if there is no such task.

    Raises:
        StorageError: Reading took longer than `HELD_FOR`, again and again.
    """
    first: Registered | None = None
    for _ in range(_MOST_TRIES):
        body = await read()
        found = await database.write_patiently(functools.partial(put, body))
        subscription, _, held = found
        first = first or found
        again = await read()
        if held is None or body is None:
            if again is None:
                return first
            continue  # the task was made meanwhile
        release = functools.partial(_release, database, vault, held, again or body)
        if await database.write_patiently(release):
            return subscription, first[1], held
    raise StorageError(
        f"the task took longer to read than {HELD_FOR.total_seconds():g} s, {_MOST_TRIES} times:"
        " register again"
    )


def reader(
    snapshot: Task | SnapshotProvider,
    encoder: BodyEncoder,
    *,
    task_id: str,
    owner: str,
    version: WireVersion,
    clock: Callable[[], datetime],
) -> Callable[[], Awaitable[bytes | None]]:
    """Return what reads a task as its owner sees it, and encodes it.

    A task that cannot be sent whole is sent without artifacts and history, and if that cannot be
    sent either, without the status's message and the metadata: clients get those by `GetTask`.
    """

    async def read() -> bytes | None:
        task = await snapshot(owner) if callable(snapshot) else snapshot
        if task is None:
            return None
        check_type("snapshot", task, Task)
        if task.id != task_id:
            raise InvalidUpdateError("snapshot: expected the task that is subscribed to")
        *more, least = (task, *shorter(task))
        for each in more:
            with contextlib.suppress(InvalidUpdateError):
                return encoder.encode(TaskSnapshot(task=each), version, None, now=clock())
        return encoder.encode(TaskSnapshot(task=least), version, None, now=clock())

    return read


def shorter(task: Task) -> Iterator[Task]:
    """Yield a task that cannot be sent, again with less in it: its state is what has to be told."""
    task = replace(task, artifacts=(), history=())
    yield task
    task = replace(task, status=replace(task.status, message=None))
    yield task
    yield replace(task, status=replace(task.status, extra={}), metadata={}, extra={})


def hold(subscription_id: str, body: bytes, vault: Vault, now: datetime) -> Script[Held]:
    """Add a held delivery at the end of a queue."""
    recipients = yield from subscriptions.lock_current([subscription_id])
    recipient = recipients[subscription_id]
    queues, delivery_id = Queues([recipient]), new_delivery_id(now)
    [queue] = queues.of_task((recipient.tenant, recipient.task_id))
    new, _ = queues.add(
        queue,
        delivery_id,
        vault.seal_body(delivery_id, body),
        now=now,
        not_before=to_micros(now + HELD_FOR),
        status=StatusContent.FULL,
    )
    yield from queues.write()
    return Held(subscription_id, delivery_id, new.seq)


def _release(database: Database, vault: Vault, held: Held, body: bytes) -> Script[bool]:
    """Replace the body of a held delivery, and let it be due; return False if it may have begun."""
    queues = yield from OUTBOX.lock([held.subscription_id])
    now = to_micros((yield from database.now()))
    sealed = vault.seal_body(held.delivery_id, body)
    is_done = yield from outbox.fill(held.delivery_id, sealed, now)
    yield from reschedule(OUTBOX, [*queues.values()], now)
    yield from database.wake()
    return is_done
