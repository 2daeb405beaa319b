"""Databases written by earlier versions are upgraded without loss."""

from __future__ import annotations

import asyncio
import contextlib
import sqlite3
from collections.abc import Iterator
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import asyncpg
import pytest

from pushkit import PushSender, StatusUpdate, TaskState, TaskStatus
from pushkit.clock import utc_now
from pushkit.outbox.migrations import SENDER_MIGRATIONS
from pushkit.outbox.states import DeliveryState
from pushkit.storage.database import open_location, opened
from pushkit.storage.migrations import Access, Migration, statements
from receiver.inbox.migrations import RECEIVER_MIGRATIONS
from tests.clock import Clock
from tests.databases import fresh
from tests.long_runs import LONG
from tests.pushkit.delivery.conftest import Senders, Webhook, deliver_due, status

VECTORS = Path(__file__).resolve().parents[2] / "vectors"
# Dumps of databases that earlier versions wrote. Their deliveries: one delivered; one dead; one
# that failed once, with one behind it; one in flight at a dead worker, with one behind it.
DUMPS = sorted(int(path.stem.rpartition("_")[2]) for path in VECTORS.glob("outbox_schema_*.sql"))
THEN = datetime(2026, 1, 1, tzinfo=UTC)
MICROSECONDS_SINCE_2023 = 1_672_531_200_000_000

HISTORIES = {"sender": SENDER_MIGRATIONS, "receiver": RECEIVER_MIGRATIONS}
# An upgrade from the first version runs all migrations, from the last but one only the newest.
EARLIER = [
    pytest.param(component, count, id=f"{component} {known[count - 1].version}")
    for component, known in HISTORIES.items()
    for count in (range(1, len(known)) if LONG else (1, len(known) - 1))
]


@pytest.fixture
def postgres_dsn(postgres_server: str) -> str:
    """Return the DSN of an empty schema: the tests create the tables of earlier versions."""
    return fresh(postgres_server)


def open_with(location: str, component: str, migrations: tuple[Migration, ...]) -> None:
    """Create or upgrade a database by these migrations."""

    async def start() -> None:
        database = open_location(
            location, component=component, migrations=migrations, clock=utc_now
        )
        async with opened(database, Access.UPGRADE):
            pass

    asyncio.run(start())


def shape(location: str) -> set[tuple[str, ...]]:
    """Return the tables, columns, indexes, triggers and recorded versions of a schema."""
    if "://" in location:
        return asyncio.run(_shape_in_postgresql(location))
    with contextlib.closing(sqlite3.connect(location)) as connection:
        rows = [row for each in IN_SQLITE for row in connection.execute(each)]
    return {tuple(" ".join(str(value).split()) for value in row) for row in rows}


async def _shape_in_postgresql(dsn: str) -> set[tuple[str, ...]]:
    connection = await asyncpg.connect(dsn)
    try:
        schema = await connection.fetchval("SELECT current_schema()")
        rows = [row for each in IN_POSTGRESQL for row in await connection.fetch(each)]
    finally:
        await connection.close()
    return {tuple(str(value).replace(f"{schema}.", "") for value in row) for row in rows}


# The SQL of a table depends on its history: properties without a pragma are found by keyword.
IN_SQLITE = statements("""
SELECT * FROM pushkit_schema;
SELECT * FROM pushkit_writers;
SELECT type, name, tbl_name, CASE type WHEN 'table' THEN
    sql LIKE '%AUTOINCREMENT%' || sql LIKE '%CHECK%' || sql LIKE '%COLLATE%'
    || sql LIKE '%STRICT%' || sql LIKE '%WITHOUT%' ELSE sql END
    FROM sqlite_master;
SELECT m.name, x.* FROM sqlite_master m, pragma_table_xinfo(m.name) x;
SELECT m.name, f.* FROM sqlite_master m, pragma_foreign_key_list(m.name) f;
SELECT m.name, i.name, i."unique", i.origin, i.partial, x.*
    FROM sqlite_master m, pragma_index_list(m.name) i, pragma_index_xinfo(i.name) x
    WHERE m.type = 'table';
""")
# Column numbers count dropped columns too, so columns are ranked.
IN_POSTGRESQL = statements("""
SELECT * FROM pushkit_schema;
SELECT * FROM pushkit_writers;
SELECT relname, relkind, relpersistence, reloptions FROM pg_class
    WHERE relnamespace = current_schema()::regnamespace;
SELECT relname, attname, rank() OVER (PARTITION BY relname ORDER BY attnum),
    format_type(atttypid, atttypmod), attnotnull, attidentity, attgenerated, attcollation,
    pg_get_expr(adbin, adrelid) FROM pg_class c JOIN pg_attribute a ON a.attrelid = c.oid
    LEFT JOIN pg_attrdef d ON (d.adrelid, d.adnum) = (a.attrelid, a.attnum)
    WHERE relnamespace = current_schema()::regnamespace AND attnum > 0 AND NOT attisdropped;
SELECT conname, contype, conrelid::regclass, pg_get_constraintdef(oid) FROM pg_constraint
    WHERE connamespace = current_schema()::regnamespace;
SELECT indexname, indexdef FROM pg_indexes WHERE schemaname = current_schema();
SELECT pg_get_triggerdef(t.oid) FROM pg_trigger t JOIN pg_class c ON t.tgrelid = c.oid
    WHERE relnamespace = current_schema()::regnamespace;
SELECT proname, pg_get_functiondef(oid) FROM pg_proc
    WHERE pronamespace = current_schema()::regnamespace;
SELECT sequencename, data_type, start_value, increment_by, max_value FROM pg_sequences
    WHERE schemaname = current_schema();
""")


def test_versions_are_numbered_without_a_gap() -> None:
    for known in HISTORIES.values():
        assert [each.version for each in known] == list(range(1, len(known) + 1))


def test_only_the_newest_version_can_create_a_new_database() -> None:
    for known in HISTORIES.values():
        assert [each.version for each in known if each.anew] == [known[-1].version]


@pytest.mark.parametrize(("component", "count"), EARLIER)
@pytest.mark.slow
def test_an_upgraded_schema_equals_a_new_one(
    request: pytest.FixtureRequest, tmp_path: Path, *, component: str, count: int
) -> None:
    known = HISTORIES[component]
    for kind in ("sqlite", "postgresql"):
        upgraded, new = locations(request, tmp_path, kind)
        open_with(upgraded, component, known[:count])
        open_with(upgraded, component, known)
        open_with(new, component, known)
        assert shape(upgraded) == shape(new)


def locations(request: pytest.FixtureRequest, folder: Path, kind: str) -> tuple[str, str]:
    if kind == "sqlite":
        return str(folder / "upgraded.db"), str(folder / "new.db")
    server: str = request.getfixturevalue("postgres_server")
    return fresh(server), fresh(server)


# --- stored data --------------------------------------------------------------------------------


@pytest.fixture(params=DUMPS, ids=lambda version: f"schema {version}")
def outbox(request: pytest.FixtureRequest, location: str) -> str:
    """Return the location of a database that was written by that version."""
    load(location, (VECTORS / f"outbox_schema_{request.param}.sql").read_text("utf-8"))
    return location


@pytest.fixture
def clock() -> Clock:
    clock = Clock()
    clock.now = THEN + timedelta(hours=1)
    return clock


def load(location: str, dump: str) -> None:
    """Load a dump of a SQLite file into SQLite, or row by row into PostgreSQL."""
    path = location if "://" not in location else ":memory:"
    with contextlib.closing(sqlite3.connect(path)) as connection:
        connection.executescript(dump)
        if path == location:
            return
        [(version,)] = connection.execute("SELECT version FROM pushkit_schema")
        rows = list(rows_of(connection))
    known = tuple(each for each in SENDER_MIGRATIONS if each.version <= version)
    open_with(location, "sender", known)
    asyncio.run(insert(location, rows))


def rows_of(connection: sqlite3.Connection) -> Iterator[tuple[str, dict[str, Any]]]:
    """Yield every row with the name of its table."""
    connection.row_factory = sqlite3.Row
    found = connection.execute("SELECT name FROM sqlite_master WHERE type = 'table'").fetchall()
    ours = {"pushkit_schema", "pushkit_writers"}  # written by the migrations
    for table in (row["name"] for row in found if row["name"] not in ours):
        for row in connection.execute(f"SELECT * FROM {table}"):  # noqa: S608  # our own tables
            yield table, dict(row)


async def insert(dsn: str, rows: list[tuple[str, dict[str, Any]]]) -> None:
    """Insert rows with times of an hour ago, as PostgreSQL uses the clock of its server."""
    later = (utc_now() - timedelta(hours=1) - THEN) // timedelta(microseconds=1)
    connection = await asyncpg.connect(dsn)
    for table, row in rows:
        places = ", ".join(f"${n}" for n in range(1, len(row) + 1))
        values = [
            value + later if isinstance(value, int) and value > MICROSECONDS_SINCE_2023 else value
            for value in row.values()
        ]
        await connection.execute(
            f"INSERT INTO {table} ({', '.join(row)}) VALUES ({places})",  # noqa: S608
            *values,
        )
    await connection.close()


async def move_to(webhook: Webhook, sender: PushSender) -> None:
    """Register every webhook again, with the URL of the test's own."""
    for task in ("task-good", "task-dead", "task-failing", "task-held"):
        config = {"url": webhook.url(f"/{task}"), "id": "config-1"}
        await sender.subscribe(task, config, version="1.0", owner="alice")


def contexts(webhook: Webhook, task: str) -> list[str]:
    """Return which updates of a task arrived, in order."""
    return [
        number
        for request in webhook.at(f"/{task}")
        for number in "12"
        if f'"contextId":"{number}"'.encode() in request.body
    ]


async def test_unfinished_deliveries_keep_order_and_ids(
    sender: PushSender, webhook: Webhook
) -> None:
    stored = {task: await sender.deliveries(task) for task in ("task-failing", "task-held")}
    await move_to(webhook, sender)
    await deliver_due(sender)
    for task, deliveries in stored.items():
        assert [each.seq for each in deliveries] == [1, 2]
        assert contexts(webhook, task) == ["1", "2"]
        assert [request.id for request in webhook.at(f"/{task}")] == [d.id for d in deliveries]
    assert webhook.at("/task-good") == webhook.at("/task-dead") == []


async def test_dead_letters_are_kept_with_their_attempts_and_can_be_redriven(
    sender: PushSender, webhook: Webhook
) -> None:
    [dead] = await sender.deliveries("task-dead")
    assert (dead.state, dead.last_status) == (DeliveryState.DEAD, 400)
    report = await sender.outbox.show(dead.id)
    assert report is not None
    assert [(each.outcome, each.status) for each in report.attempts] == [("dead", 400)]
    await move_to(webhook, sender)
    assert (await sender.outbox.redrive([dead.id])).ids == (dead.id,)
    await deliver_due(sender)
    assert [request.id for request in webhook.at("/task-dead")] == [dead.id]


async def test_a_stored_idempotency_key_is_still_recognised(
    sender: PushSender,
) -> None:
    [delivered] = await sender.deliveries("task-good")
    again = StatusUpdate(
        task_id="task-good", context_id="1", status=TaskStatus(state=TaskState.WORKING)
    )
    await sender.notify(again, idempotency_key="key-1")
    assert [each.id for each in await sender.deliveries("task-good")] == [delivered.id]


async def test_a_task_continues_with_its_next_seq(senders: Senders, webhook: Webhook) -> None:
    sender = await senders.open()
    await move_to(webhook, sender)
    await sender.notify(status(task_id="task-good"))
    await deliver_due(sender)
    assert [each.seq for each in await sender.deliveries("task-good")] == [1, 2]
    [request] = webhook.at("/task-good")
    assert request.claims(senders.public_keys()).seq == 2
