"""A clock that was wrong and is corrected: what waits, waits as long as it was told to.

On a SQLite file, the clock is the sender's; on PostgreSQL, the server's.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from datetime import timedelta
from pathlib import Path
from typing import Any

import pytest

from pushkit import DeliveryState, KeyRing, PushSender
from pushkit.keys.files import save_key_ring
from tests.clock import START, Clock
from tests.unit.pushkit.delivery.conftest import (
    Reply,
    Senders,
    Webhook,
    asks_to_wait,
    deliver_due,
    enqueue,
    status,
)

AHEAD = timedelta(hours=8).total_seconds()
MINUTE = 60


async def attempts(sender: PushSender, webhook: Webhook) -> int:
    """Attempt what is due; return how many requests have arrived since the beginning."""
    await deliver_due(sender)
    return len(webhook.received)


@pytest.mark.parametrize(
    ("replies", "earliest", "latest"),
    [
        pytest.param([500], 4, 6, id="a retry"),
        pytest.param([asks_to_wait(600)], 600, 600, id="Retry-After"),
        pytest.param([500] * 5, 30, 30, id="an open breaker"),
    ],
)
@pytest.mark.parametrize("again", [False, True], ids=["while it runs", "before it starts again"])
async def test_what_failed_while_the_clock_was_ahead_waits_no_longer_than_it_was_told(
    senders: Senders,
    webhook: Webhook,
    clock: Clock,
    *,
    replies: list[Reply],
    earliest: int,
    latest: int,
    again: bool,
) -> None:
    clock.advance(AHEAD)
    sender = await senders.open()
    webhook.replies_with(*replies)
    for number in range(len(replies)):
        await enqueue(sender, webhook.url(), f"task-{number}")
    await sender.notify(status("input-required", task_id="task-0"))
    assert await attempts(sender, webhook) == len(replies)
    clock.advance(-AHEAD)
    if again:
        await sender.close()
        sender = await senders.open()
    assert await attempts(sender, webhook) == len(replies)
    clock.advance(earliest - 1)
    assert await attempts(sender, webhook) == len(replies)
    clock.advance(latest - earliest + 3)
    assert await attempts(sender, webhook) == 2 * len(replies) + 1
    [first, second] = await sender.deliveries("task-0")
    assert {first.state, second.state} == {DeliveryState.DELIVERED}


async def test_a_clock_that_is_corrected_forward_ends_no_wait_twice(
    senders: Senders, webhook: Webhook, clock: Clock
) -> None:
    clock.advance(-AHEAD)
    sender = await senders.open()
    webhook.replies_with(asks_to_wait(600))
    await enqueue(sender, webhook.url())
    assert await attempts(sender, webhook) == 1
    clock.advance(AHEAD)
    assert await attempts(sender, webhook) == 2
    assert (await sender.deliveries("task-1"))[0].state is DeliveryState.DELIVERED


async def test_of_many_waiting_destinations_each_is_tried_when_its_wait_is_over(
    senders: Senders, webhook: Webhook, clock: Clock
) -> None:
    clock.advance(AHEAD)
    sender = await senders.open(concurrency=2)
    owners = [f"owner-{number}" for number in range(50)]
    webhook.replies_with(*[asks_to_wait(600)] * len(owners))
    for task in ("task-1", "task-2"):
        for owner in owners:
            await sender.subscribe(task, {"url": webhook.url()}, version="1.0", owner=owner)
        await sender.notify(status(task_id=task))
        await deliver_due(sender)
    assert len(webhook.received) == len(owners)
    clock.advance(-AHEAD)
    assert await attempts(sender, webhook) == len(owners)
    clock.advance(10 * MINUTE + 1)
    assert await attempts(sender, webhook) == 3 * len(owners)


async def test_a_local_fault_while_the_clock_was_ahead_does_not_wait_for_hours(
    senders: Senders, webhook: Webhook, clock: Clock, tmp_path: Path
) -> None:
    keys = tmp_path / "keys.json"
    save_key_ring(keys, KeyRing.create(START + timedelta(days=2)))  # no key is active yet
    clock.advance(AHEAD)
    sender = await senders.open(keys=keys)
    await enqueue(sender, webhook.url())
    for _ in range(4):
        await deliver_due(sender)
        clock.advance(MINUTE)
    save_key_ring(keys, KeyRing.create(START - timedelta(days=2)))
    clock.advance(-AHEAD)
    await deliver_due(sender)
    clock.advance(5 * MINUTE)
    assert await attempts(sender, webhook) == 1


@pytest.mark.parametrize("change", ["retry_now", "redrive"])
async def test_what_an_operator_made_due_while_the_clock_was_ahead_is_due_afterwards(
    senders: Senders, webhook: Webhook, clock: Clock, change: str
) -> None:
    sender = await senders.open()
    webhook.replies_with(asks_to_wait(86400) if change == "retry_now" else 400)
    delivery_id = await enqueue(sender, webhook.url())
    assert await attempts(sender, webhook) == 1
    clock.advance(AHEAD - MINUTE)
    act: Callable[[list[str]], Any] = getattr(sender.outbox, change)
    await act([delivery_id])
    await sender.close()
    clock.advance(-AHEAD + 2 * MINUTE)
    sender = await senders.open()
    assert await attempts(sender, webhook) == 2


async def test_a_step_forward_does_not_repeat_what_is_being_attempted(
    sender: PushSender, webhook: Webhook, clock: Clock
) -> None:
    answered = webhook.replies_after()
    await sender.subscribe("task-1", {"url": webhook.url()}, version="1.0")
    for state in ("working", "input-required", "completed"):
        await sender.notify(status(state))
    first = asyncio.create_task(sender.worker.run_once())
    await webhook.until(lambda: len(webhook.received) == 1)
    clock.advance(AHEAD)
    assert await sender.worker.runner.fill() == 0
    assert len(webhook.received) == 1
    answered.set()
    await first
    await deliver_due(sender)
    assert len({request.id for request in webhook.received}) == len(webhook.received) == 3
