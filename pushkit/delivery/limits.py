"""The pace of requests to each origin."""

from __future__ import annotations

import functools
import time
from collections.abc import Callable
from datetime import timedelta
from typing import Final

from pushkit.errors import InvalidUrlError
from pushkit.net.destination import DestinationPolicy
from pushkit.url import Url

_MAX_REMEMBERED: Final = 10_000


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
