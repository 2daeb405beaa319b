"""One call under way at a time; whoever asks meanwhile waits for the same one."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Coroutine
from typing import Any, Generic, TypeVar

__all__ = ["Flight"]

_T = TypeVar("_T")


class Flight(Generic[_T]):
    """A call that is shared. It goes on when somebody who waits for it is cancelled."""

    def __init__(self) -> None:
        self._task: asyncio.Task[_T] | None = None

    async def join(self, call: Callable[[], Coroutine[Any, Any, _T]]) -> _T:
        """Return what the call under way returns, or raise what it raises; begin one if none is."""
        if self._task is None or self._task.done():
            self._task = asyncio.create_task(call())
            self._task.add_done_callback(_looked_at)
        task = self._task
        await asyncio.wait([task])
        return task.result()

    async def close(self) -> None:
        """End the call under way."""
        if self._task is not None:
            self._task.cancel()
            await asyncio.wait([self._task])


def _looked_at(task: asyncio.Task[_T]) -> None:
    # Whoever waited may be gone: that is nothing to complain about.
    if not task.cancelled():
        task.exception()
