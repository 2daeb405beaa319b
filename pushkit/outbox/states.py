"""The states of a delivery, and every way from one to another.

| what happens | from | to | besides |
|---|---|---|---|
| stored | nothing | pending; in flight in a free slot, or in a chain | the next `seq` |
| claimed, or chained behind that | pending | in flight | the lease begins; one claim more |
| acknowledged | in flight | delivered | one attempt more; the next of its line may go |
| failed | in flight | pending | one attempt more; waits as the schedule says |
| local fault | in flight | pending | no attempt; waits by itself |
| not begun | in flight | pending | no attempt: it goes back behind the one before it |
| given up | in flight | dead | |
| gone | in flight | dead | its subscription is disabled: the rest of the line is withdrawn |
| lost: worker died, lease ended | in flight | pending | no attempt, and a claim without fruit |
| withdrawn with its subscription | pending, in flight | cancelled | |
| superseded, cancelled by hand | pending | cancelled | |
| redriven, sent again | delivered, dead, cancelled | pending | age and attempts begin anew |

Stores make their statements of these moves; nothing else writes `state`.
"""

from __future__ import annotations

from enum import StrEnum
from typing import Final

from pushkit.record import record

# The condition of an index: SQLite uses that only where the condition reads the same.
UNFINISHED: Final = "state IN ('pending', 'in_flight')"


class DeliveryState(StrEnum):
    """Where a delivery stands."""

    PENDING = "pending"
    IN_FLIGHT = "in_flight"
    DELIVERED = "delivered"
    DEAD = "dead"
    CANCELLED = "cancelled"


class Outcome(StrEnum):
    """What one attempt means for its delivery."""

    DELIVERED = "delivered"
    RETRY = "retry"
    DEAD = "dead"
    LOCAL_FAULT = "local_fault"
    """Something failed on this side before the webhook was asked: not its business. It is tried
    again, and its schedule is not used up."""
    NOT_BEGUN = "not_begun"
    """It stood in a chain behind one that failed, or that had to leave its slot."""
    GONE = "gone"
    """Answered 410: dead for this subscription, pending deliveries and all."""


@record(frozen=True, slots=True)
class Move:
    """A way from some states to another."""

    before: tuple[DeliveryState, ...]  # from where
    after: DeliveryState  # to where
    sets: str  # the columns that go with it, as SQL

    def where(self, which: str) -> str:
        """Return the statement that moves rows; `which` ends it, behind the states they are in."""
        before = ", ".join(f"'{state}'" for state in self.before)
        return (
            f"UPDATE pushkit_deliveries SET state = '{self.after}', {self.sets}"
            f" WHERE state IN ({before}) AND {which}"
        )


_UNFINISHED = (DeliveryState.PENDING, DeliveryState.IN_FLIGHT)
_FINISHED = (DeliveryState.DELIVERED, DeliveryState.DEAD, DeliveryState.CANCELLED)
_NO_LEASE = "lease_worker = NULL, lease_until = NULL"

CLAIMED: Final = Move(
    (DeliveryState.PENDING,),
    DeliveryState.IN_FLIGHT,
    "head = 1, lease_worker = $1, lease_until = $2, claims = claims + 1,"
    " fruitless_claims = fruitless_claims + 1",
)
# Behind another one that was claimed: it may come to nothing by no fault of its own.
CHAINED: Final = Move(
    CLAIMED.before, CLAIMED.after, "lease_worker = $1, lease_until = $2, claims = claims + 1"
)
LOST: Final = Move(
    (DeliveryState.IN_FLIGHT,),
    DeliveryState.PENDING,
    f"{_NO_LEASE}, last_error = $1, not_before = COALESCE($2, not_before)",
)
WITHDRAWN: Final = Move(
    _UNFINISHED,
    DeliveryState.CANCELLED,
    f"head = 0, {_NO_LEASE}, finished_at = $2, cancelled_by = $3",
)
CANCELLED: Final = Move(
    (DeliveryState.PENDING,),
    DeliveryState.CANCELLED,
    "head = 0, finished_at = $2, cancelled_by = $3",
)
SUPERSEDED: Final = Move(
    CANCELLED.before, CANCELLED.after, f"{CANCELLED.sets}, last_error = 'superseded'"
)
REVIVED: Final = Move(
    _FINISHED,
    DeliveryState.PENDING,
    "head = 0, attempts = 0, redriven_at = $2, not_before = $2, finished_at = NULL,"
    " cancelled_by = NULL, origin = $3, fruitless_claims = 0",
)
# Of what is in flight, by what its attempt came to; the state is the first parameter.
SETTLED: Final = {
    Outcome.DELIVERED: DeliveryState.DELIVERED,
    Outcome.RETRY: DeliveryState.PENDING,
    Outcome.LOCAL_FAULT: DeliveryState.PENDING,
    Outcome.NOT_BEGUN: DeliveryState.PENDING,
    Outcome.DEAD: DeliveryState.DEAD,
    Outcome.GONE: DeliveryState.DEAD,
}
SETTLING: Final = (
    f"UPDATE pushkit_deliveries SET state = $1, head = 0, {_NO_LEASE}, last_status = $2,"
    " last_error = $3, not_before = COALESCE($4, not_before), finished_at = $5,"
    " attempts = attempts + CAST($6 AS INTEGER),"
    " fruitless_claims = CASE CAST($6 AS INTEGER) WHEN 1 THEN 0 ELSE fruitless_claims END"
)
