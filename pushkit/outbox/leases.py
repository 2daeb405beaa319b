"""What workers do with deliveries, as scripts: claim under a lease, settle, take over.

Only heads are claimed (see `pushkit.outbox.heads`).
"""

from __future__ import annotations

import functools
from collections.abc import Sequence
from datetime import datetime

from pushkit.outbox.heads import pass_heads_on
from pushkit.outbox.model import Claim, Delivery, DeliveryState, Outcome, Result
from pushkit.outbox.rows import delivery_of
from pushkit.storage import (
    Rows,
    Script,
    SqlValue,
    Statement,
    among,
    moment_or_none,
    padded,
    to_micros,
)
from pushkit.work import after_fruitless_claims

__all__ = ["Leases"]

_BUSY = (
    "SELECT origin, COUNT(*) AS busy FROM pushkit_deliveries"
    " WHERE state = 'in_flight' GROUP BY origin"
)
_DESTINATION = "h.tenant = d.tenant AND h.owner = d.owner AND h.origin = d.origin"
_PROBED = "(SELECT tenant, owner, origin FROM pushkit_deliveries WHERE state = 'in_flight')"

# A window over the due heads of destinations that neither wait nor are full, then the first few of
# each. The window keeps a claim short; heads beyond it are found by the next one, which comes at
# once. A destination with too many failures in a row is given one delivery at a time (workers on
# PostgreSQL that claim in the same moment may take one each).
_WINDOW = (
    "SELECT d.id, d.tenant, d.owner, d.origin, d.not_before, COALESCE(h.failures, 0) AS failures"
    f" FROM pushkit_deliveries d LEFT JOIN pushkit_destinations h ON {_DESTINATION}"
    " WHERE d.head = 1 AND d.state = 'pending' AND d.not_before <= $1"
    " AND COALESCE(h.until, 0) <= $1"
    " AND (COALESCE(h.failures, 0) < CAST($6 AS BIGINT)"
    f" OR (d.tenant, d.owner, d.origin) NOT IN {_PROBED})"
    f" AND d.origin NOT IN (SELECT origin FROM ({_BUSY}) b WHERE b.busy >= $5)"
    " ORDER BY d.not_before LIMIT CAST($4 AS BIGINT) * 2 FOR UPDATE OF d SKIP LOCKED"
)
_PROBES = (
    "SELECT w.*, CASE WHEN w.failures < CAST($6 AS BIGINT) THEN 1 ELSE ROW_NUMBER() OVER"
    " (PARTITION BY w.tenant, w.owner, w.origin ORDER BY w.not_before, w.id) END AS probe"
    f" FROM ({_WINDOW}) w"
)
_CLAIMABLE = (
    "SELECT c.id FROM (SELECT p.*, ROW_NUMBER() OVER"
    " (PARTITION BY p.origin ORDER BY p.not_before, p.id) + COALESCE(f.busy, 0) AS place"
    f" FROM ({_PROBES}) p LEFT JOIN ({_BUSY}) f ON f.origin = p.origin WHERE p.probe = 1) c"
    " WHERE c.place <= $5 ORDER BY c.not_before LIMIT CAST($4 AS BIGINT)"
)
_NEVER = 2**31 - 1


class Leases:
    """Scripts by which workers take deliveries, and give them back."""

    def claim(
        self,
        claim: Claim,
        *,
        limit: int,
        per_origin: int,
        now: datetime,
        one_at_a_time_from: int = _NEVER,
    ) -> Script[list[Delivery]]:
        """Take heads that are due, under a lease; oldest due first.

        Args:
            claim: Who takes them, and until when.
            limit: How many at most.
            per_origin: How many of one destination may be in flight, over all owners and workers.
                A slow webhook of many tasks would otherwise take every slot there is.
            now: The present.
            one_at_a_time_from: From so many failures in a row on, a destination is given one
                delivery at a time.
        """
        moment = to_micros(now)
        yield from self._take_back_expired(now)
        rows = yield Statement(
            "UPDATE pushkit_deliveries SET state = 'in_flight', lease_worker = $2,"
            " lease_until = $3, claims = claims + 1, fruitless_claims = fruitless_claims + 1"
            f" WHERE id IN ({_CLAIMABLE}) RETURNING *",
            (
                moment,
                claim.worker,
                to_micros(claim.until),
                limit,
                per_origin,
                one_at_a_time_from,
            ),
        )
        return sorted(map(delivery_of, rows), key=lambda delivery: delivery.not_before)

    def next_due(self, now: datetime) -> Script[datetime | None]:
        """Return when the next claim may find something; None if nothing is unfinished.

        Never late, whatever the backlog: the first head of a destination that does not wait, the
        end of the first wait that has heads behind it, or of the first lease.
        """
        rows = yield Statement(
            "SELECT MIN(due) AS due FROM (SELECT due FROM (SELECT d.not_before AS due"
            " FROM pushkit_deliveries d WHERE d.head = 1 AND d.state = 'pending'"
            # Scalar subqueries, not joins: a planner must not read every head for the first one.
            " AND COALESCE((SELECT h.until FROM pushkit_destinations h"
            f" WHERE {_DESTINATION}), 0) <= $1 ORDER BY d.not_before LIMIT 1) free"
            " UNION ALL SELECT CASE WHEN EXISTS (SELECT 1 FROM pushkit_deliveries d"
            f" WHERE {_DESTINATION} AND d.head = 1 AND d.state = 'pending') THEN h.until END"
            " FROM pushkit_destinations h WHERE h.until > $1"
            " UNION ALL SELECT lease_until FROM pushkit_deliveries"
            " WHERE state = 'in_flight') moments",
            (to_micros(now),),
        )
        return moment_or_none(rows[0]["due"])

    def settle(
        self, settled: Sequence[tuple[Delivery, Result]], worker: str, now: datetime
    ) -> Script[list[bool]]:
        """Write down what attempts came to; False for each whose row is no longer this worker's.

        A row is lost to a cancellation, or to another claim after the lease ended. Its result is
        then dropped: the canceller or the other claim decides. The number of the claim, which is
        never reset, tells two claims of one worker apart.

        Args:
            settled: Deliveries as they were claimed, the rows of their subscriptions held; and what
                became of each. A destination's wait is not this method's business.
            worker: Who claimed them.
            now: The present.
        """
        alike: dict[tuple[SqlValue, ...], list[Delivery]] = {}
        for delivery, result in settled:
            alike.setdefault(_columns_after(result, now), []).append(delivery)
        written: dict[tuple[str, int], str] = {}
        for columns, deliveries in alike.items():
            claims = padded([(each.id, each.claims) for each in deliveries])
            rows = yield Statement(
                "UPDATE pushkit_deliveries SET state = $1, last_status = $2, last_error = $3,"
                " not_before = COALESCE($4, not_before), finished_at = $5,"
                " attempts = attempts + CAST($6 AS INTEGER),"
                " fruitless_claims = CASE CAST($6 AS INTEGER) WHEN 1 THEN 0"
                " ELSE fruitless_claims END, lease_worker = NULL, lease_until = NULL, head = 0"
                " WHERE lease_worker = $7 AND state = 'in_flight'"
                f" AND {_any_of(len(claims))} RETURNING id, claims, subscription_id",
                (*columns, worker, *(value for claim in claims for value in claim)),
            )
            written |= {(row["id"], row["claims"]): row["subscription_id"] for row in rows}
        if written:
            # After a retry it is the oldest again, unless an older one was redriven meanwhile.
            yield from pass_heads_on(sorted(set(written.values())))
        return [(delivery.id, delivery.claims) in written for delivery, _ in settled]

    def working(self) -> Script[list[str]]:
        """Return the names of the workers that have rows in flight."""
        rows = yield Statement(
            "SELECT DISTINCT lease_worker FROM pushkit_deliveries WHERE state = 'in_flight'"
        )
        return [str(row["lease_worker"]) for row in rows]

    def take_over(self, worker: str, now: datetime) -> Script[None]:
        """Give a dead worker's rows back, before their leases end."""
        lost = yield Statement(
            "SELECT id, fruitless_claims FROM pushkit_deliveries"
            " WHERE state = 'in_flight' AND lease_worker = $1 ORDER BY id FOR UPDATE",
            (worker,),
        )
        yield from _give_back(lost, "worker_died", now)

    def _take_back_expired(self, now: datetime) -> Script[None]:
        lost = yield Statement(
            "SELECT id, fruitless_claims FROM pushkit_deliveries"
            " WHERE state = 'in_flight' AND lease_until <= $1 FOR UPDATE SKIP LOCKED",
            (to_micros(now),),
        )
        yield from _give_back(lost, "lease_expired", now)


def _give_back(lost: Rows, error: str, now: datetime) -> Script[None]:
    """Let what nobody settled be claimed again: at once, then later and later."""
    alike: dict[int, list[str]] = {}
    for row in lost:
        alike.setdefault(row["fruitless_claims"], []).append(row["id"])
    for claims, ids in alike.items():
        # The first time it may have been any other delivery that ended the process.
        wait = after_fruitless_claims(claims - 1)
        again_at = to_micros(now + wait) if wait else None
        for clause, values in among(ids, after=2):
            yield Statement(
                "UPDATE pushkit_deliveries SET state = 'pending', lease_worker = NULL,"
                " lease_until = NULL, last_error = $1, not_before = COALESCE($2, not_before)"
                f" WHERE id {clause}",
                (error, again_at, *values),
            )


def _columns_after(result: Result, now: datetime) -> tuple[SqlValue, ...]:
    state = _STATE_AFTER[result.outcome]
    return (
        state.value,
        result.status,
        result.error,
        to_micros(result.retry_at) if result.retry_at else None,
        None if state is DeliveryState.PENDING else to_micros(now),
        int(result.made is not None),
    )


@functools.cache
def _any_of(claims: int) -> str:
    # Not `IN (VALUES …)`, whose numbers PostgreSQL would take for texts.
    pairs = (f"id = ${n} AND claims = ${n + 1}" for n in range(8, 8 + 2 * claims, 2))
    return "(" + " OR ".join(f"({pair})" for pair in pairs) + ")"


_STATE_AFTER = {
    Outcome.DELIVERED: DeliveryState.DELIVERED,
    Outcome.RETRY: DeliveryState.PENDING,
    Outcome.LOCAL_FAULT: DeliveryState.PENDING,
    Outcome.DEAD: DeliveryState.DEAD,
    Outcome.GONE: DeliveryState.DEAD,
}
