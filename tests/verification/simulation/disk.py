"""A simulated disk with one SQLite database, which several processes share.

The database is real SQLite, in memory. A transaction runs at once, a short delay after it was
requested, as in the writer's thread; or, for a few items, its statements run without delay, as in
the event loop, and its commit later. Until the commit the process holds the lock, and no other
process sees its writes. Before any statement, and after a commit, a fault may be injected: an error
of SQLite, or the end of the process. A power cut undoes commits that were not synced: those with
less than `synchronous = FULL` since the last one that had it.
"""

from __future__ import annotations

import sqlite3
from collections.abc import Callable, Iterable, Sequence
from datetime import datetime
from typing import Any, NamedTuple, TypeAlias, TypeVar

from pushkit.errors import StorageError
from pushkit.storage.group_commit import Batch, BatchesDone
from pushkit.storage.migrations import Access, Migration, migrate
from pushkit.storage.script import Script
from pushkit.storage.sqlite import _PAUSE_AFTER_LONG, SqliteDatabase, _Writer, run_script
from tests.verification.simulation.database_pool import DatabasePool
from tests.verification.simulation.loop import Process, SimulatedLoop

__all__ = [
    "INBOX_QUEUES",
    "JOBS",
    "QUEUES",
    "Crash",
    "Disk",
    "DiskDatabase",
    "OnMove",
    "OnQueue",
    "QueueRow",
    "failure",
    "queue_columns",
    "shown_state",
]

T = TypeVar("T")

_SYNCHRONOUS = "PRAGMA synchronous = "
_SYNCED = {"FULL", "EXTRA"}
_ENDING = {sqlite3.SQLITE_FULL, sqlite3.SQLITE_IOERR}
_BUSY_TIMEOUT = 5.0  # seconds that a writer waits for another process
_LONG = 1 / 50  # how often scripts in the event loop take so long that the next use the thread


class Crash(BaseException):
    """The process ends at this statement."""


class Disk:
    """One database file.

    Attributes:
        fault: Called before every statement with its SQL, and with `COMMITTED` after a commit;
            may raise `sqlite3.Error` or `Crash`.
        on_move: Called with each change of state (see `OnMove`).
        on_queue: Called with each change of a queue's row (see `OnQueue`).
        is_upgraded: Whether a later version of the programs has changed the schema.
    """

    def __init__(self, loop: SimulatedLoop) -> None:
        self.loop = loop
        self.fault: Callable[[Process, str], None] | None = None
        self.on_move: OnMove | None = None
        self.on_queue: OnQueue | None = None
        self.running: Process | None = None
        self.is_upgraded = False
        self.lock_holders: dict[str, Process] = {}
        self._is_synced: dict[Process, bool] = {}
        self._synced: sqlite3.Connection | None = None  # the state after a power cut, if it differs
        self._holder: Process | None = None  # the process that is in a transaction
        self._written: list[tuple[str, Any]] = []  # the statements of that transaction
        self.connection = _connect()
        self.connection.disk = self

    def select(self, sql: str, *values: Any) -> list[sqlite3.Row]:
        """Query the committed state."""
        self.lay_aside()
        return self._execute(sql, values)

    def is_held_from(self, process: Process) -> bool:
        """Return whether another process is in a transaction."""
        holder = self._holder
        return holder is not None and holder is not process and holder.alive

    def is_held_by(self, process: Process) -> bool:
        """Return whether a process is in a transaction, which holds the lock."""
        return self._holder is process

    def resume(self, process: Process) -> None:
        """Prepare the connection for a process, restoring its open transaction if it has one."""
        if self._holder is not process:
            self.lay_aside()
        elif not self.connection.in_transaction:
            self._execute("BEGIN IMMEDIATE")
            told, self.on_move, self.on_queue = (self.on_move, self.on_queue), None, None
            for sql, values in self._written:  # these changes were reported already
                self._execute(sql, values)
            self.on_move, self.on_queue = told

    def lay_aside(self) -> None:
        """Roll back the open transaction, to be repeated later: processes share one connection."""
        if self.connection.in_transaction:
            self._execute("ROLLBACK")

    def _execute(self, sql: str, values: Any = ()) -> list[sqlite3.Row]:
        return sqlite3.Connection.execute(self.connection, sql, values).fetchall()

    def begin_with(self, component: str, migrations: Sequence[Migration]) -> None:
        """Create the tables of these migrations, unless the database has tables."""
        if migrations and not self.select("SELECT 1 FROM sqlite_master"):
            self.connection.close()
            self.connection = _POOL.take(component, migrations)
            self.connection.disk = self

    def recycle(self) -> None:
        """Return the database to the pool, for the next world."""
        self.on_move = self.on_queue = None
        self.recover()
        _POOL.put_back(self.connection)

    def watch(self) -> None:
        """Report every change of state in the tables that exist by now."""
        [(schema,)] = self.select("PRAGMA schema_version")
        if schema == self.connection.watched:
            return
        self.connection.watched = schema
        self.is_upgraded = bool(
            self.select("SELECT 1 FROM sqlite_master WHERE name LIKE 'pushkit_%_later'")
        )
        for table, jobs in JOBS.items():
            if self.select("SELECT 1 FROM sqlite_master WHERE name = ?", table):
                _watch_moves(self.connection, table)
                _watch_queues(self.connection, jobs.queues)

    def before(self, sql: str) -> None:
        process = self.running
        if process is None:
            return
        if sql.startswith("PRAGMA"):
            if sql.startswith(_SYNCHRONOUS):
                self._is_synced[process] = sql.removeprefix(_SYNCHRONOUS) in _SYNCED
            return
        if sql == "BEGIN IMMEDIATE":
            if self.is_held_from(process):
                raise failure(sqlite3.SQLITE_BUSY, "database is locked")
            if not self._is_synced[process] and self._synced is None:
                self._synced = sqlite3.connect(":memory:")
                self.connection.backup(self._synced)
        if self.fault is None:
            return
        try:
            self.fault(process, sql)
        except sqlite3.OperationalError as exc:
            # SQLite may then end the whole transaction; in a commit it always does.
            if exc.sqlite_errorcode in _ENDING and (
                sql == "COMMIT" or self.loop.random.random() < 0.5
            ):
                self._end_transaction()
            raise

    def after(self, sql: str, values: Any) -> None:
        if sql == "BEGIN IMMEDIATE":
            self._holder = self.running
            self._written.clear()
        elif sql in ("COMMIT", "ROLLBACK"):
            self._holder = None
            if sql == "COMMIT":
                self._committed()
        elif not sql.startswith(("SELECT", "PRAGMA")):
            self._written.append((sql, values))

    def _committed(self) -> None:
        if self.running is not None and self._is_synced[self.running]:
            self._synced = None
        self.before("COMMITTED")

    def _end_transaction(self) -> None:
        if self.connection.in_transaction:  # else it is a reader's, who has none to lose
            self.recover()

    def recover(self) -> None:
        """Roll back an unfinished transaction, as SQLite does when it opens a file."""
        self.lay_aside()
        self._holder = None

    def copy(self) -> sqlite3.Connection:
        """Return a copy of the committed state."""
        self.lay_aside()
        self.connection.backup(copy := sqlite3.connect(":memory:"))
        return copy

    def restore(self, copy: sqlite3.Connection) -> None:
        """Return to an earlier state; no process may run."""
        self.recover()
        self._synced = None
        copy.backup(self.connection)
        self.watch()

    def lose_power(self) -> None:
        """Return to the last synced state."""
        self.recover()
        if self._synced is not None:
            self._synced.backup(self.connection)


class Jobs(NamedTuple):
    """A table of jobs, whose changes of `state` are watched."""

    queues: str  # the table of their queues
    queue_id: str  # the columns that name a job's queue, and its number there
    place: str
    held: str  # the state that is shown of a pending one which a worker has


INBOX_QUEUES = "pushkit_inbox_queues"
JOBS = {
    # A subscription's row is its queue.
    "pushkit_deliveries": Jobs("pushkit_subscriptions", "subscription_id", "seq", "in_flight"),
    "pushkit_inbox": Jobs(INBOX_QUEUES, "queue_id", "place", "in_progress"),
}
QUEUES = frozenset(jobs.queues for jobs in JOBS.values())
# Called with the table, the states before and after (None without a row), and the error.
OnMove: TypeAlias = "Callable[[str, str | None, str | None, str | None], object]"


class QueueRow(NamedTuple):
    """The columns of a queue's row that say who has which of its deliveries."""

    id: str
    lease_worker: str | None
    leased_at: int | None
    lease_until: int | None
    epoch: int
    sending_to: int
    settled_to: int
    last_seq: int
    due_at: int | None
    abandoned: int
    active: int = 1  # these two are of subscriptions
    removed_at: int | None = None


# Called with the row of a queue before and after a change of these columns, and who changes it. A
# queue of an inbox is None before it is made, and after it was deleted.
OnQueue: TypeAlias = "Callable[[QueueRow | None, QueueRow | None, Process | None], object]"


def queue_columns(table: str) -> Sequence[str]:
    """Return the columns of a table of queues that are watched: the first ones of `QueueRow`."""
    return QueueRow._fields[:-2] if table == INBOX_QUEUES else QueueRow._fields


def shown_state(row: str, table: str = "pushkit_deliveries") -> str:
    """Return the state of a row of a table of jobs, as SQL.

    It is `in_flight`, or `in_progress`, while a worker leases its queue and has it, pending in the
    table.
    """
    queues, queue_id, place, held = JOBS[table]
    return (
        f"CASE WHEN {row}.state = 'pending' AND {row}.waits = 0 AND EXISTS (SELECT 1 FROM {queues}"
        f" l WHERE l.id = {row}.{queue_id} AND l.lease_worker IS NOT NULL"
        f" AND {row}.{place} <= l.sending_to) THEN '{held}' ELSE {row}.state END"
    )


def _watch_moves(connection: _Connection, table: str) -> None:
    """Report each change of state in a table to the disk."""
    connection.create_function("moved", 4, connection.moved)
    old, new = shown_state("OLD", table), shown_state("NEW", table)
    for event, before, after, row in (
        ("INSERT", "NULL", new, "NEW"),
        ("UPDATE OF state", old, new, "NEW"),
        ("DELETE", old, "NULL", "OLD"),
    ):
        sqlite3.Connection.execute(
            connection,
            f"CREATE TEMP TRIGGER IF NOT EXISTS {table}_{event[:6]} AFTER {event} ON main.{table}"
            f" BEGIN SELECT moved('{table}', {before}, {after}, {row}.last_error); END",
        )


def _watch_queues(connection: _Connection, table: str) -> None:
    """Report each change of a queue's row to the disk."""
    connection.create_function("queue_changed", -1, connection.queue_changed)
    names = queue_columns(table)
    nothing, old, new = (
        ", ".join(f"{row}{name}" if row else "NULL" for name in names)
        for row in ("", "OLD.", "NEW.")
    )
    rows = {"UPDATE": f"{old}, {new}"}
    if table == INBOX_QUEUES:
        rows |= {"INSERT": f"{nothing}, {new}", "DELETE": f"{old}, {nothing}"}
    for event, values in rows.items():
        sqlite3.Connection.execute(
            connection,
            f"CREATE TEMP TRIGGER IF NOT EXISTS {table}_{event} AFTER {event} ON main.{table}"
            f" BEGIN SELECT queue_changed({values}); END",
        )


def failure(code: int, text: str) -> sqlite3.OperationalError:
    """Return an error as SQLite's own."""
    error = sqlite3.OperationalError(text)
    error.sqlite_errorcode = code
    return error


class _Connection(sqlite3.Connection):
    disk: Disk
    watched: int | None = None  # the version of SQLite's schema whose tables are watched

    def execute(self, sql: str, parameters: Any = (), /) -> Any:
        self.disk.before(sql)
        result = super().execute(sql, parameters)
        self.disk.after(sql, parameters)
        return result

    def moved(self, *move: Any) -> None:
        if self.disk.on_move is not None:
            self.disk.on_move(*move)

    def queue_changed(self, *values: Any) -> None:
        half = len(values) // 2
        if self.disk.on_queue is not None and values[:half] != values[half:]:
            before, after = (
                None if row[0] is None else QueueRow(*row) for row in (values[:half], values[half:])
            )
            self.disk.on_queue(before, after, self.disk.running)


def _connect() -> _Connection:
    connection = sqlite3.connect(
        ":memory:",
        isolation_level=None,
        check_same_thread=False,
        factory=_Connection,
        cached_statements=1024,
    )
    connection.row_factory = sqlite3.Row
    return connection


_POOL = DatabasePool(_connect, lambda new, *what: run_script(new, migrate(*what)))


class _InlineWriter(_Writer):
    """The writer without its thread: its work runs a short delay later, in order."""

    def __init__(self, database: DiskDatabase, connect: Callable[[], sqlite3.Connection]) -> None:
        super().__init__(connect, database.write_fault.note, patience=-1.0)  # `_work` waits instead
        self._database = database

    def start(self) -> None: ...

    def __call__(self, batches: Sequence[Batch[Any, Any]], done: BatchesDone, /) -> None:
        loop, delay = self._database.disk.loop, self._database.delay()
        if not self._does(lambda: super(_InlineWriter, self).__call__(batches, done)):
            return
        if self._database.process.frozen is None and loop.leap(delay):
            self._work(loop.time())
        else:
            loop.call_later(delay, self._work, loop.time() + delay)

    def _run_in_loop(self, batches: Sequence[Batch[Any, Any]]) -> bool:
        is_run, loop = super()._run_in_loop(batches), self._database.disk.loop
        if is_run and loop.random.random() < _LONG:
            self._in_thread_until = loop.time() + _PAUSE_AFTER_LONG
        return is_run

    def _work(self, since: float) -> None:
        """Run the next transaction, unless another process holds the lock."""
        loop = self._database.disk.loop
        waited = loop.time() - since
        if waited < _BUSY_TIMEOUT and self._database.disk.is_held_from(self._database.process):
            loop.call_later(0.005 + waited / 4, self._work, since)
            return
        job = self._jobs.get_nowait()
        assert job is not None
        batches, done, is_run = job
        if self._does(lambda: self.commit(batches, is_run=is_run)):
            self._batches_done(batches, done)

    def _does(self, what: Callable[[], object]) -> bool:
        """Call a function as the process; return whether the process is still alive."""
        disk, process = self._database.disk, self._database.process
        disk.running = process
        disk.resume(process)
        try:
            what()
        except Crash:
            if disk.is_held_by(process):
                disk.recover()
            process.alive = False  # at once; the rest of its end follows
        finally:
            disk.running = None
        return process.alive


class DiskDatabase(SqliteDatabase):
    """A process's view of a disk: `SqliteDatabase` without its threads."""

    def __init__(
        self,
        disk: Disk,
        process: Process,
        *,
        component: str,
        migrations: Sequence[Migration],
        clock: Callable[[], datetime],
    ) -> None:
        super().__init__("disk.db", component=component, migrations=migrations, clock=clock)
        self.disk = disk
        self.process = process
        self.locks: Any = _Locks(disk, process)

    def delay(self) -> float:
        return 0.0002 + self.disk.loop.random.random() * 0.003

    async def _start_writer(self, access: Access) -> None:
        await super()._start_writer(access)
        self.disk.watch()

    def _new_writer(self, access: Access) -> _Writer:
        return _InlineWriter(self, lambda: self._connect(access))

    def _connect(
        self,
        access: Access,
        *,
        is_copy: bool = False,  # noqa: ARG002  # as the base class
    ) -> sqlite3.Connection:
        try:
            self._configure(self.disk.connection, access)
        except sqlite3.Error as exc:
            raise StorageError(f"the disk: {exc}") from exc
        return self.disk.connection

    async def close(self) -> None:
        group_commit, self._group_commit, self._reader = self._group_commit, None, None
        if group_commit is not None:
            await group_commit.drain()

    async def empty_log(self, *, vacuum: bool = False) -> bool:  # noqa: ARG002
        return True  # there is no log

    async def read(self, script: Script[T]) -> T:
        if self._reader is None:
            raise StorageError("the disk is not open: call open() first")
        await self.disk.loop.pause(self.delay())
        disk = self.disk
        disk.lay_aside()
        disk.running = self.process
        try:
            return run_script(disk.connection, script)
        except sqlite3.Error as exc:
            raise StorageError(f"the disk: {exc}") from exc
        except Crash:
            self.process.alive = False
            return await disk.loop.create_future()  # type: ignore[no-any-return]
        finally:
            disk.running = None


class _Locks:
    """The lock files of workers: those of a dead process are free."""

    def __init__(self, disk: Disk, process: Process) -> None:
        self._disk = disk
        self._process = process

    def hold(self, worker: str) -> None:
        self._disk.lock_holders[worker] = self._process

    def release(self, worker: str) -> None:
        self._disk.lock_holders.pop(worker, None)

    def dead(self, workers: Iterable[str]) -> list[str]:
        holders = self._disk.lock_holders
        return [name for name in workers if name not in holders or not holders[name].alive]

    def sweep(self) -> None: ...
