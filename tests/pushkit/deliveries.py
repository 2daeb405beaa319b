"""Deliveries for tests of the outbox, stored without an update."""

from __future__ import annotations

from datetime import datetime

from pushkit.outbox.idempotency import IdempotencyKey
from pushkit.outbox.model import Claim, NewDelivery, new_delivery_id
from pushkit.outbox.states import DeliveryState
from pushkit.outbox.store import OutboxStore
from pushkit.storage.script import Script
from pushkit.subscriptions.model import Subscription
from pushkit.subscriptions.store import SubscriptionStore


def add_delivery(
    subscription: Subscription,
    *,
    now: datetime,
    body: bytes = b"{}",
    key: IdempotencyKey | None = None,
    claim: Claim | None = None,
) -> Script[NewDelivery]:
    """Add the next delivery of a subscription, in flight from the start if there is a claim."""
    outbox, subscriptions = OutboxStore(), SubscriptionStore()
    current = yield from subscriptions.lock(subscription.id)
    assert current is not None
    oldest = yield from outbox.oldest([current.id])
    is_head = oldest[current.id] is None and not current.paused
    new = NewDelivery(
        id=new_delivery_id(now),
        subscription_id=current.id,
        tenant=current.key.tenant,
        owner=current.key.owner,
        task_id=current.key.task_id,
        config_id=current.key.config_id,
        seq=current.last_seq + 1,
        origin=current.origin,
        content_type="application/json",
        body=body,
        notified_at=now,
        not_before=now,
        head=is_head,
        idempotency_key=key.key if key else None,
        update_sha256=key.update_sha256 if key else None,
        claim=claim,
        state=DeliveryState.IN_FLIGHT if claim else DeliveryState.PENDING,
        claims=int(claim is not None),
        fruitless_claims=int(claim is not None and is_head),
    )
    yield from outbox.add([new])
    yield from subscriptions.take_seqs({current.id: 1})
    return new
