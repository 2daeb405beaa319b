"""Opening a SQLite file: for each kind of access, in time or not at all."""

from __future__ import annotations

import asyncio
import contextlib
import re
import sqlite3
import threading
from collections.abc import Awaitable, Callable, Iterator
from datetime import timedelta
from pathlib import Path

import pytest

from pushkit.errors import SchemaError, StorageError
from pushkit.storage.database import upgrade
from pushkit.storage.migrations import Access
from tests.eventually import DEADLINE, eventually
from tests.unit.pushkit.storage.things import COLOURS, Opens, insert, names
from tests.unit.pushkit.storage.things import sqlite_things as things


@contextlib.contextmanager
def held(path: Path, *, wal: bool) -> Iterator[None]:
    """Hold the write lock of a file, as another program does."""
    with contextlib.closing(sqlite3.connect(path, isolation_level=None)) as connection:
        connection.execute(f"PRAGMA journal_mode = {'WAL' if wal else 'DELETE'}")
        connection.execute("CREATE TABLE IF NOT EXISTS others (id INTEGER)")
        connection.execute("BEGIN EXCLUSIVE")
        yield
        connection.execute("ROLLBACK")


def threads_of_ours() -> set[threading.Thread]:
    return {each for each in threading.enumerate() if each.name.startswith("pushkit-")}


@pytest.mark.parametrize("wal", [False, True], ids=["in any mode", "in ours"])
async def test_a_busy_file_is_given_up_in_time_and_opened_once_it_is_free(
    path: Path, wal: bool, opens: Opens
) -> None:
    database, before = things(path), threads_of_ours()
    with held(path, wal=wal):
        async with asyncio.timeout(DEADLINE):
            with pytest.raises(
                StorageError, match=f"{path}: database is locked, for .* by another"
            ):
                await database.open()
    await eventually(lambda: threads_of_ours() <= before)
    await opens(database)
    await database.write(insert("a"))
    assert await database.read(names()) == ["a"]


@pytest.mark.parametrize("wal", [False, True], ids=["in any mode", "in ours"])
async def test_a_start_waits_for_a_long_writer_and_logs_it(
    path: Path, wal: bool, caplog: pytest.LogCaptureFixture
) -> None:
    database = things(path, start_timeout=timedelta(seconds=DEADLINE))

    with held(path, wal=wal):
        opening = asyncio.create_task(database.open())
        await eventually(
            lambda: f"{path}: it is locked, by another process that writes to it" in caplog.text
        )
        assert not opening.done()
    await asyncio.wait_for(opening, DEADLINE)
    await database.write(insert("a"))
    assert await database.read(names()) == ["a"]
    await database.close()


async def test_a_write_that_waited_in_vain_names_the_cause(path: Path, opens: Opens) -> None:
    database = await opens(things(path))
    said = "locked, by another process that writes to it"
    with held(path, wal=True), pytest.raises(StorageError, match=said):
        await database.write(insert("a"))
    await database.write(insert("a"))


async def leave_garbage(path: Path) -> None:
    await asyncio.to_thread(path.write_bytes, b"no database" * 100)


async def leave_a_newer_one(path: Path) -> None:
    await upgrade(things(path, COLOURS))


@pytest.mark.parametrize("access", Access)
@pytest.mark.parametrize("leave", [leave_garbage, leave_a_newer_one])
async def test_an_open_that_fails_leaves_no_thread(
    path: Path, access: Access, leave: Callable[[Path], Awaitable[None]]
) -> None:
    await leave(path)
    before = threads_of_ours()
    with pytest.raises(StorageError):
        await things(path).open(access)

    await eventually(lambda: threads_of_ours() <= before)


async def test_an_open_that_is_cancelled_leaves_no_thread(path: Path) -> None:
    before = threads_of_ours()
    with held(path, wal=True):
        opening = asyncio.create_task(things(path).open())
        await asyncio.sleep(0)
        opening.cancel()
        with pytest.raises(asyncio.CancelledError):
            await opening

    await eventually(lambda: threads_of_ours() <= before)


# --- for what is meant --------------------------------------------------------------------------


async def test_a_database_open_for_writing_reads_and_writes(path: Path, opens: Opens) -> None:
    with pytest.raises(SchemaError, match="no such file"):
        await things(path).open(Access.WRITE)
    assert not (await things(path).schema()).exists
    await upgrade(things(path))
    database = await opens(things(path), Access.WRITE)
    await database.write(insert("a"))
    assert await database.read(names()) == ["a"]


@pytest.mark.parametrize("access", [Access.READ, Access.WRITE])
async def test_an_older_schema_is_refused_and_stays(path: Path, access: Access) -> None:
    await upgrade(things(path))
    with pytest.raises(SchemaError, match="schema version 1, this code needs 2"):
        await things(path, COLOURS).open(access)
    assert (await things(path).schema()).missing == ()


async def test_a_newer_schema_is_refused_by_the_name_of_its_file(path: Path) -> None:
    await leave_a_newer_one(path)
    with pytest.raises(SchemaError, match=re.escape(f"{path}: the things has schema version 2")):
        await things(path).open()


async def test_a_database_of_another_program_is_distinguished_from_a_broken_one(path: Path) -> None:
    with contextlib.closing(sqlite3.connect(path)) as connection:
        connection.execute("CREATE TABLE others (id INTEGER)")
    with pytest.raises(SchemaError, match="this is no database of pushkit's"):
        await things(path).open(Access.READ)


async def test_a_path_may_have_any_characters(tmp_path: Path, opens: Opens) -> None:
    path = tmp_path / "a folder?mode=ro#%41" / "ä&things.db"
    path.parent.mkdir()
    await upgrade(things(path))
    reader = await opens(things(path), Access.READ)
    assert await reader.read(names()) == []
    assert path.exists()
