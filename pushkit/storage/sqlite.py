"""SQLite: one writer thread with group commit, one reader thread.

Each script of a shared transaction (`group_commit`) runs under a savepoint, so that one that fails
undoes nothing of the others. Results are set after the commit.
"""

from __future__ import annotations

import asyncio
import contextlib
import functools
import logging
import os
import queue
import re
import sqlite3
import threading
import time
from collections.abc import Callable, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from datetime import datetime, timedelta
from pathlib import Path
from typing import Any, TypeVar

from pushkit.clock import utc_now
from pushkit.errors import CommitUncertainError, ConfigError, StorageError
from pushkit.logs import RepeatedLog
from pushkit.storage.database import Database
from pushkit.storage.group_commit import Batch, BatchesDone, GroupCommit
from pushkit.storage.location import file_exists
from pushkit.storage.migrations import (
    Access,
    Migration,
    Schema,
    find_schema,
    migrate,
    too_old_to_write,
)
from pushkit.storage.script import Rows, Script, driver_connection
from pushkit.storage.worker_locks import WorkerLocks

T = TypeVar("T")

_log = logging.getLogger("pushkit.storage")

_MAX_BATCH = 256
# Seconds between two tries while another process writes: mostly it needs one or two milliseconds,
# and if it needs more than fifty, it may need seconds.
_BUSY_PAUSE, _LATER_BUSY_PAUSE, _BUSY_LONG = 0.001, 0.005, 0.05
# The scripts of so few items run in the event loop. If they take long there, the next ones run in
# the thread for a while. In seconds.
_FEW = 4
_LONG = 0.005
_PAUSE_AFTER_LONG = 1.0
_ENDED_EARLY = "the transaction had ended before its commit; nothing was stored"
_LOG_BYTES = 64 * 1024 * 1024
# How often the log is checked for twice that length, in seconds; how long a checkpoint then waits
# for readers, in milliseconds; and when the next one is tried if that was not enough, in seconds.
_LOG_CHECKS_EVERY = 1.0
_READERS_MAY_TAKE = 1000
_CHECKPOINT_AGAIN_AFTER = 30.0
_MIN_SQLITE = (3, 35, 0)  # UPDATE … RETURNING
_BY_WHOM = (
    "by another process that writes to it (a migration, a VACUUM, a shell in a transaction): let it"
    " end, or end it; `fuser` lists who has the file open"
)
_HAS_TABLE = "SELECT name FROM sqlite_master WHERE type = 'table' AND name = $1"
_DISK_ERRORS = {
    sqlite3.SQLITE_FULL,
    sqlite3.SQLITE_IOERR,
    sqlite3.SQLITE_READONLY,
    sqlite3.SQLITE_CANTOPEN,
    sqlite3.SQLITE_CORRUPT,
    sqlite3.SQLITE_NOTADB,
}
# How SQLite opens the file: only a process that upgrades the schema may create it.
_MODES = {Access.UPGRADE: "rwc", Access.WRITE: "rw", Access.READ: "ro"}


class SqliteDatabase(Database):
    """A database file."""

    def __init__(
        self,
        path: str | Path,  # the file; its write-ahead log is beside it
        *,
        component: str,
        migrations: Sequence[Migration],
        clock: Callable[[], datetime] = utc_now,
        # How long to wait for another process that holds the write lock.
        busy_timeout: timedelta = timedelta(seconds=5),
        # The same while a service starts: a migration of a large file takes minutes.
        start_timeout: timedelta = timedelta(minutes=10),
    ) -> None:
        self.path: Path = Path(path)
        self._file = self.path.absolute()  # whatever directory the process changes to
        super().__init__(str(self._file))
        self._component = component
        self._migrations = migrations
        self._clock = clock
        self._busy_timeout = busy_timeout
        self._start_timeout = start_timeout
        self._access = Access.UPGRADE
        self._writer: _Writer | None = None
        self._reader: ThreadPoolExecutor | None = None
        self._read_connection: sqlite3.Connection | None = None
        self._opened: tuple[int | None, ...] = (None, None, None)  # inodes that the writer opened
        self._reads_copy = False  # whether the reader was told that the file does not change
        self._log_check_at = 0.0  # when the log's length is checked again
        self._faults = RepeatedLog(_log)
        self.locks: WorkerLocks = WorkerLocks(self._file, self.write_fault.note)

    async def open(self, access: Access = Access.UPGRADE) -> None:
        """Open the file for a kind of access."""
        if self._reader is not None:
            return
        if access is Access.UPGRADE:
            await self._start_writer(access)
            self.locks.sweep()
        else:
            (await self.schema()).check_current(self.location)
            if access is Access.WRITE:
                await self._start_writer(access)
        self._access = access
        self._reader = ThreadPoolExecutor(max_workers=1, thread_name_prefix="pushkit-reader")

    async def _start_writer(self, access: Access) -> None:
        writer = self._new_writer(access)
        writer.start()
        # With one writer, a script never waits for another transaction's rows.
        group_commit = GroupCommit(writer, most=_MAX_BATCH, patience=self._busy_timeout, wait=True)
        try:
            if access is Access.UPGRADE:
                await self._upgrade(group_commit)
                self._opened = self._inodes()  # now with the log of a new file
                writer.execute_idle("PRAGMA temp_store = MEMORY")
            writer.check = self._check
        except BaseException:
            writer.stop()
            raise
        self._writer, self._group_commit = writer, group_commit

    async def _upgrade(self, group_commit: GroupCommit) -> None:
        """Bring the schema up to date; wait for a process that writes for long."""
        deadline = time.monotonic() + self._start_timeout.total_seconds()
        while True:
            script = migrate(self._component, self._migrations, str(self.path))
            try:
                return await group_commit.submit_script(script)
            except StorageError as exc:
                if not _is_busy(exc.__cause__):
                    raise
                if time.monotonic() > deadline:
                    raise StorageError(
                        f"{self.path}: {exc.__cause__}, for {self._start_timeout}, {_BY_WHOM}"
                    ) from exc
            text = "%s: it is locked, %s; waiting"
            self._faults.log("start", logging.WARNING, text, self.path, _BY_WHOM)

    def _check(self, connection: sqlite3.Connection) -> None:
        """Refuse to write if the file was replaced, or upgraded beyond what this code may write."""
        self._check_file()
        self._check_schema(connection)

    def _check_schema(self, connection: sqlite3.Connection) -> None:
        newest = self._migrations[-1].version
        newer = "SELECT oldest FROM pushkit_writers WHERE component = $1 AND oldest > $2"
        found = _execute(connection, newer, (self._component, newest))
        if found:
            raise too_old_to_write(str(self.path), self._component, found[0]["oldest"], newest)

    def _check_file(self) -> None:
        # A file without a name is gone when this process ends, and so is its log, which is where
        # commits are first.
        found = self._inodes()
        if found != self._opened and any(
            had not in (None, has) for had, has in zip(self._opened, found, strict=True)
        ):
            # A log that stays is replayed into whatever file is there, and would break another one.
            left = "" if found[0] == self._opened[0] else ", without the -wal and -shm that it left"
            raise StorageError(
                f"{self.path}: the file, its -wal or its -shm was removed or replaced since this"
                " process opened it; nothing is stored: put it back, or start the process again"
                f"{left}"
            )

    def _check_opened(self, connection: sqlite3.Connection) -> None:
        """Refuse a connection to another file, which may have an outbox of its own.

        An attached file does not count: SQLite commits each file by itself.
        """
        main: str = _execute(connection, "PRAGMA database_list", ())[0]["file"]
        if not _are_same(main, self._file):
            raise ConfigError(
                f"connection: it opened {main or 'no file'}, expected {self._file}, where the"
                " outbox is: open that one"
            )

    def _inodes(self) -> tuple[int | None, ...]:
        """Return the inodes of the files; None for one that is missing."""
        return tuple(map(_inode, self._files))

    @functools.cached_property
    def _files(self) -> tuple[str, ...]:
        """The file, its log and the log's index, which are beside the file that a link leads to."""
        found = self._file.resolve()
        return (str(self._file), f"{found}-wal", f"{found}-shm")

    def _new_writer(self, access: Access) -> _Writer:
        def connect() -> sqlite3.Connection:
            connection = self._connect(access)
            if access is Access.UPGRADE:
                # A migration may store a whole table to undo one statement.
                connection.execute("PRAGMA temp_store = FILE")
            self._opened = self._inodes()
            return connection

        return _Writer(
            connect, self.write_fault.note, self._busy_timeout.total_seconds(), self._keep_log_short
        )

    def _keep_log_short(self, connection: sqlite3.Connection) -> None:
        """Restart the log if it has grown, which readers that overlap prevent otherwise.

        While one process reads for long, or others write without a pause, the log grows, and a
        warning is logged.
        """
        if (now := time.monotonic()) < self._log_check_at:
            return
        self._log_check_at = now + _LOG_CHECKS_EVERY
        with contextlib.suppress(sqlite3.Error, OSError):  # what was to be stored is committed
            size = Path(self._files[1]).stat().st_size
            if size <= 2 * _LOG_BYTES:
                return
            connection.execute(f"PRAGMA busy_timeout = {_READERS_MAY_TAKE}")
            try:
                is_moved = _move_log(connection, "RESTART", _READERS_MAY_TAKE / 1000)
            finally:
                connection.execute("PRAGMA busy_timeout = 0")
            if not is_moved:
                self._log_check_at = now + _CHECKPOINT_AGAIN_AFTER
                text = "%s: its -wal has %d MB, and grows until a process that reads it ends (a"
                text += " shell, a copy), or others write less"
                self._faults.log("log", logging.WARNING, text, self.path, size // 1_000_000)

    async def schema(self) -> Schema:
        """Return the file's schema, without changing it; the database need not be open."""
        return await asyncio.get_running_loop().run_in_executor(None, self._look_at_schema)

    def _look_at_schema(self) -> Schema:
        where = str(self.path)
        try:
            if not file_exists(self._file):
                self._check_folder()
                if not os.access(self._file.parent, os.W_OK | os.X_OK):
                    raise StorageError(
                        f"database: {where}: does not exist, and this process may not write its"
                        " folder"
                    )
                return Schema(
                    where=where,
                    component=self._component,
                    migrations=self._migrations,
                    exists=False,
                )
        except OSError as exc:
            raise StorageError(f"database: {where}: {_reason(exc)}") from exc
        return self._look(find_schema(where, self._component, self._migrations, _HAS_TABLE))

    async def look(self, script: Script[T]) -> T:
        """Run a script that only reads, whatever the schema; the database need not be open."""
        return await asyncio.get_running_loop().run_in_executor(None, self._look, script)

    def _look(self, script: Script[T]) -> T:
        try:
            is_copy = self._is_copy()
            with contextlib.closing(self._connect(Access.READ, is_copy=is_copy)) as connection:
                return run_script(connection, script)
        except (sqlite3.Error, OSError) as exc:
            raise StorageError(f"database: {self.path}: {_reason(exc)}") from exc

    def _check_folder(self) -> None:
        if not self._file.parent.is_dir():
            folder = self.path.parent
            raise StorageError(f"database: {self.path}: there is no folder {folder}: create it")

    async def close(self) -> None:
        """Finish the submitted items, then close both connections."""
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

    async def write_on(self, connection: object, script: Script[T]) -> T:
        """Run a script in the caller's thread, to which the connection belongs."""
        found = driver_connection(connection)
        if not isinstance(found, sqlite3.Connection):
            raise ConfigError(
                f"connection: found {type(connection).__name__}, expected a sqlite3.Connection:"
                " the outbox is a SQLite file"
            )
        try:
            if not found.in_transaction:
                raise ConfigError(
                    "connection: not in a transaction, so that task and notification would not be"
                    " stored together: execute BEGIN IMMEDIATE first"
                )
            theirs = (found.text_factory, found.row_factory)
            found.text_factory, found.row_factory = str, sqlite3.Row
            try:
                self._check_file()
                self._check_opened(found)
                self._check_schema(found)
                return _run_nested(found, script)
            finally:
                found.text_factory, found.row_factory = theirs
        except sqlite3.ProgrammingError as exc:  # it is closed, or belongs to another thread
            raise ConfigError(f"connection: {exc}") from exc
        except sqlite3.Error as exc:
            raise StorageError(f"the database refused: {exc}; roll the transaction back") from exc

    async def read(self, script: Script[T]) -> T:
        """Run a script that only reads, beside the writer, on a consistent snapshot."""
        if self._reader is None:
            raise StorageError(f"{self.path} is not open: call open() first")
        loop = asyncio.get_running_loop()
        return await loop.run_in_executor(self._reader, self._read, script)

    async def empty_log(self, *, vacuum: bool = False) -> bool:
        """Move the write-ahead log into the file: the log holds former contents of rows.

        Args:
            vacuum: Whether to write the file anew before, while writers wait: rows that SQLite
                moved to another page may have left bytes in the unused part of the former one.

        Returns:
            False if other processes used it all the time.
        """
        empty = functools.partial(self._empty_log, vacuum=vacuum)
        return await asyncio.get_running_loop().run_in_executor(None, empty)

    def _empty_log(self, *, vacuum: bool) -> bool:
        with contextlib.closing(self._connect(Access.WRITE)) as connection:
            if vacuum:
                connection.execute("PRAGMA temp_store = FILE")  # it is the size of the database
                try:
                    connection.execute("VACUUM")
                except sqlite3.OperationalError as exc:
                    if not _is_busy(exc):
                        raise StorageError(f"database: {self.path}: {_reason(exc)}") from exc
                    return False
            return _move_log(connection, "TRUNCATE", self._busy_timeout.total_seconds())

    def _open_group_commit(self) -> GroupCommit:
        if self._group_commit is None:
            how = "is open for reading alone" if self._reader else "is not open: call open() first"
            raise StorageError(f"{self.path} {how}")
        return self._group_commit

    def now(self) -> Script[datetime]:
        """Return the current time by this process's clock: all workers are on one machine."""
        yield from ()
        return self._clock()

    def _read(self, script: Script[T]) -> T:
        if self._access is Access.READ:
            self._leave_replaced_file()
        self._check_file()
        try:
            if self._read_connection is None:
                self._read_connection = self._connect(self._access, is_copy=self._reads_copy)
                self._read_connection.execute("PRAGMA query_only = ON")
            self._read_connection.execute("BEGIN")
            try:
                return run_script(self._read_connection, script)
            finally:
                self._read_connection.execute("ROLLBACK")
        except sqlite3.Error as exc:
            raise StorageError(f"{self.path}: {exc}") from exc

    def _leave_replaced_file(self) -> None:
        """Let a process that only reads, as a dashboard does, open the file that is there now."""
        found, is_copy = _inode(self._files[0]), self._is_copy()
        if found is None:
            raise StorageError(f"{self.path}: there is no such file")
        # A copy is changed by others only, and is none once somebody writes to it.
        if found != self._opened[0] or is_copy or self._reads_copy:
            self._close_read_connection()
            self._opened, self._reads_copy = (found, None, None), is_copy

    def _is_copy(self) -> bool:
        """Return whether the file has no log, and none can be made in its folder, as of a backup.

        SQLite reads such a file only if it is said not to change meanwhile.
        """
        with contextlib.suppress(OSError):
            if Path(self._files[1]).stat().st_size:
                return False
        return not os.access(Path(self._files[1]).parent, os.W_OK)

    def _close_read_connection(self) -> None:
        if self._read_connection is not None:
            self._read_connection.close()
            self._read_connection = None

    def _connect(self, access: Access, *, is_copy: bool = False) -> sqlite3.Connection:
        if sqlite3.sqlite_version_info < _MIN_SQLITE:
            raise StorageError(f"SQLite {sqlite3.sqlite_version} is too old: 3.35 is needed")
        try:
            if self._file.is_dir():  # as a container makes of a missing file
                raise StorageError(f"database: {self.path}: it is a folder, expected a file")
            if access is Access.UPGRADE:
                self._check_folder()
                # The file holds tokens and credentials: other users must not read it. SQLite gives
                # its log and the log's index the same mode.
                with contextlib.suppress(FileExistsError):
                    self._file.touch(mode=0o600, exist_ok=False)
            copy = "&immutable=1" if is_copy else ""
            connection = sqlite3.connect(
                f"{self._file.as_uri()}?mode={_MODES[access]}{copy}",
                uri=True,
                timeout=self._busy_timeout.total_seconds(),
                isolation_level=None,  # transactions begin and end by statements of ours
                check_same_thread=False,  # the event loop and the writer's thread take turns
            )
        except (sqlite3.Error, OSError, ValueError) as exc:
            raise StorageError(f"database: {self.path}: {_reason(exc)}") from exc
        try:
            self._configure(connection, access)
        except sqlite3.Error as exc:
            connection.close()
            raise StorageError(f"database: {self.path}: {_reason(exc)}") from exc
        return connection

    def _configure(self, connection: sqlite3.Connection, access: Access) -> None:
        connection.row_factory = sqlite3.Row
        if access is Access.READ:
            return
        # If two processes create the file together, SQLite refuses one at once.
        seconds = self._busy_timeout.total_seconds()
        _execute_patiently(connection, "PRAGMA journal_mode = WAL", seconds)
        connection.execute("PRAGMA synchronous = FULL")  # survives a power cut
        # A log that grew while a process read for long is cut to this length afterwards.
        connection.execute(f"PRAGMA journal_size_limit = {_LOG_BYTES}")
        # Settling reads many pages of a long backlog, and the default cache is 2 MiB.
        connection.execute("PRAGMA cache_size = -16384")
        # Savepoints store a few pages to undo: in memory, not in a file of their own.
        connection.execute("PRAGMA temp_store = MEMORY")
        # Deleted and replaced values are overwritten in the file, except where a page was arranged
        # anew (see `empty_log`). Some builds do so by default.
        connection.execute("PRAGMA secure_delete = ON")


def _execute_patiently(connection: sqlite3.Connection, sql: str, seconds: float) -> None:
    """Execute a statement; wait for another process where SQLite does not do so by itself."""
    began = time.monotonic()
    while True:
        try:
            connection.execute(sql)
        except sqlite3.OperationalError as exc:
            waited = time.monotonic() - began
            if not _is_busy(exc) or waited > seconds:
                raise
            time.sleep(_BUSY_PAUSE if waited < _BUSY_LONG else _LATER_BUSY_PAUSE)
        else:
            return


def _move_log(connection: sqlite3.Connection, mode: str, seconds: float) -> bool:
    """Move the log into the file; return False if another process used it all the time.

    SQLite waits for readers and writers (`busy_timeout`), but not for another process that moves
    the log: the number of pages is then -1. Of several that write much, one nearly always does.
    """
    began = time.monotonic()
    while True:
        is_busy, pages, _ = connection.execute(f"PRAGMA wal_checkpoint({mode})").fetchone()
        if not is_busy or pages >= 0 or time.monotonic() - began > seconds:
            return not is_busy
        time.sleep(_BUSY_PAUSE)


def _is_busy(exc: BaseException | None) -> bool:
    """Return whether a statement failed because another process holds a lock."""
    return _code_of(exc) == sqlite3.SQLITE_BUSY


def _reason(exc: Exception) -> str:
    """Say why a file was not opened, without its path."""
    if isinstance(exc, OSError):
        return exc.strerror or type(exc).__name__
    if _code_of(exc) == sqlite3.SQLITE_CANTOPEN:
        return f"{exc}; this process has to read and write it, and its folder"
    return str(exc)


def _code_of(exc: BaseException | None) -> int:
    """Return SQLite's primary result code; 0 for an error that is none of SQLite's."""
    code: int = getattr(exc, "sqlite_errorcode", 0)
    return code & 0xFF


def _inode(path: str) -> int | None:
    """Return a file's inode; None if there is no file."""
    try:
        return os.stat(path).st_ino  # noqa: PTH116  # per transaction: a third of pathlib's time
    except OSError:
        return None


def _are_same(path: str, other: Path) -> bool:
    try:
        return os.path.samefile(path, other)  # noqa: PTH121  # a path that may be empty
    except OSError:
        return False


def run_script(connection: sqlite3.Connection, script: Script[T]) -> T:
    """Run a script on a connection, in the transaction that is open there."""
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
    try:
        return connection.execute(in_sqlite(sql), parameters).fetchall()
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
    """Return a statement in SQLite's dialect."""
    # Row locks are removed: the one writer is the lock. A failed INSERT keeps its first rows: the
    # whole script is rolled back anyway, and SQLite need not prepare to undo a part of it.
    sql = re.sub(r"^INSERT INTO", "INSERT OR FAIL INTO", sql)
    return re.sub(r"\$(\d+)", r"?\1", re.sub(r" FOR UPDATE( OF \w+)?( SKIP LOCKED)?", "", sql))


async def _finish(group_commit: GroupCommit, writer: _Writer) -> None:
    await group_commit.drain()
    writer.stop()
    if writer.is_alive():  # not in a fork
        # A thread that waits for it could not start at the end of a process, in Python 3.12.0.
        await asyncio.wrap_future(writer.ended)
    writer.join()


class _Writer(threading.Thread):
    """The one thread that writes; each call is one transaction.

    The scripts of a few items run in the event loop, and only the commit runs in the thread: two
    threads that take turns would wait for each other at every statement. If another process writes,
    or if the scripts took long the last time, the whole transaction runs in the thread.
    """

    # Runs first in each transaction, and may refuse it.
    check: Callable[[sqlite3.Connection], None] | None = None

    def __init__(
        self,
        connect: Callable[[], sqlite3.Connection],
        note_fault: Callable[[str], None],  # gets faults of the disk
        patience: float,
        # Runs after each commit; raises nothing.
        committed: Callable[[sqlite3.Connection], None] = lambda _: None,
    ) -> None:
        super().__init__(name="pushkit-writer", daemon=True)
        self._connect = connect
        self._patience = patience
        self._committed = committed
        self._note_fault = note_fault
        self._connection: sqlite3.Connection | None = None
        self._loop = asyncio.get_running_loop()
        self._jobs: queue.SimpleQueue[tuple[Sequence[Batch[Any, Any]], BatchesDone, bool] | None]
        self._jobs = queue.SimpleQueue()
        self._unfinished = 0
        self._in_thread_until = 0.0
        self.ended: Future[None] = Future()
        self.ended.set_running_or_notify_cancel()  # who waits for it may not cancel it

    def __call__(self, batches: Sequence[Batch[Any, Any]], done: BatchesDone, /) -> None:
        """Run batches in a transaction, then call `done` in the event loop."""
        is_run = False
        try:
            is_run = not self._unfinished and self._run_in_loop(batches)
        finally:  # if a signal's handler raised in the event loop, they run in the thread
            self._unfinished += 1
            self._jobs.put((batches, done, is_run))

    def _run_in_loop(self, batches: Sequence[Batch[Any, Any]]) -> bool:
        """Begin a transaction and run batches in it, if they are few; return whether it did."""
        connection, began = self._connection, time.perf_counter()
        if connection is None or began < self._in_thread_until or not _are_few(batches):
            return False
        try:
            try:
                connection.execute("BEGIN IMMEDIATE")
            except sqlite3.Error:  # another process writes; any other error recurs in the thread
                return False
            self._run(connection, batches)
        except Exception as exc:  # noqa: BLE001  # the submitters get it
            self._fail(batches, exc)
        except BaseException:  # of a signal's handler: as if nothing had run
            if connection.in_transaction:
                connection.execute("ROLLBACK")
            for batch in batches:
                batch.results = batch.error = None
            raise
        now = time.perf_counter()
        if now - began > _LONG:
            self._in_thread_until = now + _PAUSE_AFTER_LONG
        return True

    def execute_idle(self, sql: str) -> None:
        """Execute a statement outside of a transaction, while no job is unfinished."""
        if self._connection is not None:
            self._connection.execute(sql)

    def stop(self) -> None:
        """End the thread after the jobs that it has."""
        self._jobs.put(None)

    def run(self) -> None:
        """Commit jobs until stopped."""
        try:
            while (job := self._jobs.get()) is not None:
                batches, done, is_run = job
                self.commit(batches, is_run=is_run)
                try:
                    self._loop.call_soon_threadsafe(self._batches_done, batches, done)
                except RuntimeError:  # the loop is closed: nothing awaits the results
                    break
                del job, batches, done  # all that they refer to would live until the next one
            if self._connection is not None:
                self._connection.close()
        finally:
            self.ended.set_result(None)

    def _batches_done(self, batches: Sequence[Batch[Any, Any]], done: BatchesDone) -> None:
        self._unfinished -= 1
        done(batches)

    def commit(self, batches: Sequence[Batch[Any, Any]], *, is_run: bool = False) -> None:
        """Run batches in a transaction, unless the loop did, and commit; note an error on each."""
        try:
            connection = self._connection
            if connection is None:
                connection = self._connection = self._connect()
                connection.execute("PRAGMA busy_timeout = 0")  # the event loop must not wait
            if not is_run:
                _execute_patiently(connection, "BEGIN IMMEDIATE", self._patience)
                self._run(connection, batches)
            if connection.in_transaction:
                _make_durable(connection, self._patience)
                self._committed(connection)
            else:  # rolled back because of an error, which is the only batch's
                left = [batch for batch in batches if batch.error is None]
                self._fail(left, StorageError(_ENDED_EARLY))
        except Exception as exc:  # noqa: BLE001  # the submitters get it
            self._fail(batches, exc)

    def _run(self, connection: sqlite3.Connection, batches: Sequence[Batch[Any, Any]]) -> None:
        if self.check is not None:
            self.check(connection)
        if len(batches) == 1:
            _run_batch(connection, batches[0])
            if batches[0].error is not None:
                connection.execute("ROLLBACK")
        else:
            for batch in batches:
                _run_beside_others(connection, batch)

    def _fail(self, batches: Sequence[Batch[Any, Any]], exc: Exception) -> None:
        """Roll the transaction back, and note the error on each batch."""
        error, connection = exc, self._connection
        if connection is not None and connection.in_transaction:
            try:
                connection.execute("ROLLBACK")
            except sqlite3.Error as again:
                error = again
        if _is_busy(error):
            error = StorageError(f"the database refused: {exc}, {_BY_WHOM}; nothing was stored")
        elif isinstance(error, sqlite3.Error):
            error = StorageError(f"the database refused: {exc}; nothing was stored")
        elif not isinstance(error, StorageError):
            error = StorageError(f"the writer failed: {type(exc).__name__}: {exc}")
        if error is not exc:
            error.__cause__ = exc
        if _code_of(error.__cause__) in _DISK_ERRORS:
            self._note_fault(str(error.__cause__))
        for batch in batches:
            batch.error, batch.is_final = error, True


def _are_few(batches: Sequence[Batch[Any, Any]]) -> bool:
    """Return whether the batches are a few items of groups: a single script may take long."""
    items = 0
    for batch in batches:
        if not batch.is_of_group:
            return False
        items += len(batch.waiting)
    return items <= _FEW


def _make_durable(connection: sqlite3.Connection, patience: float) -> None:
    try:
        _execute_patiently(connection, "COMMIT", patience)
    except sqlite3.OperationalError as exc:
        if connection.in_transaction or _code_of(exc) != sqlite3.SQLITE_IOERR:
            raise
        # It may be in the log, and be recovered when the file is next opened.
        raise CommitUncertainError(
            f"the disk failed in the commit: {exc}: it may have been stored or not; look before you"
            " repeat it, or repeat notify() with its idempotency key"
        ) from exc


def _run_beside_others(connection: sqlite3.Connection, batch: Batch[Any, Any]) -> None:
    connection.execute("SAVEPOINT batch")
    _run_batch(connection, batch)
    if batch.error is not None:
        connection.execute("ROLLBACK TO batch")
    connection.execute("RELEASE batch")


def _run_batch(connection: sqlite3.Connection, batch: Batch[Any, Any]) -> None:
    """Run a batch's script; note its error."""
    try:
        batch.note(run_script(connection, batch.script()))
    except sqlite3.Error as exc:
        if not connection.in_transaction:  # disk full and the like end the whole transaction
            raise
        batch.error = StorageError(f"the database refused: {exc}; nothing was stored")
    except Exception as exc:  # noqa: BLE001  # the submitters get it
        batch.error = exc
