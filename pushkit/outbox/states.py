"""The states of a delivery, and every transition between them.

| event | from | to | besides |
|---|---|---|---|
| stored | nothing | pending; in flight in a free slot, or in a chain | the next `seq` |
| claimed, or chained behind a claim | pending | in flight | the lease begins; one claim more |
| acknowledged | in flight | delivered | one attempt more; the next of its queue may follow |
| failed | in flight | pending | one attempt more; waits as the schedule says |
| local fault | in flight | pending | no attempt; the schedule is not used up |
| not begun | in flight | pending | no attempt: it returns behind the delivery before it |
| given up | in flight | dead | |
| gone | in flight | dead | its subscription is disabled, and the rest of the queue cancelled |
| lost: worker died, lease ended | in flight | pending | no attempt; one fruitless claim |
| cancelled with its subscription | pending, in flight | cancelled | |
| superseded, cancelled by an operator | pending | cancelled | |
| redriven, sent again | delivered, dead, cancelled | pending | age and attempts begin anew |

The stores build their statements from these transitions; nothing else writes `state`.
"""

from __future__ import annotations

from enum import StrEnum
from typing import Final

from pushkit.record import record

# The condition of partial indexes: SQLite uses them only for statements with the same text.
UNFINISHED: Final = "state IN ('pending', 'in_flight')"


class DeliveryState(StrEnum):
    """The state of a delivery."""

    PENDING = "pending"
    IN_FLIGHT = "in_flight"
    DELIVERED = "delivered"
    DEAD = "dead"
    CANCELLED = "cancelled"


class Outcome(StrEnum):
    """The meaning of one attempt for its delivery."""

    DELIVERED = "delivered"
    RETRY = "retry"
    DEAD = "dead"
    LOCAL_FAULT = "local_fault"
    """Something failed in the sender before the request. The delivery is tried again, and its
    schedule is not used up."""
    NOT_BEGUN = "not_begun"
    """It was in a chain behind a delivery that failed, or that had to leave its slot."""
    GONE = "gone"
    """Answered 410: dead, and the subscription's unfinished deliveries are cancelled."""


class CancelledBy(StrEnum):
    """Who or what cancelled a delivery, and so whether it can be brought back."""

    OPERATOR = "operator"
    """`pushkit outbox cancel`, or `PushSender.outbox.cancel()`."""
    DISABLED = "disabled"
    """Its subscription was disabled: it can be sent again once that is enabled."""
    REMOVED = "removed"
    """Its subscription was removed."""
    SUPERSEDED = "superseded"
    """A newer status of the task replaces it."""


@record(frozen=True, slots=True)
class Transition:
    """A transition from one of some states to another."""

    before: tuple[DeliveryState, ...]
    after: DeliveryState
    sets: str  # the columns that are set besides, as SQL

    def where(self, which: str) -> str:
        """Return the statement for rows in `before`; `which` is the rest of its condition."""
        before = ", ".join(f"'{state}'" for state in self.before)
        return (
            f"UPDATE pushkit_deliveries SET state = '{self.after}', {self.sets}"
            f" WHERE state IN ({before}) AND {which}"
        )


_UNFINISHED = (DeliveryState.PENDING, DeliveryState.IN_FLIGHT)
_FINISHED = (DeliveryState.DELIVERED, DeliveryState.DEAD, DeliveryState.CANCELLED)
_NO_LEASE = "lease_worker = NULL, lease_until = NULL"

CLAIMED: Final = Transition(
    (DeliveryState.PENDING,),
    DeliveryState.IN_FLIGHT,
    "head = 1, lease_worker = $1, lease_until = $2, claims = claims + 1,"
    " fruitless_claims = fruitless_claims + 1",
)
# A delivery behind another may never be attempted: that claim is not fruitless.
CHAINED: Final = Transition(
    CLAIMED.before, CLAIMED.after, "lease_worker = $1, lease_until = $2, claims = claims + 1"
)
LOST: Final = Transition(
    (DeliveryState.IN_FLIGHT,),
    DeliveryState.PENDING,
    f"{_NO_LEASE}, last_error = $1, not_before = COALESCE($2, not_before), scheduled_at = $3",
)
CANCELLED_WITH_SUBSCRIPTION: Final = Transition(
    _UNFINISHED,
    DeliveryState.CANCELLED,
    f"head = 0, {_NO_LEASE}, finished_at = $2, cancelled_by = $3",
)
CANCELLED: Final = Transition(
    (DeliveryState.PENDING,),
    DeliveryState.CANCELLED,
    "head = 0, finished_at = $2, cancelled_by = $3",
)
SUPERSEDED: Final = Transition(
    CANCELLED.before, CANCELLED.after, f"{CANCELLED.sets}, last_error = 'superseded'"
)
REDRIVEN: Final = Transition(
    _FINISHED,
    DeliveryState.PENDING,
    "head = 0, attempts = 0, redriven_at = $2, not_before = $2, finished_at = NULL,"
    " cancelled_by = NULL, origin = $3, fruitless_claims = 0",
)
# The state after an attempt, by its outcome: the first parameter of `SETTLING`.
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
    " scheduled_at = CASE WHEN CAST($4 AS BIGINT) IS NULL THEN scheduled_at ELSE $8 END,"
    " attempts = attempts + CAST($6 AS INTEGER),"
    " fruitless_claims = CASE CAST($6 AS INTEGER) WHEN 1 THEN 0 ELSE fruitless_claims END"
)
