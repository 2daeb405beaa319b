"""Operators change subscriptions, on both databases."""

from __future__ import annotations

import asyncio
from datetime import timedelta

import pytest

from pushkit import DeliveryFilter, DeliveryState, PushSender
from pushkit.outbox.inspection import SubscriptionFilter
from pushkit.outbox.states import CancelledBy
from pushkit.progress import followed
from pushkit.subscriptions.model import SubscriptionState
from tests.clock import Clock
from tests.unit.pushkit.delivery.conftest import Senders, Webhook, deliver_due, enqueue, status

pytestmark = pytest.mark.usefixtures("location")  # every test runs on SQLite and PostgreSQL


async def seqs_of(sender: PushSender, state: DeliveryState) -> list[int]:
    return [each.seq for each in await sender.deliveries("task-1") if each.state is state]


async def test_enabling_after_a_410_resends_cancelled_deliveries_in_order(
    sender: PushSender, webhook: Webhook
) -> None:
    subscription = await sender.subscribe("task-1", {"url": webhook.url()}, version="1.0")
    ids = []
    for _ in range(3):
        ids += (await sender.notify(status())).ids
    webhook.replies_with(410)
    await deliver_due(sender)
    assert await seqs_of(sender, DeliveryState.CANCELLED) == [2, 3]
    report = await sender.subscription_admin.show(subscription.id)
    assert report is not None
    assert report.subscription.state is SubscriptionState.DISABLED
    assert report.subscription.disabled_by == "gone"
    changed = await sender.subscription_admin.enable([subscription.id], resend=True)
    assert changed.ids == (subscription.id,)
    assert sorted(changed.deliveries) == sorted(ids[1:])
    ids += (await sender.notify(status())).ids
    await deliver_due(sender)
    assert [request.id for request in webhook.received] == ids


async def test_enabling_after_disable_after_resends_cancelled_deliveries(
    senders: Senders, clock: Clock, webhook: Webhook
) -> None:
    sender = await senders.open(disable_after=timedelta(microseconds=1))
    subscription = await sender.subscribe("task-1", {"url": webhook.url()}, version="1.0")
    webhook.replies_with(400, 400)
    await sender.notify(status())
    await sender.worker.run_once()
    clock.advance(1)
    await sender.notify(status())
    await sender.notify(status())
    await deliver_due(sender)
    assert await seqs_of(sender, DeliveryState.CANCELLED) == [3]
    assert await sender.enable("task-1", resend=True) == 1
    await deliver_due(sender)
    assert await seqs_of(sender, DeliveryState.DELIVERED) == [3]
    [found] = await sender.subscriptions("task-1")
    assert (found.id, found.active, found.disabled_by) == (subscription.id, True, None)


async def test_enabling_resends_only_deliveries_cancelled_by_the_last_disable(
    sender: PushSender, clock: Clock, webhook: Webhook
) -> None:
    config = {"url": webhook.url()}
    await sender.subscribe("task-1", config, version="1.0")
    await sender.notify(status())
    await sender.disable("task-1")
    clock.advance(1)
    await sender.subscribe("task-1", config, version="1.0")  # the client registers again
    [cancelled_by_hand] = (await sender.notify(status())).ids
    await sender.notify(status())
    await sender.outbox.cancel([cancelled_by_hand])
    await sender.disable("task-1")
    await sender.enable("task-1", resend=True)
    assert await seqs_of(sender, DeliveryState.PENDING) == [3]


async def test_enabling_without_resend_resends_nothing(
    sender: PushSender, webhook: Webhook
) -> None:
    await enqueue(sender, webhook.url())
    assert await sender.disable("task-1") == 1
    assert (await sender.notify(status())).ids == []
    assert await sender.enable("task-1") == 1
    await sender.notify(status())
    await deliver_due(sender)
    assert await seqs_of(sender, DeliveryState.DELIVERED) == [2]


async def test_a_withdrawn_subscription_can_be_enabled_to_resend_its_deliveries(
    sender: PushSender, webhook: Webhook
) -> None:
    subscription = await sender.subscribe("task-1", {"url": webhook.url()}, version="1.0")
    await sender.notify(status())
    await sender.notify(status("completed"))
    webhook.replies_with(410)
    await deliver_due(sender)
    assert await sender.subscriptions("task-1") == []
    admin = sender.subscription_admin
    [withdrawn] = await admin.find(SubscriptionFilter(state=SubscriptionState.WITHDRAWN))
    assert withdrawn.id == subscription.id
    await admin.enable([subscription.id], resend=True)
    await deliver_due(sender)
    assert await seqs_of(sender, DeliveryState.DELIVERED) == [2]


async def test_a_filter_changes_only_the_subscriptions_it_matches(
    sender: PushSender, webhook: Webhook
) -> None:
    for number in range(25):
        await sender.subscribe(f"task-{number}", {"url": webhook.url()}, version="1.0", owner="a")
    await sender.subscribe("task-1", {"url": webhook.url()}, version="1.0", owner="b")
    admin = sender.subscription_admin
    assert len((await admin.pause(SubscriptionFilter(owner="a"))).ids) == 25
    assert (
        len(await admin.find(SubscriptionFilter(state=SubscriptionState.PAUSED), limit=999)) == 25
    )
    assert len((await admin.remove(SubscriptionFilter(owner="a"))).ids) == 25
    assert [each.key.owner for each in await admin.find()] == ["b"]


async def test_a_paused_subscription_stays_paused_when_disabled_and_enabled(
    sender: PushSender, webhook: Webhook
) -> None:
    await sender.subscribe("task-1", {"url": webhook.url()}, version="1.0")
    await sender.pause("task-1")
    await sender.notify(status())
    await sender.disable("task-1")
    await sender.enable("task-1", resend=True)
    await deliver_due(sender)
    assert webhook.received == []
    await sender.resume("task-1")
    await deliver_due(sender)
    assert len(webhook.received) == 1


async def test_an_answer_that_arrives_after_disable_and_enable_settles_nothing(
    sender: PushSender, webhook: Webhook
) -> None:
    answer = webhook.replies_after(status=400)
    await enqueue(sender, webhook.url())
    attempt = asyncio.create_task(sender.worker.run_once())
    await webhook.until(lambda: len(webhook.received) == 1)
    await sender.disable("task-1")
    await sender.enable("task-1", resend=True)
    answer.set()
    await attempt
    assert await seqs_of(sender, DeliveryState.PENDING) == [1]
    await deliver_due(sender)
    assert await seqs_of(sender, DeliveryState.DELIVERED) == [1]


async def test_deliveries_cancelled_by_a_410_can_be_resent_once_the_client_registers_again(
    sender: PushSender, webhook: Webhook
) -> None:
    config = {"url": webhook.url()}
    await sender.subscribe("task-1", config, version="1.0")
    for _ in range(3):
        await sender.notify(status())
    webhook.replies_with(410)
    await deliver_due(sender)
    cancelled = DeliveryFilter(
        state=DeliveryState.CANCELLED, cancelled_by=CancelledBy.DISABLED, task_id="task-1"
    )
    refused = await sender.outbox.resend(cancelled)
    assert (refused.ids, dict(refused.reasons)) == ((), {"subscription_disabled": 2})
    await sender.subscribe("task-1", config, version="1.0")
    assert len((await sender.outbox.resend(cancelled)).ids) == 2
    await deliver_due(sender)
    assert await seqs_of(sender, DeliveryState.DELIVERED) == [2, 3]


async def test_a_subscription_of_an_ended_task_gets_no_test_notification(
    sender: PushSender, webhook: Webhook
) -> None:
    subscription = await sender.subscribe("task-1", {"url": webhook.url()}, version="1.0")
    await sender.notify(status("completed"))
    await deliver_due(sender)
    changed = await sender.subscription_admin.test([subscription.id])
    assert (changed.ids, changed.unchanged, changed.deliveries) == ((), (subscription.id,), ())
    assert len(webhook.received) == 1


async def test_a_transaction_changes_few_subscriptions_as_each_may_have_a_backlog(
    sender: PushSender, webhook: Webhook
) -> None:
    config = {"url": webhook.url()}
    ids = [
        (await sender.subscribe(f"task-{number}", config, version="1.0")).id for number in range(12)
    ]
    of_disable, of_enable = list[int](), list[int]()
    with followed(of_disable.append):
        await sender.subscription_admin.disable(ids)
        await sender.subscription_admin.enable(ids)
        await sender.subscription_admin.disable(SubscriptionFilter())
    with followed(of_enable.append):
        await sender.subscription_admin.enable(ids, resend=True)
    assert (of_disable, of_enable) == ([10, 2] * 3, [1] * 12)
