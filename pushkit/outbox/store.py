"""The deliveries table, as scripts (see `pushkit.storage.script`).

Order is kept by `head`: of each subscription's unfinished deliveries only the oldest is the head,
and only heads are claimed. A claim therefore looks at an index of heads that are due, whatever the
length of the backlog behind them; settling a head passes the mark on. Of a paused subscription
nothing is the head. The condition that an index is for is repeated where SQLite would not see it.
"""

from __future__ import annotations

from datetime import datetime

from pushkit.outbox.destinations import DESTINATIONS_TABLE, DestinationStore
from pushkit.outbox.envelopes import PLAIN, Envelopes
from pushkit.outbox.idempotency import IdempotencyKey
from pushkit.outbox.model import (
    Claim,
    Delivery,
    DeliveryState,
    Outcome,
    Result,
    StatusMark,
    new_delivery_id,
)
from pushkit.storage import Migration, Row, Script, Statement, from_micros, to_micros

__all__ = ["MIGRATION", "OutboxStore"]

MIGRATION = Migration(
    2,
    (
        """
        CREATE TABLE pushkit_deliveries (
            id TEXT PRIMARY KEY,
            subscription_id TEXT NOT NULL,
            tenant TEXT NOT NULL,
            owner TEXT NOT NULL,
            task_id TEXT NOT NULL,
            config_id TEXT NOT NULL,
            seq BIGINT NOT NULL,
            origin TEXT NOT NULL,
            content_type TEXT NOT NULL,
            body BYTEA NOT NULL,
            idempotency_key TEXT,
            status TEXT,
            state TEXT NOT NULL DEFAULT 'pending',
            head INTEGER NOT NULL,
            attempts INTEGER NOT NULL DEFAULT 0,
            notified_at BIGINT NOT NULL,
            not_before BIGINT NOT NULL,
            lease_worker TEXT,
            lease_until BIGINT,
            finished_at BIGINT,
            redriven_at BIGINT,
            last_status INTEGER,
            last_error TEXT
        )
        """,
        "CREATE UNIQUE INDEX pushkit_deliveries_seq ON pushkit_deliveries (subscription_id, seq)",
        (
            "CREATE UNIQUE INDEX pushkit_deliveries_idempotency ON pushkit_deliveries"
            " (subscription_id, idempotency_key) WHERE idempotency_key IS NOT NULL"
        ),
        (
            "CREATE INDEX pushkit_deliveries_due ON pushkit_deliveries (not_before)"
            " WHERE head = 1 AND state = 'pending'"
        ),
        (
            "CREATE INDEX pushkit_deliveries_heads ON pushkit_deliveries (tenant, owner, origin)"
            " WHERE head = 1 AND state = 'pending'"
        ),
        (
            "CREATE INDEX pushkit_deliveries_leased ON pushkit_deliveries (lease_until)"
            " WHERE state = 'in_flight'"
        ),
        (
            "CREATE INDEX pushkit_deliveries_unfinished ON pushkit_deliveries"
            " (subscription_id, seq) WHERE state IN ('pending', 'in_flight')"
        ),
        # What was finished, oldest first, for retention; dead letters, for whoever looks at them.
        (
            "CREATE INDEX pushkit_deliveries_finished ON pushkit_deliveries (finished_at)"
            " WHERE finished_at IS NOT NULL"
        ),
        "CREATE INDEX pushkit_deliveries_dead ON pushkit_deliveries (id) WHERE state = 'dead'",
        "CREATE INDEX pushkit_deliveries_task ON pushkit_deliveries (tenant, task_id, seq)",
        DESTINATIONS_TABLE,
    ),
)

_UNFINISHED = "state IN ('pending', 'in_flight')"
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


class OutboxStore:
    """Scripts over `pushkit_deliveries`."""

    def __init__(self) -> None:
        self.destinations = DestinationStore()

    def enqueue(
        self,
        *,
        subscription_id: str,
        tenant: str,
        owner: str,
        task_id: str,
        config_id: str,
        origin: str,
        seq: int,
        content_type: str,
        body: bytes,
        now: datetime,
        idempotency_key: IdempotencyKey | None = None,
        status: StatusMark | None = None,
        paused: bool = False,
        envelopes: Envelopes = PLAIN,
    ) -> Script[str]:
        """Store one delivery and return its id.

        Args:
            subscription_id: Whose it is; the others say what it is, as in `Delivery`.
            tenant: The tenant.
            owner: The owner.
            task_id: The task.
            config_id: The config id.
            origin: The destination.
            seq: Its place.
            content_type: The media type of the body.
            body: The bytes to send.
            now: The present.
            idempotency_key: The caller's key, if any.
            status: What it says of the task's status, if anything.
            paused: Whether the subscription is: it then waits for `mark_oldest`.
            envelopes: Seals the body, where that is asked for.
        """
        delivery_id = new_delivery_id(now)
        yield Statement(
            "INSERT INTO pushkit_deliveries (id, subscription_id, tenant, owner, task_id,"
            " config_id, seq, origin, content_type, body, idempotency_key, notified_at,"
            " not_before, status, update_sha256, head)"
            " VALUES ($1, $2, $3, $4, $5, $6, $7, $8, $9, $10, $11, $12, $12, $13, $15,"
            " CASE WHEN CAST($14 AS BIGINT) = 1 OR EXISTS (SELECT 1 FROM pushkit_deliveries"
            f" WHERE subscription_id = $2 AND {_UNFINISHED}) THEN 0 ELSE 1 END)",
            (
                delivery_id,
                subscription_id,
                tenant,
                owner,
                task_id,
                config_id,
                seq,
                origin,
                content_type,
                envelopes.seal(delivery_id, body),
                idempotency_key.key if idempotency_key else None,
                to_micros(now),
                status.value if status else None,
                int(paused),
                idempotency_key.update_sha256 if idempotency_key else None,
            ),
        )
        return delivery_id

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
        yield Statement(
            "UPDATE pushkit_deliveries SET state = 'pending', lease_worker = NULL,"
            " last_error = 'lease_expired' WHERE id IN (SELECT id FROM pushkit_deliveries"
            " WHERE state = 'in_flight' AND lease_until <= $1 FOR UPDATE SKIP LOCKED)",
            (moment,),
        )
        rows = yield Statement(
            "UPDATE pushkit_deliveries SET state = 'in_flight', lease_worker = $2,"
            " lease_until = $3, attempts = attempts + 1"
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
        return sorted(map(_delivery, rows), key=lambda delivery: delivery.not_before)

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
        due = rows[0]["due"]
        return None if due is None else from_micros(due)

    def settle(
        self, delivery: Delivery, worker: str, result: Result, now: datetime
    ) -> Script[bool]:
        """Write down what an attempt came to; False if the row is no longer this worker's.

        A row is lost to a cancellation, or to another attempt after the lease ended. Its result is
        then dropped: the canceller or the other attempt decides. The number of the attempt tells
        two attempts of one worker apart.
        """
        state = _STATE_AFTER[result.outcome]
        finished = state is not DeliveryState.PENDING
        rows = yield Statement(
            "UPDATE pushkit_deliveries SET state = $3, last_status = $4, last_error = $5,"
            " not_before = COALESCE($6, not_before), finished_at = $7, lease_worker = NULL,"
            " lease_until = NULL, head = 0"
            " WHERE id = $1 AND lease_worker = $2 AND state = 'in_flight' AND attempts = $8"
            " RETURNING id",
            (
                delivery.id,
                worker,
                state.value,
                result.status,
                result.error,
                to_micros(result.retry_at) if result.retry_at else None,
                to_micros(now) if finished else None,
                delivery.attempts,
            ),
        )
        if not rows:
            return False
        if result.hold_until is not None:
            yield from self.destinations.hold(delivery, result.hold_until)
        # After a retry it is the oldest again, unless an older one was redriven in the meantime.
        yield from self.pass_head_on(delivery.subscription_id)
        return True

    def working(self) -> Script[list[str]]:
        """Return the names of the workers that have rows in flight."""
        rows = yield Statement(
            "SELECT DISTINCT lease_worker FROM pushkit_deliveries WHERE state = 'in_flight'"
        )
        return [str(row["lease_worker"]) for row in rows]

    def take_over(self, worker: str) -> Script[None]:
        """Give a dead worker's rows back, before their leases end."""
        yield Statement(
            "UPDATE pushkit_deliveries SET state = 'pending', lease_worker = NULL,"
            " last_error = 'worker_died' WHERE state = 'in_flight' AND lease_worker = $1",
            (worker,),
        )

    def move(self, subscription_id: str, origin: str) -> Script[None]:
        """Let what is unfinished of a subscription count for its new destination."""
        yield Statement(
            "UPDATE pushkit_deliveries SET origin = $2"
            f" WHERE subscription_id = $1 AND origin <> $2 AND {_UNFINISHED}",
            (subscription_id, origin),
        )

    def cancel_subscription(self, subscription_id: str, now: datetime) -> Script[int]:
        """Cancel what is unfinished of a subscription; return how many deliveries that was."""
        rows = yield Statement(
            "UPDATE pushkit_deliveries SET state = 'cancelled', head = 0, lease_worker = NULL,"
            " lease_until = NULL, finished_at = $2"
            f" WHERE subscription_id = $1 AND {_UNFINISHED} RETURNING id",
            (subscription_id, to_micros(now)),
        )
        return len(rows)

    def of_task(self, *, tenant: str, task_id: str) -> Script[list[Delivery]]:
        """Return every delivery of a task, by subscription and `seq`."""
        rows = yield Statement(
            "SELECT * FROM pushkit_deliveries WHERE tenant = $1 AND task_id = $2"
            " ORDER BY subscription_id, seq",
            (tenant, task_id),
        )
        return [_delivery(row) for row in rows]

    def hold_back(self, subscription_id: str) -> Script[None]:
        """Offer nothing of a subscription until `mark_oldest`; what is in flight goes on."""
        yield Statement(
            "UPDATE pushkit_deliveries SET head = 0"
            f" WHERE subscription_id = $1 AND head = 1 AND {_UNFINISHED}",
            (subscription_id,),
        )

    def pass_head_on(self, subscription_id: str) -> Script[None]:
        """Offer the oldest that is unfinished of a subscription, unless that is paused."""
        yield Statement(
            "UPDATE pushkit_deliveries SET head = 1 WHERE id = (SELECT id FROM pushkit_deliveries"
            f" WHERE subscription_id = $1 AND {_UNFINISHED} ORDER BY seq LIMIT 1)"
            " AND NOT EXISTS (SELECT 1 FROM pushkit_subscriptions WHERE id = $1 AND paused = 1)",
            (subscription_id,),
        )

    def mark_oldest(self, subscription_id: str) -> Script[None]:
        """Offer the oldest, after a change in the middle of what is unfinished.

        What is in flight keeps the mark, and passes it on when it settles: two of a subscription
        are never under way at once.
        """
        # A head that is being claimed is waited for here, and then is in flight.
        yield Statement(
            "UPDATE pushkit_deliveries SET head = 0"
            f" WHERE subscription_id = $1 AND head = 1 AND state = 'pending' AND {_UNFINISHED}",
            (subscription_id,),
        )
        yield Statement(
            "UPDATE pushkit_deliveries SET head = 1 WHERE id = (SELECT id FROM pushkit_deliveries"
            f" WHERE subscription_id = $1 AND {_UNFINISHED}"
            " ORDER BY CASE WHEN state = 'in_flight' THEN 0 ELSE 1 END, seq LIMIT 1)"
            " AND NOT EXISTS (SELECT 1 FROM pushkit_subscriptions WHERE id = $1 AND paused = 1)",
            (subscription_id,),
        )

    def has_unfinished(self, subscription_id: str) -> Script[bool]:
        """Say whether anything of a subscription is pending or in flight."""
        rows = yield Statement(
            "SELECT 1 FROM pushkit_deliveries"
            f" WHERE subscription_id = $1 AND {_UNFINISHED} LIMIT 1",
            (subscription_id,),
        )
        return bool(rows)

    def backlog(self, subscription_id: str, last_seq: int, limit: int) -> Script[int]:
        """Return how many deliveries of a subscription are unfinished, at most `limit`.

        Nothing can be older than the oldest, which one look at the index finds; rows are counted
        only where that does not settle it.
        """
        rows = yield Statement(
            f"SELECT MIN(seq) AS oldest FROM pushkit_deliveries"
            f" WHERE subscription_id = $1 AND {_UNFINISHED}",
            (subscription_id,),
        )
        oldest = rows[0]["oldest"]
        at_most = 0 if oldest is None else last_seq - int(oldest) + 1
        if at_most < limit:
            return at_most
        rows = yield Statement(
            "SELECT COUNT(*) AS found FROM (SELECT 1 FROM pushkit_deliveries"
            f" WHERE subscription_id = $1 AND {_UNFINISHED} LIMIT CAST($2 AS BIGINT)) counted",
            (subscription_id, limit),
        )
        return int(rows[0]["found"])

    def whole_backlog(self, limit: int) -> Script[int]:
        """Return how many deliveries are unfinished in all, at most `limit`."""
        rows = yield Statement(
            "SELECT COUNT(*) AS found FROM (SELECT 1 FROM pushkit_deliveries"
            f" WHERE {_UNFINISHED} LIMIT CAST($1 AS BIGINT)) counted",
            (limit,),
        )
        return int(rows[0]["found"])

    def supersede(self, subscription_id: str, *, by_new_status: bool, now: datetime) -> Script[int]:
        """Cancel pending `working` statuses that a newer status has overtaken; return how many.

        Args:
            subscription_id: Whose.
            by_new_status: Whether a status that is newer than all of them is about to be stored.
            now: The present.
        """
        rows = yield Statement(
            "UPDATE pushkit_deliveries SET state = 'cancelled', head = 0, finished_at = $2,"
            " last_error = 'superseded' WHERE subscription_id = $1 AND state = 'pending'"
            f" AND {_UNFINISHED} AND status = 'bare' AND (CAST($3 AS BIGINT) = 1 OR seq <"
            " (SELECT MAX(seq) FROM pushkit_deliveries WHERE subscription_id = $1"
            f" AND {_UNFINISHED} AND status IS NOT NULL)) RETURNING id",
            (subscription_id, to_micros(now), int(by_new_status)),
        )
        if rows:
            yield from self.mark_oldest(subscription_id)
        return len(rows)


_STATE_AFTER = {
    Outcome.DELIVERED: DeliveryState.DELIVERED,
    Outcome.RETRY: DeliveryState.PENDING,
    Outcome.DEAD: DeliveryState.DEAD,
    Outcome.GONE: DeliveryState.DEAD,
}


def _delivery(row: Row) -> Delivery:
    return Delivery(
        id=row["id"],
        subscription_id=row["subscription_id"],
        tenant=row["tenant"],
        owner=row["owner"],
        task_id=row["task_id"],
        config_id=row["config_id"],
        seq=row["seq"],
        origin=row["origin"],
        content_type=row["content_type"],
        body=bytes(row["body"]),
        state=DeliveryState(row["state"]),
        attempts=row["attempts"],
        notified_at=from_micros(row["notified_at"]),
        not_before=from_micros(row["not_before"]),
        last_status=row["last_status"],
        last_error=row["last_error"],
        redriven_at=None if row["redriven_at"] is None else from_micros(row["redriven_at"]),
    )
