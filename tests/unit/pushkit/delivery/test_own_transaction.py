"""`notify(connection=...)` stores in the agent's own transaction, on both databases."""

from __future__ import annotations

import asyncio
import os
import sqlite3
from collections.abc import AsyncIterator, Iterator
from datetime import timedelta
from pathlib import Path
from types import SimpleNamespace
from urllib.parse import urlsplit

import asyncpg
import pytest

from pushkit import PushSender, StatusUpdate
from pushkit.errors import ConfigError, StorageError
from tests.clock import Clock
from tests.databases import PostgresServer, execute, fresh
from tests.eventually import DEADLINE, eventually
from tests.unit.pushkit.delivery.conftest import HOOK, Senders, Webhook, enqueue, status


@pytest.fixture
def other_dsn(request: pytest.FixtureRequest, postgres_server: str) -> Iterator[str]:
    """Return the DSN of another schema, or of another `database` or `server`."""
    kind = getattr(request, "param", "schema")
    if kind == "server":
        server = PostgresServer()
        yield server.dsn
        server.remove()
    elif kind == "database":
        name = f"another_{os.getpid()}"
        execute(postgres_server, f"CREATE DATABASE {name}")
        yield urlsplit(postgres_server)._replace(path=f"/{name}").geturl()
        execute(postgres_server, f"DROP DATABASE {name} WITH (FORCE)")
    else:
        yield fresh(postgres_server)


@pytest.fixture
async def elsewhere(other_dsn: str, clock: Clock) -> AsyncIterator[Senders]:
    senders = Senders(other_dsn, clock)
    yield senders
    await senders.close()


def connect(path: Path | str) -> sqlite3.Connection:
    return sqlite3.connect(path, isolation_level=None)


@pytest.fixture
def own(senders: Senders) -> Iterator[sqlite3.Connection]:
    """Return a connection of the agent's own to the outbox on SQLite."""
    own = connect(senders.database)
    yield own
    own.close()


async def stored(sender: PushSender, task_id: str = "task-1") -> int:
    return len(await sender.deliveries(task_id))


# --- SQLite ------------------------------------------------------------------------------------


async def test_on_sqlite_the_callers_factories_of_rows_and_text_stay(
    sender: PushSender, own: sqlite3.Connection
) -> None:
    await sender.subscribe("task-1", HOOK, version="1.0")
    own.row_factory = lambda cursor, row: {"row": row}  # noqa: ARG005  # sqlite3's signature
    own.text_factory = bytes
    own.execute("BEGIN IMMEDIATE")
    assert len((await sender.notify(status(), connection=own)).ids) == 1
    assert own.execute("SELECT 'x'").fetchone() == {"row": (b"x",)}
    own.execute("COMMIT")
    assert await stored(sender) == 1


async def test_on_sqlite_a_connection_that_is_closed_is_refused(
    senders: Senders, sender: PushSender
) -> None:
    own = connect(senders.database)
    own.close()
    with pytest.raises(ConfigError, match="connection: Cannot operate on a closed database"):
        await sender.notify(status(), connection=own)


async def test_on_sqlite_a_connection_outside_a_transaction_is_refused(
    sender: PushSender, own: sqlite3.Connection
) -> None:
    with pytest.raises(ConfigError, match="BEGIN IMMEDIATE"):
        await sender.notify(status(), connection=own)


async def test_on_sqlite_another_file_is_refused_though_it_has_an_outbox(
    senders: Senders, sender: PushSender, clock: Clock, tmp_path: Path
) -> None:
    others = Senders(tmp_path / "another.db", clock)
    other = await others.open()
    await other.subscribe("task-1", HOOK, version="1.0")
    own = connect(others.database)
    own.execute("ATTACH ? AS ours", (str(senders.database),))
    own.execute("BEGIN IMMEDIATE")
    with pytest.raises(ConfigError) as refused:
        await sender.notify(status(), connection=own)
    own.execute("COMMIT")
    own.close()
    assert str(refused.value) == (
        f"connection: it opened {others.database}, expected {senders.database}, where the outbox"
        " is: open that one"
    )
    assert await stored(other) == 0
    await other.close()


async def test_on_sqlite_a_database_without_a_file_is_refused(sender: PushSender) -> None:
    own = connect(":memory:")
    own.execute("BEGIN IMMEDIATE")
    with pytest.raises(ConfigError, match="it opened no file, expected /"):
        await sender.notify(status(), connection=own)
    own.close()


async def test_on_sqlite_a_link_to_the_file_is_accepted(
    senders: Senders, sender: PushSender, tmp_path: Path
) -> None:
    await sender.subscribe("task-1", HOOK, version="1.0")
    (tmp_path / "linked").symlink_to(Path(senders.database).parent)
    own = connect(tmp_path / "linked" / Path(senders.database).name)
    own.execute("BEGIN IMMEDIATE")
    await sender.notify(status(), connection=own)
    own.execute("COMMIT")
    own.close()
    assert await stored(sender) == 1


async def test_on_sqlite_a_delivery_is_sent_after_the_commit(
    senders: Senders, webhook: Webhook, own: sqlite3.Connection
) -> None:
    sender = await senders.open(poll_interval=timedelta(milliseconds=20))
    await sender.start()
    await sender.subscribe("task-1", {"url": webhook.url()}, version="1.0")
    own.execute("BEGIN IMMEDIATE")
    [delivery_id] = (await sender.notify(status(), connection=own)).ids
    own.execute("COMMIT")
    await webhook.until(lambda: [request.id for request in webhook.received] == [delivery_id])


@pytest.mark.parametrize("found", [object(), "outbox.db", SimpleNamespace(driver_connection=1)])
async def test_a_connection_of_an_unknown_kind_is_refused(
    sender: PushSender, found: object
) -> None:
    with pytest.raises(ConfigError, match=r"expected a sqlite3\.Connection"):
        await sender.notify(status(), connection=found)


async def test_the_connection_inside_a_sqlalchemy_connection_is_found(
    sender: PushSender, own: sqlite3.Connection
) -> None:
    await sender.subscribe("task-1", HOOK, version="1.0")
    own.execute("BEGIN IMMEDIATE")
    fairy = SimpleNamespace(driver_connection=own)  # as SQLAlchemy names it
    assert len((await sender.notify(status(), connection=fairy)).ids) == 1
    own.execute("COMMIT")
    assert await stored(sender) == 1


# --- PostgreSQL --------------------------------------------------------------------------------


async def test_on_postgresql_a_pools_connection_is_accepted(
    on_postgres: Senders, postgres_dsn: str
) -> None:
    sender = await on_postgres.open()
    await sender.subscribe("task-1", HOOK, version="1.0")
    async with (
        asyncpg.create_pool(postgres_dsn, min_size=1) as pool,
        pool.acquire() as pooled,
        pooled.transaction(),
    ):
        assert len((await sender.notify(status(), connection=pooled)).ids) == 1
    assert await stored(sender) == 1


async def test_on_postgresql_a_connection_outside_a_transaction_is_refused(
    on_postgres: Senders, connection: asyncpg.Connection
) -> None:
    sender = await on_postgres.open()
    with pytest.raises(ConfigError, match="not in a transaction"):
        await sender.notify(status(), connection=connection)
    with pytest.raises(ConfigError, match="expected an asyncpg connection"):
        await sender.notify(status(), connection=sqlite3.Connection)


async def _refusal_of(sender: PushSender, own: asyncpg.Connection, update: StatusUpdate) -> str:
    async with own.transaction():
        with pytest.raises(ConfigError) as refused:
            await sender.notify(update, connection=own)
        await own.execute("SELECT 1")  # the caller's transaction is still usable
    return str(refused.value)


async def test_on_postgresql_another_outbox_is_refused(
    on_postgres: Senders, connection: asyncpg.Connection, elsewhere: Senders
) -> None:
    sender, other = await on_postgres.open(), await elsewhere.open()
    for each in (sender, other):
        await each.subscribe("task-1", HOOK, version="1.0")
    ours, theirs = [
        str(each.database).partition("search_path=")[2] for each in (on_postgres, elsewhere)
    ]

    found = await _refusal_of(other, connection, status())
    database = await connection.fetchval("SELECT current_database()")
    assert found == (
        f"connection: found database {database}, schema {ours}, expected database {database},"
        f" schema {theirs}: connect to where the outbox is, with the same search_path"
    )
    # The search path may change on a connection at any time.
    async with connection.transaction():
        await sender.notify(status(), connection=connection)
    await connection.execute(f"SET search_path = {theirs}")
    assert f"expected database {database}, schema {ours}:" in await _refusal_of(
        sender, connection, status()
    )
    async with connection.transaction():
        await other.notify(status(), connection=connection)
        await connection.execute(f"SET LOCAL search_path = {ours}")
        await sender.notify(status(), connection=connection)
    await connection.execute("SET search_path = pg_catalog")
    assert ", no tables of pushkit's, expected" in await _refusal_of(sender, connection, status())
    assert (await stored(sender), await stored(other)) == (2, 1)


@pytest.mark.parametrize(
    ("other_dsn", "found"),
    [
        ("database", "found database another_"),
        ("server", "of another server, expected database "),
    ],
    indirect=["other_dsn"],
)
async def test_on_postgresql_the_outbox_of_another_database_is_refused(
    on_postgres: Senders, elsewhere: Senders, found: str
) -> None:
    sender, other = await on_postgres.open(), await elsewhere.open()
    for each in (sender, other):
        await each.subscribe("task-1", HOOK, version="1.0")
    own = await asyncpg.connect(str(elsewhere.database))
    assert found in await _refusal_of(sender, own, status())
    await own.close()
    assert await stored(other) == 0


@pytest.mark.parametrize("isolation", ["REPEATABLE READ", "SERIALIZABLE"])
async def test_on_postgresql_a_stricter_isolation_level_is_refused(
    on_postgres: Senders, connection: asyncpg.Connection, isolation: str
) -> None:
    sender = await on_postgres.open()
    await sender.subscribe("task-1", HOOK, version="1.0")
    await connection.execute(f"BEGIN ISOLATION LEVEL {isolation}")
    with pytest.raises(ConfigError, match="expected READ COMMITTED"):
        await sender.notify(status(), connection=connection)
    await connection.execute("ROLLBACK")
    assert await stored(sender) == 0


async def test_on_postgresql_a_stricter_default_isolation_leaves_no_delivery_unsent(
    on_postgres: Senders, connection: asyncpg.Connection, webhook: Webhook
) -> None:
    on_postgres.database = f"{on_postgres.database}&default_transaction_isolation=serializable"
    sender = await on_postgres.open()
    await enqueue(sender, webhook.url())
    await connection.execute("BEGIN")
    await connection.execute("SELECT 1 FROM pushkit_subscriptions FOR UPDATE")
    waiting = asyncio.create_task(sender.notify(status()))

    async def it_waits() -> bool:
        sql = "SELECT COUNT(*) FROM pg_locks WHERE NOT granted"
        return bool(await connection.fetchval(sql))

    await eventually(it_waits)
    # The waiting call has to see this change, though its transaction has begun already.
    await connection.execute("UPDATE pushkit_deliveries SET state = 'delivered'")
    await connection.execute("COMMIT")
    await waiting
    assert await sender.worker.run_once() == 1
    assert [each.state.value for each in await sender.deliveries("task-1")] == ["delivered"] * 2


async def test_on_postgresql_cancelled_callers_do_not_delay_close(
    on_postgres: Senders, caplog: pytest.LogCaptureFixture
) -> None:
    sender = await on_postgres.open()
    await sender.subscribe("task-1", HOOK, version="1.0")
    for turn in range(100):
        caller = asyncio.create_task(sender.notify(status()))
        await asyncio.sleep(turn * 80e-6)  # later each time, until after its end
        caller.cancel()
        await asyncio.gather(caller, return_exceptions=True)
    await sender.close()
    assert "still in use" not in caplog.text


async def test_on_postgresql_a_locked_row_does_not_delay_other_tasks(
    on_postgres: Senders, connection: asyncpg.Connection
) -> None:
    sender = await on_postgres.open()
    for n in range(10):
        await sender.subscribe(f"task-{n}", HOOK, version="1.0")
    transaction = connection.transaction()
    await transaction.start()
    await sender.notify(status(task_id="task-0"), connection=connection)

    # More calls than there are connections.
    held = [asyncio.create_task(sender.notify(status(task_id="task-0"))) for _ in range(20)]
    async with asyncio.timeout(DEADLINE):
        for _ in range(3):
            await asyncio.gather(
                *(sender.notify(status(task_id=f"task-{n}")) for n in range(1, 10))
            )
        for n in range(1, 10):
            await sender.notify(status(task_id=f"task-{n}"))
    assert not any(each.done() for each in held)
    await transaction.commit()
    await asyncio.gather(*held)
    assert [each.seq for each in await sender.deliveries("task-0")] == list(range(1, 22))
    assert await stored(sender, "task-9") == 4


async def test_on_postgresql_a_locked_row_does_not_delay_other_deliveries(
    on_postgres: Senders, connection: asyncpg.Connection, webhook: Webhook
) -> None:
    sender = await on_postgres.open(concurrency_per_host=64)
    for n in range(30):
        await enqueue(sender, webhook.url(f"/{n}"), f"task-{n}")
    transaction = connection.transaction()
    await transaction.start()
    for n in range(10):
        await sender.notify(status(task_id=f"task-{n}"), connection=connection)

    async def others_are_delivered() -> bool:
        found = [await sender.deliveries(f"task-{n}") for n in range(10, 30)]
        return all(each.state == "delivered" for [each] in found)

    await sender.worker.runner.fill()
    await eventually(others_are_delivered)
    held = [each for n in range(10) for each in await sender.deliveries(f"task-{n}")]
    assert {each.state.value for each in held} == {"pending"}
    await transaction.commit()
    await sender.worker.runner.drain()
    await sender.worker.run_once()
    held = [each for n in range(10) for each in await sender.deliveries(f"task-{n}")]
    assert [each.state.value for each in held] == ["delivered"] * 20


async def test_on_postgresql_the_commit_wakes_the_worker(
    on_postgres: Senders, connection: asyncpg.Connection, webhook: Webhook
) -> None:
    sender = await on_postgres.open(poll_interval=timedelta(hours=1))
    await sender.subscribe("task-1", {"url": webhook.url()}, version="1.0")
    async with connection.transaction():
        await sender.notify(status(), connection=connection)
    await sender.start()
    await webhook.until(lambda: len(webhook.received) == 1)

    async def listening() -> bool:
        return bool(
            await connection.fetchval("SELECT 1 FROM pg_stat_activity WHERE query LIKE 'LISTEN %'")
        )

    await eventually(listening)
    async with connection.transaction():
        await sender.notify(status(), connection=connection)
    await webhook.until(lambda: len(webhook.received) == 2)


async def test_opposite_orders_in_two_transactions_end_in_a_storage_error(
    on_postgres: Senders, postgres_dsn: str
) -> None:
    sender = await on_postgres.open()
    for task_id in ("task-1", "task-2"):
        await sender.subscribe(task_id, HOOK, version="1.0")
    both_hold_one = asyncio.Barrier(2)

    async def notify(*task_ids: str) -> str:
        own = await asyncpg.connect(postgres_dsn)
        try:
            async with own.transaction():
                await sender.notify(status(task_id=task_ids[0]), connection=own)
                await both_hold_one.wait()
                await sender.notify(status(task_id=task_ids[1]), connection=own)
        except StorageError as exc:
            return str(exc)
        finally:
            await own.close()
        return "committed"

    async with asyncio.timeout(DEADLINE):
        results = await asyncio.gather(notify("task-1", "task-2"), notify("task-2", "task-1"))
    [refused] = set(results) - {"committed"}
    assert "deadlock" in refused
    assert (await stored(sender), await stored(sender, "task-2")) == (1, 1)


async def test_many_subscriptions_notified_at_once_never_deadlock(
    on_postgres: Senders, postgres_dsn: str
) -> None:
    sender = await on_postgres.open()
    for number in range(10):
        await sender.subscribe("task-1", HOOK, version="1.0", owner=f"owner-{number}")

    async def notify() -> None:
        own = await asyncpg.connect(postgres_dsn)
        for _ in range(5):
            async with own.transaction():
                await sender.notify(status(), connection=own)
        await own.close()

    async def pause() -> None:
        for number in range(10):
            await sender.pause("task-1", owner=f"owner-{number}")
            await sender.resume("task-1", owner=f"owner-{number}")

    async with asyncio.timeout(DEADLINE):
        await asyncio.gather(*(notify() for _ in range(6)), pause())
    seqs = sorted(delivery.seq for delivery in await sender.deliveries("task-1"))
    assert seqs == sorted(list(range(1, 31)) * 10)


# --- on both -----------------------------------------------------------------------------------


async def begin(location: str) -> asyncpg.Connection | sqlite3.Connection:
    """Return a connection of the agent's own, in a transaction."""
    if "://" in location:
        connection = await asyncpg.connect(location)
        await connection.execute("BEGIN")
        return connection
    own = connect(location)
    own.execute("BEGIN IMMEDIATE")
    return own


async def end(own: asyncpg.Connection | sqlite3.Connection, how: str) -> None:
    """End the transaction of a connection, and close it."""
    if isinstance(own, sqlite3.Connection):
        own.execute(how)
        own.close()
    else:
        await own.execute(how)
        await own.close()


@pytest.mark.usefixtures("location")
async def test_a_transaction_that_breaks_off_stores_nothing(
    senders: Senders, sender: PushSender
) -> None:
    await sender.subscribe("task-1", HOOK, version="1.0")
    own = await begin(str(senders.database))
    await sender.notify(status(), connection=own)
    if isinstance(own, sqlite3.Connection):  # as if the process had ended
        own.close()
    else:
        own.terminate()
    await sender.notify(status())  # waits for the row that the broken connection held
    assert [delivery.seq for delivery in await sender.deliveries("task-1")] == [1]


@pytest.mark.usefixtures("location")
async def test_a_recipient_that_is_refused_leaves_the_transaction_usable(senders: Senders) -> None:
    sender = await senders.open(max_backlog_per_subscription=1)
    await enqueue(sender, owner="alice")
    await sender.subscribe("task-1", HOOK, version="1.0", owner="bob")
    own = await begin(str(senders.database))
    result = await sender.notify(status(), connection=own)
    assert [each.owner for each in result.deliveries] == ["bob"]
    assert [(each.owner, each.code) for each in result.refused] == [("alice", "backlog_full")]
    await end(own, "COMMIT")
    assert await stored(sender) == 2


@pytest.mark.parametrize("how", ["COMMIT", "ROLLBACK"])
async def test_an_update_is_sent_after_the_callers_commit_and_never_before_or_without_it(
    location: str, clock: Clock, webhook: Webhook, tmp_path: Path, how: str
) -> None:
    senders, others = Senders(location, clock), Senders(tmp_path / "another.db", clock)
    sender, other = await senders.open(poll_interval=timedelta(hours=1)), await others.open()
    await sender.start()
    await other.start()
    await sender.subscribe("task-1", {"url": webhook.url()}, version="1.0")
    await other.subscribe("task-1", {"url": webhook.url("/other")}, version="1.0")
    first = (await sender.notify(status())).ids
    await webhook.until(lambda: len(webhook.at("/hook")) == 1)

    own = await begin(location)
    within = (await sender.notify(status("input-required"), connection=own)).ids
    assert len(within) == 1
    for number in range(1, 4):  # meanwhile, others' updates are stored and sent
        await other.notify(status())
        await webhook.until_received(number, "/other")
    assert [request.id for request in webhook.at("/hook")] == [*first]
    await end(own, how)

    expected = [*first, *within] if how == "COMMIT" else [*first]
    expected += (await sender.notify(status("completed"))).ids
    await webhook.until(lambda: len(webhook.at("/hook")) == len(expected))
    await sender.close()
    await other.close()
    assert [request.id for request in webhook.at("/hook")] == expected
