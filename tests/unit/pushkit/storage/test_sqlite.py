from __future__ import annotations

import asyncio
import contextlib
import functools
import itertools
import os
import random
import resource
import shutil
import sqlite3
import stat
import threading
import time
from collections.abc import AsyncGenerator, AsyncIterator, Coroutine, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from datetime import timedelta
from pathlib import Path
from subprocess import PIPE, Popen
from sys import executable
from typing import Any

import pytest

from pushkit.errors import CommitUncertainError, SchemaError, StorageError
from pushkit.storage import sqlite
from pushkit.storage.database import RecentFault
from pushkit.storage.migrations import Access, Migration
from pushkit.storage.paging import in_batches
from pushkit.storage.script import Refused, Script, Statement
from pushkit.storage.sqlite import SqliteDatabase
from tests.eventually import DEADLINE
from tests.unit.pushkit.storage.things import (
    COLOURS,
    Opens,
    RefusedError,
    Write,
    each,
    insert,
    names,
)
from tests.unit.pushkit.storage.things import sqlite_things as things


@pytest.fixture
async def database(path: Path, opens: Opens) -> SqliteDatabase:
    return await opens(things(path))


@contextlib.contextmanager
def locked(path: Path) -> Iterator[None]:
    """Hold the write lock, as another process does during a transaction."""
    with contextlib.closing(sqlite3.connect(path, isolation_level=None)) as other:
        other.execute("BEGIN IMMEDIATE")
        yield
        other.execute("ROLLBACK")


class Gate:
    """A script that keeps the writer busy until the test opens it."""

    def __init__(self) -> None:
        self.reached = asyncio.Event()
        self.loop = asyncio.get_running_loop()
        self.opened = threading.Event()

    def script(self) -> Script[None]:
        yield Statement("SELECT 1")
        self.loop.call_soon_threadsafe(self.reached.set)
        assert self.opened.wait(DEADLINE)


@contextlib.asynccontextmanager
async def busy(database: SqliteDatabase) -> AsyncIterator[None]:
    """Keep the writer busy meanwhile: what is submitted waits, and is run together afterwards."""
    gate = Gate()
    working = asyncio.create_task(database.write(gate.script()))
    await gate.reached.wait()
    yield
    await asyncio.sleep(0)  # all of it has been submitted
    gate.opened.set()
    await working


# --- one script --------------------------------------------------------------------------------


async def test_a_process_that_changes_its_directory_keeps_its_file(
    path: Path, monkeypatch: pytest.MonkeyPatch, opens: Opens
) -> None:
    (path.parent / "elsewhere").mkdir()
    monkeypatch.chdir(path.parent)
    database = await opens(things(Path(path.name)))
    await database.write(insert("a"))
    monkeypatch.chdir("elsewhere")

    assert await database.read(names()) == ["a"]
    await database.close()
    assert os.listdir() == []  # noqa: PTH208  # where it is now


async def test_nothing_is_stored_in_a_file_that_was_removed_or_replaced(
    database: SqliteDatabase, path: Path, write: Write
) -> None:
    await write(database, insert("a"))
    kept = path.with_suffix(".kept")
    shutil.move(path, kept)
    for _ in "removed", "replaced":
        with pytest.raises(StorageError, match="again, without the -wal and -shm that it left"):
            await write(database, insert("b"))
        with pytest.raises(StorageError, match="was removed or replaced"):
            await database.read(names())
        shutil.copy(kept, path)
    shutil.move(kept, path)

    await write(database, insert("c"))
    assert await database.read(names()) == ["a", "c"]


async def test_a_process_that_only_reads_reads_the_file_that_is_there_now(
    path: Path, write: Write, opens: Opens
) -> None:
    async def store(name: str) -> None:
        database = await opens(things(path))
        await write(database, insert(name))
        await database.close()

    def remove() -> None:
        for suffix in "", "-wal", "-shm":
            path.with_name(f"things.db{suffix}").unlink(missing_ok=True)

    await store("a")
    reader = await opens(things(path), Access.READ)
    assert await reader.read(names()) == ["a"]
    remove()
    with pytest.raises(StorageError, match="there is no such file"):
        await reader.read(names())
    await store("b")
    assert await reader.read(names()) == ["b"]


async def test_a_copy_that_turns_out_to_be_written_is_read_with_its_log(
    path: Path, write: Write, opens: Opens, monkeypatch: pytest.MonkeyPatch
) -> None:
    # As of a volume that is mounted to be read, while nobody writes yet.
    monkeypatch.setattr(os, "access", lambda *_: False)
    database = await opens(things(path))
    await write(database, insert("a"))
    await database.close()
    reader = await opens(things(path), Access.READ)
    assert await reader.read(names()) == ["a"]

    await write(await opens(things(path)), insert("b"))
    assert await reader.read(names()) == ["a", "b"]


@pytest.mark.parametrize("suffix", ["-wal", "-shm"])
async def test_nothing_is_stored_in_a_log_that_was_removed(
    tmp_path: Path, suffix: str, write: Write, opens: Opens
) -> None:
    (folder := tmp_path / "there").mkdir()
    (link := tmp_path / "link.db").symlink_to(folder / "things.db")
    database = await opens(things(link))
    await write(database, insert("a"))
    (folder / f"things.db{suffix}").unlink()

    with pytest.raises(StorageError, match=r"was removed or replaced .* start the process again$"):
        await write(database, insert("b"))


async def test_the_log_shrinks_after_a_long_reader_has_ended(
    path: Path, monkeypatch: pytest.MonkeyPatch, opens: Opens
) -> None:
    monkeypatch.setattr(sqlite, "_LOG_BYTES", 64 * 1024)
    database = await opens(things(path))
    log = path.with_name("things.db-wal")

    def grow() -> Script[None]:
        yield from insert("x" * 8 * 1024 * 1024)

    with contextlib.closing(sqlite3.connect(path, isolation_level=None)) as reader:
        reader.execute("BEGIN")
        reader.execute("SELECT * FROM things").fetchall()
        await database.write(grow())
        grown = log.stat().st_size
        reader.execute("ROLLBACK")
    await database.write(insert("a"))  # its checkpoint moves the log into the file
    await database.write(insert("b"))  # and this restarts the log

    assert (grown > 8 * 1024 * 1024, log.stat().st_size) == (True, 64 * 1024)


async def test_overlapping_readers_do_not_let_the_log_grow(
    path: Path, monkeypatch: pytest.MonkeyPatch, opens: Opens
) -> None:
    monkeypatch.setattr(sqlite, "_LOG_BYTES", 64 * 1024)
    monkeypatch.setattr(sqlite, "_LOG_CHECKS_EVERY", 0.0)
    monkeypatch.setattr(sqlite, "_READERS_MAY_TAKE", 60_000)
    database = await opens(things(path))
    await database.write(insert("a"))
    begun, ending = threading.Event(), threading.Event()

    def read_by_turns() -> None:
        with (
            contextlib.closing(sqlite3.connect(path, isolation_level=None)) as first,
            contextlib.closing(sqlite3.connect(path, isolation_level=None)) as second,
        ):
            for reader, former in itertools.cycle([(first, second), (second, first)]):
                reader.execute("BEGIN")
                reader.execute("SELECT * FROM things LIMIT 1").fetchall()
                begun.set()
                if former.in_transaction:
                    former.execute("ROLLBACK")
                if ending.wait(0.001):
                    return

    reading = asyncio.create_task(asyncio.to_thread(read_by_turns))
    await asyncio.to_thread(begun.wait)
    for number in range(64):
        await database.write(insert(f"{number}" + "x" * 64 * 1024))
    ending.set()
    await reading

    assert path.with_name("things.db-wal").stat().st_size < 1024 * 1024


async def test_a_log_that_grows_beside_a_long_reader_is_logged(
    path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture, opens: Opens
) -> None:
    monkeypatch.setattr(sqlite, "_LOG_BYTES", 64 * 1024)
    monkeypatch.setattr(sqlite, "_LOG_CHECKS_EVERY", 0.0)
    monkeypatch.setattr(sqlite, "_READERS_MAY_TAKE", 1)
    database = await opens(things(path))
    await database.write(insert("a"))
    with contextlib.closing(sqlite3.connect(path, isolation_level=None)) as reader:
        reader.execute("BEGIN")
        reader.execute("SELECT * FROM things").fetchall()
        for number in range(4):
            await database.write(insert(f"{number}" + "x" * 1024 * 1024))
    await database.close()

    [record] = [each for each in caplog.records if "-wal" in each.message]
    assert "things.db: its -wal has" in record.message


_MOVES_THE_LOG = """
import fcntl, sys
with open(sys.argv[1], "r+b") as index:
    fcntl.lockf(index, fcntl.LOCK_EX, 1, 121)  # as SQLite does for a checkpoint
    print("locked", flush=True)
    sys.stdin.read()
"""


@contextlib.contextmanager
def moved_by_another_process(path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """Let another process move a database's log into its file, until this one waits for it."""
    command = [executable, "-I", "-c", _MOVES_THE_LOG, f"{path}-shm"]
    with Popen(command, stdin=PIPE, stdout=PIPE, text=True) as process:  # noqa: S603
        told, says = process.stdin, process.stdout
        assert told is not None
        assert says is not None
        assert says.readline() == "locked\n"

        def end(_: float = 0) -> None:
            told.close()
            process.wait()  # without a time-out, which would sleep

        with monkeypatch.context() as patched:
            patched.setattr(time, "sleep", end)
            yield
        end()


async def test_a_log_that_another_process_moves_is_not_said_to_be_read(
    path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture, opens: Opens
) -> None:
    monkeypatch.setattr(sqlite, "_LOG_BYTES", 64 * 1024)
    monkeypatch.setattr(sqlite, "_LOG_CHECKS_EVERY", 0.0)
    database = await opens(things(path))
    await database.write(insert("a"))
    with moved_by_another_process(path, monkeypatch):
        await database.write(insert("x" * 1024 * 1024))
        await database.write(insert("b"))
    await database.close()

    assert not [each for each in caplog.records if "-wal" in each.message]


async def test_the_log_is_emptied_after_another_process_has_moved_it(
    path: Path, monkeypatch: pytest.MonkeyPatch, opens: Opens
) -> None:
    database = await opens(things(path))
    await database.write(insert("a"))
    with moved_by_another_process(path, monkeypatch):
        emptied = await database.empty_log()

    assert (emptied, path.with_name("things.db-wal").stat().st_size) == (True, 0)


def is_in(value: str, path: Path) -> bool:
    return value.encode() in path.read_bytes()


def replace_values_until_one_leaves_a_trace(path: Path, value: str) -> None:
    """Replace values of many lengths: SQLite then arranges pages anew, and may leave old bytes."""
    chance = random.Random(3)  # noqa: S311
    with contextlib.closing(sqlite3.connect(path, isolation_level=None)) as other:
        other.execute("PRAGMA secure_delete = ON")
        for _ in range(100):
            other.execute("DELETE FROM things")
            for n in range(200):
                name = f"{n} {value} {'-' * chance.randrange(600)}"
                other.execute("INSERT INTO things (name, size) VALUES (?, ?)", (name, n))
            for n in range(200):
                name = f"{n} {'+' * chance.randrange(900)}"
                other.execute("UPDATE things SET name = ? WHERE size = ?", (name, n))
            other.execute("PRAGMA wal_checkpoint(TRUNCATE)")
            if is_in(value, path):
                return
    raise AssertionError("nothing was left in the unused part of any page")


async def test_a_vacuum_leaves_no_trace_of_former_values(
    database: SqliteDatabase, path: Path
) -> None:
    replace_values_until_one_leaves_a_trace(path, "canary")
    assert await database.empty_log()
    assert is_in("canary", path)
    assert await database.empty_log(vacuum=True)
    assert not is_in("canary", path)
    assert path.with_name("things.db-wal").stat().st_size == 0
    assert len(await database.read(names())) == 200


async def test_a_vacuum_beside_a_writer_that_does_not_end_is_not_claimed(
    database: SqliteDatabase, path: Path
) -> None:
    await database.write(insert("a"))
    with locked(path):
        assert not await database.empty_log(vacuum=True)
    assert await database.empty_log(vacuum=True)


def open_files() -> str:
    """Return the names of the files that this process has open."""
    found = []
    for link in Path("/proc/self/fd").iterdir():
        with contextlib.suppress(OSError):  # the listing's own is closed
            found.append(str(link.readlink()))
    return " ".join(found)


def temporary_storage() -> Script[int]:
    [row] = yield Statement("PRAGMA temp_store")
    return int(row["temp_store"])


async def test_what_undoes_a_statement_of_a_migration_is_in_a_file_not_in_memory(
    path: Path, monkeypatch: pytest.MonkeyPatch, opens: Opens
) -> None:
    rewritten, seen = "SELECT 'rewritten'", list[str]()
    execute = sqlite._execute

    def executed(*args: Any) -> Any:
        if args[1] == rewritten:
            seen.append(open_files())
        return execute(*args)

    monkeypatch.setattr(sqlite, "_execute", executed)
    first = await opens(things(path))
    await first.write(each([insert(f"{n:01000}") for n in range(500)], wait=True))
    await first.close()

    second = await opens(
        things(path, Migration(2, ("ALTER TABLE things DROP COLUMN size", rewritten)))
    )
    assert ["etilqs" in each for each in seen] == [True]  # SQLite's temporary files
    in_memory = 2
    assert await second.write(temporary_storage()) == in_memory


async def test_a_script_is_stored_though_its_caller_was_cancelled(
    database: SqliteDatabase,
) -> None:
    async with busy(database):
        caller = asyncio.create_task(database.write(insert("a")))
        await asyncio.sleep(0)
        caller.cancel()
        with pytest.raises(asyncio.CancelledError):
            await caller
    await database.write(insert("b"))
    assert await database.read(names()) == ["a", "b"]


# --- group commit ------------------------------------------------------------------------------


async def test_writes_that_wait_share_the_next_transaction(
    traced: list[str], database: SqliteDatabase
) -> None:
    async with busy(database):
        waiting = [asyncio.create_task(database.write(insert(f"{n:03}"))) for n in range(100)]
        traced.clear()
    await asyncio.gather(*waiting)
    assert traced.count("COMMIT") == 2
    assert len(await database.read(names())) == 100


async def test_items_that_wait_side_by_side_share_a_script_and_keep_their_place(
    traced: list[str], database: SqliteDatabase
) -> None:
    made: list[list[str]] = []
    done: list[str] = []

    def group(items: Sequence[str], /, *, wait: bool) -> Script[list[str]]:  # noqa: ARG001
        made.append(list(items))
        for item in items:
            yield from insert(item)
        done.extend(items)
        return list(items)

    def alone() -> Script[None]:
        done.append("alone")
        yield from insert("alone")

    async with busy(database):
        waiting = [database.write_together(group, item) for item in "abc"]
        between = asyncio.create_task(database.write(alone()))
        await asyncio.sleep(0)  # it has been submitted
        waiting += [database.write_together(group, item) for item in "de"]
        traced.clear()
    await asyncio.gather(between, *waiting)
    assert traced.count("COMMIT") == 2
    assert made == [["a", "b", "c"], ["d", "e"]]
    assert done == ["a", "b", "c", "alone", "d", "e"]


async def test_two_groups_that_wait_beside_each_other_share_a_script_each(
    traced: list[str], database: SqliteDatabase
) -> None:
    made: list[list[str]] = []

    def lower(items: Sequence[str], /, *, wait: bool) -> Script[list[str]]:  # noqa: ARG001
        made.append(list(items))
        yield from ()
        return list(items)

    def upper(items: Sequence[str], /, *, wait: bool) -> Script[list[str]]:
        return lower(items, wait=wait)

    async with busy(database):
        waiting = [
            database.write_together(lower if name.islower() else upper, name) for name in "aBcDe"
        ]
        traced.clear()
    assert await asyncio.gather(*waiting) == list("aBcDe")
    assert traced.count("COMMIT") == 2
    assert made == [["a", "c", "e"], ["B", "D"]]


async def test_a_group_whose_script_cannot_be_made_fails_for_its_items(
    database: SqliteDatabase,
) -> None:
    def group(items: Sequence[str], /, *, wait: bool) -> Script[list[str]]:  # noqa: ARG001
        raise ZeroDivisionError(f"a bug with {items}")

    with pytest.raises(ZeroDivisionError):
        await database.write_together(group, "a")
    assert await database.write(insert("b")) == "b"


async def test_a_script_of_few_items_that_takes_long_goes_to_the_thread_next_time(
    database: SqliteDatabase,
) -> None:
    threads: list[str] = []

    def slow(items: Sequence[float], /, *, wait: bool) -> Script[Sequence[float]]:  # noqa: ARG001
        yield Statement("SELECT 1")
        threads.append(threading.current_thread().name)
        began = time.monotonic()
        while time.monotonic() < began + sum(items):
            pass
        return items

    await database.write_together(slow, 0.01)
    await database.write_together(slow, 0)
    assert threads == ["MainThread", "pushkit-writer"]


async def test_many_items_are_run_in_the_thread(database: SqliteDatabase) -> None:
    threads: list[str] = []

    def group(items: Sequence[str], /, *, wait: bool) -> Script[Sequence[str]]:  # noqa: ARG001
        threads.append(threading.current_thread().name)
        for item in items:
            yield from insert(item)
        return items

    await asyncio.gather(*(database.write_together(group, f"{n}") for n in range(20)))
    assert threads == ["pushkit-writer"]


def _in_a_loop_that_ends(
    ending: type[BaseException],
    database: SqliteDatabase,
    submit: Coroutine[Any, Any, None],
    close: Coroutine[Any, Any, list[str]],
) -> list[str]:
    """Submit in a loop that a signal's handler ends, and close in the same loop, run again."""
    with contextlib.closing(asyncio.new_event_loop()) as loop:
        loop.run_until_complete(database.open())
        submitting = loop.create_task(submit)
        with pytest.raises(ending):
            loop.run_until_complete(submitting)
        submitting.cancel()
        return loop.run_until_complete(close)


@pytest.mark.parametrize("ending", [SystemExit, KeyboardInterrupt])
def test_items_are_stored_once_though_a_signal_ends_the_loop_in_their_script(
    path: Path, ending: type[BaseException]
) -> None:
    signals = [ending]

    def interrupted(items: Sequence[str], /, *, wait: bool) -> Script[list[str]]:  # noqa: ARG001
        found = []
        for item in items:
            found.append((yield from insert(item)))
            if item == "b" and signals:
                raise signals.pop()
        return found

    def failing(items: Sequence[str], /, *, wait: bool) -> Script[list[str]]:  # noqa: ARG001
        yield from insert(items[0])
        if signals:
            raise RefusedError("fails the first time")
        return list(items)

    database, stored = things(path), list[asyncio.Future[str]]()

    async def submit() -> None:
        stored.append(database.write_together(failing, "before"))
        stored.extend(database.write_together(interrupted, each) for each in "ab")
        await asyncio.sleep(DEADLINE)

    async def close() -> list[str]:
        async with asyncio.timeout(DEADLINE):
            assert await asyncio.gather(*stored) == ["before", "a", "b"]
            found = await database.read(names())
            await database.close()
        return found

    assert _in_a_loop_that_ends(ending, database, submit(), close()) == ["a", "b", "before"]


@pytest.mark.parametrize("ending", [SystemExit, KeyboardInterrupt])
def test_results_reach_all_though_a_signal_ends_the_loop_as_they_are_set(
    path: Path, ending: type[BaseException]
) -> None:
    signals, called, stored = [ending], list[str](), list[asyncio.Future[str]]()
    database = things(path)

    def group(items: Sequence[str], /, *, wait: bool) -> Script[list[str | Refused]]:  # noqa: ARG001
        found: list[str | Refused] = []
        for item in items:
            error = Refused(RefusedError("this one"))
            found.append(error if item == "c" else (yield from insert(item)))
        return found

    def done(item: str, _: str | BaseException) -> None:
        called.append(item)
        if item == "b":
            raise signals.pop()

    async def submit() -> None:
        for item in "abcd":
            ended = functools.partial(done, item)
            stored.append(database.write_together(group, item, ended))
        await asyncio.sleep(DEADLINE)

    async def close() -> list[str]:
        async with asyncio.timeout(DEADLINE):
            results = await asyncio.gather(*stored, return_exceptions=True)
            assert [type(each) for each in results] == [str, str, RefusedError, str]
            assert await database.write_together(group, "e") == "e"
            found = await database.read(names())
            await database.close()
        return found

    assert _in_a_loop_that_ends(ending, database, submit(), close()) == ["a", "b", "d", "e"]
    assert sorted(called) == ["a", "b", "c", "d"]


async def test_no_result_is_set_before_the_commit(
    traced: list[str], database: SqliteDatabase, write: Write
) -> None:
    await write(database, insert("a"))
    assert traced[-1] == "COMMIT"


@pytest.mark.parametrize("number", [1, 100], ids=["in the event loop", "in the thread"])
async def test_what_a_transaction_lost_that_ended_early_is_not_reported_as_stored(
    database: SqliteDatabase, number: int
) -> None:
    def ending(items: Sequence[str], /, *, wait: bool) -> Script[list[str]]:  # noqa: ARG001
        for item in items:
            yield from insert(item)
        yield Statement("ROLLBACK")
        return list(items)

    storing = [database.write_together(ending, f"{n}") for n in range(number)]
    results = await asyncio.gather(*storing, return_exceptions=True)
    assert [type(each) for each in results] == [StorageError] * number
    assert await database.read(names()) == []


# --- when the database refuses -----------------------------------------------------------------


async def test_a_lock_of_another_process_is_a_storage_error_and_nothing_is_stored(
    path: Path, database: SqliteDatabase, write: Write
) -> None:
    with locked(path):
        results = await asyncio.gather(
            *(write(database, insert(name)) for name in "abc"), return_exceptions=True
        )
        assert [type(result) for result in results] == [StorageError] * 3
        assert await database.read(names()) == []
    assert await write(database, insert("d")) == "d"
    assert await database.read(names()) == ["d"]


async def test_waits_for_another_process_as_long_as_it_may(
    path: Path, write: Write, opens: Opens
) -> None:
    database = await opens(things(path, busy_timeout=timedelta(seconds=30)))
    with locked(path):
        writing = asyncio.ensure_future(write(database, insert("a")))
        assert await database.read(names()) == []
    assert await writing == "a"


def fill_up() -> Script[None]:
    rows = yield Statement("PRAGMA page_count")
    yield Statement(f"PRAGMA max_page_count = {rows[0]['page_count'] + 4}")


async def test_a_full_disk_is_a_storage_error_and_nothing_is_stored(
    database: SqliteDatabase, write: Write
) -> None:
    def insert_much() -> Script[None]:
        yield from insert("a")
        yield from insert("b" * 100_000)

    await write(database, fill_up())
    assert database.write_fault.reason() is None
    with pytest.raises(StorageError, match="full"):
        await write(database, insert_much())
    assert await database.read(names()) == []
    await write(database, insert("c"))
    assert await database.read(names()) == ["c"]
    assert database.write_fault.reason() == "database or disk is full"


async def test_a_fault_of_the_disk_is_remembered_for_ten_seconds(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    now = 5.0
    monkeypatch.setattr("pushkit.storage.database.time.monotonic", lambda: now)
    fault = RecentFault()
    fault.note("full")
    now = 14.9
    assert fault.reason() == "full"
    now = 15.0
    assert fault.reason() is None


async def test_an_error_of_a_statement_is_no_fault_of_the_disk(
    database: SqliteDatabase, write: Write
) -> None:
    await write(database, insert("a"))
    with pytest.raises(StorageError, match="UNIQUE"):
        await write(database, insert("a"))
    assert database.write_fault.reason() is None


async def test_with_a_full_disk_no_item_of_the_batch_gets_a_result(
    database: SqliteDatabase,
) -> None:
    await database.write(fill_up())
    sizes = [10, 100_000, 10, 100_000, 10]
    results = await asyncio.gather(
        *(database.write(insert(f"{n}" * size)) for n, size in enumerate(sizes)),
        return_exceptions=True,
    )
    told_done = sorted(result for result in results if isinstance(result, str))
    assert await database.read(names()) == told_done
    assert all(isinstance(result, str | StorageError) for result in results)


async def test_a_commit_in_which_the_disk_fails_is_uncertain(
    path: Path, database: SqliteDatabase, write: Write
) -> None:
    await write(database, insert("a"))
    log = path.with_name(f"{path.name}-wal")
    limits = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (log.stat().st_size + 100, limits[1]))
    try:
        with pytest.raises(CommitUncertainError, match="may have been stored or not"):
            await write(database, insert("b"))
        assert database.write_fault.reason() == "disk I/O error"
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, limits)
    await write(database, insert("c"))
    assert await database.read(names()) in (["a", "c"], ["a", "b", "c"])


@pytest.mark.parametrize("number", [1, 3], ids=["alone", "beside others"])
async def test_a_refused_commit_stores_nothing_and_delays_nobody(
    path: Path, monkeypatch: pytest.MonkeyPatch, number: int, opens: Opens
) -> None:
    connect = sqlite3.connect

    def connect_strictly(*args: object, **options: object) -> sqlite3.Connection:
        connection: sqlite3.Connection = connect(*args, **options)  # type: ignore[call-overload]
        connection.execute("PRAGMA foreign_keys = ON")  # as some builds of SQLite begin
        return connection

    monkeypatch.setattr(sqlite3, "connect", connect_strictly)
    parts = Migration(
        2,
        ("CREATE TABLE parts (name TEXT REFERENCES things (name) DEFERRABLE INITIALLY DEFERRED)",),
    )
    database = await opens(things(path, parts))

    def insert_part(name: str) -> Script[str]:
        yield Statement("INSERT INTO parts (name) VALUES ($1)", (name,))
        return name

    async with busy(database):
        waiting = [asyncio.create_task(database.write(insert_part("of nothing")))]
        waiting += [asyncio.create_task(database.write(insert(str(n)))) for n in range(1, number)]
    results = await asyncio.gather(*waiting, return_exceptions=True)
    assert [type(result) for result in results] == [StorageError] * number
    await database.write(insert("a"))
    assert await database.read(names()) == ["a"]


@pytest.mark.parametrize(
    "contents", [b"This is a text file. " * 100, b"SQLite format 3\0" + b"x" * 4096]
)
def test_a_file_that_is_no_database_is_a_storage_error(path: Path, contents: bytes) -> None:
    path.write_bytes(contents)
    with pytest.raises(StorageError):
        asyncio.run(things(path).open())
    assert path.read_bytes() == contents


@pytest.mark.parametrize("name", ["missing/things.db", "with\0zero.db"])
async def test_a_path_that_cannot_be_opened_is_a_storage_error(tmp_path: Path, name: str) -> None:
    with pytest.raises(StorageError):
        await things(tmp_path / name).open()


@pytest.mark.parametrize("access", Access)
async def test_a_path_that_the_system_refuses_is_a_storage_error_that_names_it(
    tmp_path: Path, access: Access
) -> None:
    path = tmp_path / f"{'x' * 300}.db"  # like a folder that this user may not enter
    for work in (things(path).open(access), things(path).schema()):
        with pytest.raises(StorageError, match=r"^database: /.*x\.db: File name too long$"):
            await work


async def test_a_file_that_sqlite_may_not_open_says_what_it_needs(path: Path) -> None:
    os.mknod(path, stat.S_IFSOCK)  # like a file that this user may not read, also for root
    with pytest.raises(StorageError, match=r"open database file; .* read and write it"):
        await things(path).open()


@pytest.mark.parametrize("access", Access)
async def test_a_folder_is_reported_as_such(tmp_path: Path, access: Access) -> None:
    with pytest.raises(StorageError, match="it is a folder, expected a file"):
        await things(tmp_path).open(access)


async def test_a_file_that_is_created_is_private(path: Path, database: SqliteDatabase) -> None:
    await database.write(insert("a"))
    modes = {stat.S_IMODE(file.stat().st_mode) for file in path.parent.glob("things.db*")}
    assert modes == {0o600}


# --- migrations --------------------------------------------------------------------------------


async def test_a_process_that_is_too_old_is_refused_in_its_own_transaction_too(
    path: Path, opens: Opens
) -> None:
    older, newer = await opens(things(path)), await opens(things(path, COLOURS))
    with contextlib.closing(sqlite3.connect(path, isolation_level=None)) as own:
        own.execute("BEGIN IMMEDIATE")
        with pytest.raises(SchemaError, match="upgraded while this process ran"):
            await older.write_on(own, insert("a"))
        assert await newer.write_on(own, insert("b")) == "b"
        own.execute("COMMIT")
    assert await newer.read(names()) == ["b"]


_OPEN_IT = """
import asyncio, sys
from pushkit.storage.migrations import Migration
from pushkit.storage.sqlite import SqliteDatabase

async def main():
    statements = ["CREATE TABLE t%d (id TEXT)" % n for n in range(20)]
    migrations = [Migration(1, tuple(statements))]
    database = SqliteDatabase(sys.argv[1], component="c", migrations=migrations)
    sys.stdin.readline()
    await database.open()
    await database.close()

print("ready", flush=True)
asyncio.run(main())
"""


@pytest.mark.slow
def test_processes_that_start_together_apply_each_migration_once(path: Path) -> None:
    processes = [
        Popen([executable, "-c", _OPEN_IT, str(path)], stdin=PIPE, stdout=PIPE, stderr=PIPE)  # noqa: S603
        for _ in range(3)
    ]
    for process in processes:
        assert process.stdout is not None
        assert process.stdout.readline() == b"ready\n"
    with ThreadPoolExecutor(len(processes)) as start:
        ends = list(start.map(lambda process: process.communicate(b"go\n", 30), processes))
    assert [errors for _, errors in ends] == [b""] * len(processes)


# --- batches -----------------------------------------------------------------------------------


async def test_what_selects_ids_is_closed_when_a_batch_is_refused(database: SqliteDatabase) -> None:
    is_closed = False

    async def chosen() -> AsyncGenerator[Sequence[str]]:
        nonlocal is_closed
        try:
            for name in ("one", "wrong", "never"):
                yield [name]
        finally:
            is_closed = True

    def add(ids: Sequence[str]) -> Script[str]:
        if ids[0] == "wrong":
            raise RefusedError
        return (yield from insert(ids[0]))

    async def change() -> None:
        async with contextlib.aclosing(in_batches(database, chosen(), add)) as batches:
            async for _ in batches:
                pass

    with pytest.raises(RefusedError):
        await change()

    assert is_closed
    assert await database.read(names()) == ["one"]
