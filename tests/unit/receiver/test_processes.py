"""Receiver processes of their own, some of which are killed."""

from __future__ import annotations

import asyncio
import contextlib
import json
import os
import pickle
import sqlite3
import sys
from collections import Counter
from collections.abc import AsyncIterator
from datetime import UTC, datetime
from pathlib import Path
from typing import TYPE_CHECKING

import asyncpg
import pytest

from pushkit.keys.jwk import public_jwk
from receiver import InboxStatus, Notification
from tests.eventually import DEADLINE, eventually

pytestmark = pytest.mark.slow

if TYPE_CHECKING:
    from tests.unit.receiver.conftest import World, WorldFactory

ROOT = Path(__file__).resolve().parents[3]
TASKS, UPDATES = 10, 12


@contextlib.asynccontextmanager
async def process(*arguments: str) -> AsyncIterator[asyncio.subprocess.Process]:
    """Start a receiver process, and kill it in the end if it lives still."""
    started = await asyncio.create_subprocess_exec(
        sys.executable,
        str(Path(__file__).with_name("receiver_process.py")),
        *arguments,
        stdin=asyncio.subprocess.PIPE,
        stdout=asyncio.subprocess.PIPE,
        env={**os.environ, "PYTHONPATH": str(ROOT)},
    )
    try:
        assert started.stdout is not None
        async with asyncio.timeout(DEADLINE):
            assert await started.stdout.readline() == b"READY\n"
        yield started
    finally:
        if started.returncode is None:
            started.kill()
        await started.communicate()


@pytest.fixture
async def calls(postgres_dsn: str) -> AsyncIterator[asyncpg.Connection]:
    """A connection to the database whose table `calls` the processes write."""
    connection = await asyncpg.connect(postgres_dsn)
    await connection.execute(
        "CREATE TABLE calls (number BIGINT GENERATED ALWAYS AS IDENTITY, pid BIGINT NOT NULL,"
        " delivery_id TEXT NOT NULL)"
    )
    yield connection
    await connection.close()


@pytest.fixture
def world(make_world: WorldFactory, postgres_dsn: str) -> World:
    world = make_world()
    world.database = postgres_dsn
    world.clock.now = datetime.now(UTC)
    return world


async def accept_all(world: World) -> None:
    async def accept(task: int) -> None:
        for number in range(1, UPDATES + 1):
            draft = world.draft(number, task_id=f"task-{task}")
            verdict = await world.receiver.receive(draft.request())
            assert verdict.status == 202

    await asyncio.gather(*map(accept, range(TASKS)))


async def until_done(world: World) -> None:
    async def done() -> bool:
        statuses = (await world.receiver.inbox.stats()).statuses
        return statuses[InboxStatus.DONE] == TASKS * UPDATES

    await eventually(done)


def first_calls_in_order(delivery_ids: list[str]) -> bool:
    """Say whether of every task the updates were first called back in the order of acceptance."""
    first = list(dict.fromkeys(delivery_ids))
    by_task = [
        [int(each.rpartition("-")[2]) for each in first if each.startswith(f"delivery-task-{n}-")]
        for n in range(TASKS)
    ]
    return all(numbers == list(range(1, UPDATES + 1)) for numbers in by_task)


async def test_two_processes_on_one_database_call_each_notification_once_and_in_order(
    world: World, postgres_dsn: str, calls: asyncpg.Connection
) -> None:
    await world.receiver.open()
    async with process("call", postgres_dsn, "60"), process("call", postgres_dsn, "60"):
        await accept_all(world)
        await until_done(world)
    await world.receiver.close()

    rows = await calls.fetch("SELECT pid, delivery_id FROM calls ORDER BY number")
    delivery_ids = [row["delivery_id"] for row in rows]
    assert len(delivery_ids) == len(set(delivery_ids)) == TASKS * UPDATES
    assert first_calls_in_order(delivery_ids)
    assert len({row["pid"] for row in rows}) == 2


async def test_a_process_that_calls_back_at_once_announces_news_and_wakes_no_other(
    world: World, postgres_dsn: str
) -> None:
    heard: asyncio.Queue[str] = asyncio.Queue()
    listener = await asyncpg.connect(postgres_dsn)
    await listener.add_listener("pushkit_work", lambda *said: heard.put_nowait(said[-1]))
    await world.receiver.open()
    assert (await world.receiver.receive(world.draft(1).request())).status == 202
    assert await asyncio.wait_for(heard.get(), DEADLINE) == ""  # it waits for who claims it

    async with world.receiver:

        async def is_done() -> bool:
            statuses = (await world.receiver.inbox.stats()).statuses
            return statuses[InboxStatus.DONE] == 1

        await eventually(is_done)
        assert (await world.receiver.receive(world.draft(2).request())).status == 202
        assert await asyncio.wait_for(heard.get(), DEADLINE) == "news"
    await listener.close()


async def test_notifications_of_a_killed_process_are_called_back_when_its_lease_expires(
    world: World, postgres_dsn: str, calls: asyncpg.Connection
) -> None:
    await world.receiver.open()
    async with (
        process("call", postgres_dsn, "2") as killed,
        process("call", postgres_dsn, "2") as other,
    ):
        accepting = asyncio.create_task(accept_all(world))

        async def both_called() -> bool:
            return bool(await calls.fetchval("SELECT COUNT(DISTINCT pid) = 2 FROM calls"))

        await eventually(both_called)
        killed.kill()
        await killed.wait()
        held = await calls.fetch(
            "SELECT i.delivery_id FROM pushkit_inbox i JOIN pushkit_inbox_queues q"
            " ON q.id = i.queue_id WHERE i.state = 'pending' AND q.lease_worker IS NOT NULL"
            " AND i.place <= q.sending_to"
        )
        await accepting
        await until_done(world)
        assert other.returncode is None
    await world.receiver.close()

    rows = await calls.fetch("SELECT delivery_id FROM calls ORDER BY number")
    delivery_ids = [row["delivery_id"] for row in rows]
    twice = {name for name, count in Counter(delivery_ids).items() if count > 1}
    assert twice <= {row["delivery_id"] for row in held}
    assert first_calls_in_order(delivery_ids)


async def test_a_process_killed_before_it_stored_a_notification_loses_nothing(
    make_world: WorldFactory, tmp_path: Path
) -> None:
    world = make_world()
    world.clock.now = datetime.now(UTC)
    draft = world.draft()
    inbox = str(tmp_path / "inbox.db")
    (tmp_path / "request").write_bytes(pickle.dumps(draft.request()))
    (tmp_path / "jwks.json").write_text(json.dumps({"keys": [public_jwk(draft.key)]}))
    files = (str(tmp_path / "request"), str(tmp_path / "jwks.json"))
    called: list[str] = []

    @world.receiver.on_update(name="record")
    async def record(notification: Notification) -> None:
        called.append(notification.delivery_id)

    with contextlib.closing(sqlite3.connect(inbox, isolation_level=None)) as connection:
        async with process("accept", inbox, *files, *world.sender.tokens) as killed:
            connection.execute("BEGIN IMMEDIATE")  # it cannot store, and waits
            assert killed.stdin is not None
            assert killed.stdout is not None
            killed.stdin.write(b"go\n")
            async with asyncio.timeout(DEADLINE):
                assert await killed.stdout.readline() == b"RECEIVING\n"
            killed.kill()
            await killed.wait()
            connection.execute("ROLLBACK")
    accepted, again = await world.receive(draft), await world.receive(draft)
    await world.receiver.dispatcher.run_once()

    assert [accepted.status, again.status] == [202, 200]
    assert called == ["delivery-task-1-1"]
