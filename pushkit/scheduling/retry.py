"""When to try again, as a pure function over tenacity's own wait and stop objects.

tenacity's loop sleeps in memory; a retry of a delivery may be a day and a restart away. So only its
arithmetic is used: a policy is called once per failed attempt, with the number of attempts and the
age of the work, both read from the database. `persist` sleeps in memory, for faults of seconds.
"""

from __future__ import annotations

import random
from collections.abc import Awaitable, Callable, Sequence
from dataclasses import dataclass, field
from datetime import datetime, timedelta
from typing import TypeVar

from tenacity import (
    AsyncRetrying,
    RetryCallState,
    Retrying,
    retry_if_exception_type,
    stop_after_attempt,
    stop_after_delay,
)
from tenacity.stop import stop_base
from tenacity.wait import wait_base, wait_random_exponential

from pushkit.errors import ConfigError
from pushkit.options import check_options, checked

T = TypeVar("T")

# Standard Webhooks' recommendation: the waits after the 1st, 2nd, … failed attempt, in seconds.
DEFAULT_SCHEDULE = (5, 300, 1800, 7200, 18000, 36000, 50400, 72000, 86400)

# 90 h: every automatic attempt falls inside a receiver's 96 h memory of ids (wire profile §5).
MAX_AGE = timedelta(hours=90)

_LONGEST = timedelta(days=3650)
_FIRST_FAULT_WAIT = timedelta(seconds=1)
_LONGEST_FAULT_WAIT = timedelta(minutes=5)


class wait_schedule(wait_base):  # noqa: N801  # named like tenacity's own
    """Wait by a list of seconds, one per attempt, each spread by ± `jitter`.

    The last entry repeats for attempts beyond the list; a stop object decides when to give up.

    Raises:
        ConfigError: The list is empty, a wait is negative, or the jitter is not from 0 to under 1.
    """

    @checked
    def __init__(
        self,
        seconds: Sequence[float] = DEFAULT_SCHEDULE,
        *,
        jitter: float = 0.2,
        uniform: Callable[[float, float], float] = random.uniform,
    ) -> None:
        if not seconds or min(seconds) < 0 or not 0 <= jitter < 1:
            raise ConfigError("wait_schedule: expected waits of 0 s or more, and 0 <= jitter < 1")
        self._seconds = tuple(seconds)
        self._jitter = jitter
        self._uniform = uniform

    def __call__(self, retry_state: RetryCallState) -> float:
        """Return the seconds to wait after this attempt."""
        index = min(retry_state.attempt_number, len(self._seconds)) - 1
        return self._seconds[index] * self._uniform(1 - self._jitter, 1 + self._jitter)


@dataclass(frozen=True, slots=True, kw_only=True)
class RetryPolicy:
    """How often and how long to try.

    Attributes:
        wait: tenacity's wait object: seconds after the n-th failed attempt.
        stop: tenacity's stop object: the work is given up when it returns True;
            `seconds_since_start` is the age that the work will have at the next attempt.
    """

    wait: wait_base | Callable[[RetryCallState], float] = field(default_factory=wait_schedule)
    stop: stop_base | Callable[[RetryCallState], bool] = field(
        default_factory=lambda: (
            stop_after_attempt(len(DEFAULT_SCHEDULE) + 1)
            | stop_after_delay(MAX_AGE.total_seconds())
        )
    )

    def __post_init__(self) -> None:
        check_options(self, of="retry: ")


def next_attempt(
    policy: RetryPolicy, *, attempts: int, since: datetime, now: datetime
) -> datetime | None:
    """Return when to try again, or None to give up.

    Args:
        attempts: How many attempts there were, the one that just failed included; at least 1.
        since: When the work was accepted: age counts from here, not from the first attempt.
        now: The moment of the failure.
    """
    wait = policy.wait(_call_state(attempts, now - since))
    # Exponential waits without a maximum leave the calendar after a few dozen attempts.
    moment = now + timedelta(seconds=min(wait, _LONGEST.total_seconds()))
    given_up = gives_up(policy, attempts=attempts, since=since, now=moment)
    return None if given_up else moment


def gives_up(policy: RetryPolicy, *, attempts: int, since: datetime, now: datetime) -> bool:
    """Return whether work with so many failed attempts is given up at this time."""
    return bool(policy.stop(_call_state(attempts, now - since)))


def after_faults(faults: int) -> timedelta:
    """Return how long to wait after so many faults of this side in a row.

    The cause (a key or a database that is out of reach) is not a fault of the webhook: its schedule
    is not used up, and nothing is given up.
    """
    if faults < 1:
        return timedelta(0)
    doublings = min(faults - 1, 20)  # far beyond the longest wait
    return min(_FIRST_FAULT_WAIT * (1 << doublings), _LONGEST_FAULT_WAIT)


async def persist(
    call: Callable[[], Awaitable[T]], *, through: type[Exception], within: timedelta
) -> T:
    """Call until it succeeds, despite errors of one type, at growing intervals of up to 2 s.

    Args:
        call: The call.
        through: The type of error; any other is raised at once.
        within: How long to repeat the call: then the last error is raised.
    """
    try:
        return await call()  # success at once does not pay for tenacity
    except through:
        pass
    attempts = AsyncRetrying(
        retry=retry_if_exception_type(through),
        wait=wait_random_exponential(multiplier=0.05, max=2),
        stop=stop_after_delay(within.total_seconds()),
        reraise=True,
    )
    async for attempt in attempts:
        with attempt:
            return await call()
    raise AssertionError("tenacity ends in a value or in the error")  # pragma: no cover


def _call_state(attempts: int, age: timedelta) -> RetryCallState:
    state = RetryCallState(_NOTHING, None, (), {})
    state.attempt_number = attempts
    state.start_time, state.outcome_timestamp = 0.0, age.total_seconds()
    return state


# tenacity passes its own loop to wait and stop objects; there is none here.
_NOTHING = Retrying()
