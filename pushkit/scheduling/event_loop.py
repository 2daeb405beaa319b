"""What code of an event loop shares: deadlines, batches, locks, and tasks that end."""

from __future__ import annotations

import asyncio
import logging
import math
from collections.abc import Awaitable, Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from datetime import timedelta
from typing import Any, Final, Generic, Protocol, TypeVar
from weakref import WeakKeyDictionary

from pushkit.errors import StorageError
from pushkit.logs import RepeatedLog

_TICK: Final = 0.05  # seconds
HOUSEKEEPING_INTERVAL: Final = timedelta(minutes=10)

Item = TypeVar("Item")
T = TypeVar("T")


class Expires(Protocol):
    """An object with a deadline."""

    def expire(self) -> None:
        """Handle that the deadline has passed."""
        ...


class Deadlines:
    """The deadlines of objects, one each, by the event loop's clock, over one timer.

    A timer for each would cost more than the rest of a successful request, and almost all of them
    are cleared. So one timer waits for the earliest deadline, and then finds all that have passed:
    a deadline expires up to a tick late, and never early.
    """

    def __init__(self) -> None:
        self._when: dict[Expires, float] = {}
        self._timer: asyncio.TimerHandle | None = None
        self._next = math.inf

    def set(self, owner: Expires, when: float) -> None:
        """Set an owner's deadline, or replace it."""
        self._when[owner] = when
        if when < self._next:
            self._wait_until(when)

    def clear(self, owner: Expires) -> None:
        """Remove an owner's deadline, if it has one."""
        self._when.pop(owner, None)

    def close(self) -> None:
        """Remove all deadlines."""
        self._when.clear()
        if self._timer is not None:
            self._timer.cancel()
        self._timer, self._next = None, math.inf

    def _wait_until(self, when: float) -> None:
        if self._timer is not None:
            self._timer.cancel()
        self._next = when
        self._timer = asyncio.get_running_loop().call_at(when, self._expire_due)

    def _expire_due(self) -> None:
        now = asyncio.get_running_loop().time()
        due = [owner for owner, when in self._when.items() if when <= now]
        for owner in due:
            del self._when[owner]
        self._timer, self._next = None, math.inf
        if self._when:
            self._wait_until(max(min(self._when.values()), now + _TICK))
        for owner in due:
            try:
                owner.expire()
            except Exception as exc:  # noqa: BLE001  # the others are late, too
                context = {"message": "a deadline's owner failed", "exception": exc}
                asyncio.get_running_loop().call_exception_handler(context)


class IterationBatches(Generic[Item]):
    """Handles the items of an iteration together, at its end.

    After a commit, dozens of deliveries begin in one iteration. Done one by one, each step of a
    delivery finds the processor's caches full of the step before it, and each write wakes the other
    end of its connection. Done together, the first pays for all. While iterations have only one
    item, each is handled at once: it would wait for nothing.

    Args:
        handle: Handles items; it must not raise.
    """

    def __init__(self, handle: Callable[[Sequence[Item]], None]) -> None:
        self._handle = handle
        self._waiting: list[Item] = []
        self._count = 0  # of the items of this iteration, or of the last one
        self._loop: asyncio.AbstractEventLoop | None = None  # whose iteration has begun

    def add(self, item: Item) -> None:
        """Handle an item, now or at the end of the running loop's iteration."""
        loop = asyncio.get_running_loop()
        if self._loop is loop:
            self._count += 1
            self._waiting.append(item)
            return
        # A loop that was stopped within an iteration has not ended it.
        self._loop, self._waiting = loop, []
        loop.call_soon(self._end)
        is_alone, self._count = self._count <= 1, 1
        if is_alone:
            self._handle((item,))
        else:
            self._waiting.append(item)

    def _end(self) -> None:
        waiting, self._waiting, self._loop = self._waiting, [], None
        if waiting:
            self._handle(waiting)


class LoopLock:
    """A lock per event loop, for objects that are used in several loops, one after another."""

    def __init__(self) -> None:
        self._locks: WeakKeyDictionary[asyncio.AbstractEventLoop, asyncio.Lock]
        self._locks = WeakKeyDictionary()

    @property
    def here(self) -> asyncio.Lock:
        """The lock of the running event loop."""
        return self._locks.setdefault(asyncio.get_running_loop(), asyncio.Lock())


async def in_own_thread(function: Callable[..., T], *args: Any) -> T:
    """Run a function in a new thread: asyncio's may all hang in calls of the application."""
    threads = ThreadPoolExecutor(1)
    try:
        return await asyncio.get_running_loop().run_in_executor(threads, function, *args)
    finally:
        threads.shutdown(wait=False)


async def cancelled(task: asyncio.Task[Any]) -> None:
    """Cancel a task until it ends: before Python 3.12, `wait_for` may swallow a cancellation."""
    if task.get_loop().is_closed():  # it has ended there, or never will
        return
    if not task.cancelling():  # a second cancellation would interrupt its clean-up
        task.cancel()
    while (await asyncio.wait([task], timeout=1))[1]:
        task.cancel()


async def housekeep(
    store: str,  # the name of the store, for the log: `outbox`, `inbox`
    retain: Callable[[], Awaitable[int]],  # deletes those rows, and returns how many
    *,
    log: logging.Logger,
) -> None:
    """Delete old rows at intervals until cancelled, also while other processes do so.

    Errors are logged, and do not end the loop.
    """
    faults = RepeatedLog(log)
    while True:
        try:
            if deleted := await retain():
                log.info("housekeeping: %d finished, deleted from the %s", deleted, store)
        except StorageError as exc:
            text = "housekeeping: the %s is out of reach: %s; trying again later"
            faults.log(type(exc.__cause__).__name__, logging.ERROR, text, store, exc)
        except Exception as exc:  # noqa: BLE001  # the top of a worker loop
            text = "housekeeping: failed unexpectedly; trying again later"
            faults.log(type(exc).__name__, logging.ERROR, text, exc_info=exc)
        await asyncio.sleep(HOUSEKEEPING_INTERVAL.total_seconds())
