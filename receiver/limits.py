"""Rates: a token bucket per key, in memory, bounded."""

from __future__ import annotations

from collections import OrderedDict
from dataclasses import dataclass
from datetime import datetime, timedelta

from pushkit.errors import ConfigError, InboundError

__all__ = ["RateLimit", "RateLimitedError", "RateLimiter"]

_MAX_KEYS = 10_000


class RateLimitedError(InboundError, code="rate_limited", status=429):
    """More requests than the limit allows; `retry_after` says when to come again."""

    def __init__(self, retry_after: timedelta) -> None:
        super().__init__(f"over the rate limit for another {retry_after.total_seconds():.0f} s")
        self.retry_after = retry_after


@dataclass(frozen=True, slots=True, kw_only=True)
class RateLimit:
    """So many requests a second on average, and so many at once."""

    per_second: float
    burst: int

    def __post_init__(self) -> None:
        if not self.per_second > 0 or self.burst < 1:
            raise ConfigError("rate limit: expected per_second above 0 and burst of at least 1")


class RateLimiter:
    """One bucket per key; the keys that were idle longest make room for new ones."""

    def __init__(self, limit: RateLimit) -> None:
        self._limit = limit
        self._buckets: OrderedDict[str, tuple[float, datetime]] = OrderedDict()

    def take(self, key: str, now: datetime) -> None:
        """Count one request.

        Raises:
            RateLimitedError: The bucket of this key is empty.
        """
        tokens, since = self._buckets.pop(key, (float(self._limit.burst), now))
        refill = max((now - since).total_seconds(), 0.0) * self._limit.per_second
        tokens = min(tokens + refill, float(self._limit.burst))
        self._buckets[key] = (max(tokens - 1, 0.0) if tokens >= 1 else tokens, now)
        if len(self._buckets) > _MAX_KEYS:
            self._buckets.popitem(last=False)
        if tokens < 1:
            raise RateLimitedError(timedelta(seconds=max((1 - tokens) / self._limit.per_second, 1)))
