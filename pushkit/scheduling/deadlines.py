"""Many deadlines over one timer.

A timer for each would cost more than the rest of a successful request, and almost all of them are
cleared. So one timer waits for the earliest deadline, and then finds all that have passed: a
deadline expires up to a tick late, and never early.
"""

from __future__ import annotations

import asyncio
import math
from typing import Final, Protocol

_TICK: Final = 0.05  # seconds


class Expires(Protocol):
    """An object with a deadline."""

    def expire(self) -> None:
        """Handle that the deadline has passed."""
        ...


class Deadlines:
    """The deadlines of objects, one each, by the event loop's clock."""

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
            owner.expire()
