"""The states of a delivery, and every transition between them.

| event | from | to | besides |
|---|---|---|---|
| stored | nothing | pending | the next `seq`; its queue may be leased, and it in flight at once |
| acknowledged | in flight | delivered | one attempt more |
| failed | in flight | pending | one attempt more; waits as the schedule says |
| local fault | in flight | pending | no attempt; the schedule is not used up |
| given up | in flight | dead | |
| gone | in flight | dead | its subscription is disabled, and the rest of the queue cancelled |
| worker died again | in flight | pending, dead | one attempt more, as the schedule says |
| cancelled with its subscription | pending, in flight | cancelled | |
| superseded, cancelled by an operator | pending | cancelled | |
| asked for again | in flight | in flight | the result of its attempt is not stored |
| redriven, sent again | delivered, dead, cancelled | pending | age and attempts begin anew |

Pending and in flight are one state in the table: a pending delivery is in flight while its queue is
leased and its holder has it (`pushkit.queue.rules`). The scripts build their statements from these
transitions; nothing else writes `state`.
"""

from __future__ import annotations

from enum import StrEnum
from typing import Final

from pushkit.queue.tables import UNFINISHED
from pushkit.record import record
from pushkit.subscriptions.model import OUTBOX

# Conditions over rows of `pushkit_deliveries`, whose columns have names that no other table has.
IS_IN_FLIGHT: Final = OUTBOX.is_in_flight
IS_NEXT: Final = (  # of a queue that is not paused
    f"({UNFINISHED} AND id IN (SELECT (SELECT o.id FROM pushkit_deliveries o"
    " WHERE o.subscription_id = q.id AND o.state = 'pending' ORDER BY o.seq LIMIT 1)"
    " FROM pushkit_subscriptions q WHERE q.id = subscription_id AND q.paused = 0))"
)
SHOWN_STATE: Final = f"CASE WHEN {IS_IN_FLIGHT} THEN 'in_flight' ELSE state END"
"""The `DeliveryState` of a row."""


class DeliveryState(StrEnum):
    """The state of a delivery."""

    PENDING = "pending"
    IN_FLIGHT = "in_flight"
    """Pending, and with the worker that leases its queue: begun, or next."""
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
    """A newer update of the task replaces it, or has its content, too."""


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


_PENDING = (DeliveryState.PENDING,)
_FINISHED = (DeliveryState.DELIVERED, DeliveryState.DEAD, DeliveryState.CANCELLED)

CANCELLED: Final = Transition(
    _PENDING, DeliveryState.CANCELLED, "waits = 0, finished_at = $2, cancelled_by = $3"
)
SUPERSEDED: Final = Transition(
    _PENDING, DeliveryState.CANCELLED, f"{CANCELLED.sets}, last_error = 'superseded'"
)
REDRIVEN: Final = Transition(
    _FINISHED,
    DeliveryState.PENDING,
    "waits = CAST($4 AS INTEGER), redrives = redrives + 1, attempts = 0, faults = 0,"
    " redriven_at = $2, not_before = $2, scheduled_at = $2, finished_at = NULL,"
    " cancelled_by = NULL, origin = $3",
)
LOST: Final = Transition(
    _PENDING,
    DeliveryState.PENDING,
    "attempts = attempts + CAST($4 AS INTEGER), last_error = $2, last_status = NULL,"
    " not_before = $3, scheduled_at = $5",
)
LOST_FOR_GOOD: Final = Transition(
    _PENDING,
    DeliveryState.DEAD,
    "attempts = attempts + 1, last_error = $2, last_status = NULL, finished_at = $3",
)
# The state after an attempt, by its outcome: the first parameter of `SETTLING`.
SETTLED: Final = {
    Outcome.DELIVERED: DeliveryState.DELIVERED,
    Outcome.RETRY: DeliveryState.PENDING,
    Outcome.LOCAL_FAULT: DeliveryState.PENDING,
    Outcome.DEAD: DeliveryState.DEAD,
    Outcome.GONE: DeliveryState.DEAD,
}
SETTLING: Final = (
    "UPDATE pushkit_deliveries SET state = $1, last_status = $2, last_error = $3,"
    " not_before = COALESCE($4, not_before), finished_at = $5,"
    " scheduled_at = CASE WHEN CAST($4 AS BIGINT) IS NULL THEN scheduled_at ELSE $8 END,"
    " attempts = attempts + CAST($6 AS INTEGER),"
    " faults = CASE CAST($6 AS INTEGER) WHEN 1 THEN 0 ELSE faults + 1 END"
)
