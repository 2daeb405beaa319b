"""SQLite: one writer thread with group commit, one reader thread.

What goes together into a transaction (`group_commit`) runs under a savepoint each, so that a script
that fails takes nothing with it, and nobody is told "done" before the commit.
"""

from __future__ import annotations

import asyncio
import contextlib
import functools
import queue
import re
import sqlite3
import threading
import time
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from datetime import datetime, timedelta
from pathlib import Path
from typing import Any, Literal, TypeVar

from pushkit.clock import utc_now
from pushkit.errors import CommitUncertainError, ConfigError, StorageError
from pushkit.storage.group_commit import Batch, Ended, GroupCommit
from pushkit.storage.liveness import WorkerLocks
from pushkit.storage.migrations import (
    Access,
    Migration,
    Schema,
    find_schema,
    left_behind,
    migrate,
    newer_writers,
    schema_of,
)
from pushkit.storage.script import Ending, Group, Rows, Script, driver_connection

Item = TypeVar("Item")
T = TypeVar("T")

_MAX_BATCH = 256
_BUSY_PAUSE = 0.005  # seconds
_MIN_SQLITE = (3, 35, 0)  # UPDATE … RETURNING
_HAS_TABLE = "SELECT name FROM sqlite_master WHERE type = 'table' AND name = $1"
# How SQLite opens the file: only what brings the schema up to date may make one.
_MODES = {Access.UPGRADE: "rwc", Access.WRITE: "rw", Access.READ: "ro"}


class SqliteDatabase:
    """A database file."""

    def __init__(
        self,
        path: str | Path,  # the file, beside which stands its write-ahead log
        *,
        component: str,
        migrations: Sequence[Migration],
        clock: Callable[[], datetime] = utc_now,
        # `FULL` survives a power cut; `NORMAL` survives a crash of the process.
        synchronous: Literal["FULL", "NORMAL"] = "FULL",
        # How long to wait for another process that holds the write lock.
        busy_timeout: timedelta = timedelta(seconds=5),
    ) -> None:
        self.path: Path = Path(path)
        self._component = component
        self._migrations = migrations
        self._clock = clock
        self.locks: WorkerLocks = WorkerLocks(self.path)
        self._synchronous = synchronous
        self._busy_timeout = busy_timeout
        self._access = Access.UPGRADE
        self._writer: _Writer | None = None
        self._group_commit: GroupCommit | None = None
        self._reader: ThreadPoolExecutor | None = None
        self._read_connection: sqlite3.Connection | None = None

    async def open(self, access: Access = Access.UPGRADE) -> None:
        """Open the file for what is meant."""
        if self._reader is not None:
            return
        if access is Access.UPGRADE:
            first = migrate(self._component, self._migrations, str(self.path))
            await self._start_writer(access, first)
            self.locks.sweep()
        else:
            (await self.schema()).check_current()
            if access is Access.WRITE:
                await self._start_writer(access, None)
        self._access = access
        self._reader = ThreadPoolExecutor(max_workers=1, thread_name_prefix="pushkit-reader")

    async def _start_writer(self, access: Access, first: Script[None] | None) -> None:
        writer = self._new_writer(access)
        writer.start()
        # With one writer there is nobody to wait for.
        group_commit = GroupCommit(writer, most=_MAX_BATCH, patience=self._busy_timeout, wait=True)
        try:
            if first is not None:
                await group_commit.submit_script(first)
            writer.check = self._check
        except BaseException:
            writer.stop()
            raise
        self._writer, self._group_commit = writer, group_commit

    def _check(self, connection: sqlite3.Connection) -> None:
        """Refuse to write where an upgrade has left this process behind."""
        newest = self._migrations[-1].version
        found = _execute(connection, newer_writers(self._component, newest), ())
        if found:
            raise left_behind(str(self.path), self._component, found[0]["oldest"], newest)

    def _new_writer(self, access: Access) -> _Writer:
        return _Writer(lambda: self._connect(access))

    async def schema(self) -> Schema:
        """Return what the file holds, open or not, without changing anything."""
        return await asyncio.get_running_loop().run_in_executor(None, self._look_at_schema)

    def _look_at_schema(self) -> Schema:
        where = str(self.path)
        if not self.path.exists():
            if not self.path.parent.is_dir():
                raise StorageError(f"{where}: there is no such folder")
            return schema_of(where, self._component, self._migrations, exists=False)
        try:
            with contextlib.closing(self._connect(Access.READ)) as connection:
                script = find_schema(where, self._component, self._migrations, _HAS_TABLE)
                return run_script(connection, script)
        except sqlite3.Error as exc:
            raise StorageError(f"{self.path}: {exc}") from exc

    async def close(self) -> None:
        """Finish what was submitted, then close both connections."""
        writer, self._writer = self._writer, None
        group_commit, self._group_commit = self._group_commit, None
        reader, self._reader = self._reader, None
        loop = asyncio.get_running_loop()
        if writer is not None and group_commit is not None:
            await asyncio.shield(_finish(group_commit, writer))
        if reader is not None:
            await loop.run_in_executor(reader, self._close_read_connection)
            reader.shutdown()

    async def write(self, script: Script[T]) -> T:
        """Run a script in a transaction; return its result once that is on disk."""
        return await self._open_group_commit().submit_script(script)

    async def write_patiently(self, make: Callable[[], Script[T]]) -> T:
        """Run a script as `write` does: there is one writing transaction at a time anyway."""
        return await self.write(make())

    def write_together(
        self, group: Group[Item, T], item: Item, ended: Ending[T] | None = None
    ) -> asyncio.Future[T]:
        """Run a group's script over all items that wait; it is made in the writer's thread."""
        group_commit = self._group_commit or self._open_group_commit()
        return group_commit.submit(group, item, ended)

    async def write_on(self, connection: object, script: Script[T]) -> T:
        """Run a script in the caller's thread, to which the connection belongs."""
        found = driver_connection(connection)
        if not isinstance(found, sqlite3.Connection):
            raise ConfigError(
                f"connection: found {type(connection).__name__}, expected a sqlite3.Connection:"
                " the outbox is a SQLite file"
            )
        if not found.in_transaction:
            raise ConfigError(
                "connection: not in a transaction, so that nothing would hold task and"
                " notification together: execute BEGIN IMMEDIATE first"
            )
        try:
            self._check(found)
            return _run_nested(found, script)
        except sqlite3.Error as exc:
            raise StorageError(f"the database refused: {exc}; roll the transaction back") from exc

    async def read(self, script: Script[T]) -> T:
        """Run a script that only reads, beside the writer, on a consistent snapshot."""
        if self._reader is None:
            raise StorageError(f"{self.path} is not open: call open() first")
        loop = asyncio.get_running_loop()
        return await loop.run_in_executor(self._reader, self._read, script)

    async def empty_log(self) -> bool:
        """Take the write-ahead log into the file: it holds what rows were before.

        Returns:
            False if somebody still read from it, all the time.
        """
        return await asyncio.get_running_loop().run_in_executor(None, self._empty_log)

    def _empty_log(self) -> bool:
        with contextlib.closing(self._connect(Access.WRITE)) as connection:
            # It waits for readers as long as `busy_timeout` says.
            [busy, *_] = connection.execute("PRAGMA wal_checkpoint(TRUNCATE)").fetchone()
            return not busy

    def _open_group_commit(self) -> GroupCommit:
        if self._group_commit is None:
            how = "is open for reading alone" if self._reader else "is not open: call open() first"
            raise StorageError(f"{self.path} {how}")
        return self._group_commit

    def now(self) -> Script[datetime]:
        """Return the present by this process's clock: all workers are on one machine."""
        yield from ()
        return self._clock()

    def exclusively(self, name: str) -> Script[None]:  # noqa: ARG002  # the interface
        """Do nothing: there is one writing transaction at a time anyway."""
        yield from ()

    def hold(self, names: Sequence[str], *, wait: bool) -> Script[set[str]]:  # noqa: ARG002
        """Hold all of them: nobody else writes."""
        yield from ()
        return set(names)

    def wake(self) -> Script[None]:
        """Do nothing: other processes on this file find work by polling."""
        yield from ()

    async def listen(self, wake: Callable[[], None]) -> None:  # noqa: ARG002  # the interface
        """Hear nothing, until cancelled."""
        await asyncio.Event().wait()

    def _read(self, script: Script[T]) -> T:
        try:
            if self._read_connection is None:
                self._read_connection = self._connect(self._access)
                self._read_connection.execute("PRAGMA query_only = ON")
            self._read_connection.execute("BEGIN")
            try:
                return run_script(self._read_connection, script)
            finally:
                self._read_connection.execute("ROLLBACK")
        except sqlite3.Error as exc:
            raise StorageError(f"{self.path}: {exc}") from exc

    def _close_read_connection(self) -> None:
        if self._read_connection is not None:
            self._read_connection.close()
            self._read_connection = None

    def _connect(self, access: Access) -> sqlite3.Connection:
        if sqlite3.sqlite_version_info < _MIN_SQLITE:
            raise StorageError(f"SQLite {sqlite3.sqlite_version} is too old: 3.35 is needed")
        try:
            if access is Access.UPGRADE:
                _create_private(self.path)
            connection = sqlite3.connect(
                f"{self.path.absolute().as_uri()}?mode={_MODES[access]}",
                uri=True,
                timeout=self._busy_timeout.total_seconds(),
                isolation_level=None,  # transactions are begun and ended here, by name
                check_same_thread=False,  # opened and used by one thread, closed by its owner
            )
        except (sqlite3.Error, OSError, ValueError) as exc:
            raise StorageError(f"{self.path}: {exc}") from exc
        try:
            self._configure(connection, access)
        except sqlite3.Error as exc:
            connection.close()
            raise StorageError(f"{self.path}: {exc}") from exc
        return connection

    def _configure(self, connection: sqlite3.Connection, access: Access) -> None:
        connection.row_factory = sqlite3.Row
        if access is Access.READ:
            return
        self._switch_to_wal(connection)
        connection.execute(f"PRAGMA synchronous = {self._synchronous}")
        # Settling goes from page to page of a long backlog: 2 MiB, the default, forget them.
        connection.execute("PRAGMA cache_size = -16384")
        # Savepoints keep what they would undo: of a few pages, not in a file of its own.
        connection.execute("PRAGMA temp_store = MEMORY")
        # A commit of hundreds of rows touches a thousand pages, after which the log is copied into
        # the file: a log of 16 MiB, not 4, and what several commits wrote is copied once.
        connection.execute("PRAGMA wal_autocheckpoint = 4000")
        # Who reads the file finds nothing of what was deleted or replaced. Some builds have it on.
        connection.execute("PRAGMA secure_delete = ON")

    def _switch_to_wal(self, connection: sqlite3.Connection) -> None:
        # Here SQLite does not wait by itself: of two processes that create the file together, one
        # is refused at once.
        deadline = time.monotonic() + self._busy_timeout.total_seconds()
        while True:
            try:
                connection.execute("PRAGMA journal_mode = WAL")
            except sqlite3.OperationalError as exc:
                if exc.sqlite_errorcode != sqlite3.SQLITE_BUSY or time.monotonic() > deadline:
                    raise
                time.sleep(_BUSY_PAUSE)
            else:
                return


def _create_private(path: Path) -> None:
    # Tokens and credentials are in it: nobody else reads a file that is created here. SQLite gives
    # its log and its index the same mode.
    with contextlib.suppress(FileExistsError):
        path.touch(mode=0o600, exist_ok=False)


def run_script(connection: sqlite3.Connection, script: Script[T]) -> T:
    """Run a script on a connection, inside whatever transaction is open there."""
    try:
        statement = next(script)
        while True:
            rows = _execute(connection, statement.sql, statement.parameters)
            statement = script.send(rows)
    except StopIteration as stop:
        result: T = stop.value
        return result
    finally:
        script.close()


def _execute(connection: sqlite3.Connection, sql: str, parameters: tuple[object, ...]) -> Rows:
    cursor = connection.cursor()
    cursor.row_factory = sqlite3.Row  # a caller's own connection may have another
    try:
        return cursor.execute(in_sqlite(sql), parameters).fetchall()
    except (UnicodeEncodeError, OverflowError) as exc:  # half a surrogate pair, 64 bits and more
        raise sqlite3.DataError(f"a value cannot be stored: {type(exc).__name__}") from exc


def _run_nested(connection: sqlite3.Connection, script: Script[T]) -> T:
    connection.execute("SAVEPOINT pushkit")
    try:
        result = run_script(connection, script)
    except BaseException:
        if connection.in_transaction:  # disk full and the like end the whole transaction
            connection.execute("ROLLBACK TO pushkit")
            connection.execute("RELEASE pushkit")
        raise
    connection.execute("RELEASE pushkit")
    return result


@functools.cache
def in_sqlite(sql: str) -> str:
    """Return a statement as SQLite takes it."""
    # Row locks go: the one writer is the lock.
    return re.sub(r"\$(\d+)", r"?\1", re.sub(r" FOR UPDATE( OF \w+)?( SKIP LOCKED)?", "", sql))


async def _finish(group_commit: GroupCommit, writer: _Writer) -> None:
    await group_commit.drain()
    writer.stop()
    await asyncio.get_running_loop().run_in_executor(None, writer.join)


class _Writer(threading.Thread):
    """The one thread that writes; each call of it is one transaction."""

    # Runs first in each, and may refuse it.
    check: Callable[[sqlite3.Connection], None] | None = None

    def __init__(self, connect: Callable[[], sqlite3.Connection]) -> None:
        super().__init__(name="pushkit-writer", daemon=True)
        self._connect = connect
        self._connection: sqlite3.Connection | None = None
        self._loop = asyncio.get_running_loop()
        self._asked: queue.SimpleQueue[tuple[Sequence[Batch[Any, Any]], Ended] | None]
        self._asked = queue.SimpleQueue()

    def __call__(self, batches: Sequence[Batch[Any, Any]], ended: Ended, /) -> None:
        """Let the thread run batches in a transaction, and tell the event loop."""
        self._asked.put((batches, ended))

    def stop(self) -> None:
        """Let the thread end after what was asked for."""
        self._asked.put(None)

    def run(self) -> None:
        """Do what is asked for, until stopped."""
        while (asked := self._asked.get()) is not None:
            batches, ended = asked
            self.commit(batches)
            try:
                self._loop.call_soon_threadsafe(ended, batches)
            except RuntimeError:  # the loop is closed: nobody waits any more
                break
        if self._connection is not None:
            self._connection.close()

    def commit(self, batches: Sequence[Batch[Any, Any]]) -> None:
        """Run batches in a transaction, and note on each what went wrong."""
        try:
            self._connection = self._connection or self._connect()
            self._commit(self._connection, batches)
        except Exception as exc:  # noqa: BLE001  # whoever waits must hear of it
            error = exc
            if not isinstance(exc, StorageError):
                error = StorageError(f"the writer failed: {type(exc).__name__}: {exc}")
            for batch in batches:
                batch.error, batch.is_final = error, True

    def _commit(self, connection: sqlite3.Connection, batches: Sequence[Batch[Any, Any]]) -> None:
        try:
            connection.execute("BEGIN IMMEDIATE")
            if self.check is not None:
                self.check(connection)
            if len(batches) == 1:
                _run_batch(connection, batches[0])
                if batches[0].error is not None:
                    connection.execute("ROLLBACK")
                    return
            else:
                for batch in batches:
                    _run_beside_others(connection, batch)
            _make_durable(connection)
        except Exception as exc:
            if connection.in_transaction:
                connection.execute("ROLLBACK")
            if not isinstance(exc, sqlite3.Error):
                raise
            raise StorageError(f"the database refused: {exc}; nothing was stored") from exc


def _make_durable(connection: sqlite3.Connection) -> None:
    try:
        connection.execute("COMMIT")
    except sqlite3.OperationalError as exc:
        if connection.in_transaction or exc.sqlite_errorcode & 0xFF != sqlite3.SQLITE_IOERR:
            raise
        # It may be in the log, and be found there when the file is next opened.
        raise CommitUncertainError(
            f"the disk failed in the commit: {exc}: it may have been stored or not; repeat the call"
            " with the same idempotency key"
        ) from exc


def _run_beside_others(connection: sqlite3.Connection, batch: Batch[Any, Any]) -> None:
    connection.execute("SAVEPOINT batch")
    _run_batch(connection, batch)
    if batch.error is not None:
        connection.execute("ROLLBACK TO batch")
    connection.execute("RELEASE batch")


def _run_batch(connection: sqlite3.Connection, batch: Batch[Any, Any]) -> None:
    """Run a batch's script; note what it raises."""
    try:
        run_script(connection, batch.script())
    except sqlite3.Error as exc:
        if not connection.in_transaction:  # disk full and the like end the whole transaction
            raise
        batch.error = StorageError(f"the database refused: {exc}; nothing was stored")
    except Exception as exc:  # noqa: BLE001  # a script's bug belongs to its caller, not here
        batch.error = exc
