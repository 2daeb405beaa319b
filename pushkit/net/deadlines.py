"""Many deadlines over one timer.

A timer each costs more than the rest of a request that goes well, and almost all of them are called
off. Here they lie in buckets of a tick, and one timer waits for the next bucket: a deadline comes
up to a tick late, and never early.
"""

from __future__ import annotations

import asyncio
import math
from collections.abc import Callable

__all__ = ["Deadlines"]

_TICK = 0.05


class Deadlines:
    """What is called when its moment has come, unless it was called off.

    Args:
        tick: How late a deadline may come, in seconds.
    """

    def __init__(self, tick: float = _TICK) -> None:
        self._tick = tick
        self._buckets: dict[int, dict[object, Callable[[], None]]] = {}
        self._timer: asyncio.TimerHandle | None = None
        self._next = 0

    def add(self, owner: object, when: float, call: Callable[[], None]) -> int:
        """Set a deadline; an owner may have one per tick.

        Args:
            owner: Whose it is.
            when: The moment, by the event loop's clock.
            call: What is called then, once.

        Returns:
            What `remove` wants to have back.
        """
        number = math.ceil(when / self._tick)
        bucket = self._buckets.get(number)
        if bucket is None:
            bucket = self._buckets[number] = {}
            if self._timer is None or number < self._next:
                self._wait_for(number)
        bucket[owner] = call
        return number

    def remove(self, owner: object, number: int) -> None:
        """Call a deadline off; nothing happens where it has come already."""
        bucket = self._buckets.get(number)
        if bucket is not None:
            bucket.pop(owner, None)

    def close(self) -> None:
        """Call all of them off."""
        self._buckets.clear()
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None

    def _wait_for(self, number: int) -> None:
        if self._timer is not None:
            self._timer.cancel()
        self._next = number
        loop = asyncio.get_running_loop()
        self._timer = loop.call_at(number * self._tick, self._come)

    def _come(self) -> None:
        self._timer = None
        come = [number for number in self._buckets if number <= self._next]
        called = [call for number in sorted(come) for call in self._buckets.pop(number).values()]
        for number in [number for number, bucket in self._buckets.items() if not bucket]:
            del self._buckets[number]
        if self._buckets:
            self._wait_for(min(self._buckets))
        for call in called:
            call()
