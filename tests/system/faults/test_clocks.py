"""Clocks that step, and clocks that disagree."""

from __future__ import annotations

import asyncio
from collections import Counter
from collections.abc import Callable
from datetime import UTC, datetime, timedelta
from pathlib import Path

import pytest

from pushkit.outbox.states import DeliveryState
from tests.eventually import eventually
from tests.system.faults.conftest import RETRY_SOON, Senders, Webhook, numbered

HOUR = timedelta(hours=1)
SECOND = timedelta(seconds=1)


class Clock:
    def __init__(self) -> None:
        self.now = datetime.now(UTC)

    def __call__(self) -> datetime:
        return self.now


@pytest.fixture
def clock() -> Clock:
    return Clock()


async def test_a_step_back_delays_nothing_that_was_never_tried(
    tmp_path: Path, senders: Senders, webhook: Webhook, clock: Clock
) -> None:
    sender = await senders.make(str(tmp_path / "outbox.db"), clock=clock, working=False)
    for task in ("before", "after"):
        await sender.subscribe(task, {"url": webhook.url}, version="1.0")
    await sender.notify(numbered("before", 1))
    clock.now -= HOUR
    await sender.notify(numbered("before", 2))
    await sender.notify(numbered("after", 1))
    for _ in range(2):
        await sender.worker.run_once()
    assert webhook.numbers == {"after": [1], "before": [1, 2]}


@pytest.mark.parametrize("step", [HOUR, -HOUR], ids=["forward", "back"])
async def test_a_step_while_an_attempt_runs_loses_repeats_and_reorders_nothing(
    tmp_path: Path, senders: Senders, webhook: Webhook, clock: Clock, step: timedelta
) -> None:
    begun, answering = asyncio.Event(), asyncio.Event()

    async def answer(_task: str, _number: int) -> int:
        begun.set()
        await answering.wait()
        return 202

    webhook.answer = answer
    sender = await senders.make(
        str(tmp_path / "outbox.db"), clock=clock, working=False, timeout=timedelta(seconds=20)
    )
    await sender.subscribe("task-1", {"url": webhook.url}, version="1.0")
    for number in (1, 2):
        await sender.notify(numbered("task-1", number))
    first = asyncio.create_task(sender.worker.run_once())
    await begun.wait()
    clock.now += step
    second = asyncio.create_task(sender.worker.run_once())
    await asyncio.sleep(0)
    answering.set()
    await asyncio.gather(first, second)
    clock.now += abs(step) + 30 * SECOND
    while await sender.worker.run_once():
        pass
    assert webhook.numbers["task-1"] == [1, 2]
    found = await sender.deliveries("task-1")
    assert {each.state for each in found} == {DeliveryState.DELIVERED}


def ahead_by(step: timedelta) -> Callable[[], datetime]:
    return lambda: datetime.now(UTC) + step


async def test_workers_whose_clocks_disagree_by_a_minute_deliver_once_and_in_order(
    postgres_dsn: str, senders: Senders, webhook: Webhook
) -> None:
    failed: Counter[tuple[str, int]] = Counter()

    async def answer(task: str, number: int) -> int:
        await asyncio.sleep(0.005)
        if number % 5 == 0 and not failed[task, number]:
            failed[task, number] += 1
            return 500
        return 202

    webhook.answer = answer
    made = [
        await senders.make(
            postgres_dsn,
            clock=ahead_by(timedelta(seconds=seconds)),
            retry=RETRY_SOON,
            timeout=timedelta(seconds=10),  # its lease does not end within the test
        )
        for seconds in (-30, 30)
    ]
    tasks = [f"task-{n}" for n in range(8)]
    for task in tasks:
        await made[0].subscribe(task, {"url": webhook.url}, version="1.0")

    async def accept(task: str) -> None:
        for number in range(1, 21):
            await made[number % 2].notify(numbered(task, number))

    await asyncio.gather(*(accept(task) for task in tasks))

    async def all_delivered() -> bool:
        found = [each for task in tasks for each in await made[0].deliveries(task)]
        return all(each.state is DeliveryState.DELIVERED for each in found)

    await eventually(all_delivered)
    once = [1, 2, 3, 4, 5, 5, 6, 7, 8, 9, 10, 10, 11, 12, 13, 14, 15, 15, 16, 17, 18, 19, 20, 20]
    assert webhook.numbers == dict.fromkeys(tasks, once)
