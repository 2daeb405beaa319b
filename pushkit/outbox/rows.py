"""What scripts over `pushkit_deliveries` share: a delivery's columns, and what is unfinished."""

from __future__ import annotations

from pushkit.outbox.model import Delivery, DeliveryState
from pushkit.storage import Row, from_micros, moment_or_none

__all__ = ["DELIVERY", "UNFINISHED", "delivery_of"]

# The condition of an index: SQLite uses that only where the condition reads the same.
UNFINISHED = "state IN ('pending', 'in_flight')"

# What `delivery_of` reads, in its order.
DELIVERY = (
    "id, subscription_id, tenant, owner, task_id, config_id, seq, origin, content_type,"
    " (SELECT b.body FROM pushkit_bodies b WHERE b.id = pushkit_deliveries.id) AS body,"
    " state, claims, fruitless_claims, attempts, notified_at, not_before, last_status, last_error,"
    " redriven_at"
)


def delivery_of(row: Row) -> Delivery:
    """Return the delivery that the columns `DELIVERY` are."""
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
        claims=row["claims"],
        fruitless_claims=row["fruitless_claims"],
        attempts=row["attempts"],
        notified_at=from_micros(row["notified_at"]),
        not_before=from_micros(row["not_before"]),
        last_status=row["last_status"],
        last_error=row["last_error"],
        redriven_at=moment_or_none(row["redriven_at"]),
    )
