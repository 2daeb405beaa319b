"""The deliveries table, as scripts (see `pushkit.storage.script`): what comes in and what is there.

Workers take deliveries by `pushkit.outbox.leases`. The condition that an index is for is repeated
where SQLite would not see it.
"""

from __future__ import annotations

from datetime import datetime

from pushkit.outbox.envelopes import PLAIN, Envelopes
from pushkit.outbox.heads import mark_oldest
from pushkit.outbox.idempotency import IdempotencyKey
from pushkit.outbox.model import Delivery, StatusMark, new_delivery_id
from pushkit.outbox.rows import UNFINISHED, delivery_of
from pushkit.storage import Script, Statement, to_micros

__all__ = ["OutboxStore"]


class OutboxStore:
    """Scripts that add deliveries, end them, and count them."""

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
            f" WHERE subscription_id = $2 AND {UNFINISHED}) THEN 0 ELSE 1 END)",
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

    def move(self, subscription_id: str, origin: str) -> Script[None]:
        """Let what is unfinished of a subscription count for its new destination."""
        yield Statement(
            "UPDATE pushkit_deliveries SET origin = $2"
            f" WHERE subscription_id = $1 AND origin <> $2 AND {UNFINISHED}",
            (subscription_id, origin),
        )

    def cancel_subscription(self, subscription_id: str, now: datetime) -> Script[int]:
        """Cancel what is unfinished of a subscription; return how many deliveries that was."""
        rows = yield Statement(
            "UPDATE pushkit_deliveries SET state = 'cancelled', head = 0, lease_worker = NULL,"
            " lease_until = NULL, finished_at = $2"
            f" WHERE subscription_id = $1 AND {UNFINISHED} RETURNING id",
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
        return [delivery_of(row) for row in rows]

    def has_unfinished(self, subscription_id: str) -> Script[bool]:
        """Say whether anything of a subscription is pending or in flight."""
        rows = yield Statement(
            f"SELECT 1 FROM pushkit_deliveries WHERE subscription_id = $1 AND {UNFINISHED} LIMIT 1",
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
            f" WHERE subscription_id = $1 AND {UNFINISHED}",
            (subscription_id,),
        )
        oldest = rows[0]["oldest"]
        at_most = 0 if oldest is None else last_seq - int(oldest) + 1
        if at_most < limit:
            return at_most
        rows = yield Statement(
            "SELECT COUNT(*) AS found FROM (SELECT 1 FROM pushkit_deliveries"
            f" WHERE subscription_id = $1 AND {UNFINISHED} LIMIT CAST($2 AS BIGINT)) counted",
            (subscription_id, limit),
        )
        return int(rows[0]["found"])

    def whole_backlog(self, limit: int) -> Script[int]:
        """Return how many deliveries are unfinished in all, at most `limit`."""
        rows = yield Statement(
            "SELECT COUNT(*) AS found FROM (SELECT 1 FROM pushkit_deliveries"
            f" WHERE {UNFINISHED} LIMIT CAST($1 AS BIGINT)) counted",
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
            f" AND {UNFINISHED} AND status = 'bare' AND (CAST($3 AS BIGINT) = 1 OR seq <"
            " (SELECT MAX(seq) FROM pushkit_deliveries WHERE subscription_id = $1"
            f" AND {UNFINISHED} AND status IS NOT NULL)) RETURNING id",
            (subscription_id, to_micros(now), int(by_new_status)),
        )
        if rows:
            yield from mark_oldest(subscription_id)
        return len(rows)
