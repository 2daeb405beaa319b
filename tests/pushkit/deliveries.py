"""Subscriptions and deliveries for tests of the outbox, stored without a sender."""

from __future__ import annotations

from datetime import datetime

from pushkit.a2a import PushConfig, WireVersion
from pushkit.outbox.idempotency import IdempotencyKey
from pushkit.outbox.model import Claim, NewDelivery, new_delivery_id
from pushkit.outbox.states import DeliveryState
from pushkit.outbox.store import OutboxStore
from pushkit.secrets.vault import Vault
from pushkit.storage.script import Script
from pushkit.subscriptions.model import Profile, Subscription, SubscriptionKey
from pushkit.subscriptions.store import SubscriptionStore

ORIGIN = "https://client.example.com:443"


def add_subscription(
    *,
    now: datetime,
    tenant: str = "",
    task_id: str = "task-1",
    owner: str = "alice",
    config_id: str = "config-1",
    origin: str = ORIGIN,
    url: str | None = None,
    token: str | None = None,
) -> Script[Subscription]:
    """Add a subscription, or change the one of this key."""
    return SubscriptionStore().put(
        SubscriptionKey(tenant=tenant, task_id=task_id, owner=owner, config_id=config_id),
        PushConfig(url=url or f"{origin}/hook", token=token),
        version=WireVersion.V1_0,
        origin=origin,
        profile=Profile.STANDARD,
        vault=Vault(None),
        now=now,
    )


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
