"""What a sender tells of a delivery's life, and of its subscriptions and keys."""

from __future__ import annotations

from collections.abc import Callable
from datetime import timedelta
from typing import TYPE_CHECKING

from pushkit import StatusUpdate
from pushkit.events import (
    AttemptMade,
    Delivered,
    DeliveryDead,
    Enqueued,
    Event,
    EventKind,
    SigningKeyChanged,
    SubscriptionChange,
    SubscriptionChanged,
)
from tests.told import told

if TYPE_CHECKING:
    from tests.pushkit.delivery.conftest import Clock, Senders, Webhook

MakeStatus = Callable[..., StatusUpdate]


async def test_a_delivery_is_told_from_notify_to_the_webhooks_answer(
    senders: Senders, webhook: Webhook, clock: Clock, status: MakeStatus
) -> None:
    events: list[Event] = []
    sender = await senders.open(on_event=events.append)
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
    [enqueued], [delivered] = told(events, Enqueued), told(events, Delivered)
    first, second = told(events, AttemptMade)
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
    assert (delivered.waited, delivered.attempts) == (timedelta(seconds=10), 2)
    [key] = told(events, SigningKeyChanged)
    assert (key.algorithm, key.before) == ("ES256", None)


async def test_a_dead_letter_is_told_with_its_cause(
    senders: Senders, webhook: Webhook, status: MakeStatus
) -> None:
    events: list[Event] = []
    sender = await senders.open(on_event=events.append)
    await sender.subscribe("task-1", {"url": webhook.url()}, version="1.0")
    webhook.replies_with(422)
    await sender.notify(status())
    await sender.worker.run_once()
    [attempt], [dead] = told(events, AttemptMade), told(events, DeliveryDead)
    assert (attempt.outcome, attempt.error, dead.error) == (
        "dead",
        "unprocessable",
        "unprocessable",
    )
    assert told(events, Delivered) == []


async def test_what_is_done_with_a_subscription_is_told(senders: Senders, webhook: Webhook) -> None:
    events: list[Event] = []
    sender = await senders.open(on_event=events.append)
    for url in (webhook.url(), webhook.url("/other")):
        await sender.subscribe("task-1", {"url": url}, version="1.0", owner="alice")
    for change in (sender.pause, sender.resume, sender.disable, sender.enable, sender.unsubscribe):
        await change("task-1", owner="alice")
    found = told(events, SubscriptionChanged)
    assert [each.change for each in found] == list(SubscriptionChange)
    assert {(each.owner, each.task_id) for each in found} == {("alice", "task-1")}
