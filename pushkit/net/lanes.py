"""Which lanes there are: those that wait for work, how many there may be, and who waits for one."""

from __future__ import annotations

import asyncio
import ssl
from collections import deque
from dataclasses import dataclass, field
from functools import partial
from typing import NamedTuple

from pushkit.net.lane import Lane
from pushkit.scheduling.deadlines import Deadlines


class Way(NamedTuple):
    """Where a lane leads: only what was judged alike may share one."""

    scheme: str
    host: str
    port: int
    allowed_by_name: bool
    tls: ssl.SSLContext | None


@dataclass(slots=True)
class _SameWay:
    idle: list[Lane] = field(default_factory=list)
    open: set[Lane] = field(default_factory=set)


class Lanes:
    """The lanes of one client.

    Args:
        most: How many at once.
        most_of_one_way: How many of them may lead to the same place.
    """

    def __init__(self, *, most: int, most_of_one_way: int) -> None:
        self._most = most
        self._most_of_one_way = most_of_one_way
        self._deadlines = Deadlines()
        self._by_way: dict[Way, _SameWay] = {}
        self._open = 0
        self._waiting: deque[tuple[Way, asyncio.Future[None]]] = deque()

    def take_idle(self, way: Way) -> Lane | None:
        """Return a lane that may be asked at once; the one that answered last, if any."""
        same = self._by_way.get(way)
        while same is not None and same.idle:
            lane = same.idle.pop()
            if lane.is_quiet():
                return lane
            lane.close()
        return None

    async def take(self, way: Way) -> Lane:
        """Return a lane as soon as there is one, or room for one; it is new if nobody asked it yet.

        A new one is to be dialled, or closed.
        """
        while (lane := self.take_idle(way)) is None and not self._has_room(way):
            await self._change(way)
        return lane or self._new(way)

    async def take_new(self, way: Way) -> Lane:
        """Return a new lane as soon as there is room for one; none that waits for work is kept."""
        self.close_idle(way)
        while not self._has_room(way):
            await self._change(way)
            self.close_idle(way)
        return self._new(way)

    def close_idle(self, way: Way) -> None:
        """Close those of one way that wait for work."""
        same = self._by_way.get(way)
        for lane in list(same.idle) if same else ():
            lane.close()

    def close(self) -> None:
        """Close all of them."""
        for lane in [lane for same in self._by_way.values() for lane in same.open]:
            lane.close()
        self._deadlines.close()

    def _new(self, way: Way) -> Lane:
        if self._open >= self._most:
            idle = [lane for same in self._by_way.values() for lane in same.idle]
            min(idle, key=lambda lane: lane.idle_since).close()
        lane = Lane(self._deadlines, partial(self._freed, way), partial(self._closed, way))
        self._by_way.setdefault(way, _SameWay()).open.add(lane)
        self._open += 1
        return lane

    def _has_room(self, way: Way) -> bool:
        same = self._by_way.get(way)
        if same is not None and len(same.open) >= self._most_of_one_way:
            return False
        return self._open < self._most or any(same.idle for same in self._by_way.values())

    async def _change(self, way: Way) -> None:
        """Wait until there may be a lane for a way."""
        waiter = (way, asyncio.get_running_loop().create_future())
        self._waiting.append(waiter)
        try:
            await waiter[1]
        except asyncio.CancelledError:
            if waiter in self._waiting:
                self._waiting.remove(waiter)
            else:  # it was woken for nothing: the next one's turn
                self._wake()
            raise

    def _wake(self) -> None:
        """Let the first look again that may find a lane."""
        for waiter in self._waiting:
            way, changed = waiter
            same = self._by_way.get(way)
            if (same is not None and same.idle) or self._has_room(way):
                self._waiting.remove(waiter)
                if not changed.done():
                    changed.set_result(None)
                return

    def _freed(self, way: Way, lane: Lane) -> None:
        self._by_way[way].idle.append(lane)
        if self._waiting:
            self._wake()

    def _closed(self, way: Way, lane: Lane) -> None:
        same = self._by_way[way]
        same.open.remove(lane)
        self._open -= 1
        if lane in same.idle:
            same.idle.remove(lane)
        if not same.open:
            del self._by_way[way]
        self._wake()
