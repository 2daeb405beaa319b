"""The deliveries table, as scripts (see `pushkit.storage.script`).

Order is kept by `head`: of each subscription's unfinished deliveries only the oldest is the head,
and only heads are claimed. A claim therefore looks at an index of heads that are due, whatever the
length of the backlog behind them; settling a head passes the mark on.
"""

from __future__ import annotations

from datetime import datetime

from pushkit.errors import IdempotencyConflictError
from pushkit.outbox.model import (
    Claim,
    Delivery,
    DeliveryState,
    Outcome,
    Result,
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
            state TEXT NOT NULL DEFAULT 'pending',
            head INTEGER NOT NULL,
            attempts INTEGER NOT NULL DEFAULT 0,
            notified_at BIGINT NOT NULL,
            not_before BIGINT NOT NULL,
            lease_worker TEXT,
            lease_until BIGINT,
            finished_at BIGINT,
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
            "CREATE INDEX pushkit_deliveries_leased ON pushkit_deliveries (lease_until)"
            " WHERE state = 'in_flight'"
        ),
        (
            "CREATE INDEX pushkit_deliveries_unfinished ON pushkit_deliveries"
            " (subscription_id, seq) WHERE state IN ('pending', 'in_flight')"
        ),
        """
        CREATE TABLE pushkit_holds (
            tenant TEXT NOT NULL,
            owner TEXT NOT NULL,
            origin TEXT NOT NULL,
            until BIGINT NOT NULL,
            PRIMARY KEY (tenant, owner, origin)
        )
        """,
    ),
)

_UNFINISHED = "state IN ('pending', 'in_flight')"
_BUSY = (
    "SELECT origin, COUNT(*) AS busy FROM pushkit_deliveries"
    " WHERE state = 'in_flight' GROUP BY origin"
)
_NOT_HELD = (
    "NOT EXISTS (SELECT 1 FROM pushkit_holds h WHERE h.tenant = d.tenant AND h.owner = d.owner"
    " AND h.origin = d.origin AND h.until > $1)"
)


# A window over the due heads of destinations that are not full, then the first few of each. The
# window keeps a claim short; heads beyond it are found by the next one, which comes at once.
_CLAIMABLE = (
    "SELECT c.id FROM (SELECT w.*, ROW_NUMBER() OVER"
    " (PARTITION BY w.origin ORDER BY w.not_before, w.id) + COALESCE(f.busy, 0) AS place"
    " FROM (SELECT d.id, d.origin, d.not_before FROM pushkit_deliveries d"
    f" WHERE d.head = 1 AND d.state = 'pending' AND d.not_before <= $1 AND {_NOT_HELD}"
    f" AND d.origin NOT IN (SELECT origin FROM ({_BUSY}) b WHERE b.busy >= $5)"
    " ORDER BY d.not_before LIMIT CAST($4 AS BIGINT) * 16 FOR UPDATE OF d SKIP LOCKED) w"
    f" LEFT JOIN ({_BUSY}) f ON f.origin = w.origin) c"
    " WHERE c.place <= $5 ORDER BY c.not_before LIMIT CAST($4 AS BIGINT)"
)


class OutboxStore:
    """Scripts over `pushkit_deliveries` and `pushkit_holds`."""

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
        idempotency_key: str | None,
        now: datetime,
    ) -> Script[str]:
        """Store one delivery and return its id."""
        delivery_id = new_delivery_id(now)
        yield Statement(
            "INSERT INTO pushkit_deliveries (id, subscription_id, tenant, owner, task_id,"
            " config_id, seq, origin, content_type, body, idempotency_key, notified_at,"
            " not_before, head)"
            " VALUES ($1, $2, $3, $4, $5, $6, $7, $8, $9, $10, $11, $12, $12,"
            " CASE WHEN EXISTS (SELECT 1 FROM pushkit_deliveries"
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
                body,
                idempotency_key,
                to_micros(now),
            ),
        )
        return delivery_id

    def find_enqueued(
        self, subscription_id: str, idempotency_key: str, body: bytes
    ) -> Script[str | None]:
        """Return the delivery that this idempotency key already made, or None.

        Raises:
            IdempotencyConflictError: The key was used with another payload.
        """
        rows = yield Statement(
            "SELECT id, body FROM pushkit_deliveries"
            " WHERE subscription_id = $1 AND idempotency_key = $2",
            (subscription_id, idempotency_key),
        )
        if not rows:
            return None
        if bytes(rows[0]["body"]) != body:
            raise IdempotencyConflictError(
                f"idempotency key {idempotency_key!r} was used before with another payload:"
                " use a new key for a new update"
            )
        return str(rows[0]["id"])

    def claim(
        self, claim: Claim, *, limit: int, per_origin: int, now: datetime
    ) -> Script[list[Delivery]]:
        """Take heads that are due, under a lease; oldest due first.

        Args:
            claim: Who takes them, and until when.
            limit: How many at most.
            per_origin: How many of one destination may be in flight, over all owners and workers.
                A slow webhook of many tasks would otherwise take every slot there is.
            now: The present.
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
            (moment, claim.worker, to_micros(claim.until), limit, per_origin),
        )
        return sorted(map(_delivery, rows), key=lambda delivery: delivery.not_before)

    def next_due(self) -> Script[datetime | None]:
        """Return when the next claim may find something; None if nothing is unfinished."""
        rows = yield Statement(
            "SELECT MIN(due) AS due FROM ("
            " SELECT CASE WHEN h.until > d.not_before THEN h.until ELSE d.not_before END AS due"
            " FROM pushkit_deliveries d"
            " LEFT JOIN pushkit_holds h"
            " ON h.tenant = d.tenant AND h.owner = d.owner AND h.origin = d.origin"
            " WHERE d.head = 1 AND d.state = 'pending'"
            " UNION ALL SELECT lease_until FROM pushkit_deliveries"
            " WHERE state = 'in_flight') moments",
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
            " lease_until = NULL, head = $8"
            " WHERE id = $1 AND lease_worker = $2 AND state = 'in_flight' AND attempts = $9"
            " RETURNING id",
            (
                delivery.id,
                worker,
                state.value,
                result.status,
                result.error,
                to_micros(result.retry_at) if result.retry_at else None,
                to_micros(now) if finished else None,
                0 if finished else 1,
                delivery.attempts,
            ),
        )
        if not rows:
            return False
        if result.hold_until is not None:
            yield from self._hold(delivery, result.hold_until)
        if finished:
            yield from self._pass_head_on(delivery.subscription_id)
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

    def _hold(self, delivery: Delivery, until: datetime) -> Script[None]:
        yield Statement(
            "INSERT INTO pushkit_holds (tenant, owner, origin, until) VALUES ($1, $2, $3, $4)"
            # Of two answers the longer wait counts, whichever of them came last.
            " ON CONFLICT (tenant, owner, origin) DO UPDATE SET until = excluded.until"
            " WHERE excluded.until > pushkit_holds.until",
            (delivery.tenant, delivery.owner, delivery.origin, to_micros(until)),
        )

    def _pass_head_on(self, subscription_id: str) -> Script[None]:
        yield Statement(
            "UPDATE pushkit_deliveries SET head = 1 WHERE id = (SELECT id FROM pushkit_deliveries"
            f" WHERE subscription_id = $1 AND {_UNFINISHED} ORDER BY seq LIMIT 1)",
            (subscription_id,),
        )


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
    )
