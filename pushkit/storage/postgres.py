"""PostgreSQL: a pool of connections, and one transaction for a script or for a group commit.

Scripts call two functions, which are made with the schema: `pushkit_now()`, microseconds since the
epoch by the database's clock, and `pushkit_wake()`, which wakes idle workers on every machine
(`NOTIFY`, delivered when the transaction commits). `pushkit_check()` refuses a process that is too
old for the schema, in the round trip that begins its transaction.

Behind a pooler in transaction mode each transaction may be in another session: statements are not
prepared by name, every one is in a transaction, and nothing listens.
"""

from __future__ import annotations

import asyncio
import contextlib
import functools
import logging
from collections.abc import AsyncIterator, Callable, Collection, Sequence
from dataclasses import replace
from datetime import datetime, timedelta
from typing import Any, NamedTuple, TypeVar

import asyncpg
from asyncpg.pool import PoolConnectionProxy

from pushkit.errors import CommitUncertainError, ConfigError, StorageError
from pushkit.logs import RepeatedLog
from pushkit.storage.database import Database
from pushkit.storage.group_commit import (
    OTHER_LOOP,
    Batch,
    BatchesDone,
    GroupCommit,
    held_too_long,
)
from pushkit.storage.location import masked
from pushkit.storage.migrations import (
    Access,
    Migration,
    Schema,
    find_schema,
    migrate,
    table_names,
    too_old_to_write,
)
from pushkit.storage.postgres_server import FAULTS, PostgresServer, missing_rights, reason_of
from pushkit.storage.script import (
    Group,
    OnDone,
    Script,
    Statement,
    driver_connection,
    from_micros,
    run_for_rows,
)

Item = TypeVar("Item")
T = TypeVar("T")

_log = logging.getLogger("pushkit.storage")

_CHANNEL = "pushkit_work"
_NEWS = "news"
_ANNOUNCE = f"SELECT pg_notify('{_CHANNEL}', '{_NEWS}')"
_MAX_BATCH = 256
_NOT_OPEN = "PostgreSQL: not open: call open() first"
_WHERE = "PostgreSQL"  # a DSN may hold a password
_READ_ONLY = (
    "nothing can be written there: found a standby, or a role or database with"
    " default_transaction_read_only; expected the primary server, and this setting off"
)
_HAS_TABLE = "SELECT 1 AS found WHERE to_regclass($1) IS NOT NULL"
# A script that waits for a row holds a connection: for this long, then it is run again later.
_LOCK_TIMEOUT = "SET LOCAL lock_timeout = '50ms'"
_NO_TIMEOUTS = "SET LOCAL statement_timeout = 0; SET LOCAL lock_timeout = 0"  # not even the role's
_FIRST_PAUSE = timedelta(milliseconds=20)
_LONGEST_PAUSE = timedelta(seconds=1)
_CLOSE_TIMEOUT = timedelta(seconds=5)
_ROLLBACK_TIMEOUT = 2.0  # seconds; then the connection is dropped, and the server rolls back
_ASKS_EVERY = 30.0  # seconds between two queries of the connection that listens
_BEGIN_READING = "BEGIN ISOLATION LEVEL REPEATABLE READ READ ONLY"
_MIGRATION_LOCK = 0x70757368  # "push": one migration at a time in a database
_LEFT_BEHIND = "PK001"  # the SQLSTATE of `pushkit_check`
# Waits for transactions that have read the table; later ones see the migrated schema.
_LOCK_WRITERS = "LOCK TABLE pushkit_writers IN ACCESS EXCLUSIVE MODE"
# A caller's transaction: its isolation, and the tables that it would write to. The time of its
# start identifies a server: locks and `NOTIFY` reach no further than one running server.
_OF_TRANSACTION = """
    SELECT current_setting('transaction_isolation') AS isolation,
        pg_postmaster_start_time() AS server, current_database() AS database,
        relnamespace::regnamespace::text AS schema, found.oid AS tables
    FROM (SELECT to_regclass('pushkit_writers')::oid AS oid) AS found
    LEFT JOIN pg_class ON pg_class.oid = found.oid
"""
_NAMES = "FROM (VALUES $rows) AS asked (name)"
_HOLD = (
    "SELECT pg_advisory_xact_lock(hashtextextended(name, 0)) AS held, name, pushkit_now() AS now"
    f" {_NAMES}"
)
_HOLD_AT_ONCE = (
    f"SELECT name, pushkit_now() AS now {_NAMES}"
    " WHERE pg_try_advisory_xact_lock(hashtextextended(name, 0))"
)
_BROKEN = (
    asyncpg.InterfaceError,
    asyncpg.InternalClientError,
    asyncpg.OperatorInterventionError,  # the server shuts down
    asyncpg.PostgresConnectionError,
    OSError,
    TimeoutError,
)
_PASSING = (
    asyncpg.LockNotAvailableError,
    asyncpg.DeadlockDetectedError,
    asyncpg.InvalidCachedStatementError,  # a migration has changed what a statement returns
)
# The session has a statement that another connection prepared, or lacks one of this connection.
_FOREIGN_STATEMENT = (asyncpg.DuplicatePreparedStatementError, asyncpg.InvalidSQLStatementNameError)
_LACKS_RIGHTS = (asyncpg.InsufficientPrivilegeError, asyncpg.InvalidSchemaNameError)
_CANNOT_WRITE = (
    asyncpg.DiskFullError,
    asyncpg.InsufficientPrivilegeError,
    asyncpg.PostgresIOError,
    asyncpg.ReadOnlySQLTransactionError,
)

# Replaced by a migration, and where they differ: they hold no data.
_FUNCTIONS = (
    """
    CREATE OR REPLACE FUNCTION pushkit_now() RETURNS bigint LANGUAGE sql VOLATILE AS
    $$ SELECT (extract(epoch FROM clock_timestamp()) * 1000000)::bigint $$
    """,
    f"""
    CREATE OR REPLACE FUNCTION pushkit_wake() RETURNS integer LANGUAGE plpgsql VOLATILE AS
    $$ BEGIN PERFORM pg_notify('{_CHANNEL}', ''); RETURN 0; END $$
    """,
    f"""
    CREATE OR REPLACE FUNCTION pushkit_check(whose text, known integer) RETURNS integer
    LANGUAGE plpgsql VOLATILE AS $$
    DECLARE needed integer := (SELECT oldest FROM pushkit_writers WHERE component = whose);
    BEGIN
        IF needed > known THEN
            RAISE EXCEPTION '%', needed USING ERRCODE = '{_LEFT_BEHIND}';
        END IF;
        RETURN needed;
    END $$
    """,  # put together from constants
)


class _PassingError(StorageError):
    """Another transaction was in the way: the script would succeed if it were run again."""


class _Tables(NamedTuple):
    """The tables that a transaction writes to."""

    server: datetime  # when it was started
    database: str
    schema: str | None  # None if the search path leads to no tables of pushkit's
    tables: int | None

    def __str__(self) -> str:
        tables = f"schema {self.schema}" if self.schema else "no tables of pushkit's"
        return f"database {self.database}, {tables}"


class PostgresDatabase(Database):
    """A database on a PostgreSQL server."""

    def __init__(
        self,
        dsn: str,  # `postgresql://user:password@host/database`
        *,
        component: str,
        migrations: Sequence[Migration],
        # How many connections the pool may hold: at most half of them for scripts that wait for
        # rows, and less than half for reads.
        connections: int = 8,
        command_timeout: timedelta = timedelta(seconds=30),  # how long one statement may take
        # How long a transaction may be idle. The server ends the transaction of a frozen process,
        # for which others would wait otherwise.
        idle_timeout: timedelta = timedelta(seconds=10),
    ) -> None:
        super().__init__(masked(dsn))  # without locks: only leases show dead workers on others
        self._server = PostgresServer(dsn, connections=connections, command_timeout=command_timeout)
        self._component = component
        self._migrations = migrations
        self._check = f"SELECT pushkit_check('{component}', {migrations[-1].version})"
        # A statement that has waited for a row must see what the transaction before it wrote.
        self._begin = self._begin_writing = (
            "BEGIN ISOLATION LEVEL READ COMMITTED; SET LOCAL idle_in_transaction_session_timeout"
            f" = {idle_timeout // timedelta(milliseconds=1)}; {self._check}"
        )
        self._access = Access.READ  # until it is opened for more
        self._connections = connections
        self._command_timeout = command_timeout
        self._pool: asyncpg.Pool | None = None
        self._loop: asyncio.AbstractEventLoop | None = None  # the pool's
        self._waiting = self._reading = asyncio.Semaphore()
        self._faults = RepeatedLog(_log)
        self._tasks: set[asyncio.Task[None]] = set()
        self._closing = False
        self._scripts = 0
        self._tables: _Tables | None = None  # those of the pool's connections, as last read
        self._idle = asyncio.Event()
        self._idle.set()

    async def open(self, access: Access = Access.UPGRADE) -> None:
        """Connect for a kind of access."""
        if self._pool is not None:
            return
        pool = await self._server.new_pool()
        self._access = access
        try:
            await self._prepare(pool, access)
        except BaseException:
            pool.terminate()  # closing would wait for a silent server
            raise
        self._waiting = asyncio.Semaphore(max(self._connections // 2, 1))
        self._reading = asyncio.Semaphore(max(self._connections // 2 - 1, 1))
        self._scripts, self._idle = 0, asyncio.Event()
        self._idle.set()
        self._group_commit = GroupCommit(
            self._run_batches, most=_MAX_BATCH, patience=self._command_timeout, wait=False
        )
        self._begin = _BEGIN_READING if access is Access.READ else self._begin_writing
        self._pool, self._loop = pool, asyncio.get_running_loop()

    async def _prepare(self, pool: asyncpg.Pool, access: Access) -> None:
        found = await self._schema_on(pool)
        if access is not Access.UPGRADE:
            found.check_current(self.location)
            return
        found.check_known()
        if not found.is_current:
            await self._migrate(pool)
        async with pool.acquire() as connection, connection.transaction():
            missing = await self._missing_rights(connection)
            if await connection.fetchval("SHOW transaction_read_only") == "on":
                missing = _READ_ONLY
        if missing:
            raise StorageError(f"PostgreSQL: {missing}")

    async def schema(self) -> Schema:
        """Return the database's schema, without changing it; it need not be open."""
        if self._pool is not None:
            return await self._schema_on(self._pool)
        pool = await self._server.new_pool()
        try:
            return await self._schema_on(pool)
        finally:
            await pool.close()

    async def look(self, script: Script[T]) -> T:
        """Run a script that only reads, whatever the schema; the database need not be open."""
        pool = await self._server.new_pool()
        try:
            async with (
                pool.acquire() as connection,
                connection.transaction(isolation="repeatable_read", readonly=True),
            ):
                return await run_script(connection, script)
        except FAULTS as exc:
            raise StorageError(f"PostgreSQL refused: {reason_of(exc)}") from exc
        finally:
            await pool.close()

    async def _schema_on(self, pool: asyncpg.Pool) -> Schema:
        try:
            async with (
                pool.acquire() as connection,
                connection.transaction(isolation="repeatable_read", readonly=True),
            ):
                script = find_schema(_WHERE, self._component, self._migrations, _HAS_TABLE)
                found = await run_script(connection, script)
                # Tables in a schema that a role may not use look to it as if there were none.
                if not found.versions and (missing := await self._missing_rights(connection)):
                    raise StorageError(f"PostgreSQL: the schema: {missing}")
                return replace(found, has_functions=await _has_functions(connection))
        except FAULTS as exc:
            reason = await self._reason_on(pool, exc)
            raise StorageError(f"PostgreSQL: the schema: {reason}") from exc

    async def close(self) -> None:
        """Finish the submitted items, and close the connections, after 5 s by force."""
        pool = self._pool
        if self._loop is not None and self._loop.is_closed():
            # Its connections can say nothing any more: they are closed as they are collected.
            self._server.own_processes.clear()
            self._pool, self._group_commit, self._closing = None, None, False
            return
        if pool is None or self._closing:
            return
        self._closing = True
        try:
            async with asyncio.timeout(_CLOSE_TIMEOUT.total_seconds()):
                if self._group_commit is not None:
                    await self._group_commit.drain()
                await self._idle.wait()  # the pool refuses tasks that still wait for a connection
                await pool.close()
        except TimeoutError:
            _log.warning("PostgreSQL: connections are still in use, and are closed by force")
            pool.terminate()
        except BaseException:
            pool.terminate()
            raise
        finally:
            self._pool, self._group_commit, self._closing = None, None, False

    async def write(self, script: Script[T]) -> T:
        """Run a script in a transaction; return its result once that is committed."""
        self._check_open()
        return await self._write(script)

    async def _write(self, script: Script[T]) -> T:
        async with self._transaction(self._begin) as connection:
            result = await run_script(connection, script)
            try:
                await connection.execute("COMMIT")
            except _BROKEN as exc:
                raise CommitUncertainError(
                    "the connection broke in the commit: it may have been stored or not;"
                    " look before you repeat it, or repeat notify() with its idempotency key"
                ) from exc
            return result

    async def write_patiently(self, make: Callable[[], Script[T]]) -> T:
        """Run a script that may have to wait for rows; it waits without a connection."""
        clock = asyncio.get_running_loop().time
        patience = self._command_timeout.total_seconds()
        until = clock() + patience
        pause = _FIRST_PAUSE
        while True:
            self._check_open()
            try:
                async with self._waiting:
                    return await self._write(_impatient(make()))
            except _PassingError as exc:
                if clock() > until:
                    raise held_too_long(patience) from exc
            await asyncio.sleep(pause.total_seconds())
            pause = min(pause * 2, _LONGEST_PAUSE)

    def write_together(
        self, group: Group[Item, T], item: Item, on_done: OnDone[T] | None = None
    ) -> asyncio.Future[T]:
        """Run a group's script over this item and others that wait."""
        return self._open_group_commit().submit_or_lead(group, item, on_done)

    def _open_group_commit(self) -> GroupCommit:
        if self._group_commit is None or self._closing:
            raise StorageError(_NOT_OPEN)
        return self._group_commit

    def _run_batches(self, batches: Sequence[Batch[Any, Any]], done: BatchesDone, /) -> None:
        self._tasks.add(task := asyncio.create_task(self._run_together(batches)))
        task.add_done_callback(functools.partial(self._batches_done, batches, done))

    async def _run_together(self, batches: Sequence[Batch[Any, Any]]) -> None:
        """Run batches in one transaction; if that fails, in one for each."""
        try:
            await self._write(_all_of(batches))
        except Exception as exc:  # noqa: BLE001  # the submitters get it
            # A transaction that may have been committed must not be run again.
            is_final = isinstance(exc, CommitUncertainError)
            if len(batches) == 1 or is_final:
                for batch in batches:
                    batch.error, batch.is_final = exc, is_final
                return
            for batch in batches:
                await self._run_together([batch])

    def _batches_done(
        self, batches: Sequence[Batch[Any, Any]], done: BatchesDone, task: asyncio.Task[None]
    ) -> None:
        self._tasks.discard(task)
        if task.cancelled():  # the event loop is ending: the results are not committed
            for batch in batches:
                batch.results = None
        done(batches)

    async def write_on(self, connection: object, script: Script[T]) -> T:
        """Run a script in the READ COMMITTED transaction of a caller's connection."""
        found = driver_connection(connection)
        if not isinstance(found, asyncpg.Connection | PoolConnectionProxy):
            raise ConfigError(
                f"connection: found {type(connection).__name__}, expected an asyncpg connection:"
                " the outbox is in PostgreSQL"
            )
        if not found.is_in_transaction():
            raise ConfigError(
                "connection: not in a transaction, so that task and notification would not be"
                " stored together: begin one first"
            )
        try:
            await self._check_transaction(found)
            return await _run_nested(found, self._check, script)
        except FAULTS as exc:
            reason = await self._reason_on(found, exc)
            raise self._refusal(exc, reason, "roll the transaction back") from exc

    async def _check_transaction(
        self, connection: asyncpg.Connection | PoolConnectionProxy
    ) -> None:
        [[isolation, *tables]] = await connection.fetch(_OF_TRANSACTION)
        # A stricter isolation does not see what others committed since it began, and fails at the
        # row of a queue that they changed.
        if isolation != "read committed":
            raise ConfigError(
                f"connection: its transaction is {isolation.upper()}, expected READ"
                " COMMITTED: begin it so, or notify after it"
            )
        theirs = _Tables(*tables)
        if theirs == self._tables:
            return
        # They were not read before, or changed: the server was restarted, or the tables made anew.
        self._tables = own = await self.read(_own_tables())
        if theirs != own:
            server = "" if theirs.server == own.server else " of another server"
            raise ConfigError(
                f"connection: found {theirs}{server}, expected {own}: connect to where the outbox"
                " is, with the same search_path"
            )

    async def read(self, script: Script[T]) -> T:
        """Run a script that only reads, on a consistent snapshot."""
        self._check_open()
        async with self._reading, self._transaction(_BEGIN_READING) as connection:
            result = await run_script(connection, script)
            await connection.execute("COMMIT")
            return result

    def now(self) -> Script[datetime]:
        """Return the current time by the server's clock: workers' clocks may disagree."""
        rows = yield Statement("SELECT pushkit_now() AS now")
        return from_micros(rows[0]["now"])

    def hold(
        self, items: Sequence[Item], names: Callable[[Item], Collection[str]], *, wait: bool
    ) -> Script[tuple[Sequence[Item], datetime]]:
        """Hold the names of items, or those that are free, and read the time with them."""
        wanted = [(each, names(each)) for each in items]
        # In one order in every transaction: waits must not form a cycle.
        ordered = sorted({name for _, own in wanted for name in own})
        # Row by row: the time of a row is read after its name is held.
        rows = yield from run_for_rows(
            _HOLD if wait else _HOLD_AT_ONCE, [(name,) for name in ordered]
        )
        now = from_micros(rows[-1]["now"]) if rows else (yield from self.now())
        held = {row["name"] for row in rows}
        return [each for each, own in wanted if held.issuperset(own)], now

    def wake(self) -> Script[None]:
        """Notify idle workers on every machine when this transaction commits."""
        yield Statement("SELECT pushkit_wake()")

    def announce(self) -> Script[None]:
        """Notify other processes on every machine of news when this transaction commits."""
        yield Statement(_ANNOUNCE)

    async def listen(
        self, wake: Callable[[], None], news: Callable[[], None] = lambda: None
    ) -> None:
        """Call `wake` or `news` when another process runs `wake` or `announce`, until cancelled.

        A lost connection is replaced; polling finds what was missed meanwhile, and all of it behind
        a pooler in transaction mode.
        """
        if self._server.has_pooler:
            await asyncio.Event().wait()
        while True:
            try:
                await self._listen_once(wake, news)
            except FAULTS as exc:
                text = "PostgreSQL: not listening: %s; trying again"
                self._faults.log(type(exc).__name__, logging.WARNING, text, reason_of(exc))
            await asyncio.sleep(1)

    def _check_open(self) -> None:
        if self._pool is None or self._closing:
            raise StorageError(_NOT_OPEN)
        if asyncio.get_running_loop() is not self._loop:
            raise StorageError(OTHER_LOOP)

    async def _listen_once(self, wake: Callable[[], None], news: Callable[[], None]) -> None:
        def notified(_: object, sender: int, __: str, payload: object) -> None:
            if sender not in self._server.own_processes:
                (news if payload == _NEWS else wake)()

        connection = await self._server.connect()
        ended = asyncio.get_running_loop().create_future()
        connection.add_termination_listener(lambda _: ended.set_result(None))
        try:
            await connection.add_listener(_CHANNEL, notified)
            wake()
            while not (await asyncio.wait([ended], timeout=_ASKS_EVERY))[0]:
                await connection.execute("SELECT 1", timeout=_ASKS_EVERY)  # fails if it is lost
        finally:
            with contextlib.suppress(*FAULTS):  # a cancellation must not become a fault
                await connection.close(timeout=1)

    @contextlib.asynccontextmanager
    async def _transaction(self, begin: str) -> AsyncIterator[PoolConnectionProxy]:
        """Begin a transaction: the caller commits it, an error rolls it back."""
        pool = self._pool
        if pool is None:
            raise StorageError(_NOT_OPEN)
        self._scripts += 1
        self._idle.clear()
        try:
            connection = await pool.acquire()
            try:
                await connection.execute(begin)
                yield connection
            except BaseException:
                with contextlib.suppress(*FAULTS):  # a broken connection has rolled back already
                    try:
                        await connection.execute("ROLLBACK", timeout=_ROLLBACK_TIMEOUT)
                    except BaseException:
                        await pool.expire_connections()  # a silent server answers on none
                        connection.terminate()
                        raise
                raise
            finally:
                with contextlib.suppress(*FAULTS):  # it broke after the commit
                    await pool.release(connection, timeout=_ROLLBACK_TIMEOUT)
        except FAULTS as exc:
            reason = await self._reason_on(pool, exc)
            if isinstance(exc, asyncpg.ReadOnlySQLTransactionError):
                await pool.expire_connections()  # after a failover they lead to a standby
            if isinstance(exc, _CANNOT_WRITE):
                self.write_fault.note(reason)
            raise self._refusal(exc, reason, "nothing was stored") from exc
        finally:
            if pool is self._pool:  # else that was closed, perhaps with its event loop
                self._scripts -= 1
                if not self._scripts:
                    self._idle.set()

    async def _missing_rights(
        self, connection: asyncpg.Connection | PoolConnectionProxy, *, migrates: bool = False
    ) -> str | None:
        return await missing_rights(
            connection,
            table_names(self._migrations),
            reads_only=self._access is Access.READ,
            migrates=migrates,
        )

    async def _reason_on(
        self,
        where: asyncpg.Pool | asyncpg.Connection | PoolConnectionProxy,
        exc: Exception,
        *,
        migrates: bool = False,
    ) -> str:
        """Return why a statement was refused: which rights, if the role lacks some."""
        if isinstance(exc, _LACKS_RIGHTS):
            with contextlib.suppress(*FAULTS):
                if isinstance(where, asyncpg.Pool):
                    async with where.acquire() as connection, connection.transaction():
                        missing = await self._missing_rights(connection, migrates=migrates)
                else:
                    missing = await self._missing_rights(where)
                if missing:
                    return missing
        return reason_of(exc)

    def _refusal(self, exc: Exception, reason: str, outcome: str) -> StorageError:
        if isinstance(exc, asyncpg.PostgresError) and exc.sqlstate == _LEFT_BEHIND:
            newest = self._migrations[-1].version
            return too_old_to_write(_WHERE, self._component, int(str(exc)), newest)
        if isinstance(exc, TimeoutError):
            return StorageError(
                "PostgreSQL: no answer in time: another transaction may hold what this needs, or"
                f" the server hangs; {outcome}"
            )
        if isinstance(exc, _FOREIGN_STATEMENT):
            reason = "another session answered; behind a pooler, add pooler=transaction to the DSN"
        kind = _PassingError if isinstance(exc, _PASSING) else StorageError
        return kind(f"PostgreSQL refused: {reason}; {outcome}")

    async def _migrate(self, pool: asyncpg.Pool) -> None:
        try:
            async with (
                self._server.patient_connection() as connection,
                # After it has waited for the lock it must see what the process before it did.
                connection.transaction(isolation="read_committed"),
            ):
                await connection.execute(_NO_TIMEOUTS)
                await connection.execute("SELECT pg_advisory_xact_lock($1)", _MIGRATION_LOCK)
                for function in _FUNCTIONS:
                    await connection.execute(function)
                await run_script(
                    connection,
                    migrate(self._component, self._migrations, _WHERE, alone=_LOCK_WRITERS),
                )
        except FAULTS as exc:
            reason = await self._reason_on(pool, exc, migrates=True)
            raise StorageError(f"PostgreSQL: the schema: {reason}") from exc


async def _has_functions(connection: PoolConnectionProxy) -> bool:
    """Return whether the database has these functions, with the same source."""
    rows = await connection.fetch(
        "SELECT prosrc FROM pg_proc WHERE proname LIKE 'pushkit%' AND pg_function_is_visible(oid)"
    )
    return {each.split("$$")[1] for each in _FUNCTIONS} <= {row["prosrc"] for row in rows}


def _own_tables() -> Script[_Tables]:
    [[_, *tables]] = yield Statement(_OF_TRANSACTION)
    return _Tables(*tables)


async def _run_nested(
    connection: asyncpg.Connection | PoolConnectionProxy, check: str, script: Script[T]
) -> T:
    # By statements: asyncpg's own savepoints refuse a transaction that was begun by a statement.
    await connection.execute("SAVEPOINT pushkit")
    try:
        await connection.execute(check)
        result = await run_script(connection, script)
    except BaseException:
        with contextlib.suppress(*FAULTS):  # a broken connection has rolled back already
            await connection.execute("ROLLBACK TO SAVEPOINT pushkit; RELEASE SAVEPOINT pushkit")
        raise
    await connection.execute("RELEASE SAVEPOINT pushkit")
    return result


def _all_of(batches: Sequence[Batch[Any, Any]]) -> Script[None]:
    for batch in batches:
        batch.note((yield from batch.script()))


def _impatient(script: Script[T]) -> Script[T]:
    yield Statement(_LOCK_TIMEOUT)
    return (yield from script)


async def run_script(connection: asyncpg.Connection | PoolConnectionProxy, script: Script[T]) -> T:
    """Run a script on a connection, in the transaction that is open there."""
    statement: Statement
    try:
        statement = next(script)
        while True:
            rows = await connection.fetch(_in_postgres(statement.sql), *statement.parameters)
            statement = script.send(rows)
    except StopIteration as stop:
        result: T = stop.value
        return result
    finally:
        script.close()


@functools.cache
def _in_postgres(sql: str) -> str:
    return sql.replace(
        "INTEGER PRIMARY KEY AUTOINCREMENT", "BIGINT GENERATED BY DEFAULT AS IDENTITY PRIMARY KEY"
    )
