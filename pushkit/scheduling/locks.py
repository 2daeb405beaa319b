"""A lock for objects that are used in several event loops, one after another."""

from __future__ import annotations

import asyncio
from weakref import WeakKeyDictionary


class LoopLock:
    """A lock per event loop."""

    def __init__(self) -> None:
        self._locks: WeakKeyDictionary[asyncio.AbstractEventLoop, asyncio.Lock]
        self._locks = WeakKeyDictionary()

    @property
    def here(self) -> asyncio.Lock:
        """The lock of the running event loop."""
        return self._locks.setdefault(asyncio.get_running_loop(), asyncio.Lock())
