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

__all__ = ["BreakerPolicy", "hold_after"]


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


def hold_after(policy: BreakerPolicy, failures: int) -> timedelta | None:
    """Return how long a destination waits after so many failures in a row; None: not at all."""
    if failures < policy.failures:
        return None
    doublings = min(failures - policy.failures, 20)  # beyond it, the longest wait is long reached
    return min(policy.first_wait * (1 << doublings), policy.longest_wait)
