"""The life of a subscription: filters, pauses, its end, disabling."""

from __future__ import annotations

import json
from dataclasses import replace
from datetime import timedelta

import pytest
from aiohttp import web
from tenacity import stop_after_attempt

from pushkit import PushSender, TaskState, decode_update
from pushkit.events import Event, EventKind
from pushkit.outbox.states import DeliveryState
from pushkit.scheduling.retry import RetryPolicy, wait_schedule
from pushkit.subscriptions.model import Filter, SubscriptionState
from tests.clock import Clock
from tests.unit.pushkit.delivery.conftest import (
    ARTIFACT,
    HOOK,
    ON_SQLITE,
    Senders,
    Webhook,
    claim,
    deliver_due,
    enqueue,
    states,
    status,
    task,
)

pytestmark = pytest.mark.usefixtures("location")  # every test runs on SQLite and PostgreSQL
RETRY_AT_ONCE = RetryPolicy(wait=wait_schedule([0], jitter=0))


# --- filters -----------------------------------------------------------------------------------


async def test_an_unwanted_update_takes_no_seq(sender: PushSender, webhook: Webhook) -> None:
    wanted = Filter(last_chunk_only=True)
    found = await sender.subscribe("task-1", {"url": webhook.url()}, version="1.0", filter=wanted)
    assert found.wanted == wanted
    assert (await sender.notify(ARTIFACT)).ids == []
    assert (await sender.notify(ARTIFACT)).ids == []
    [delivery_id] = (await sender.notify(replace(ARTIFACT, last_chunk=True))).ids
    [delivery] = await sender.deliveries("task-1")
    assert (delivery.id, delivery.seq) == (delivery_id, 1)


async def test_a_filter_applies_to_its_owner_alone(sender: PushSender, webhook: Webhook) -> None:
    hook = {"url": webhook.url()}
    await sender.subscribe("task-1", hook, version="1.0", owner="alice")
    await sender.subscribe(
        "task-1", hook, version="1.0", owner="bob", filter=Filter(kinds=frozenset())
    )
    assert len((await sender.notify(ARTIFACT)).ids) == 1


async def test_registering_again_without_a_filter_removes_the_filter(
    sender: PushSender, webhook: Webhook
) -> None:
    hook = {"url": webhook.url()}
    only_completed = Filter(states=frozenset({TaskState.COMPLETED}))
    await sender.subscribe("task-1", hook, version="1.0", filter=only_completed)
    assert (await sender.notify(status())).ids == []
    await sender.subscribe("task-1", hook, version="1.0")
    assert len((await sender.notify(status())).ids) == 1


async def test_an_unwanted_update_is_not_encoded(sender: PushSender, webhook: Webhook) -> None:
    nothing = Filter(kinds=frozenset())
    await sender.subscribe("task-1", {"url": webhook.url()}, version="0.3", filter=nothing)
    assert (await sender.notify(ARTIFACT)).for_nobody  # 0.3 would need a snapshot


# --- pause and resume --------------------------------------------------------------------------


async def test_a_resumed_subscription_gets_every_update_in_order(
    sender: PushSender, webhook: Webhook
) -> None:
    await enqueue(sender, webhook.url(), state="submitted", owner="alice")
    assert await sender.pause("task-1", owner="alice") == 1
    await sender.notify(status("working"))
    assert await deliver_due(sender) == 0
    assert await sender.resume("task-1", owner="alice") == 1
    assert await deliver_due(sender) == 2
    assert [delivery.seq for delivery in await sender.deliveries("task-1")] == [1, 2]
    received = [decode_update(request.body).state for request in webhook.received]
    assert received == [TaskState.SUBMITTED, TaskState.WORKING]


async def test_deliveries_of_a_task_that_ended_during_a_pause_can_be_resent(
    sender: PushSender, webhook: Webhook
) -> None:
    await sender.subscribe("task-1", {"url": webhook.url()}, version="1.0")
    result = await sender.notify(status("completed"))

    async def pausing() -> web.Response:
        await sender.pause("task-1")
        return web.Response(status=200)

    webhook.replies_with(pausing)
    await deliver_due(sender)
    await sender.outbox.resend([result.deliveries[0].id])
    await deliver_due(sender)
    assert len(webhook.received) == 2


async def test_registering_again_does_not_resume_a_paused_subscription(
    sender: PushSender, webhook: Webhook
) -> None:
    await sender.subscribe("task-1", {"url": webhook.url()}, version="1.0")
    await sender.pause("task-1")
    assert (await sender.subscribe("task-1", {"url": webhook.url()}, version="1.0")).paused
    await sender.notify(status())
    assert await deliver_due(sender) == 0


@pytest.mark.parametrize("answer", [200, 500, 400])
async def test_a_pause_lets_the_delivery_in_flight_finish_and_sends_no_other(
    senders: Senders, webhook: Webhook, answer: int
) -> None:
    sender = await senders.open(retry=RETRY_AT_ONCE)
    await sender.subscribe("task-1", {"url": webhook.url()}, version="1.0")

    async def pausing() -> web.Response:
        await sender.pause("task-1")
        return web.Response(status=answer)

    webhook.replies_with(pausing)
    await sender.notify(status())
    await sender.notify(status())
    assert await deliver_due(sender) == 1
    await sender.resume("task-1")
    assert await deliver_due(sender) == (2 if answer == 500 else 1)
    assert set(await states(sender)) <= {DeliveryState.DELIVERED, DeliveryState.DEAD}


@ON_SQLITE
async def test_a_pause_covers_deliveries_of_a_dead_worker(
    sender: PushSender, clock: Clock, webhook: Webhook
) -> None:
    await enqueue(sender, webhook.url())
    await claim(sender)
    await sender.pause("task-1")
    clock.advance(60)
    assert await deliver_due(sender) == 0
    await sender.resume("task-1")
    assert await deliver_due(sender) == 1


@pytest.mark.parametrize(
    ("change", "back", "state"),
    [
        ("pause", "resume", SubscriptionState.PAUSED),
        ("disable", "enable", SubscriptionState.DISABLED),
    ],
)
async def test_an_owner_changes_its_own_subscriptions_alone(
    sender: PushSender, change: str, back: str, state: SubscriptionState
) -> None:
    await sender.subscribe("task-1", HOOK, version="1.0", owner="alice")
    change_it = getattr(sender, change)
    assert await change_it("task-1", owner="bob") == 0
    assert await change_it("task-1", owner="alice", tenant="another") == 0
    assert await change_it("task-1", "another config", owner="alice") == 0
    [before] = await sender.subscriptions("task-1", owner="alice")
    assert await change_it("task-1", owner="alice") == 1
    assert await getattr(sender, back)("task-1", owner="bob") == 0
    [after] = await sender.subscriptions("task-1", owner="alice")
    assert (before.state, after.state) == (SubscriptionState.ACTIVE, state)


# --- a test notification -----------------------------------------------------------------------


async def test_a_test_notification_ignores_the_filter(
    sender: PushSender, senders: Senders, webhook: Webhook
) -> None:
    await sender.subscribe(
        "task-1", {"url": webhook.url()}, version="1.0", filter=Filter(kinds=frozenset())
    )
    [delivery_id] = await sender.send_test("task-1")
    assert await deliver_due(sender) == 1
    [request] = webhook.received
    assert request.id == delivery_id
    assert request.claims(senders.public_keys()).seq == 1
    assert json.loads(request.body)["message"]["taskId"] == "task-1"


async def test_a_test_notification_to_a_0_3_client_is_a_task(
    sender: PushSender, webhook: Webhook
) -> None:
    await sender.subscribe("task-1", {"url": webhook.url()}, version="0.3")
    await sender.send_test("task-1")
    await sender.send_test("task-1", snapshot=task())
    await deliver_due(sender)
    found = [json.loads(request.body)["status"]["state"] for request in webhook.received]
    assert found == ["unknown", "working"]


# --- the end of a task -------------------------------------------------------------------------


@pytest.mark.parametrize("state", ["completed", "failed", "canceled", "rejected"])
async def test_a_subscription_is_removed_once_the_end_of_its_task_is_delivered(
    sender: PushSender, webhook: Webhook, state: str
) -> None:
    await enqueue(sender, webhook.url())
    await sender.worker.run_once()
    await sender.notify(status(state))
    assert len(await sender.subscriptions("task-1")) == 1
    await sender.worker.run_once()
    assert await sender.subscriptions("task-1") == []
    assert await sender.subscribers("task-1") == []


@pytest.mark.parametrize("state", ["submitted", "working", "input-required", "auth-required"])
async def test_a_subscription_stays_until_its_task_ends(
    sender: PushSender, webhook: Webhook, state: str
) -> None:
    await enqueue(sender, webhook.url(), state=state)
    await deliver_due(sender)
    assert len(await sender.subscriptions("task-1")) == 1


async def test_a_subscription_is_removed_when_its_last_delivery_is_dead(
    senders: Senders, webhook: Webhook
) -> None:
    retry = RetryPolicy(wait=wait_schedule([0], jitter=0), stop=stop_after_attempt(2))
    sender = await senders.open(retry=retry)
    await enqueue(sender, webhook.url(), state="completed")
    webhook.replies_with(500, 500)
    await sender.worker.run_once()
    assert len(await sender.subscriptions("task-1")) == 1
    await sender.worker.run_once()
    assert await sender.subscriptions("task-1") == []
    assert await states(sender) == ["dead"]


async def test_the_end_of_a_task_removes_a_subscription_that_filters_it_out(
    sender: PushSender, webhook: Webhook
) -> None:
    working = Filter(states=frozenset({TaskState.WORKING}))
    await sender.subscribe("task-1", {"url": webhook.url()}, version="1.0", filter=working)
    assert (await sender.notify(status("completed"))).ids == []
    assert await sender.subscriptions("task-1") == []


async def test_registering_after_the_end_creates_a_new_subscription(
    sender: PushSender, webhook: Webhook
) -> None:
    first = await sender.subscribe("task-1", {"url": webhook.url()}, version="1.0")
    await sender.notify(status("completed"))
    await deliver_due(sender)
    second = await sender.subscribe("task-1", {"url": webhook.url()}, version="1.0")
    assert (second.id != first.id, second.last_seq, second.ended) == (True, 1, False)
    await sender.notify(status("working"))
    assert sorted(each.seq for each in await sender.deliveries("task-1")) == [1, 2]
    assert await sender.unsubscribe("task-1") == 1


async def test_a_dead_letter_of_an_ended_subscription_can_be_redriven(
    sender: PushSender, webhook: Webhook
) -> None:
    await sender.subscribe("task-1", {"url": webhook.url()}, version="1.0")
    webhook.replies_with(400)
    [delivery_id] = (await sender.notify(status("completed"))).ids
    await deliver_due(sender)
    assert await sender.subscriptions("task-1") == []
    redriven = await sender.outbox.redrive([delivery_id])
    assert redriven.ids == (delivery_id,)
    assert await deliver_due(sender) == 1
    assert await states(sender) == ["delivered"]
    assert await sender.subscriptions("task-1") == []


async def test_an_ended_subscription_is_removed_when_an_operator_cancels_its_last_delivery(
    sender: PushSender, webhook: Webhook
) -> None:
    await sender.subscribe("task-1", {"url": webhook.url()}, version="1.0")
    ids = (await sender.notify(status("completed"))).ids
    assert await sender.outbox.cancel(ids) == ids
    assert await sender.subscriptions("task-1") == []


async def test_an_ended_paused_subscription_stays_until_its_deliveries_are_sent(
    sender: PushSender, webhook: Webhook
) -> None:
    await sender.subscribe("task-1", {"url": webhook.url()}, version="1.0")
    await sender.pause("task-1")
    await sender.notify(status("completed"))
    assert await deliver_due(sender) == 0
    assert len(await sender.subscriptions("task-1")) == 1
    await sender.resume("task-1")
    await deliver_due(sender)
    assert await sender.subscriptions("task-1") == []


# --- disable_after -----------------------------------------------------------------------------


async def failing_sender(senders: Senders, webhook: Webhook) -> tuple[PushSender, list[EventKind]]:
    kinds: list[EventKind] = []

    def on_event(event: Event) -> None:
        if event.kind in {EventKind.DELIVERY_DEAD, EventKind.SUBSCRIPTION_DISABLED}:
            kinds.append(event.kind)

    sender = await senders.open(
        retry=RetryPolicy(wait=wait_schedule([3600], jitter=0)),
        disable_after=timedelta(hours=2),
        on_event=on_event,
    )
    await sender.subscribe("task-1", {"url": webhook.url()}, version="1.0")
    return sender, kinds


@ON_SQLITE
async def test_a_subscription_is_disabled_after_disable_after_without_a_success(
    senders: Senders, clock: Clock, webhook: Webhook
) -> None:
    sender, kinds = await failing_sender(senders, webhook)
    await sender.notify(status())
    await sender.notify(status())
    webhook.replies_with(500, 404, 500)
    for _ in range(2):
        await deliver_due(sender)
        clock.advance(3600)
    assert kinds == []
    await deliver_due(sender)
    assert kinds == [EventKind.SUBSCRIPTION_DISABLED]
    assert await states(sender) == ["cancelled", "cancelled"]
    [found] = await sender.subscriptions("task-1")
    assert not found.active
    assert (await sender.notify(status())).ids == []


@ON_SQLITE
async def test_a_success_restarts_disable_after(
    senders: Senders, clock: Clock, webhook: Webhook
) -> None:
    sender, kinds = await failing_sender(senders, webhook)
    webhook.replies_with(500, 200, 500, 500)
    await sender.notify(status())
    for _ in range(2):
        await deliver_due(sender)
        clock.advance(3600)
    [found] = await sender.subscriptions("task-1")
    assert found.failing_since is None
    await sender.notify(status())
    await deliver_due(sender)
    [found] = await sender.subscriptions("task-1")
    assert (found.failing_since, kinds) == (clock.now, [])


@ON_SQLITE
async def test_registering_again_enables_a_disabled_subscription_and_restarts_disable_after(
    senders: Senders, clock: Clock, webhook: Webhook
) -> None:
    sender, kinds = await failing_sender(senders, webhook)
    webhook.replies_with(*[500] * 3)
    await sender.notify(status())
    await deliver_due(sender)
    clock.advance(7200)
    await deliver_due(sender)
    assert kinds == [EventKind.SUBSCRIPTION_DISABLED]
    await enqueue(sender, webhook.url())
    await deliver_due(sender)
    [found] = await sender.subscriptions("task-1")
    assert (found.active, found.failing_since) == (True, clock.now)


async def test_a_410_emits_subscription_disabled(senders: Senders, webhook: Webhook) -> None:
    sender, kinds = await failing_sender(senders, webhook)
    webhook.replies_with(410)
    await sender.notify(status())
    await deliver_due(sender)
    assert kinds == [EventKind.DELIVERY_DEAD, EventKind.SUBSCRIPTION_DISABLED]


# --- several processes -------------------------------------------------------------------------
