"""Quotas of what is stored: usage is counted in the database from time to time, and added to."""

from __future__ import annotations

from collections.abc import Callable
from datetime import datetime
from typing import Final, Generic, NamedTuple, TypeVar

from pushkit.storage.script import Script

_Holder = TypeVar("_Holder")

_MIN_COUNT_AGE: Final = 1.0  # seconds
_MAX_COUNT_AGE: Final = 60.0
_MOST_ADDED: Final = 10_000  # by other processes, in each second
_MAX_REMEMBERED: Final = 10_000
_MUCH: Final = 10  # a count is out of date once a tenth of the limit was added to it


class _Usage(NamedTuple):
    """What a holder had at a count, and what this process added since."""

    counted_at: datetime
    counted: int
    added: int = 0

    @property
    def known(self) -> int:
        return self.counted + self.added


class Quota(Generic[_Holder]):
    """The quotas of many holders (or of one: None); usage is counted about once a second.

    Between two counts, only this process's additions are known, and not what was finished: a holder
    may exceed its limit by what other processes add within a second. Far from the limit, usage is
    counted less often, because others wait for a count: of 500,000 deliveries for a tenth of a
    second. It is counted anew before a holder is refused that has added much since.

    Args:
        limit: The most that each holder may have.
        count: Counts what a holder has, up to a limit.
    """

    def __init__(self, limit: int, count: Callable[[_Holder, int], Script[int]]) -> None:
        self.limit = limit
        self._count = count
        self._used: dict[_Holder, _Usage] = {}

    def left(self, holder: _Holder, now: datetime) -> Script[int]:
        """Return how many more a holder may add, counted if it is time; 0 or less if none."""
        if self.is_due(holder, now):
            yield from self.count(holder, now)
        return self.known_left(holder)

    def is_due(self, holder: _Holder, now: datetime) -> bool:
        """Return whether it is time to count what a holder has."""
        usage = self._used.get(holder)
        if usage is None or (usage.known >= self.limit and usage.added * _MUCH >= self.limit):
            return True
        age = max(_MIN_COUNT_AGE, min((self.limit - usage.known) / _MOST_ADDED, _MAX_COUNT_AGE))
        return not 0 <= (now - usage.counted_at).total_seconds() < age

    def is_known(self, holder: _Holder) -> bool:
        """Return whether it was ever counted what a holder has."""
        return holder in self._used

    def known_left(self, holder: _Holder) -> int:
        """Return how many more a holder may add, by the last count."""
        return self.limit - self._used[holder].known

    def count(self, holder: _Holder, now: datetime) -> Script[None]:
        """Count what a holder has."""
        used = yield from self._count(holder, self.limit)
        if len(self._used) >= _MAX_REMEMBERED:
            self._used.clear()
        self._used[holder] = _Usage(now, used)

    def add(self, holder: _Holder, number: int) -> None:
        """Count what this process added."""
        if (usage := self._used.get(holder)) is not None:
            self._used[holder] = usage._replace(added=usage.added + number)
