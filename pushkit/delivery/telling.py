"""What a worker tells of the deliveries that it attempted."""

from __future__ import annotations

import logging
from collections.abc import Sequence
from typing import TYPE_CHECKING, TypedDict

from pushkit.events.listeners import Listeners
from pushkit.events.sender import AttemptMade, Delivered
from pushkit.outbox.model import Delivery
from pushkit.outbox.states import Outcome
from pushkit.traceparent import trace_id_of

if TYPE_CHECKING:
    from pushkit.delivery.settle import Settled
    from pushkit.delivery.slots import Claimed


class AboutDelivery(TypedDict):
    """What the events of a delivery have in common."""

    tenant: str
    owner: str
    task_id: str
    subscription_id: str
    delivery_id: str
    origin: str


def about_delivery(delivery: Delivery) -> AboutDelivery:
    """Return what an event says of a delivery."""
    return AboutDelivery(
        tenant=delivery.tenant,
        owner=delivery.owner,
        task_id=delivery.task_id,
        subscription_id=delivery.subscription_id,
        delivery_id=delivery.id,
        origin=delivery.origin,
    )


def tell_settled(events: Listeners, attempted: Sequence[Claimed], settled: Settled) -> None:
    """Tell of attempts that are written down, and of what followed from them."""
    wants_what_went_well = events.wants(logging.INFO)
    for each, is_ours in zip(attempted, settled.are_ours, strict=True):
        delivery, result = each.delivery, each.result
        if not (wants_what_went_well if result.error is None else events.wants(logging.WARNING)):
            continue
        if result.started_at is not None:
            events.emit(
                AttemptMade(
                    at=settled.at,
                    seq=delivery.seq,
                    attempt=delivery.attempts + 1,
                    outcome=result.outcome.value,
                    status=result.status,
                    error=result.error,
                    took=result.duration,
                    trace_id=trace_id_of(delivery.traceparent),
                    **about_delivery(delivery),
                )
            )
        is_delivered = result.outcome is Outcome.DELIVERED and is_ours
        if is_delivered and events.wants(logging.NOTSET):
            events.emit(
                Delivered(
                    at=settled.at,
                    attempts=delivery.attempts + 1,
                    waited=settled.at - delivery.age_from,
                    **about_delivery(delivery),
                )
            )
    for event in settled.events:
        events.emit(event)
