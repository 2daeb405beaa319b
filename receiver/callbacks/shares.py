"""The shares of callbacks: of the calls that run at once, none may have all, unless it is alone."""

from __future__ import annotations

import asyncio
import time
from collections import defaultdict
from collections.abc import Hashable
from datetime import timedelta
from typing import Final, TypeAlias

# How long a call waits for a slot of a share that is used up.
_PATIENCE: Final = 1.0  # seconds
_LEAST_PAUSE: Final = timedelta(seconds=1)
_MOST_PAUSE: Final = timedelta(seconds=30)


def share_of(slots: int, *, alone: bool) -> int:
    """Return how many of the slots one holder may have: three quarters, or all if it is alone."""
    return slots if alone or slots == 1 else slots - max(slots // 4, 1)


class CrowdedError(Exception):
    """A share is used up, and none of its slots was taken or released for a second.

    Also raised by a callback that has no room: the notification is put off, which is no attempt.
    """

    def __init__(self, pause: timedelta = _MOST_PAUSE) -> None:
        super().__init__(f"to be tried again in {pause.total_seconds():g} s")
        self.pause = pause


class _Share:
    def __init__(self) -> None:
        self.used = 0
        self.changed_at: float = time.monotonic()
        self.waiting: list[asyncio.Future[None]] = []


Shares: TypeAlias = "defaultdict[Hashable, _Share]"
"""The shares, by their holders."""


def new_shares() -> Shares:
    """Return shares of which no slot is taken."""
    return defaultdict(_Share)


class Slot:
    """One slot of each of some shares, from when it is taken until it is released.

    A call waits at a full share as long as slots of that are released.
    """

    __slots__ = ("_shares", "_taken", "_wanted")

    def __init__(self, shares: Shares, *wanted: tuple[Hashable, int]) -> None:
        self._shares = shares
        self._wanted = wanted  # the shares' holders, and their numbers of slots
        self._taken: list[_Share] = []

    def take_now(self) -> bool:
        """Take the slots in order; return False at a share that is full."""
        for holder, most in self._wanted[len(self._taken) :]:
            share = self._shares[holder]
            if share.used >= most:
                return False
            self._taken.append(share)
            share.used += 1
            share.changed_at = time.monotonic()
        return True

    async def take(self) -> None:
        """Take the slots, and wait where a share is full.

        Raises:
            CrowdedError: A share is used up, and none of its slots is being released.
        """
        try:
            while not self.take_now():
                await _wait_for_slot(self._shares[self._wanted[len(self._taken)][0]])
        except BaseException:
            self.release()
            raise

    def release(self) -> None:
        """Release the slots, each to the next call that waits; do nothing the second time."""
        while self._taken:
            share = self._taken.pop()
            share.used -= 1
            share.changed_at = time.monotonic()
            for waiting in share.waiting:
                if not waiting.done():
                    waiting.set_result(None)
                    break


async def _wait_for_slot(share: _Share) -> None:
    blocked = time.monotonic() - share.changed_at
    if blocked >= _PATIENCE:
        raise CrowdedError(min(max(timedelta(seconds=blocked / 4), _LEAST_PAUSE), _MOST_PAUSE))
    released = asyncio.get_running_loop().create_future()
    share.waiting.append(released)
    try:
        await asyncio.wait([released], timeout=_PATIENCE - blocked)
    finally:
        share.waiting.remove(released)
