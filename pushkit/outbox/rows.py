"""What scripts over `pushkit_deliveries` share: a delivery's columns."""

from __future__ import annotations

from pushkit.outbox.model import Delivery
from pushkit.outbox.states import DeliveryState
from pushkit.storage.script import Row, from_micros, moment_or_none

# What `delivery_of` reads, in its order.
DELIVERY = (
    "id, subscription_id, tenant, owner, task_id, config_id, seq, origin, content_type,"
    " (SELECT b.body FROM pushkit_bodies b WHERE b.id = pushkit_deliveries.id) AS body,"
    " (SELECT b.traceparent FROM pushkit_bodies b WHERE b.id = pushkit_deliveries.id)"
    " AS traceparent,"
    " state, claims, fruitless_claims, attempts, notified_at, not_before, last_status, last_error,"
    " redriven_at"
)


_STATES = {state.value: state for state in DeliveryState}


def delivery_of(row: Row) -> Delivery:
    """Return the delivery that the columns `DELIVERY` are."""
    *names, body, trace, state, claims, fruitless, attempts, notified, due, status, error, again = (
        row
    )
    delivery_id, subscription_id, tenant, owner, task_id, config_id, seq, origin, kind = names
    return Delivery(
        id=delivery_id,
        subscription_id=subscription_id,
        tenant=tenant,
        owner=owner,
        task_id=task_id,
        config_id=config_id,
        seq=seq,
        origin=origin,
        content_type=kind,
        body=bytes(body),
        state=_STATES[state],
        claims=claims,
        fruitless_claims=fruitless,
        attempts=attempts,
        notified_at=from_micros(notified),
        not_before=from_micros(due),
        last_status=status,
        last_error=error,
        redriven_at=moment_or_none(again),
        traceparent=trace,
    )
