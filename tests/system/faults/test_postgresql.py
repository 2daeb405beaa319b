"""PostgreSQL goes away in the middle of traffic, or has no connection left."""

from __future__ import annotations

import asyncio
from collections.abc import Iterator
from contextlib import AsyncExitStack
from datetime import timedelta
from typing import Any

import asyncpg
import pytest

from pushkit.errors import StorageError
from pushkit.storage import database as databases
from pushkit.storage import postgres as on_postgres
from pushkit.storage import postgres_server
from pushkit.storage.migrations import Migration
from pushkit.storage.postgres import PostgresDatabase
from pushkit.storage.script import Script, Statement
from tests.databases import PostgresServer, execute, fresh, suspended
from tests.eventually import DEADLINE, eventually
from tests.system.faults.conftest import Senders, Traffic, Webhook, numbered


async def test_a_restart_in_the_middle_of_traffic_loses_and_reorders_nothing(
    server: PostgresServer, senders: Senders, webhook: Webhook
) -> None:
    sender = await senders.make(await asyncio.to_thread(fresh, server.dsn))
    traffic = Traffic(sender, webhook)
    async with traffic.flowing():
        for _ in range(2):
            await asyncio.to_thread(server.stop)
            await traffic.until(traffic.refused, 8)
            await asyncio.to_thread(server.start)
            await traffic.until(traffic.accepted, 40)


async def test_a_callers_connection_is_taken_after_a_restart_too(
    server: PostgresServer, senders: Senders, webhook: Webhook
) -> None:
    dsn = await asyncio.to_thread(fresh, server.dsn)
    sender = await senders.make(dsn)
    await sender.subscribe("task-1", {"url": webhook.url}, version="1.0")
    for number in (1, 2):
        connection = await asyncpg.connect(dsn)
        async with connection.transaction():
            await sender.notify(numbered("task-1", number), connection=connection)
        await connection.close()
        await asyncio.to_thread(server.stop)
        await asyncio.to_thread(server.start)
    assert len(await sender.deliveries("task-1")) == 2


async def test_what_was_accepted_before_a_restart_is_delivered_without_another_call(
    server: PostgresServer, senders: Senders, webhook: Webhook
) -> None:
    answering = webhook.hold()
    sender = await senders.make(await asyncio.to_thread(fresh, server.dsn))
    await sender.subscribe("task-1", {"url": webhook.url}, version="1.0")
    for number in range(1, 6):
        await sender.notify(numbered("task-1", number))
    await asyncio.to_thread(server.stop)
    answering.set()
    await asyncio.to_thread(server.start)

    await eventually(lambda: 5 in webhook.numbers["task-1"])
    assert webhook.in_order


async def take_all_connections(dsn: str, taken: AsyncExitStack) -> None:
    """Take what there is, and what others had: a pool keeps some."""
    ours: list[asyncpg.Connection] = []
    is_full = False
    while not is_full:
        try:
            ours.append(await asyncpg.connect(dsn))
            taken.push_async_callback(ours[-1].close)
        except asyncpg.TooManyConnectionsError:
            pids = [connection.get_server_pid() for connection in ours]
            ended = await ours[0].fetch(
                "SELECT pg_terminate_backend(pid, 5000) FROM pg_stat_activity"
                " WHERE backend_type = 'client backend' AND pid <> ALL ($1)",
                pids,
            )
            is_full = not ended


@pytest.fixture
def small_server() -> Iterator[str]:
    """Return the DSN of a server of its own that has few connections."""
    server = PostgresServer()
    execute(server.dsn, "ALTER SYSTEM SET max_connections = 12")
    server.stop()
    server.start()
    yield fresh(server.dsn)
    server.remove()


async def test_without_a_connection_left_notify_refuses_and_goes_on_later(
    small_server: str, senders: Senders, webhook: Webhook
) -> None:
    sender = await senders.make(small_server, working=False)
    await sender.subscribe("task-1", {"url": webhook.url}, version="1.0")

    async with AsyncExitStack() as taken:
        await take_all_connections(small_server, taken)
        results = await asyncio.gather(
            *(sender.notify(numbered("task-1", number)) for number in range(20)),
            return_exceptions=True,
        )
    assert all(isinstance(result, StorageError) for result in results)
    assert await sender.deliveries("task-1") == []

    told = await asyncio.gather(*(sender.notify(numbered("task-1", n)) for n in range(20)))
    stored = {each.id for each in await sender.deliveries("task-1")}
    assert stored == {result.ids[0] for result in told}


async def test_a_sender_ends_though_the_server_is_silent(
    server: PostgresServer, senders: Senders, webhook: Webhook, monkeypatch: pytest.MonkeyPatch
) -> None:
    answering = webhook.hold()
    monkeypatch.setattr(on_postgres, "_ROLLBACK_TIMEOUT", 0.1)
    monkeypatch.setattr(postgres_server, "_CLOSING_SECONDS", 0.1)
    monkeypatch.setattr(on_postgres, "_CLOSE_TIMEOUT", timedelta(seconds=0.1))
    dsn = await asyncio.to_thread(fresh, server.dsn)
    sender = await senders.make(dsn, drain=timedelta(0), prepare=_patient)
    await sender.subscribe("task-1", {"url": webhook.url}, version="1.0")
    await sender.notify(numbered("task-1", 1))
    await eventually(lambda: webhook.ids)
    queues = sender.worker.runner.memory.queues
    with server.silent():
        answering.set()
        await eventually(lambda: any(each.is_settling for each in queues.values()))
        async with asyncio.timeout(DEADLINE):
            await sender.close()


async def test_probes_and_metrics_report_a_silent_server_in_time(
    server: PostgresServer, senders: Senders, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(on_postgres, "_ROLLBACK_TIMEOUT", 0.1)
    monkeypatch.setattr(postgres_server, "_CLOSING_SECONDS", 0.1)
    monkeypatch.setattr(databases, "_PROMPT_SECONDS", 0.1)
    dsn = await asyncio.to_thread(fresh, server.dsn)
    sender = await senders.make(dsn, drain=timedelta(0), prepare=_patient)
    metrics = sender.metrics
    with server.silent():
        async with asyncio.timeout(DEADLINE):
            unready, page = await sender.unready(), await metrics.page()
        await sender.close()
    assert unready == {"storage": "storage: the database has not answered within 0.1 s"}
    assert b"\npushkit_database_up 0.0\n" in page.body


def _patient(database: Any) -> None:
    database._command_timeout = timedelta(hours=1)


async def test_no_connection_stays_with_a_server_that_became_a_standby(
    server: PostgresServer, senders: Senders, webhook: Webhook
) -> None:
    dsn = await asyncio.to_thread(fresh, server.dsn)
    sender = await senders.make(dsn, working=False)
    await sender.subscribe("task-1", {"url": webhook.url}, version="1.0")
    await asyncio.to_thread(
        execute,
        server.dsn,
        "ALTER DATABASE postgres SET default_transaction_read_only = on;"
        " SELECT pg_terminate_backend(pid, 5000) FROM pg_stat_activity"
        " WHERE backend_type = 'client backend' AND pid <> pg_backend_pid()",
    )

    async def is_read_only() -> bool:
        with pytest.raises(StorageError) as refused:
            await sender.notify(numbered("task-1", 1))
        return "read-only" in str(refused.value)

    await eventually(is_read_only)
    # From now on the name leads to the new primary.
    writing = f"{dsn}&default_transaction_read_only=off"
    reset = "ALTER DATABASE postgres RESET default_transaction_read_only"
    await asyncio.to_thread(execute, writing, reset)

    assert (await sender.notify(numbered("task-1", 2))).ids


NOTHING = Migration(1, ())


async def pids_of(dsn: str) -> list[int]:
    """Return the server's processes of the connections that are to be lost."""
    connection = await asyncpg.connect(dsn)
    found = await connection.fetch(
        "SELECT pid FROM pg_stat_activity WHERE application_name = 'lost'"
    )
    await connection.close()
    return [each["pid"] for each in found]


async def test_one_silent_connection_is_enough_to_replace_them_all(
    server: PostgresServer, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(on_postgres, "_ROLLBACK_TIMEOUT", 0.1)
    monkeypatch.setattr(postgres_server, "_CLOSING_SECONDS", 0.1)
    dsn = f"{await asyncio.to_thread(fresh, server.dsn)}&application_name=lost"
    database = PostgresDatabase(
        dsn, component="x", migrations=(NOTHING,), command_timeout=timedelta(seconds=0.5)
    )
    await database.open()

    def slow() -> Script[None]:
        yield Statement("SELECT pg_sleep(0.2)")

    await asyncio.gather(*(database.write(slow()) for _ in range(4)))
    with suspended(pids := await pids_of(server.dsn)):
        assert len(pids) == 4
        with pytest.raises(StorageError, match="no answer in time"):
            await database.read(database.now())
        await database.read(database.now())
        await database.close()


async def test_a_listener_that_is_lost_without_a_word_is_replaced(
    server: PostgresServer, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(on_postgres, "_ASKS_EVERY", 0.2)
    dsn = f"{await asyncio.to_thread(fresh, server.dsn)}&application_name=lost"
    database = PostgresDatabase(dsn, component="x", migrations=(NOTHING,))
    awake = asyncio.Event()
    listening = asyncio.create_task(database.listen(awake.set))
    await awake.wait()  # as soon as it listens
    awake.clear()
    with suspended(pids := await pids_of(server.dsn)):
        assert pids
        await asyncio.wait_for(awake.wait(), DEADLINE)
    listening.cancel()
