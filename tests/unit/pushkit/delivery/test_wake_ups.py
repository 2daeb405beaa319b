"""A queue with something due is looked at when what it waited for is over, not at the next poll."""

from __future__ import annotations

import asyncio
from collections.abc import Mapping, Sequence
from datetime import timedelta
from typing import Any

import pytest

from pushkit import PushConfig, PushSender
from pushkit.delivery.answers import BreakerPolicy
from pushkit.queue.rules import Room
from pushkit.queue.runner import Seen
from pushkit.scheduling.retry import RetryPolicy, wait_schedule
from tests.eventually import eventually
from tests.unit.pushkit.delivery.conftest import (
    ON_SQLITE,
    Senders,
    Webhook,
    asks_to_wait,
    deliver_due,
    enqueue,
    status,
)

pytestmark = pytest.mark.usefixtures("location")  # every test runs on SQLite and PostgreSQL

SECONDS = 20  # polling would find what is due much later


async def subscribed(sender: PushSender, webhook: Webhook, number: int) -> None:
    for each in range(number):
        await sender.subscribe(
            f"task-{each}", PushConfig(url=webhook.url(f"/{each}")), version="1.0"
        )


async def probing(
    senders: Senders, webhook: Webhook, *, tasks: int, answer: int = 200, **options: Any
) -> tuple[PushSender, asyncio.Event]:
    """Start a sender that probes a destination: once one has failed, all go to it.

    Returns:
        The sender, and what the probe's answer waits for.
    """
    breaker = BreakerPolicy(failures=1, first_wait=timedelta(seconds=30))
    sender = await senders.open(breaker=breaker, poll_interval=timedelta(minutes=10), **options)
    await subscribed(sender, webhook, tasks)
    webhook.replies_with(503, path="/0")
    await sender.notify(status(task_id="task-0"))
    await deliver_due(sender)
    for each in range(1, tasks):
        await sender.notify(status(task_id=f"task-{each}"))
    is_answered = webhook.replies_after(answer)
    for each in range(tasks):
        webhook.replies[f"/{each}"] = webhook.replies["/hook"]
    await sender.outbox.retry_now([each.id for each in await sender.outbox.find()])
    await sender.start()
    return sender, is_answered


async def test_the_queues_of_a_destination_go_on_once_what_was_tried_is_done(
    senders: Senders, webhook: Webhook
) -> None:
    _, answer = await probing(senders, webhook, tasks=4)
    await webhook.until(lambda: len(webhook.received) == 2)
    answer.set()
    await eventually(lambda: len(webhook.received) == 5, within=SECONDS)


async def test_a_client_that_moves_its_webhook_does_not_wait_for_the_old_one(
    senders: Senders, webhook: Webhook
) -> None:
    sender = await senders.open(
        poll_interval=timedelta(minutes=10), allow=("127.0.0.1:*", "localhost:*")
    )
    await subscribed(sender, webhook, 2)
    webhook.replies_with(asks_to_wait(), path="/0")
    await sender.notify(status(task_id="task-0"))
    await deliver_due(sender)
    await sender.notify(status(task_id="task-1"))
    await sender.start()
    for _ in range(3):  # the worker has looked, and sleeps
        await sender.worker.runner.fill()
    moved = webhook.url("/1").replace("127.0.0.1", "localhost")
    await sender.subscribe("task-1", PushConfig(url=moved), version="1.0")
    await eventually(lambda: webhook.at("/1"), within=SECONDS)


@ON_SQLITE
async def test_a_delivery_with_which_two_workers_died_goes_on_after_its_wait(
    senders: Senders, webhook: Webhook
) -> None:
    sender = await senders.open(poll_interval=timedelta(minutes=10))
    await subscribed(sender, webhook, 1)
    await sender.notify(status(task_id="task-0"))
    for _ in range(2):
        await sender.worker.claim(Room(queues=1, of_origin=lambda _: 1), frozenset())
        senders.clock.advance(60)  # the lease ends, and nothing was settled
    await sender.start()

    async def is_put_off() -> bool:
        [delivery] = await sender.deliveries("task-0")
        return delivery.attempts == 1

    await eventually(is_put_off, within=SECONDS)
    senders.clock.advance(1)
    await eventually(lambda: webhook.received, within=SECONDS)


@pytest.mark.parametrize("way", ["gone", "removed", "moved", "disabled", "erased", "ok"])
async def test_others_go_on_after_the_probe(senders: Senders, webhook: Webhook, way: str) -> None:
    sender, answer = await probing(
        senders,
        webhook,
        tasks=3,
        answer=410 if way == "gone" else 200,
        allow=("127.0.0.1:*", "localhost:*"),
    )
    await webhook.until(lambda: len(webhook.received) == 2)
    for _ in range(3):
        await sender.worker.runner.fill()
    [_, probe] = webhook.received
    task = f"task-{probe.path[1:]}"
    if way == "removed":
        await sender.unsubscribe(task)
    elif way == "disabled":
        await sender.disable(task)
    elif way == "erased":
        await sender.outbox.erase(task)
    elif way == "moved":
        await sender.subscribe(
            task, PushConfig(url=webhook.url("/9").replace("127.0.0.1", "localhost")), version="1.0"
        )
    await asyncio.sleep(0.2)
    answer.set()
    await eventually(lambda: len(webhook.received) >= 4, within=SECONDS)


async def test_what_was_behind_a_cancelled_delivery_is_sent(
    senders: Senders, webhook: Webhook
) -> None:
    sender = await senders.open(
        poll_interval=timedelta(minutes=10), retry=RetryPolicy(wait=wait_schedule([300]))
    )
    await sender.subscribe("task-0", PushConfig(url=webhook.url()), version="1.0")
    webhook.replies_with(500)
    await sender.start()
    await sender.notify(status(task_id="task-0"))
    await webhook.until_received(1)
    await sender.notify(status(task_id="task-0"))

    async def put_off() -> bool:
        [first, _] = await sender.deliveries("task-0")
        return first.attempts == 1

    await eventually(put_off)
    await asyncio.sleep(0.2)
    [first, _] = await sender.deliveries("task-0")
    assert await sender.outbox.cancel([first.id]) == [first.id]
    await eventually(lambda: len(webhook.received) == 2, within=SECONDS)


@pytest.mark.parametrize("way", ["retry_now", "redrive", "pause another", "test another"])
async def test_deliveries_begin_however_often_operators_change_others(
    senders: Senders, webhook: Webhook, way: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    sender = await senders.open()
    other = await sender.subscribe("other", PushConfig(url=webhook.url("/other")), version="1.0")
    monkeypatch.setattr("pushkit.queue.runner.KNOWN_FOR", -1)  # each waited longer for a permit
    look = sender.worker.look

    async def looking(ids: Sequence[str]) -> Mapping[str, Seen]:
        if way == "retry_now":
            await sender.outbox.retry_now(["dlv_unknown"])
        elif way == "redrive":
            await sender.outbox.redrive(["dlv_unknown"])
        elif way == "pause another":
            await sender.subscription_admin.pause([other.id])
        else:
            await sender.subscription_admin.test([other.id])
        return await look(ids)

    monkeypatch.setattr(sender.worker, "look", looking)
    await enqueue(sender, webhook.url())
    async with asyncio.timeout(SECONDS):
        assert await sender.worker.run_once() >= 1
    assert webhook.at("/hook")


async def test_what_supersedes_a_delivery_that_waits_is_sent_at_once(
    senders: Senders, webhook: Webhook
) -> None:
    sender = await senders.open(
        coalesce=True,
        max_backlog_per_subscription=2,
        poll_interval=timedelta(minutes=10),
        retry=RetryPolicy(wait=wait_schedule([3600], jitter=0)),
    )
    await sender.subscribe("task-1", PushConfig(url=webhook.url()), version="1.0")
    webhook.replies_with(500)
    await sender.start()
    await sender.notify(status())
    await webhook.until_received(1)

    async def put_off() -> bool:
        [first, *_] = await sender.deliveries("task-1")
        return first.attempts == 1

    await eventually(put_off)
    await sender.notify(status())
    await sender.notify(status("completed"))
    await eventually(lambda: len(webhook.received) == 2, within=SECONDS)
