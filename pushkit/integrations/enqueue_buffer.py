"""Keeps updates in memory while they cannot be stored, because no SDK retries them.

If a notification sender fails, the SDKs log the error and continue the task, or fail the client's
call. So while the outbox is out of reach, updates wait here: in order, in one bounded buffer per
task. They are lost if the process dies, which is why `PushSender.notify` itself does not do this.
A recipient that was refused, for example because its backlog is full, is not retried here.
"""

from __future__ import annotations

import asyncio
import itertools
import logging
import secrets
from collections.abc import Awaitable, Callable, Iterator
from dataclasses import dataclass
from typing import Final, Self

from pushkit.a2a import AnyUpdate
from pushkit.delivery.bodies import SnapshotProvider
from pushkit.delivery.sender import PushSender
from pushkit.errors import PushkitError, StorageError
from pushkit.integrations.client_configs import wiring_of
from pushkit.logs import RepeatedLog
from pushkit.options import checked
from pushkit.outbox.model import IdempotencyKey
from pushkit.record import record

_log: Final = logging.getLogger("pushkit.integrations")

_FIRST_PAUSE, _LONGEST_PAUSE = 0.2, 10.0  # seconds

_CLOSED_WITHIN: Final = 60.0  # seconds; the database itself gives up before

_EARLIER: Final = "earlier updates of the task wait for the outbox"

Enqueue = Callable[[bool], Awaitable[object]]
"""Stores an update; its argument is whether this is the first time."""


@dataclass(frozen=True, slots=True)
class _Kept:
    enqueue: Enqueue
    size: int
    is_last: bool


@dataclass(slots=True, eq=False)
class _Queue:
    """The updates of one task, in order."""

    # Updates in memory; the first stays here while it is retried.
    waiting: tuple[_Kept, ...] = ()
    callers: int = 0  # how many callers store an update, or wait for their turn
    # Held by the caller that stores its update; None if there is only one caller.
    turn: asyncio.Lock | None = None
    emptying: asyncio.Task[None] | None = None  # stores the waiting updates

    async def begin(self) -> None:
        """Wait for the turn of a caller, which is counted in `callers` and not the only one."""
        try:
            if self.turn is None:
                self.turn = asyncio.Lock()
                await self.turn.acquire()  # for the first caller, which began without the lock
            await self.turn.acquire()
        except BaseException:
            self._leave()
            raise

    def end(self) -> None:
        """Let the next caller begin."""
        if self.turn is not None:
            self.turn.release()
        self._leave()

    def _leave(self) -> None:
        self.callers -= 1
        if not self.callers:
            self.turn = None


class EnqueueBuffer:
    """Updates that wait for the outbox.

    An update is enqueued again after an error that leaves open whether it was stored. The caller
    must use the same idempotency key.

    Args:
        capacity: How many updates may wait in all; further ones are refused, and logged.
        per_task: How many updates of one task may wait, in addition to its last one.
        max_bytes: The total size of the waiting updates.

    Attributes:
        refused: How many updates were not stored, and will never be.

    Raises:
        ConfigError: A limit is no int.
    """

    @checked
    def __init__(
        self, capacity: int = 1000, *, per_task: int = 100, max_bytes: int = 64 * 1024 * 1024
    ) -> None:
        self._capacity = capacity
        self._per_task = per_task
        self._max_bytes = max_bytes
        self._queues: dict[str, _Queue] = {}
        self._waiting = 0
        self._bytes = 0
        self._closing = asyncio.Event()
        self._repeated = RepeatedLog(_log)
        self.refused: int = 0

    def __len__(self) -> int:
        """Return how many updates wait."""
        return self._waiting

    async def run(
        self, task_id: str, enqueue: Enqueue, *, size: int, is_last: bool = False
    ) -> None:
        """Store an update now, or as soon as the outbox is in reach again.

        If it will never be stored, because it is not valid or too many updates wait, that is logged
        and counted, and not raised.

        Args:
            task_id: Its task; the updates of a task are stored in order.
            enqueue: Stores it.
            size: Its size in bytes.
            is_last: Whether it ends its task: then it may exceed `per_task` by one.
        """
        queue = self._queues.get(task_id)
        if queue is None:
            queue = self._queues[task_id] = _Queue()
        queue.callers += 1
        if queue.callers > 1:
            await queue.begin()
        try:
            if queue.waiting:  # earlier updates go first
                self._keep(task_id, queue, _Kept(enqueue, size, is_last), StorageError(_EARLIER))
                return
            try:
                await enqueue(True)
            except PushkitError as exc:
                if not isinstance(exc, StorageError) or self._closing.is_set():
                    self.refuse(exc)
                    return
                self._keep(task_id, queue, _Kept(enqueue, size, is_last), exc)
        finally:
            queue.end()
            self._forget(task_id, queue)

    def open(self) -> None:
        """Keep updates again, after `close`, also in another event loop."""
        self._closing = asyncio.Event()

    async def close(self) -> None:
        """Wait for running calls, try once to store the waiting updates, and drop the rest.

        What is dropped is logged, with one line per task.
        """
        self._closing.set()
        await asyncio.gather(*(self._finish_in_time(*each) for each in list(self._queues.items())))
        self._queues.clear()

    def _keep(self, task_id: str, queue: _Queue, update: _Kept, reason: PushkitError) -> None:
        fits = (
            self._waiting < self._capacity
            and len(queue.waiting) < self._per_task + update.is_last
            and self._bytes + update.size <= self._max_bytes
        )
        if not fits:
            self.refuse(reason)
            return
        queue.waiting = (*queue.waiting, update)
        self._waiting += 1
        self._bytes += update.size
        self._repeated.log(
            "kept",
            logging.ERROR,
            "an update could not be stored and is kept in memory: %s",
            reason,
        )
        if queue.emptying is None:
            queue.emptying = asyncio.create_task(
                self._empty(task_id, queue), name="pushkit-enqueue-buffer"
            )

    async def _empty(self, task_id: str, queue: _Queue) -> None:
        pause = _FIRST_PAUSE
        while queue.waiting and not await self._closes_within(pause):
            try:
                await self._try_first(queue)
            except StorageError:
                pause = min(pause * 2, _LONGEST_PAUSE)
            else:
                pause = 0.0
        queue.emptying = None
        if not self._waiting:
            self._repeated.log("stored", logging.WARNING, "the updates kept in memory are stored")
        self._forget(task_id, queue)

    async def _try_first(self, queue: _Queue) -> None:
        """Store the oldest waiting update.

        Raises:
            StorageError: The outbox is still out of reach; the update keeps waiting.
        """
        try:
            await queue.waiting[0].enqueue(False)
        except StorageError:
            raise
        except Exception as exc:  # noqa: BLE001  # the updates behind it must not wait for ever
            self.refuse(exc)
        self._drop_first(queue)

    def _drop_first(self, queue: _Queue) -> None:
        self._waiting -= 1
        self._bytes -= queue.waiting[0].size
        queue.waiting = queue.waiting[1:]

    async def _finish_in_time(self, task_id: str, queue: _Queue) -> None:
        """Finish a queue, unless a call does not end: the agent's task store may not answer."""
        try:
            async with asyncio.timeout(_CLOSED_WITHIN):
                await self._finish(task_id, queue)
        except TimeoutError:
            if queue.emptying is not None:
                queue.emptying.cancel()
            _log.error(
                "task %r: an update is still being stored, and %d wait: the close goes on without",
                task_id,
                len(queue.waiting),
            )
            self.refused += len(queue.waiting)
            while queue.waiting:
                self._drop_first(queue)

    async def _finish(self, task_id: str, queue: _Queue) -> None:
        if queue.emptying is not None:
            await asyncio.wait([queue.emptying])
        queue.callers += 1
        if queue.callers > 1:
            await queue.begin()
        while queue.waiting:
            try:
                await self._try_first(queue)
            except StorageError as exc:
                _log.error(
                    "task %r: the updates kept in memory (%d) were not stored, and will not be sent"
                    " to its webhooks: %s",
                    task_id,
                    len(queue.waiting),
                    exc,
                )
                self.refused += len(queue.waiting)
                while queue.waiting:
                    self._drop_first(queue)
        queue.end()

    async def _closes_within(self, seconds: float) -> bool:
        try:
            async with asyncio.timeout(seconds):
                await self._closing.wait()
        except TimeoutError:
            return False
        return True

    def _forget(self, task_id: str, queue: _Queue) -> None:
        if not queue.waiting and not queue.callers and self._queues.get(task_id) is queue:
            del self._queues[task_id]

    def refuse(self, reason: Exception) -> None:
        """Count and log an update that will not be stored."""
        self.refused += 1
        expected = isinstance(reason, PushkitError)
        self._repeated.log(
            ("refused", type(reason)),
            logging.ERROR,
            "an update was not stored, and will not be sent to its webhooks: %s",
            reason if expected else type(reason).__name__,
            exc_info=False if expected else reason,
        )


def _keys_of_calls() -> Iterator[str]:
    """Yield unique keys.

    The random part is drawn once: each draw releases the interpreter lock, and would wait for a
    busy database thread to give it back. It is drawn at the first call, so forked processes differ.
    """
    sender = secrets.token_hex(16)
    for number in itertools.count():
        yield f"{sender}-{number}"


@record(frozen=True, slots=True)
class _NotifyCall:
    """A call of a notification sender: an update, and an idempotency key that no other call has."""

    sender: PushSender
    update: AnyUpdate
    snapshot: SnapshotProvider | None
    key: str

    def enqueue(self, first: bool) -> Awaitable[object]:
        # Without a digest: two equal updates are two, and a retry has the key of its call.
        key = IdempotencyKey(key=self.key, update_sha256="", is_new=first)
        return self.sender.notify(self.update, snapshot=self.snapshot, idempotency_key=key)


class Buffered:
    """The base of the SDKs' notification senders: it enqueues updates, through a buffer.

    Args:
        sender: Enqueues the updates.
        buffer: Keeps updates while the outbox is out of reach.
    """

    def __init__(self, sender: PushSender, *, buffer: EnqueueBuffer | None = None) -> None:
        self._sender = sender
        wiring_of(sender).has_sender = True
        self._keys = _keys_of_calls()
        # An empty buffer is false: it has a length.
        self.buffer: EnqueueBuffer = EnqueueBuffer() if buffer is None else buffer

    def _enqueue(
        self,
        task_id: str,
        update: AnyUpdate,
        *,
        size: int,
        snapshot: SnapshotProvider | None = None,
    ) -> Awaitable[None]:
        """Store an update, now or later. If it cannot be stored, that is logged, and not raised.

        An error would fail the client's own call, or end its stream, in a2a-sdk before 1.2.3.
        """
        call = _NotifyCall(self._sender, update, snapshot, next(self._keys))
        is_last = update.state is not None and update.state.terminal
        return self.buffer.run(task_id, call.enqueue, size=size, is_last=is_last)

    async def close(self) -> None:
        """Store the updates in memory. Call this before the `PushSender` is closed.

        From then on an update is not kept, until `async with` begins again.
        """
        await self.buffer.close()

    async def __aenter__(self) -> Self:
        self.buffer.open()
        return self

    async def __aexit__(self, *_: object) -> None:
        await self.close()
