"""Token buckets: a rate per key, bounded in memory."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta

import pytest

from pushkit.errors import ConfigError
from receiver.limits import RateLimit
from receiver.service_state import RateLimitedError, RateLimiter

START = datetime(2026, 1, 1, tzinfo=UTC)


def allowed(limiter: RateLimiter, key: str, now: datetime) -> bool:
    try:
        limiter.take(key, now)
    except RateLimitedError:
        return False
    return True


def test_a_burst_is_allowed_and_then_the_rate() -> None:
    limiter = RateLimiter(RateLimit(per_second=2, burst=3))
    moments = [START + timedelta(milliseconds=250 * step) for step in range(8)]

    burst = [allowed(limiter, "peer", START) for _ in range(4)]
    later = [allowed(limiter, "peer", moment) for moment in moments[1:]]

    assert burst == [True, True, True, False]
    assert later == [False, True, False, True, False, True, False]


def test_idle_time_saves_up_no_more_than_a_burst() -> None:
    limiter = RateLimiter(RateLimit(per_second=1, burst=2))
    limiter.take("peer", START)

    day_later = [allowed(limiter, "peer", START + timedelta(days=1)) for _ in range(3)]

    assert day_later == [True, True, False]


def test_one_key_does_not_use_up_another() -> None:
    limiter = RateLimiter(RateLimit(per_second=1, burst=1))
    limiter.take("a", START)

    assert allowed(limiter, "b", START)
    assert not allowed(limiter, "a", START)


def test_a_clock_that_goes_back_gives_nothing_away() -> None:
    limiter = RateLimiter(RateLimit(per_second=1, burst=1))
    limiter.take("peer", START)

    assert not allowed(limiter, "peer", START - timedelta(hours=1))


def test_says_when_to_come_again() -> None:
    limiter = RateLimiter(RateLimit(per_second=0.1, burst=1))
    limiter.take("peer", START)

    with pytest.raises(RateLimitedError) as caught:
        limiter.take("peer", START + timedelta(seconds=4))

    assert caught.value.retry_after == timedelta(seconds=6)


def test_strangers_do_not_fill_the_memory() -> None:
    limiter = RateLimiter(RateLimit(per_second=1, burst=1))
    for number in range(10_001):
        limiter.take(f"peer-{number}", START)

    assert allowed(limiter, "peer-0", START)  # made room for the last one
    assert not allowed(limiter, "peer-10000", START)


@pytest.mark.parametrize(
    ("per_second", "burst"), [(0.0, 1), (-1.0, 1), (float("nan"), 1), (1.0, 0)]
)
def test_a_limit_that_allows_nothing_is_an_error(per_second: float, burst: int) -> None:
    with pytest.raises(ConfigError):
        RateLimit(per_second=per_second, burst=burst)
