"""Quotas of what is stored: usage is counted in the database from time to time, and added to."""

from __future__ import annotations

from collections.abc import Callable
from datetime import datetime
from typing import Final, Generic, TypeVar

from pushkit.storage.script import Script

_Holder = TypeVar("_Holder")

_MIN_COUNT_AGE: Final = 1.0  # seconds
_MAX_COUNT_AGE: Final = 60.0
_MOST_ADDED: Final = 10_000  # by other processes, in each second
_MAX_REMEMBERED: Final = 10_000


class Quota(Generic[_Holder]):
    """The quotas of many holders (or of one: None); usage is counted at most once a second.

    Between two counts, only this process's additions are known: a holder may exceed its limit by
    what other processes add within a second. Far from the limit, usage is counted less often,
    because others wait for a count: of 500,000 deliveries for a tenth of a second.

    Args:
        limit: The most that each holder may have.
        count: Counts what a holder has, up to a limit.
    """

    def __init__(self, limit: int, count: Callable[[_Holder, int], Script[int]]) -> None:
        self.limit = limit
        self._count = count
        self._used: dict[_Holder, tuple[datetime, int]] = {}

    def left(self, holder: _Holder, now: datetime) -> Script[int]:
        """Return how many more a holder may add; 0 or less if none."""
        counted_at, used = self._used.get(holder, (None, 0))
        age = max(_MIN_COUNT_AGE, min((self.limit - used) / _MOST_ADDED, _MAX_COUNT_AGE))
        if counted_at is None or not 0 <= (now - counted_at).total_seconds() < age:
            used = yield from self._count(holder, self.limit)
            if len(self._used) >= _MAX_REMEMBERED:
                self._used.clear()
            self._used[holder] = (now, used)
        return self.limit - used

    def add(self, holder: _Holder, number: int) -> None:
        """Count what this process added."""
        if holder in self._used:
            counted_at, used = self._used[holder]
            self._used[holder] = (counted_at, used + number)
