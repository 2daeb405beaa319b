"""Clocks that disagree."""

from __future__ import annotations

import asyncio
from collections import Counter
from collections.abc import Callable
from datetime import UTC, datetime, timedelta

from tests.eventually import eventually
from tests.system.faults.conftest import RETRY_SOON, Senders, Webhook, all_delivered, numbered


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

    await eventually(lambda: all_delivered(made[0], tasks))
    once = [1, 2, 3, 4, 5, 5, 6, 7, 8, 9, 10, 10, 11, 12, 13, 14, 15, 15, 16, 17, 18, 19, 20, 20]
    assert webhook.numbers == dict.fromkeys(tasks, once)
