"""Batches of what begins in the same iteration of the event loop.

After a commit, dozens of deliveries begin in one iteration. Done one by one, each step of a
delivery finds the processor's caches full of the step before it, and each write wakes the other end
of its connection. Done together, the first pays for all.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Sequence
from typing import Generic, TypeVar

Item = TypeVar("Item")


class IterationBatches(Generic[Item]):
    """Handles the items of an iteration together, at its end.

    While iterations have only one item, each is handled at once: it would wait for nothing.

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
