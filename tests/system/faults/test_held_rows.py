"""Somebody holds rows for long on PostgreSQL: who needs them waits, and nobody else."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager

import asyncpg
import pytest

from pushkit import PushSender
from pushkit.outbox.states import DeliveryState
from tests.eventually import DEADLINE, eventually
from tests.system.faults.conftest import Senders, Webhook, numbered

HELD = [f"task-{number}" for number in range(8)]  # as many as the pool has connections


@asynccontextmanager
async def rows_held(dsn: str, tasks: list[str]) -> AsyncIterator[None]:
    """Hold the rows of the subscriptions to these tasks, as a long transaction does."""
    connection = await asyncpg.connect(dsn)
    try:
        async with connection.transaction():
            await connection.execute(
                "SELECT id FROM pushkit_subscriptions WHERE task_id = ANY($1) FOR UPDATE", tasks
            )
            yield
    finally:
        await connection.close()


async def subscribe(sender: PushSender, webhook: Webhook, task: str) -> object:
    return await sender.subscribe(task, {"url": webhook.url}, version="1.0")


async def waiting_for_rows(dsn: str) -> None:
    """Return once somebody waits for a row, or comes again for one."""
    connection = await asyncpg.connect(dsn)

    async def somebody() -> bool:
        query = "SELECT count(*) FROM pg_locks WHERE NOT granted"
        return bool(await connection.fetchval(query))

    try:
        await eventually(somebody)
    finally:
        await connection.close()


CHANGES: list[Callable[[PushSender, Webhook, str], Awaitable[object]]] = [
    subscribe,
    lambda sender, _, task: sender.pause(task),
    lambda sender, _, task: sender.resume(task),
    lambda sender, _, task: sender.disable(task),
    lambda sender, _, task: sender.enable(task),
    lambda sender, _, task: sender.send_test(task),
    lambda sender, _, task: sender.unsubscribe(task),
]
NAMES = ["subscribe", "pause", "resume", "disable", "enable", "send_test", "unsubscribe"]


@pytest.mark.parametrize("change", CHANGES, ids=NAMES)
async def test_changes_that_wait_for_rows_leave_connections_to_everybody_else(
    senders: Senders,
    webhook: Webhook,
    postgres_dsn: str,
    change: Callable[[PushSender, Webhook, str], Awaitable[object]],
) -> None:
    sender = await senders.make(postgres_dsn, working=False)
    for task in [*HELD, "task-free"]:
        await subscribe(sender, webhook, task)
    async with rows_held(postgres_dsn, HELD):
        changes = [asyncio.ensure_future(change(sender, webhook, task)) for task in HELD]
        await waiting_for_rows(postgres_dsn)

        async with asyncio.timeout(DEADLINE):
            for number in range(5):
                await sender.notify(numbered("task-free", number))
                await sender.worker.run_once()
            await sender.pause("task-free")
            found = await sender.deliveries("task-free")
        assert [each.state for each in found] == [DeliveryState.DELIVERED] * 5
        assert not any(each.done() for each in changes)
    await asyncio.wait_for(asyncio.gather(*changes), DEADLINE)


async def test_failures_that_wait_to_be_settled_leave_connections_to_everybody_else(
    senders: Senders, webhook: Webhook, postgres_dsn: str
) -> None:
    answering = asyncio.Event()

    async def fail_when_told(task: str, _number: int) -> int:
        if task == "task-free":
            return 202
        await answering.wait()
        return 500

    webhook.answer = fail_when_told
    sender = await senders.make(postgres_dsn, working=False)
    for task in [*HELD, "task-free"]:
        await subscribe(sender, webhook, task)
    for task in HELD:
        await sender.notify(numbered(task, 1))
    failing = asyncio.create_task(sender.worker.run_once())

    await eventually(lambda: len(webhook.ids) == len(HELD))
    async with rows_held(postgres_dsn, HELD):
        answering.set()
        await waiting_for_rows(postgres_dsn)
        async with asyncio.timeout(DEADLINE):
            for number in range(5):
                await sender.notify(numbered("task-free", number))
                await sender.worker.runner.fill()
            assert len(await sender.subscriptions("task-free")) == 1
        assert not failing.done()
    await asyncio.wait_for(failing, DEADLINE)
    for task in HELD:
        [delivery] = await sender.deliveries(task)
        assert (delivery.state, delivery.last_status) == (DeliveryState.PENDING, 500)
