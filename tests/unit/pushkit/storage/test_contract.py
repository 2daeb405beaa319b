"""The contract of both databases."""

from __future__ import annotations

import asyncio
import contextlib
import errno
import gc
import logging
import traceback
import weakref
from collections import Counter
from collections.abc import AsyncIterator, Awaitable, Callable, Coroutine, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field, replace
from datetime import UTC, datetime, timedelta
from typing import Any, TypeAlias

import asyncpg
import pytest

from pushkit.errors import CommitUncertainError, SchemaError, StorageError
from pushkit.storage.database import Database, opened
from pushkit.storage.migrations import Access, Migration
from pushkit.storage.opening import open_location
from pushkit.storage.postgres import PostgresDatabase
from pushkit.storage.script import Script, Statement, from_micros
from tests.databases import PostgresServer, execute, fresh
from tests.eventually import DEADLINE, eventually
from tests.unit.pushkit.storage.things import (
    COLOURS,
    THINGS,
    Opens,
    RefusedError,
    Write,
    insert,
    insert_then_fail,
    names,
)

COUNTER = Migration(
    1,
    (
        "CREATE TABLE counters (name TEXT PRIMARY KEY, value BIGINT NOT NULL)",
        "INSERT INTO counters (name, value) VALUES ('one', 0)",
    ),
)


def now() -> datetime:
    return datetime.now(UTC)


OpensThings: TypeAlias = Callable[..., Awaitable[Database]]


def things(
    location: str, *migrations: Migration, component: str = "things", **options: Any
) -> Database:
    """Return a database; with options, one on PostgreSQL."""
    migrations = migrations or (THINGS,)
    if options:
        return PostgresDatabase(location, component=component, migrations=migrations, **options)
    return open_location(location, component=component, migrations=migrations, clock=now)


@pytest.fixture
def opens(opens: Opens) -> OpensThings:
    """Open what `things` returns, and close it after the test."""
    return lambda *where, **options: opens(things(*where, **options))


@pytest.fixture
async def database(location: str, opens: OpensThings) -> Database:
    return await opens(location)


@pytest.fixture
async def postgres(postgres_dsn: str, opens: OpensThings) -> Database:
    return await opens(postgres_dsn)


def insert_twice(name: str) -> Script[None]:
    yield from insert(name)
    yield from insert(name)


def insert_at_once(*names: str) -> Script[None]:
    yield Statement("INSERT INTO things (name) VALUES ($1), ($2), ($3)", names)


def statements(*sql: str) -> Script[None]:
    for each in sql:
        yield Statement(each)


def size_of(name: str) -> Script[int]:
    rows = yield Statement("SELECT size FROM things WHERE name = $1", (name,))
    size: int = rows[0]["size"]
    return size


def waits_for_a_table() -> Script[bool]:
    rows = yield Statement(
        "SELECT 1 FROM pg_locks WHERE NOT granted AND mode = 'AccessExclusiveLock'"
        " AND relation = 'pushkit_writers'::regclass"
    )
    return bool(rows)


def versions() -> Script[dict[str, int]]:
    rows = yield Statement("SELECT component, version FROM pushkit_schema")
    return {row["component"]: row["version"] for row in rows}


# --- one script --------------------------------------------------------------------------------


@pytest.mark.parametrize(
    "value", ["canary\ud800", 2**63, 2**80], ids=["surrogate", "64 bits", "large"]
)
async def test_no_error_quotes_a_value_that_cannot_be_stored(
    database: Database, value: Any, write: Write
) -> None:
    def script() -> Script[str]:
        return insert(value) if isinstance(value, str) else insert("a", value)

    for run in (write(database, script()), database.read(script())):
        with pytest.raises(StorageError, match="a value cannot be stored") as caught:
            await run
        told = "".join(traceback.format_exception(caught.value))
        assert "canary" not in told
        assert str(2**80) not in told
    assert await write(database, insert("b")) == "b"
    assert await database.read(names()) == ["b"]


async def test_every_type_of_value_is_read_as_it_was_written(database: Database) -> None:
    name = "\U0001f680 'quoted' $1 % \\ é"

    def insert_and_select() -> Script[tuple[str, int]]:
        yield from insert(name, 2**63 - 1)
        rows = yield Statement("SELECT * FROM things WHERE name = $1", (name,))
        return rows[0]["name"], rows[0]["size"]

    assert await database.write(insert_and_select()) == (name, 2**63 - 1)


@pytest.mark.parametrize(
    "error", [RefusedError("no"), ZeroDivisionError("a bug")], ids=["on purpose", "a bug"]
)
async def test_an_error_of_a_script_reaches_its_caller_and_nothing_is_stored(
    database: Database, error: Exception, write: Write
) -> None:
    with pytest.raises(type(error)) as caught:
        await write(database, insert_then_fail("a", error))
    assert caught.value is error
    assert await database.read(names()) == []


async def test_a_refused_statement_is_a_storage_error_and_nothing_is_stored(
    database: Database, write: Write
) -> None:
    with pytest.raises(StorageError):
        await write(database, insert_twice("a"))
    assert await database.read(names()) == []


async def test_an_insert_that_is_refused_stores_none_of_its_rows(database: Database) -> None:
    inserter = Inserter()
    refused, stored = await asyncio.gather(
        database.write(insert_at_once("b", "c", "c")),
        database.write_together(inserter.insert, "a"),
        return_exceptions=True,
    )
    assert [type(refused), stored] == [StorageError, "a is in"]
    assert await database.read(names()) == ["a"]


@dataclass
class Inserter:
    """A group that records the items of each of its scripts."""

    made: list[list[str]] = field(default_factory=list)

    def insert(self, names: Sequence[str], /, *, wait: bool) -> Script[list[str]]:  # noqa: ARG002
        self.made.append(list(names))
        for name in names:
            if name == "refused":
                raise RefusedError(name)
            yield from insert(name)
        return [f"{name} is in" for name in names]


async def test_items_of_a_group_each_get_their_own_result(database: Database) -> None:
    inserter = Inserter()
    wanted = [f"{n:03}" for n in range(100)]
    found = await asyncio.gather(*(database.write_together(inserter.insert, n) for n in wanted))
    assert found == [f"{name} is in" for name in wanted]
    assert await database.read(names()) == wanted
    assert sum(map(len, inserter.made)) == 100
    assert len(inserter.made) < 100  # some shared a script


class Name(str):
    """A name that a weak reference can refer to."""

    __slots__ = ("__weakref__",)


def insert_each(names: Sequence[str], /, *, wait: bool) -> Script[list[str]]:  # noqa: ARG001
    for name in names:
        yield from insert(str(name))
    return ["is in"] * len(names)


async def test_an_item_is_not_kept_after_it_was_stored(database: Database) -> None:
    name = Name("a")
    kept = weakref.ref(name)
    assert await database.write_together(insert_each, name) == "is in"
    del name
    assert await eventually(lambda: kept() is None)


async def test_an_error_of_one_group_does_not_reach_another(
    database: Database,
) -> None:
    first, good, bad = Inserter(), Inserter(), Inserter()
    asked = [(first, "first"), (good, "a"), (bad, "refused"), (good, "b"), (bad, "c")]
    found = await asyncio.gather(
        *(database.write_together(group.insert, name) for group, name in asked),
        return_exceptions=True,
    )
    assert [str(each) for each in found] == [
        *("first is in", "a is in", "refused", "b is in", "c is in")
    ]
    assert await database.read(names()) == ["a", "b", "c", "first"]


def test_a_database_may_be_opened_again_in_another_event_loop(location: str) -> None:
    database = things(location)
    inserter = Inserter()

    async def use(name: str) -> None:
        await database.open()
        assert await database.write_together(inserter.insert, name) == f"{name} is in"
        assert await database.write(insert(name * 2)) == name * 2
        await database.close()

    asyncio.run(use("a"))
    asyncio.run(use("b"))


async def test_a_database_serves_the_event_loop_in_which_it_was_opened(database: Database) -> None:
    calls: list[Coroutine[Any, Any, object]] = [
        database.write(insert("a")),
        database.write_patiently(lambda: insert("a")),
    ]
    if isinstance(database, PostgresDatabase):
        calls.append(database.read(names()))
    for call in calls:
        with pytest.raises(StorageError, match="another event loop"):
            await asyncio.to_thread(asyncio.run, call)
    assert await database.write(insert("b")) == "b"
    assert await database.read(names()) == ["b"]


@pytest.mark.filterwarnings("ignore:unclosed:ResourceWarning")  # left to the garbage collector
def test_a_database_whose_event_loop_ended_is_closed_and_opened_in_another(location: str) -> None:
    database = things(location)

    async def use(name: str) -> None:
        await database.open()
        assert await database.write(insert(name)) == name

    async def use_again() -> None:
        await database.close()
        await use("b")
        assert await database.read(names()) == ["a", "b"]
        await database.close()

    asyncio.run(use("a"))
    asyncio.run(use_again())
    gc.collect()


# Python says of each coroutine what it did when it was destroyed.
@pytest.mark.filterwarnings("ignore::pytest.PytestUnraisableExceptionWarning", "ignore:unclosed")
@pytest.mark.filterwarnings("ignore:coroutine:RuntimeWarning")
def test_a_close_does_not_wait_for_a_transaction_of_a_closed_event_loop(
    location: str, caplog: pytest.LogCaptureFixture
) -> None:
    database = things(location)

    async def open_and_write(name: str) -> None:
        await database.open()
        await database.write(insert(name))

    async def close_open_and_close() -> None:
        await database.close()
        await open_and_write("c")
        await database.close()

    first = asyncio.new_event_loop()
    first.run_until_complete(open_and_write("a"))
    writing = first.create_task(database.write(insert("b")))
    first.run_until_complete(asyncio.sleep(0))
    first.close()
    asyncio.run(close_open_and_close())
    assert not caplog.messages, "its connections were closed by force"
    del writing
    gc.collect()


async def test_items_of_cancelled_callers_are_stored(database: Database) -> None:
    inserter = Inserter()
    submitted: list[asyncio.Future[str]] = []

    async def ask(name: str) -> str:
        submitted.append(database.write_together(inserter.insert, name))
        return await asyncio.shield(submitted[-1])

    callers = [asyncio.create_task(ask(name)) for name in "abc"]
    await asyncio.sleep(0)
    for caller in callers:
        caller.cancel()
    await asyncio.wait(callers)
    assert all(caller.cancelled() for caller in callers)
    assert await asyncio.gather(*submitted) == ["a is in", "b is in", "c is in"]
    assert await database.read(names()) == ["a", "b", "c"]


async def test_only_the_items_of_a_group_fail_that_fail_alone(database: Database) -> None:
    inserter = Inserter()
    wanted = ["a", "refused", "b", "a", "c"]
    found = await asyncio.gather(
        *(database.write_together(inserter.insert, name) for name in wanted),
        return_exceptions=True,
    )
    # Either of two equal names may come first.
    kinds = Counter(type(each) for each in found)
    assert kinds == {RefusedError: 1, StorageError: 1, str: 3}
    assert isinstance(found[1], RefusedError)
    assert await database.read(names()) == ["a", "b", "c"]


async def test_invalid_sql_is_a_storage_error(database: Database) -> None:
    for run in (database.write, database.read):
        with pytest.raises(StorageError):
            await run(statements("SELECT nonsense"))
    assert await database.read(names()) == []


async def test_a_reader_cannot_write(database: Database) -> None:
    with pytest.raises(StorageError):
        await database.read(insert("a"))
    assert await database.read(names()) == []


@pytest.mark.usefixtures("database")
async def test_a_database_opened_to_be_read_cannot_be_written(location: str) -> None:
    async with opened(things(location), Access.READ) as reader:
        with pytest.raises(StorageError):
            await reader.write(insert("a"))
        assert await reader.read(names()) == []


@pytest.mark.parametrize(
    "sessions", [pytest.param("1" * 10, id="idle"), pytest.param("1212121232", id="busy")]
)
async def test_a_pooler_that_shares_sessions_is_found_out_once(
    postgres_server: str,
    monkeypatch: pytest.MonkeyPatch,
    caplog: pytest.LogCaptureFixture,
    sessions: str,
) -> None:
    caplog.set_level(logging.INFO, "pushkit.storage")
    answers = iter(sessions)

    async def shared(*_: object, output: Callable[[bytes], Awaitable[None]], **__: object) -> None:
        """Answer as PgBouncer does in transaction mode."""
        await output(next(answers).encode())

    monkeypatch.setattr(asyncpg.Connection, "copy_from_query", shared)
    database = things(postgres_server)
    await database.schema()
    await database.schema()
    [line] = caplog.messages
    assert "pooler=transaction" in line


async def test_a_pooler_that_was_not_found_out_is_named_in_the_error(postgres_dsn: str) -> None:
    in_another_session = statements("SELECT 1", "DEALLOCATE ALL", "SELECT 1")
    async with opened(things(postgres_dsn), Access.UPGRADE) as database:
        with pytest.raises(StorageError, match="add pooler=transaction to the DSN"):
            await database.write(in_another_session)


async def test_a_reader_sees_a_consistent_snapshot(database: Database) -> None:
    begun, written = asyncio.Event(), asyncio.Event()
    loop = asyncio.get_running_loop()

    async def write_once_it_has_begun() -> None:
        await begun.wait()
        await database.write(insert("a"))
        written.set()

    def look_twice() -> Script[list[int]]:
        counts = []
        for _ in range(2):
            rows = yield Statement("SELECT COUNT(*) AS found FROM things")
            counts.append(rows[0]["found"])
            loop.call_soon_threadsafe(begun.set)
            if len(counts) == 1:
                yield from _pause_until(written)
        return counts

    _, counts = await asyncio.gather(write_once_it_has_begun(), database.read(look_twice()))
    assert counts == [0, 0]
    assert await database.read(names()) == ["a"]


def _pause_until(event: asyncio.Event) -> Script[None]:
    # A script cannot wait: it runs queries until the other one is done.
    for _ in range(1_000_000):
        if event.is_set():
            return
        yield Statement("SELECT 1")
    raise TimeoutError


# --- many at once ------------------------------------------------------------------------------


async def test_a_script_that_fails_does_not_affect_others(database: Database) -> None:
    def script(n: int) -> Script[str | None]:
        if n % 3 == 0:
            return (yield from insert(f"{n:03}"))
        if n % 3 == 1:
            yield from insert_then_fail(f"{n:03}", RefusedError("no"))
        yield from insert_twice(f"{n:03}")
        return None

    results = await asyncio.gather(
        *(database.write(script(n)) for n in range(60)), return_exceptions=True
    )
    expected = [(str, RefusedError, StorageError)[n % 3] for n in range(60)]
    assert [type(result) for result in results] == expected
    assert await database.read(names()) == [f"{n:03}" for n in range(0, 60, 3)]


async def test_writers_at_once_increment_a_locked_row_without_a_loss(
    location: str, opens: OpensThings
) -> None:
    database = await opens(location, COUNTER)

    def count_up() -> Script[int]:
        rows = yield Statement("SELECT value FROM counters WHERE name = $1 FOR UPDATE", ("one",))
        value = int(rows[0]["value"]) + 1
        yield Statement("UPDATE counters SET value = $1 WHERE name = $2", (value, "one"))
        return value

    found = await asyncio.gather(*(database.write(count_up()) for _ in range(60)))
    assert sorted(found) == list(range(1, 61))


# --- life --------------------------------------------------------------------------------------


async def test_nothing_works_before_it_is_open_or_after_it_is_closed(location: str) -> None:
    database = things(location)
    for _ in range(2):
        with pytest.raises(StorageError, match="not open"):
            await database.write(insert("a"))
        with pytest.raises(StorageError, match="not open"):
            await database.read(names())
        await database.open()
        await database.close()


async def test_open_and_close_may_be_called_twice(database: Database) -> None:
    await database.open()
    await database.write(insert("a"))
    for _ in range(2):
        await database.close()


async def test_close_finishes_what_was_submitted(database: Database, write: Write) -> None:
    waiting = [asyncio.ensure_future(write(database, insert(f"{n:03}"))) for n in range(300)]
    await asyncio.sleep(0)
    await database.close()
    assert len(await asyncio.gather(*waiting)) == 300
    await database.open()
    assert len(await database.read(names())) == 300


# --- migrations --------------------------------------------------------------------------------


async def test_an_older_schema_is_brought_up_to_date(location: str) -> None:
    for migrations in ((THINGS,), (THINGS, COLOURS), (THINGS, COLOURS)):
        async with opened(things(location, *migrations), Access.UPGRADE) as database:
            assert await database.read(versions()) == {"things": len(migrations)}


async def test_starters_at_the_same_time_apply_each_migration_once(
    location: str, opens: OpensThings
) -> None:
    starters = await asyncio.gather(*(opens(location, THINGS, COLOURS) for _ in range(4)))
    assert await starters[0].read(versions()) == {"things": 2}


async def test_a_newer_schema_is_refused_and_left_alone(location: str, opens: OpensThings) -> None:
    newer = await opens(location, THINGS, COLOURS)
    with pytest.raises(StorageError, match="schema version 2, this code knows up to 1"):
        await things(location, THINGS).open()
    assert await newer.read(versions()) == {"things": 2}


async def test_a_process_that_is_too_old_after_an_upgrade_is_refused(
    location: str, opens: OpensThings
) -> None:
    inserter, older = Inserter(), await opens(location, THINGS)
    await older.write(insert("a"))
    newer = await opens(location, THINGS, COLOURS)
    for write in (
        lambda: older.write(insert("b")),
        lambda: older.write_patiently(lambda: insert("b")),
        lambda: older.write_together(inserter.insert, "b"),
    ):
        with pytest.raises(SchemaError, match="takes code of schema version 2, this code knows"):
            await write()
    assert await older.read(names()) == ["a"]
    assert await newer.write(insert("c")) == "c"


async def test_all_waiting_items_are_refused_after_an_upgrade(
    location: str, opens: OpensThings
) -> None:
    inserter, older = Inserter(), await opens(location, THINGS)
    await opens(location, THINGS, COLOURS)
    found = await asyncio.gather(
        *(older.write_together(inserter.insert, name) for name in "abc"), return_exceptions=True
    )
    assert {type(each) for each in found} == {SchemaError}
    assert inserter.made == []


async def test_a_process_may_still_write_after_a_step_that_may_roll(
    location: str, opens: OpensThings
) -> None:
    rolling = replace(COLOURS, may_roll=True)
    older, newer = await opens(location, THINGS), await opens(location, THINGS, rolling)
    assert await older.write(insert("a")) == "a"
    assert await newer.write(insert("b")) == "b"


async def test_an_upgrade_of_other_tables_refuses_nobody(location: str, opens: OpensThings) -> None:
    others = Migration(1, ("CREATE TABLE others (id TEXT)",))
    more = Migration(2, ("CREATE TABLE more (id TEXT)",))
    database = await opens(location)
    for migrations in ((others,), (others, more)):
        await opens(location, *migrations, component="others")
    assert await database.write(insert("a")) == "a"


async def test_an_upgrade_waits_for_transactions_that_write_already(
    postgres_dsn: str, opens: OpensThings
) -> None:
    older = await opens(postgres_dsn, THINGS)
    own = await asyncpg.connect(postgres_dsn)
    transaction = own.transaction()
    await transaction.start()
    await older.write_on(own, insert("a"))
    upgrading = asyncio.ensure_future(opens(postgres_dsn, THINGS, COLOURS))

    async def it_waits() -> bool:
        return await older.read(waits_for_a_table())

    await eventually(it_waits)
    assert not upgrading.done()
    await transaction.commit()
    newer = await upgrading
    assert await newer.read(names()) == ["a"]
    async with own.transaction():
        with pytest.raises(SchemaError, match="upgraded while this process ran"):
            await older.write_on(own, insert("b"))
    assert await newer.read(names()) == ["a"]
    await own.close()


async def test_a_migration_that_fails_leaves_the_schema_as_it_was(
    location: str, opens: OpensThings
) -> None:
    broken = Migration(2, ("CREATE TABLE more (id TEXT)", "CREATE TABLE things (id TEXT)"))
    with pytest.raises(StorageError):
        await things(location, THINGS, broken).open()
    fixed = await opens(location, THINGS, COLOURS)
    assert await fixed.read(names()) == []


async def test_two_components_share_a_database(location: str, opens: OpensThings) -> None:
    others = Migration(7, ("CREATE TABLE others (id TEXT)",))
    one, _ = await asyncio.gather(opens(location), opens(location, others, component="others"))
    assert await one.read(versions()) == {"things": 1, "others": 7}


# --- clock and wake-up -------------------------------------------------------------------------


async def test_now_is_the_current_time_and_advances_in_a_transaction(database: Database) -> None:
    def twice() -> Script[tuple[datetime, datetime]]:
        first = yield from database.now()
        yield from insert("a")
        return first, (yield from database.now())

    before = now()
    first, second = await database.write(twice())
    assert before - timedelta(seconds=1) <= first <= second <= now() + timedelta(seconds=1)
    assert first.tzinfo is UTC


async def test_a_script_that_wakes_runs_like_any_other(database: Database) -> None:
    def insert_and_wake() -> Script[None]:
        yield from insert("a")
        yield from database.wake()
        yield from database.announce()

    await database.write(insert_and_wake())
    assert await database.read(names()) == ["a"]


@contextlib.asynccontextmanager
async def listening(database: Database, *hear: Callable[[], None]) -> AsyncIterator[None]:
    """Listen meanwhile, until it is cancelled."""
    task = asyncio.create_task(database.listen(*hear))
    await asyncio.sleep(0)
    yield
    task.cancel()
    with pytest.raises(asyncio.CancelledError):
        await asyncio.wait_for(task, DEADLINE)


async def test_listening_ends_when_it_is_cancelled(database: Database) -> None:
    async with listening(database, lambda: None):
        pass


async def test_another_process_is_woken_after_the_commit(
    postgres_dsn: str, opens: OpensThings
) -> None:
    one, other = await opens(postgres_dsn), await opens(postgres_dsn)
    heard = asyncio.Event()

    def wake_and_fail() -> Script[None]:
        yield from one.wake()
        raise RefusedError

    async with listening(other, heard.set):
        await asyncio.wait_for(heard.wait(), DEADLINE)  # once at the start, for what was missed
        heard.clear()
        with pytest.raises(RefusedError):
            await one.write(wake_and_fail())
        assert not heard.is_set()
        await one.write(one.wake())
        await asyncio.wait_for(heard.wait(), DEADLINE)


async def test_another_process_gets_news_apart_from_work(
    postgres_dsn: str, opens: OpensThings
) -> None:
    one, other = await opens(postgres_dsn), await opens(postgres_dsn)
    heard: asyncio.Queue[str] = asyncio.Queue()

    def hears(what: str) -> Callable[[], None]:
        return lambda: heard.put_nowait(what)

    async with listening(other, hears("work"), hears("news")):
        assert await asyncio.wait_for(heard.get(), DEADLINE) == "work"  # once at the start
        await one.write(one.announce())
        await one.write(one.wake())
        found = [await asyncio.wait_for(heard.get(), DEADLINE) for _ in range(2)]
    assert found == ["news", "work"]


async def test_a_process_is_not_woken_by_itself(postgres_dsn: str, opens: OpensThings) -> None:
    one, other = await opens(postgres_dsn), await opens(postgres_dsn)
    heard: asyncio.Queue[None] = asyncio.Queue()
    async with listening(one, lambda: heard.put_nowait(None)):
        await asyncio.wait_for(heard.get(), DEADLINE)  # once at the start, for what was missed
        await one.write(one.wake())
        await other.write(other.wake())
        await asyncio.wait_for(heard.get(), DEADLINE)  # in the order of commits
        assert heard.empty()


def test_names_are_held_in_one_statement_and_items_that_lack_one_are_left_out() -> None:
    script = things("postgresql://127.0.0.1/none").hold(["ca", "b", "", "bd"], list, wait=False)
    assert next(script).parameters == ("a", "b", "c", "d")  # sorted, as in every transaction
    with pytest.raises(StopIteration) as ended:
        script.send([{"name": name, "now": now} for now, name in enumerate("abc")])
    held, now = ended.value.value
    assert held == ["ca", "b", ""]
    assert now == from_micros(2)  # of the last row, however long it took


# --- rows that somebody holds -------------------------------------------------------------------


async def test_a_patient_script_runs_like_any_other(database: Database) -> None:
    assert await database.write_patiently(lambda: insert("a")) == "a"
    with pytest.raises(RefusedError):
        await database.write_patiently(lambda: insert_then_fail("b", RefusedError()))
    assert await database.read(names()) == ["a"]


@pytest.fixture
async def held(postgres_dsn: str) -> AsyncIterator[asyncio.Event]:
    """Hold the row `a` in another transaction until the event is set."""
    database = things(postgres_dsn)
    await database.open()
    await database.write(insert("a", 0))
    holding, let_go = asyncio.Event(), asyncio.Event()

    async def hold() -> None:
        connection = await asyncpg.connect(postgres_dsn)
        async with connection.transaction():
            await connection.execute("SELECT 1 FROM things WHERE name = 'a' FOR UPDATE")
            holding.set()
            await let_go.wait()
        await connection.close()

    holder = asyncio.create_task(hold())
    await asyncio.wait_for(holding.wait(), DEADLINE)
    yield let_go
    let_go.set()
    await holder
    await database.close()


class Growing:
    """Makes scripts that add to the row `a`, and counts the scripts."""

    def __init__(self) -> None:
        self.made = 0

    def __call__(self) -> Script[None]:
        self.made += 1
        yield Statement("UPDATE things SET size = size + 1 WHERE name = 'a'")


async def test_a_script_that_waits_for_a_row_leaves_connections_to_others_and_runs_once(
    postgres_dsn: str, held: asyncio.Event, opens: OpensThings
) -> None:
    database = await opens(postgres_dsn, connections=2)
    make = [Growing() for _ in range(10)]
    growing = [asyncio.create_task(database.write_patiently(each)) for each in make]

    await eventually(lambda: all(each.made > 1 for each in make))
    assert await database.write(insert("b")) == "b"
    assert await database.read(names()) == ["a", "b"]
    assert not any(each.done() for each in growing)

    held.set()
    await asyncio.wait_for(asyncio.gather(*growing), DEADLINE)
    assert await database.read(size_of("a")) == len(make)


async def test_reads_leave_connections_to_writers(postgres_dsn: str, opens: OpensThings) -> None:
    database = await opens(postgres_dsn)
    holder = await asyncpg.connect(postgres_dsn)
    await holder.execute("SELECT pg_advisory_lock(7)")

    slow = "SELECT pg_advisory_xact_lock_shared(7)"
    reads = [asyncio.create_task(database.read(statements(slow))) for _ in range(20)]

    async def some_began() -> bool:
        query = "SELECT count(*) FROM pg_locks WHERE locktype = 'advisory' AND NOT granted"
        return bool(await holder.fetchval(query))

    await eventually(some_began)
    async with asyncio.timeout(DEADLINE):
        assert await database.write(insert("b")) == "b"
    assert not any(each.done() for each in reads)

    await holder.close()
    await asyncio.wait_for(asyncio.gather(*reads), DEADLINE)


async def test_a_script_that_a_migration_interrupts_is_run_again(
    postgres_dsn: str, opens: OpensThings
) -> None:
    database = await opens(postgres_dsn, connections=1)

    def everything() -> Script[int]:
        rows = yield Statement("SELECT * FROM things")
        return len(rows)

    await database.write_patiently(everything)
    await asyncio.to_thread(execute, postgres_dsn, COLOURS.statements[0])
    assert await database.write_patiently(everything) == 0


@pytest.mark.parametrize(
    ("code", "says"),
    [("53100", "a fault"), ("25006", "a fault"), ("42501", "a fault"), ("22012", None)],
    ids=["a full disk", "a standby", "a role that may not write", "another error"],
)
async def test_a_fault_that_keeps_the_server_from_writing_is_remembered(
    postgres: Database, code: str, says: str | None
) -> None:
    assert postgres.write_fault.reason() is None
    with pytest.raises(StorageError):
        await postgres.write(
            statements(f"DO $$ BEGIN RAISE '{says}' USING ERRCODE = '{code}'; END $$")
        )
    assert postgres.write_fault.reason() == says


@pytest.mark.usefixtures("held")
async def test_a_script_that_waits_too_long_for_a_row_fails(
    postgres_dsn: str, opens: OpensThings
) -> None:
    database = await opens(postgres_dsn, command_timeout=timedelta(milliseconds=200))
    with pytest.raises(StorageError, match="another transaction holds what this needs"):
        await database.write_patiently(Growing())


async def test_an_idle_transaction_does_not_hold_a_row_for_long(
    postgres_dsn: str, opens: OpensThings
) -> None:
    ours = await opens(postgres_dsn, idle_timeout=timedelta(milliseconds=100))
    other = await opens(postgres_dsn)
    await other.write(insert("a", 0))
    frozen = ours.write(_grown_but_frozen(postgres_dsn))
    with pytest.raises(StorageError):
        await frozen
    await other.write(Growing()())
    assert await other.read(size_of("a")) == 1
    await ours.write(Growing()())
    assert await other.read(size_of("a")) == 2


def _grown_but_frozen(dsn: str) -> Script[None]:
    """Change the row `a`, and block the event loop until another connection has it."""
    yield from Growing()()
    take = "BEGIN; SELECT 1 FROM things WHERE name = 'a' FOR UPDATE; ROLLBACK"
    with ThreadPoolExecutor(1) as another:
        another.submit(execute, dsn, take).result(DEADLINE)
    yield Statement("UPDATE things SET size = 100 WHERE name = 'a'")


async def test_a_close_ends_scripts_that_wait_for_a_row(
    postgres: Database, held: asyncio.Event
) -> None:
    growing = asyncio.create_task(postgres.write_patiently(make := Growing()))

    await eventually(lambda: make.made > 1)
    await asyncio.wait_for(postgres.close(), DEADLINE)
    with pytest.raises(StorageError):
        await asyncio.wait_for(growing, DEADLINE)
    assert not held.is_set()


# --- the server goes and comes -----------------------------------------------------------------


@pytest.fixture
def own_server() -> Iterator[PostgresServer]:
    server = PostgresServer()
    yield server
    server.remove()


@pytest.mark.slow
async def test_a_server_that_is_gone_is_a_storage_error_until_it_is_back(
    own_server: PostgresServer, opens: OpensThings
) -> None:
    database = await opens(await asyncio.to_thread(fresh, own_server.dsn))
    await database.write(insert("a"))
    heard: list[None] = []

    async with listening(database, lambda: heard.append(None)):
        await eventually(lambda: heard)
        await asyncio.to_thread(own_server.stop)
        for _ in range(3):
            with pytest.raises(StorageError):
                await database.write(insert("b"))
            with pytest.raises(StorageError):
                await database.read(names())
        with pytest.raises(StorageError, match="cannot connect"):
            await things(own_server.dsn).open()

        heard_before = len(heard)
        await asyncio.to_thread(own_server.start)
        assert await database.write(insert("c")) == "c"
        assert await database.read(names()) == ["a", "c"]
        # It listens again, and is woken for what it missed.
        await eventually(lambda: len(heard) > heard_before)


async def test_a_connection_that_breaks_within_a_script_stores_nothing(postgres: Database) -> None:
    insert_and_break = (
        "INSERT INTO things (name) VALUES ('a')",
        "SELECT pg_terminate_backend(pg_backend_pid())",
    )
    with pytest.raises(StorageError, match="nothing was stored"):
        await postgres.write(statements(*insert_and_break))
    assert await postgres.read(names()) == []
    assert await postgres.write(insert("b")) == "b"


async def test_an_error_of_the_system_says_what_failed(postgres: Database) -> None:
    error = FileNotFoundError(errno.ENOENT, "not shown: it may name the DSN")
    with pytest.raises(StorageError, match="refused: No such file or directory; nothing"):
        await postgres.write(insert_then_fail("a", error))


async def test_an_error_with_a_hint_is_one_line(postgres: Database) -> None:
    fails = "DO $$ BEGIN RAISE 'no' USING HINT = 'ask the administrator'; END $$"
    with pytest.raises(StorageError, match=r"^PostgreSQL refused: no HINT:  ask the") as raised:
        await postgres.write(statements(fails))
    assert "\n" not in str(raised.value)


BROKE, IN_USE = "the connection broke", "cannot perform operation: another operation is in progress"


@pytest.mark.parametrize(
    ("error", "says"),
    [
        (asyncpg.InternalClientError("got result for unknown protocol state 0"), BROKE),
        (asyncpg.InterfaceError("connection is closed"), BROKE),
        (asyncpg.InterfaceError(IN_USE), IN_USE),
    ],
    ids=["closing", "closed", "in use"],
)
async def test_the_error_of_a_connection_says_whether_it_broke(
    postgres: Database, error: Exception, says: str
) -> None:
    with pytest.raises(StorageError) as failed:
        await postgres.write(insert_then_fail("a", error))
    assert str(failed.value) == f"PostgreSQL refused: {says}; nothing was stored"


async def test_an_uncertain_commit_is_not_tried_again(postgres: Database) -> None:
    # The server ends the connection during the commit.
    await postgres.write(
        statements(
            "CREATE FUNCTION break_off() RETURNS trigger LANGUAGE plpgsql AS"
            " $$ BEGIN PERFORM pg_terminate_backend(pg_backend_pid()); RETURN NULL; END $$",
            "CREATE CONSTRAINT TRIGGER at_commit AFTER INSERT ON things"
            " DEFERRABLE INITIALLY DEFERRED FOR EACH ROW EXECUTE FUNCTION break_off()",
        )
    )
    inserter = Inserter()
    found = await asyncio.gather(
        *(postgres.write_together(inserter.insert, name) for name in "abcd"),
        return_exceptions=True,
    )
    assert {type(each) for each in found} == {CommitUncertainError}
    assert sorted(name for made in inserter.made for name in made) == list("abcd")


async def test_a_cancelled_close_leaves_no_connection(
    postgres_dsn: str, opens: OpensThings
) -> None:
    database, other = await opens(postgres_dsn), await opens(postgres_dsn)
    at_work = asyncio.Event()

    def insert_and_sleep() -> Script[None]:
        yield from insert("a")
        at_work.set()
        yield Statement("SELECT pg_sleep(60)")

    script = asyncio.create_task(database.write(insert_and_sleep()))
    await asyncio.wait_for(at_work.wait(), DEADLINE)
    closing = asyncio.create_task(database.close())
    await asyncio.sleep(0.01)
    closing.cancel()
    found = await asyncio.gather(closing, script, return_exceptions=True)
    assert [type(each) for each in found] == [asyncio.CancelledError, StorageError]
    with pytest.raises(StorageError, match="not open"):
        await database.write(insert("b"))
    assert await other.read(names()) == []


async def test_a_cancelled_script_leaves_nothing_to_the_next_one_on_its_connection(
    postgres_dsn: str, opens: OpensThings
) -> None:
    database = await opens(postgres_dsn, connections=1)

    def insert_and_sleep(at: asyncio.Event) -> Script[None]:
        yield from insert("a")
        at.set()
        # A server that has not begun the statement ignores the cancellation, and runs it.
        yield Statement("SELECT pg_sleep(1)")

    def transaction() -> Script[str]:
        rows = yield Statement("SELECT pg_current_xact_id()::text AS id")
        return str(rows[0]["id"])

    for number in range(10):
        at_work = asyncio.Event()
        script = asyncio.create_task(database.write(insert_and_sleep(at_work)))
        await asyncio.wait_for(at_work.wait(), DEADLINE)
        script.cancel()
        with pytest.raises(asyncio.CancelledError):
            await script
        assert await database.write(insert(f"b{number}")) == f"b{number}"
    assert await database.read(names()) == [f"b{number}" for number in range(10)]
    assert await database.write(transaction()) != await database.write(transaction())


@pytest.mark.parametrize("of_role", ["", "&statement_timeout=100&lock_timeout=100"])
async def test_a_migration_may_take_longer_than_a_statement(
    postgres_dsn: str, of_role: str, opens: OpensThings
) -> None:
    slow = Migration(1, (*THINGS.statements, "SELECT pg_sleep(0.2)"))
    await opens(postgres_dsn + of_role, slow, command_timeout=timedelta(milliseconds=100))


async def test_a_statement_that_takes_too_long_is_a_storage_error(
    postgres_dsn: str, opens: OpensThings
) -> None:
    database = await opens(postgres_dsn, command_timeout=timedelta(milliseconds=500))

    def insert_and_sleep() -> Script[None]:
        yield from insert("a")
        yield Statement("SELECT pg_sleep(60)")

    with pytest.raises(StorageError, match="no answer in time: another transaction may hold"):
        await database.write(insert_and_sleep())
    assert await database.read(names()) == []
