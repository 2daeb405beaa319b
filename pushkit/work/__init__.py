"""What outbox and inbox share: when to try again, and how work is pumped and shared."""

from tenacity import stop_after_attempt, stop_after_delay

from pushkit.work.housekeeping import Housekeeper
from pushkit.work.pump import Pump, Slots, cancelled
from pushkit.work.renewing import Held, Renewing
from pushkit.work.retry import (
    DEFAULT_SCHEDULE,
    RetryPolicy,
    after_fruitless_claims,
    gives_up,
    next_attempt,
    persist,
    wait_schedule,
)

__all__ = [
    "DEFAULT_SCHEDULE",
    "Held",
    "Housekeeper",
    "Pump",
    "Renewing",
    "RetryPolicy",
    "Slots",
    "after_fruitless_claims",
    "cancelled",
    "gives_up",
    "next_attempt",
    "persist",
    "stop_after_attempt",
    "stop_after_delay",
    "wait_schedule",
]
