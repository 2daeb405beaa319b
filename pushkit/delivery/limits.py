"""Limits on what one owner, or all owners together, may send and store through this sender."""

from __future__ import annotations

import functools
import time
from collections.abc import Callable
from datetime import datetime, timedelta
from typing import Final, Generic, TypeVar

from pushkit.errors import ConfigError, InvalidUrlError
from pushkit.net.destination import DestinationPolicy
from pushkit.storage.script import Script
from pushkit.url import Url

_Holder = TypeVar("_Holder")

_MIN_COUNT_AGE: Final = 1.0  # seconds
_MAX_COUNT_AGE: Final = 60.0
_MOST_ADDED: Final = 10_000  # by other processes, in each second
_MAX_REMEMBERED: Final = 10_000
_LONGEST_WAIT: Final = timedelta(seconds=10)


def check_pace(per_second: float | None, concurrency_per_host: int) -> None:
    """Check that no attempt waits long for its turn: it holds a slot meanwhile.

    Raises:
        ConfigError: The rate is too low for that number of concurrent attempts.
    """
    if per_second is None:
        return
    least = concurrency_per_host / _LONGEST_WAIT.total_seconds()
    if not per_second >= least:
        raise ConfigError(
            f"rate_per_origin: found {per_second:g} a second, expected at least {least:g}"
            " (concurrency_per_host / 10): lower concurrency_per_host too"
        )


class Pace:
    """Limits the requests a second of this process to one origin, over all owners.

    Origins that the operator named in `allow` are not third parties, and have no limit.
    """

    def __init__(
        self,
        policy: DestinationPolicy,
        # The rate; a burst of one second's requests is allowed. None for no limit.
        per_second: float | None,
        *,
        at_once: int = 16,  # how many may wait for their turn at one origin
        clock: Callable[[], float] = time.monotonic,  # seconds, never going back
    ) -> None:
        # Cached: the policy does not change, and the same few origins recur at every attempt.
        self._is_named = functools.lru_cache(maxsize=_MAX_REMEMBERED)(
            functools.partial(_is_named, policy)
        )
        self._interval = None if per_second is None else 1 / per_second
        self.longest: timedelta = timedelta(seconds=at_once / per_second if per_second else 0)
        self._clock = clock
        self._due: dict[str, float] = {}

    def take(self, origin: str) -> float:
        """Take the next turn; return how many seconds away it is."""
        if self._interval is None or self._is_named(origin):
            return 0
        now = self._clock()
        # GCRA: when this request would be due if all before it were spread evenly at the rate.
        due = max(self._due.get(origin, now), now)
        if len(self._due) >= _MAX_REMEMBERED:
            self._due = {each: until for each, until in self._due.items() if until > now}
        self._due[origin] = due + self._interval
        return max(due - now - 1, 0)


def _is_named(policy: DestinationPolicy, origin: str) -> bool:
    try:
        return policy.allows_by_name(Url.parse(origin))
    except InvalidUrlError:
        return False


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
