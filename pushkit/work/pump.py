"""The pump: claim, process, settle, for whatever a store hands out under leases.

`run()` is a thin loop over `fill()`, which keeps every free slot busy: a slow item holds one slot,
not a batch. `run_once()` does one whole round and waits for it, for tests and for callers that pump
by hand.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
from collections.abc import Awaitable, Callable, Sequence
from datetime import timedelta
from typing import Generic, TypeVar

from pushkit.errors import StorageError

__all__ = ["Pump"]

Item = TypeVar("Item")

_log = logging.getLogger("pushkit.work")

_IDLE = timedelta(seconds=30)
_AFTER_FAULT = timedelta(seconds=1)


class Pump(Generic[Item]):
    """Keeps items flowing.

    Args:
        name: For the log.
        claim: Takes up to so many items that are due.
        process: Works on one item and settles it.
        until_due: Says how long until `claim` may find something; None for nothing in sight.
        concurrency: How many items at once.
    """

    def __init__(
        self,
        name: str,
        *,
        claim: Callable[[int], Awaitable[Sequence[Item]]],
        process: Callable[[Item], Awaitable[None]],
        until_due: Callable[[], Awaitable[timedelta | None]],
        concurrency: int,
    ) -> None:
        self._name = name
        self._claim = claim
        self._process = process
        self._until_due = until_due
        self._concurrency = concurrency
        self._running: set[asyncio.Task[None]] = set()
        self._awake = asyncio.Event()

    def wake(self) -> None:
        """Look for work now: something was added."""
        self._awake.set()

    async def run(self) -> None:
        """Pump until cancelled; a fault of the database is logged and outlived."""
        while True:
            self._awake.clear()
            try:
                await self.fill()
                pause = await self._pause()
            except StorageError:
                _log.exception("%s: the database is out of reach; trying again", self._name)
                pause = _AFTER_FAULT
            with contextlib.suppress(TimeoutError):
                await asyncio.wait_for(self._awake.wait(), pause.total_seconds())

    async def run_once(self) -> int:
        """Claim what is due, process it to the end, and return how many items that was."""
        started = await self.fill()
        await self.drain()
        return started

    async def fill(self) -> int:
        """Start on what is due, as far as slots are free; return how many items that was."""
        free = self._concurrency - len(self._running)
        if free <= 0:
            return 0
        items = await self._claim(free)
        for item in items:
            task = asyncio.create_task(self._guard(item))
            self._running.add(task)
            task.add_done_callback(self._finished)
        return len(items)

    async def drain(self) -> None:
        """Wait for the items that are in work."""
        while self._running:
            await asyncio.wait(self._running)

    async def _guard(self, item: Item) -> None:
        try:
            await self._process(item)
        except StorageError:
            _log.exception("%s: could not be settled; it comes back with its lease", self._name)
        except Exception:  # noqa: BLE001  # the top of a worker loop
            _log.exception("%s: failed unexpectedly; it comes back with its lease", self._name)

    def _finished(self, task: asyncio.Task[None]) -> None:
        self._running.discard(task)
        self._awake.set()  # a slot is free, and the next of the same order may be due

    async def _pause(self) -> timedelta:
        if len(self._running) >= self._concurrency:
            return _IDLE  # whatever finishes wakes the loop
        due = await self._until_due()
        return _IDLE if due is None else min(max(due, timedelta(0)), _IDLE)
