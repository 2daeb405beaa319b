"""Who may have how many of the places in which callbacks run: nobody has all of them."""

from __future__ import annotations

import asyncio
import time
from collections import defaultdict
from collections.abc import Hashable
from datetime import timedelta
from typing import Final

_PATIENCE: Final = 1.0  # seconds
_LEAST_PAUSE: Final = timedelta(seconds=1)
_MOST_PAUSE: Final = timedelta(seconds=30)


def share_of(places: int, *, alone: bool) -> int:
    """Return how many of so many places one may have: three quarters, or all if it is alone."""
    return places if alone or places == 1 else places - max(places // 4, 1)


class CrowdedError(Exception):
    """Somebody's share is taken up, by what has not moved for a while."""

    def __init__(self, pause: timedelta) -> None:
        super().__init__(f"to be tried again in {pause.total_seconds():g} s")
        self.pause = pause


class _Share:
    def __init__(self) -> None:
        self.used = 0
        self.moved_at: float = time.monotonic()
        self.waiting: list[asyncio.Future[None]] = []


class Place:
    """One place of somebody's share, until it is left.

    Args:
        besides: A place of another share that goes with it.
    """

    def __init__(self, share: _Share, besides: Place | None) -> None:
        self._share: _Share | None = share
        self._besides = besides
        share.used += 1
        share.moved_at = time.monotonic()

    def leave(self) -> None:
        """Let the next one in; does nothing if it was left before."""
        share, self._share = self._share, None
        if share is None:
            return
        if self._besides is not None:
            self._besides.leave()
        share.used -= 1
        share.moved_at = time.monotonic()
        for waiting in share.waiting:
            if not waiting.done():
                waiting.set_result(None)
                return


class Shares:
    """Hands out places. Who has its share waits for a moment, if others of its own still move."""

    def __init__(self) -> None:
        self._shares: defaultdict[Hashable, _Share] = defaultdict(_Share)

    async def take(self, who: Hashable, most: int, *, besides: Place | None = None) -> Place:
        """Return a place of somebody who may have at most so many.

        Args:
            most: How many places it has.
            besides: Another place that goes with this one, also if this one is not to be had.

        Raises:
            CrowdedError: There is none, and nothing moves.
        """
        share = self._shares[who]
        if share.used >= most:
            try:
                await _until_there_is_room(share, most)
            except BaseException:
                if besides is not None:
                    besides.leave()
                raise
        return Place(share, besides)


async def _until_there_is_room(share: _Share, most: int) -> None:
    while share.used >= most:
        still = time.monotonic() - share.moved_at
        if still >= _PATIENCE:
            pause = timedelta(seconds=still / 4)
            raise CrowdedError(min(max(pause, _LEAST_PAUSE), _MOST_PAUSE))
        await _moved(share, within=_PATIENCE - still)


async def _moved(share: _Share, *, within: float) -> None:
    left = asyncio.get_running_loop().create_future()
    share.waiting.append(left)
    try:
        await asyncio.wait([left], timeout=within)
    finally:
        share.waiting.remove(left)
