"""The circuit breaker of a destination, as a pure function of its failures in a row.

    CLOSED ─so many failures in a row→ OPEN ─wait over→ HALF_OPEN ─one success→ CLOSED
                                         ▲─────────── one failure ──┘

The count and the end of the wait stand in the database, so that every worker sees the same breaker.
Nothing runs to change its state: an open breaker whose wait is over is half open, and lets through
one attempt at a time.
"""

from __future__ import annotations

from dataclasses import dataclass
from datetime import timedelta

from pushkit.errors import AddressRefusedError, ConfigError, DestinationRefusedError
from pushkit.outbox.model import Result
from pushkit.outbox.states import Outcome

TOO_OLD = "too_old"
SUBSCRIPTION_MISSING = "subscription_missing"
# Our own policy does not let this sender ask the destination.
REFUSED = frozenset({AddressRefusedError.code, DestinationRefusedError.code})
# Errors of deliveries whose destination was not asked: they prove nothing of it.
_NOT_ASKED = REFUSED | {SUBSCRIPTION_MISSING, TOO_OLD}


@dataclass(frozen=True, slots=True, kw_only=True)
class BreakerPolicy:
    """When a destination is left alone.

    Attributes:
        failures: How many failures in a row open the breaker.
        first_wait: The first wait; it doubles with each failed probe.
        longest_wait: The longest wait.
    """

    failures: int = 5
    first_wait: timedelta = timedelta(seconds=30)
    longest_wait: timedelta = timedelta(minutes=10)

    def __post_init__(self) -> None:
        if self.failures < 1 or not timedelta(0) < self.first_wait <= self.longest_wait:
            raise ConfigError(
                "breaker: expected failures of 1 or more, and 0 < first_wait <= longest_wait"
            )


def hold_after(policy: BreakerPolicy, failures: int) -> timedelta | None:
    """Return how long a destination waits after so many failures in a row; None: not at all."""
    if failures < policy.failures:
        return None
    doublings = min(failures - policy.failures, 20)  # beyond it, the longest wait is long reached
    return min(policy.first_wait * (1 << doublings), policy.longest_wait)


def works(result: Result) -> bool | None:
    """Say whether an attempt found its destination working; None if it was not asked.

    No answer, and an answer of 5xx, count against it; any other answer comes from a server that
    works, whatever it thinks of this delivery.
    """
    if result.outcome is Outcome.LOCAL_FAULT or result.error in _NOT_ASKED:
        return None
    return result.status is not None and result.status < 500
