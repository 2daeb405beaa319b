"""A queue with something due is looked at when what it waited for is over, not at the next poll."""

from __future__ import annotations

from datetime import timedelta

import pytest

from pushkit import PushConfig, PushSender
from pushkit.delivery.answers import BreakerPolicy
from pushkit.queue.rules import Room
from tests.eventually import eventually
from tests.unit.pushkit.delivery.conftest import (
    ON_SQLITE,
    Senders,
    Webhook,
    asks_to_wait,
    deliver_due,
    status,
)

pytestmark = pytest.mark.usefixtures("location")  # every test runs on SQLite and PostgreSQL

SECONDS = 20  # polling would find what is due much later


async def subscribed(sender: PushSender, webhook: Webhook, number: int) -> None:
    for each in range(number):
        await sender.subscribe(
            f"task-{each}", PushConfig(url=webhook.url(f"/{each}")), version="1.0"
        )


async def test_the_queues_of_a_destination_go_on_once_what_was_tried_is_done(
    senders: Senders, webhook: Webhook
) -> None:
    breaker = BreakerPolicy(failures=1, first_wait=timedelta(seconds=30))
    sender = await senders.open(breaker=breaker, poll_interval=timedelta(minutes=10))
    await subscribed(sender, webhook, 4)
    webhook.replies_with(503, path="/0")
    await sender.notify(status(task_id="task-0"))
    await deliver_due(sender)
    for each in range(1, 4):
        await sender.notify(status(task_id=f"task-{each}"))
    answer = webhook.replies_after()
    for each in range(4):
        webhook.replies[f"/{each}"] = webhook.replies["/hook"]
    await sender.outbox.retry_now([each.id for each in await sender.outbox.find()])
    await sender.start()
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
