"""The events that a sender emits about deliveries, subscriptions and keys."""

from __future__ import annotations

from dataclasses import replace
from datetime import UTC, datetime, timedelta
from pathlib import Path

import pytest

from pushkit import DeliveryFilter, PushSender
from pushkit.delivery.reporting import keys_near_end
from pushkit.events import (
    AttemptMade,
    Delivered,
    Enqueued,
    Event,
    EventKind,
    KeyRingChange,
    KeyRingChanged,
    OutboxChange,
    OutboxChanged,
    SigningKeyChanged,
    SubscriptionChange,
    SubscriptionChanged,
)
from pushkit.keys.files import create_key_ring, load_key_ring, update_key_ring
from pushkit.keys.jwk import Algorithm
from pushkit.keys.ring import KeyRing
from pushkit.outbox.inspection import SubscriptionFilter
from tests.clock import Clock
from tests.emitted import emitted
from tests.unit.pushkit.delivery.conftest import Senders, Webhook, status

NOW = datetime(2026, 1, 1, tzinfo=UTC)
DAY = timedelta(days=1)


@pytest.fixture
async def sender(senders: Senders, events: list[Event]) -> PushSender:
    return await senders.open(on_event=events.append)


async def test_a_delivery_emits_events_from_notify_to_the_webhooks_answer(
    sender: PushSender, webhook: Webhook, clock: Clock, events: list[Event]
) -> None:
    subscription = await sender.subscribe(
        "task-1", {"url": webhook.url()}, version="1.0", owner="alice"
    )
    webhook.replies_with(503)
    [delivery_id] = (await sender.notify(status())).ids
    assert await sender.worker.run_once() == 1
    clock.advance(10)
    assert await sender.worker.run_once() == 1

    assert [event.kind for event in events] == [
        EventKind.SUBSCRIPTION_CHANGED,
        EventKind.ENQUEUED,
        EventKind.SIGNING_KEY_CHANGED,
        EventKind.ATTEMPT,
        EventKind.ATTEMPT,
        EventKind.DELIVERED,
    ]
    [enqueued], [delivered] = emitted(events, Enqueued), emitted(events, Delivered)
    first, second = emitted(events, AttemptMade)
    assert {each.delivery_id for each in (enqueued, first, second, delivered)} == {delivery_id}
    assert {each.subscription_id for each in (enqueued, first, delivered)} == {subscription.id}
    assert (first.attempt, first.outcome, first.status, first.error) == (
        1,
        "retry",
        503,
        "status_503",
    )
    assert (second.attempt, second.outcome, second.status, second.error) == (
        2,
        "delivered",
        200,
        None,
    )
    assert timedelta(0) < (first.retry_in or timedelta(0)) <= timedelta(seconds=10)
    assert second.retry_in is None
    assert (delivered.waited, delivered.attempts) == (timedelta(seconds=10), 2)
    [key] = emitted(events, SigningKeyChanged)
    assert (key.algorithm, key.before) == ("ES256", None)


async def test_changes_of_a_subscription_are_emitted(
    sender: PushSender, webhook: Webhook, events: list[Event]
) -> None:
    for url in (webhook.url(), webhook.url("/other")):
        await sender.subscribe("task-1", {"url": url}, version="1.0", owner="alice")
    for change in (sender.pause, sender.resume, sender.disable, sender.enable, sender.unsubscribe):
        await change("task-1", owner="alice")
    found = emitted(events, SubscriptionChanged)
    assert [each.change for each in found] == list(SubscriptionChange)
    assert {(each.owner, each.task_id) for each in found} == {("alice", "task-1")}


async def test_a_change_of_many_deliveries_emits_one_event(
    sender: PushSender, webhook: Webhook, clock: Clock, events: list[Event]
) -> None:
    await sender.subscribe("task-1", {"url": webhook.url()}, version="1.0", owner="alice")
    webhook.replies_with(*[422] * 3)
    for _ in range(3):
        await sender.notify(status())
    for _ in range(3):
        await sender.worker.run_once()
    everything = DeliveryFilter()
    await sender.outbox.redrive(everything, dry_run=True)
    await sender.outbox.redrive(everything)
    await sender.outbox.redrive(everything)  # no dead letter is left
    await sender.outbox.retry_now(everything)
    for _ in range(3):
        await sender.worker.run_once()
    await sender.outbox.resend(everything)
    await sender.outbox.cancel([each.id for each in await sender.deliveries("task-1")])
    clock.advance(60)
    await sender.outbox.purge(older_than=timedelta(seconds=1))
    await sender.notify(status())
    await sender.worker.run_once()
    await sender.outbox.erase("task-1")

    assert [(each.change, each.count) for each in emitted(events, OutboxChanged)] == [
        (OutboxChange.REDRIVEN, 3),
        (OutboxChange.RETRIED, 1),
        (OutboxChange.RESENT, 3),
        (OutboxChange.CANCELLED, 3),
        (OutboxChange.PURGED, 3),
        (OutboxChange.ERASED, 1),
    ]


async def test_a_change_of_subscriptions_emits_an_event_for_each_changed_one(
    sender: PushSender, webhook: Webhook, events: list[Event]
) -> None:
    for owner in ("alice", "bob"):
        await sender.subscribe("task-1", {"url": webhook.url()}, version="1.0", owner=owner)
    events.clear()
    admin, of_alice = sender.subscription_admin, SubscriptionFilter(owner="alice")
    for change in (admin.pause, admin.pause, admin.resume, admin.disable, admin.enable):
        await change(of_alice)
    await admin.remove(of_alice)
    await admin.remove(SubscriptionFilter(owner="bob"))
    assert [(each.owner, each.change) for each in emitted(events, SubscriptionChanged)] == [
        ("alice", SubscriptionChange.PAUSED),
        ("alice", SubscriptionChange.RESUMED),
        ("alice", SubscriptionChange.DISABLED),
        ("alice", SubscriptionChange.ENABLED),
        ("alice", SubscriptionChange.REMOVED),
        ("bob", SubscriptionChange.REMOVED),
    ]


async def test_key_changes_of_a_command_are_emitted_when_the_key_file_is_read(
    senders: Senders, webhook: Webhook, clock: Clock, tmp_path: Path, events: list[Event]
) -> None:
    path = tmp_path / "keys.json"
    create_key_ring(path, KeyRing.create(clock.now))
    sender = await senders.open(keys=path, on_event=events.append)
    await sender.subscribe("task-1", {"url": webhook.url()}, version="1.0", owner="alice")
    [first] = load_key_ring(path).keys

    update_key_ring(path, lambda ring: ring.rotate(clock.now))
    await sender.notify(status())
    await sender.worker.run_once()
    update_key_ring(path, lambda ring: ring.revoke(first.kid, clock.now + timedelta(days=1)))
    await sender.notify(status())
    await sender.worker.run_once()

    second = load_key_ring(path).keys[-1]
    assert [(each.change, each.kid) for each in emitted(events, KeyRingChanged)] == [
        (KeyRingChange.PUBLISHED, second.kid),
        (KeyRingChange.SCHEDULED, second.kid),
        (KeyRingChange.REVOKED, first.kid),
    ]


def reasons(ring: KeyRing, now: datetime) -> list[str]:
    return [each.reason for each in keys_near_end(ring, now)]


def test_a_key_of_three_months_is_reported_until_a_next_one_is_planned() -> None:
    ring = KeyRing.create(NOW)
    assert reasons(ring, NOW + 90 * DAY) == []
    [why] = reasons(ring, NOW + 91 * DAY)
    assert why == "is 91 days old, and no next one is planned: pushkit keys rotate"
    rotated = ring.rotate(NOW + 91 * DAY)
    assert reasons(rotated, NOW + 91 * DAY) == []
    assert reasons(rotated, NOW + 92 * DAY) == []


def test_the_remedy_for_a_key_of_another_algorithm_names_it() -> None:
    ring = KeyRing.create(NOW).add(NOW, Algorithm.EDDSA).rotate(NOW + 90 * DAY)
    [why] = reasons(ring, NOW + 92 * DAY)
    assert why.endswith("no next one is planned: pushkit keys rotate --alg EdDSA")


def test_a_key_that_is_soon_revoked_is_reported_unless_another_signs_by_then() -> None:
    ring = KeyRing.create(NOW)
    [key] = ring.keys
    ending = replace(ring, keys=(replace(key, revoked_at=NOW + 10 * DAY),))
    assert reasons(ending, NOW + 2 * DAY) == []
    [why] = reasons(ending, NOW + 3 * DAY)
    assert why == "is revoked at 2026-01-11T00:00+00:00, and none signs then: pushkit keys rotate"
    assert reasons(ending.rotate(NOW + 3 * DAY), NOW + 3 * DAY) == []
