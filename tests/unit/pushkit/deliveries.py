"""Subscriptions and deliveries for tests of the outbox, stored without a sender."""

from __future__ import annotations

from datetime import datetime
from typing import Any

from pushkit.a2a import PushConfig, WireVersion
from pushkit.outbox import store as outbox
from pushkit.outbox.model import IdempotencyKey, NewDelivery, new_delivery_id
from pushkit.queue.rules import Handed, appended
from pushkit.secrets.vault import Vault
from pushkit.storage.script import Row, Script, Statement, to_micros
from pushkit.subscriptions import store as subscriptions
from pushkit.subscriptions.model import OUTBOX, Profile, Subscription, SubscriptionKey

ORIGIN = "https://client.example.com:443"


def rows_of(sql: str, *parameters: Any) -> Script[list[Row]]:
    """Run one statement, and return its rows."""
    return list((yield Statement(sql, parameters)))


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
    return subscriptions.put(
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
) -> Script[NewDelivery]:
    """Add the next delivery of a subscription, and leave it to claims."""
    new, _ = yield from append_delivery(subscription, None, now=now, until=now, body=body, key=key)
    return new


def append_delivery(
    subscription: Subscription,
    worker: str | None,
    *,
    now: datetime,
    until: datetime,
    body: bytes = b"{}",
    key: IdempotencyKey | None = None,
) -> Script[tuple[NewDelivery, Handed | None]]:
    """Add the next delivery of a subscription, and hand it to a worker if that is allowed."""
    queues = yield from OUTBOX.lock([subscription.id])
    queue, handed = appended(
        queues[subscription.id],
        worker,
        now=to_micros(now),
        until=to_micros(until),
        probation_from=1,
    )
    new = NewDelivery(
        id=new_delivery_id(now),
        subscription_id=queue.id,
        tenant=queue.tenant,
        owner=queue.owner,
        task_id=subscription.key.task_id,
        config_id=subscription.key.config_id,
        seq=queue.last_seq,
        origin=queue.origin,
        version=WireVersion.V0_3,
        body=body,
        notified_at=now,
        not_before=now,
        idempotency_key=key.key if key else None,
        update_sha256=key.update_sha256 if key else None,
    )
    yield from outbox.add([new])
    yield from OUTBOX.write([queue])
    return new, handed


def copy_delivery(number: int, *, owner: str = "alice", state: str = "pending") -> Script[None]:
    """Store so many copies of the only delivery, of an owner and in a state."""
    columns = (
        "subscription_id, tenant, task_id, config_id, origin, version, body_bytes,"
        " notified_at, not_before, scheduled_at"
    )
    yield Statement(
        f"INSERT INTO pushkit_deliveries (id, seq, owner, state, {columns})"  # noqa: S608  # ours
        " WITH RECURSIVE n(number) AS"
        f" (SELECT 2 UNION ALL SELECT number + 1 FROM n WHERE number <= {number})"
        f" SELECT id || '-' || number, number, '{owner}', '{state}', {columns}"
        " FROM pushkit_deliveries, n"
    )
