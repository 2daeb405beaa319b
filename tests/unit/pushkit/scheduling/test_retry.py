from __future__ import annotations

import random
from datetime import UTC, datetime, timedelta

import pytest
import tenacity
from hypothesis import given
from hypothesis import strategies as st
from tenacity.stop import stop_base
from tenacity.wait import wait_base

from pushkit.errors import ConfigError
from pushkit.scheduling.retry import (
    DEFAULT_SCHEDULE,
    RetryPolicy,
    gives_up,
    next_attempt,
    wait_schedule,
)

START = datetime(2026, 1, 1, tzinfo=UTC)
MINUTE, HOUR = 60, 3600


def after(seconds: float) -> datetime:
    return START + timedelta(seconds=seconds)


def exactly(wait: wait_base, stop: stop_base = tenacity.stop_never) -> RetryPolicy:
    return RetryPolicy(wait=wait, stop=stop)


def waits(policy: RetryPolicy, attempts: int, *, since: datetime = START) -> timedelta | None:
    moment = next_attempt(policy, attempts=attempts, since=since, now=START)
    return None if moment is None else moment - START


def test_each_attempt_waits_for_its_entry() -> None:
    policy = RetryPolicy(wait=wait_schedule(jitter=0))
    found = [waits(policy, attempts) for attempts in range(1, 10)]
    assert found == [timedelta(seconds=seconds) for seconds in DEFAULT_SCHEDULE]


def test_gives_up_after_ten_attempts() -> None:
    policy = RetryPolicy()
    assert waits(policy, 9) is not None
    assert waits(policy, 10) is None


def test_the_last_entry_repeats() -> None:
    policy = exactly(wait_schedule([1, 2], jitter=0))
    assert [waits(policy, n) for n in (1, 2, 3, 99)] == [
        timedelta(seconds=seconds) for seconds in (1, 2, 2, 2)
    ]


@given(attempts=st.integers(1, 9), seed=st.integers())
def test_jitter_stays_within_a_fifth(attempts: int, seed: int) -> None:
    uniform = random.Random(seed).uniform  # noqa: S311  # no secret
    wait = waits(exactly(wait_schedule(uniform=uniform)), attempts)
    assert wait is not None
    plain = DEFAULT_SCHEDULE[attempts - 1]
    assert 0.8 * plain <= wait.total_seconds() + 1e-6
    assert wait.total_seconds() - 1e-6 <= 1.2 * plain


@pytest.mark.parametrize("end", ["least", "most"])
def test_jitter_reaches_both_ends(end: str) -> None:
    pick = min if end == "least" else max
    policy = exactly(wait_schedule([100], uniform=pick))
    assert waits(policy, 1) == timedelta(seconds=80 if end == "least" else 120)


def test_the_age_of_a_delivery_counts_across_restarts() -> None:
    # The policy keeps no state between calls: it gets two numbers from the database.
    accepted = START - timedelta(hours=89, minutes=59)
    assert waits(RetryPolicy(wait=wait_schedule([30], jitter=0)), 1, since=accepted) is not None
    assert waits(RetryPolicy(wait=wait_schedule([60], jitter=0)), 1, since=accepted) is None


def test_work_may_be_given_up_while_it_waits() -> None:
    policy = RetryPolicy()
    assert not gives_up(policy, attempts=1, since=START, now=after(90 * HOUR - 1))
    assert gives_up(policy, attempts=1, since=START, now=after(90 * HOUR))


def test_a_clock_that_steps_back_does_not_end_anything() -> None:
    assert waits(RetryPolicy(), 1, since=START + timedelta(hours=1)) is not None


@pytest.mark.parametrize(
    ("wait", "seconds"),
    [
        pytest.param(tenacity.wait_none(), 0, id="none"),
        pytest.param(tenacity.wait_fixed(7), 7, id="fixed"),
        pytest.param(tenacity.wait_fixed(timedelta(minutes=1)), 60, id="fixed, as a timedelta"),
        pytest.param(tenacity.wait_incrementing(1, 2), 5, id="incrementing"),
        pytest.param(tenacity.wait_exponential(), 4, id="exponential"),
        pytest.param(tenacity.wait_random(3, 3), 3, id="random"),
        pytest.param(
            tenacity.wait_chain(*map(tenacity.wait_fixed, (1, 2, 9))), 9, id="chain of three"
        ),
        pytest.param(tenacity.wait_fixed(1) + tenacity.wait_fixed(2), 3, id="sum"),
    ],
)
def test_takes_any_wait_of_tenacity(wait: wait_base, seconds: float) -> None:
    assert waits(exactly(wait), 3) == timedelta(seconds=seconds)


@pytest.mark.parametrize(
    ("stop", "stops"),
    [
        pytest.param(tenacity.stop_never, False, id="never"),
        pytest.param(tenacity.stop_after_attempt(3), True, id="attempts"),
        pytest.param(tenacity.stop_after_attempt(4), False, id="more attempts"),
        pytest.param(tenacity.stop_after_delay(10), True, id="age"),
        pytest.param(tenacity.stop_before_delay(10), True, id="age, before"),
        pytest.param(
            tenacity.stop_after_attempt(3) & tenacity.stop_after_delay(99), False, id="all"
        ),
        pytest.param(
            tenacity.stop_after_attempt(3) | tenacity.stop_after_delay(99), True, id="any"
        ),
    ],
)
def test_takes_any_stop_of_tenacity(stop: stop_base, stops: bool) -> None:
    policy = exactly(tenacity.wait_fixed(10), stop)
    assert (waits(policy, 3) is None) is stops


def test_an_exponential_wait_does_not_leave_the_calendar() -> None:
    assert waits(exactly(tenacity.wait_exponential()), 200) is not None


@pytest.mark.parametrize(
    ("seconds", "jitter"),
    [
        pytest.param([], 0.2, id="no wait at all"),
        pytest.param([5, -1], 0.2, id="a negative wait"),
        pytest.param([5], -0.1, id="a negative jitter"),
        pytest.param([5], 1.5, id="a jitter that makes waits negative"),
        pytest.param([5], float("nan"), id="no number"),
    ],
)
def test_refuses_a_schedule_that_makes_no_sense(seconds: list[float], jitter: float) -> None:
    with pytest.raises(ConfigError):
        wait_schedule(seconds, jitter=jitter)
