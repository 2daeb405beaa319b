"""Many deadlines over one timer.

A timer each costs more than the rest of a request that goes well, and almost all of them are called
off. Here one timer waits for the earliest of them, and looks who is due: a deadline comes up to a
tick late, and never early.
"""

from __future__ import annotations

import asyncio
import math
from typing import Final, Protocol

_TICK: Final = 0.05


class Expires(Protocol):
    """What has to be done by a moment."""

    def expire(self) -> None:
        """Be told that the moment has come."""
        ...


class Deadlines:
    """Who has to be done by when, by the event loop's clock; one deadline each."""

    def __init__(self) -> None:
        self._when: dict[Expires, float] = {}
        self._timer: asyncio.TimerHandle | None = None
        self._next = math.inf

    def set(self, owner: Expires, when: float) -> None:
        """Set an owner's deadline, in place of the one that it had."""
        self._when[owner] = when
        if when < self._next:
            self._wait_until(when)

    def clear(self, owner: Expires) -> None:
        """Call an owner's deadline off; nothing happens where there is none."""
        self._when.pop(owner, None)

    def close(self) -> None:
        """Call all of them off."""
        self._when.clear()
        if self._timer is not None:
            self._timer.cancel()
        self._timer, self._next = None, math.inf

    def _wait_until(self, when: float) -> None:
        if self._timer is not None:
            self._timer.cancel()
        self._next = when
        self._timer = asyncio.get_running_loop().call_at(when, self._look)

    def _look(self) -> None:
        now = asyncio.get_running_loop().time()
        due = [owner for owner, when in self._when.items() if when <= now]
        for owner in due:
            del self._when[owner]
        self._timer, self._next = None, math.inf
        if self._when:
            self._wait_until(max(min(self._when.values()), now + _TICK))
        for owner in due:
            owner.expire()
