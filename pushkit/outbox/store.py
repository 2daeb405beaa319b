"""The deliveries table, as scripts (see `pushkit.storage.script`): adding, cancelling, counting.

Workers claim deliveries by `pushkit.outbox.leases`. The condition of a partial index is repeated
in the statements that use it: SQLite needs the same text.
"""

from __future__ import annotations

from collections.abc import Sequence
from datetime import datetime

from pushkit.outbox.heads import set_head
from pushkit.outbox.model import DELIVERY, Delivery, NewDelivery, delivery_of
from pushkit.outbox.states import CANCELLED_WITH_SUBSCRIPTION, SUPERSEDED, UNFINISHED, CancelledBy
from pushkit.storage.script import (
    Script,
    Statement,
    count,
    insert_rows,
    run_for_ids,
    slices,
    to_micros,
)


class OutboxStore:
    """Scripts that add deliveries, end them, and count them."""

    def add(self, deliveries: Sequence[NewDelivery]) -> Script[None]:
        """Store deliveries of subscriptions whose rows are held."""
        yield from insert_rows(
            "INSERT INTO pushkit_deliveries (id, subscription_id, tenant, owner, task_id,"
            " config_id, seq, origin, content_type, notified_at, not_before, head,"
            " status, idempotency_key, update_sha256, state, claims, fruitless_claims,"
            " lease_worker, lease_until) VALUES $rows",
            slices(list(map(_row_of, deliveries))),
        )
        yield from insert_rows(
            "INSERT INTO pushkit_bodies (id, body, traceparent) VALUES $rows",
            slices([(each.id, each.body, each.traceparent) for each in deliveries]),
        )

    def move(self, subscription_id: str, origin: str) -> Script[None]:
        """Move the unfinished deliveries of a subscription to its new destination."""
        yield Statement(
            # No longer parked: deliveries are parked by destination.
            "UPDATE pushkit_deliveries SET origin = $2, head = CASE WHEN head > 0 THEN 1 ELSE 0 END"
            f" WHERE subscription_id = $1 AND origin <> $2 AND {UNFINISHED}",
            (subscription_id, origin),
        )

    def cancel_subscription(
        self, subscription_id: str, now: datetime, by: CancelledBy
    ) -> Script[int]:
        """Cancel the unfinished deliveries of a subscription; return how many."""
        rows = yield Statement(
            CANCELLED_WITH_SUBSCRIPTION.where("subscription_id = $1 RETURNING id"),
            (subscription_id, to_micros(now), by.value),
        )
        return len(rows)

    def of_task(self, *, tenant: str, task_id: str) -> Script[list[Delivery]]:
        """Return every delivery of a task, by subscription and `seq`."""
        rows = yield Statement(
            f"SELECT {DELIVERY} FROM pushkit_deliveries WHERE tenant = $1 AND task_id = $2"
            " ORDER BY subscription_id, seq",
            (tenant, task_id),
        )
        return [delivery_of(row) for row in rows]

    def has_unfinished(self, subscription_id: str) -> Script[bool]:
        """Return whether a subscription has a delivery that is pending or in flight."""
        rows = yield Statement(
            f"SELECT 1 FROM pushkit_deliveries WHERE subscription_id = $1 AND {UNFINISHED} LIMIT 1",
            (subscription_id,),
        )
        return bool(rows)

    def oldest(self, ids: Sequence[str]) -> Script[dict[str, int | None]]:
        """Return the `seq` of each subscription's oldest unfinished delivery, None if none."""
        rows = yield from run_for_ids(
            "SELECT s.id, (SELECT MIN(d.seq) FROM pushkit_deliveries d WHERE"
            f" d.subscription_id = s.id AND d.{UNFINISHED}) AS oldest"
            " FROM pushkit_subscriptions s WHERE s.id IN ($ids)",
            ids,
        )
        return {row["id"]: row["oldest"] for row in rows}

    def backlog(self, subscription_id: str, limit: int) -> Script[int]:
        """Return how many deliveries of a subscription are unfinished, at most `limit`."""
        rows = f"pushkit_deliveries WHERE subscription_id = $1 AND {UNFINISHED}"
        return count(rows, subscription_id, limit=limit)

    def whole_backlog(self, limit: int) -> Script[int]:
        """Return how many deliveries are unfinished in all, at most `limit`."""
        return count(f"pushkit_deliveries WHERE {UNFINISHED}", limit=limit)

    def supersede(self, subscription_id: str, *, by_new_status: bool, now: datetime) -> Script[int]:
        """Cancel pending `working` statuses that a newer status replaces; return how many.

        Args:
            by_new_status: Whether a status that is newer than all of them is about to be stored.
        """
        rows = yield Statement(
            SUPERSEDED.where(
                f"subscription_id = $1 AND {UNFINISHED} AND status = 'bare'"
                " AND (CAST($4 AS BIGINT) = 1 OR seq <"
                " (SELECT MAX(seq) FROM pushkit_deliveries WHERE subscription_id = $1"
                f" AND {UNFINISHED} AND status IS NOT NULL)) RETURNING id"
            ),
            (subscription_id, to_micros(now), CancelledBy.SUPERSEDED.value, int(by_new_status)),
        )
        if rows:
            yield from set_head(subscription_id)
        return len(rows)


def _row_of(new: NewDelivery) -> tuple[str | int | bytes | None, ...]:
    claim = new.claim
    return (
        new.id,
        new.subscription_id,
        new.tenant,
        new.owner,
        new.task_id,
        new.config_id,
        new.seq,
        new.origin,
        new.content_type,
        to_micros(new.notified_at),
        to_micros(new.not_before),
        int(new.head),
        new.status and str(new.status),  # a subclass of str is slow to bind
        new.idempotency_key,
        new.update_sha256,
        str(new.state),
        new.claims,
        new.fruitless_claims,
        claim and claim.worker,
        claim and to_micros(claim.until),
    )
