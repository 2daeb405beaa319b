"""The face of a database, and the choice between the two that there are."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import AsyncIterator, Callable, Sequence
from datetime import datetime
from pathlib import Path
from typing import Protocol, TypeVar

from pushkit.errors import ConfigError
from pushkit.storage.location import postgres_dsn
from pushkit.storage.migrations import Access, Migration, Schema
from pushkit.storage.script import Ending, Group, Script
from pushkit.storage.sqlite import SqliteDatabase
from pushkit.storage.worker_locks import WorkerLocks

Item = TypeVar("Item")
T = TypeVar("T")


class Database(Protocol):
    """Runs scripts in transactions. SQLite and PostgreSQL stand behind it."""

    @property
    def locks(self) -> WorkerLocks | None:
        """The locks of this machine's workers, where all of them are on one machine."""

    async def open(self, access: Access = Access.UPGRADE) -> None:
        """Connect for what is meant: by default, to serve, with the schema brought up to date.

        Does nothing if it is open already.

        Raises:
            SchemaError: The schema is newer than the code; but for `UPGRADE`, any other.
            StorageError: There is no such database, or it is out of reach.
        """

    async def schema(self) -> Schema:
        """Return what the database holds, open or not, without changing anything.

        Raises:
            StorageError: There is no such database, or it is out of reach.
        """

    async def close(self) -> None:
        """Finish what was submitted, and disconnect."""

    async def write(self, script: Script[T]) -> T:
        """Run a script in a transaction; return its result once that is durable.

        Raises:
            CommitUncertainError: Disk or connection failed in the very commit.
            SchemaError: The database was upgraded meanwhile, beyond what this code may write.
            StorageError: The database refused; nothing of the script has been stored.
            PushkitError: What the script itself raised; nothing of it has been stored.
        """

    async def write_patiently(self, make: Callable[[], Script[T]]) -> T:
        """Run a script that may have to wait for rows that others hold; return its result.

        On PostgreSQL it waits without a connection, so that what waits for nobody goes on.

        Args:
            make: Makes the script: again, where one was broken off because a row is held.

        Raises:
            StorageError: As `write`; or somebody held what it needs for longer than a statement may
                take.
        """

    def write_together(
        self, group: Group[Item, T], item: Item, ended: Ending[T] | None = None
    ) -> asyncio.Future[T]:
        """Run a group's script over this item, and over others that wait; return its result to be.

        The work goes on if its future is cancelled, or nobody awaits it: `ended` hears of it all
        the same, in the event loop, before who awaits it: of the result, or of the error.

        Items of one group that wait at the same time become one script in one transaction. If that
        fails, each is run alone: nobody hears of another's error. On PostgreSQL such a script must
        wait for no row, or all would wait: what it cannot have at once it answers with `DEFERRED`.
        """

    async def drain(self) -> None:
        """Wait until everything submitted by `write_together` is done."""

    async def write_on(self, connection: object, script: Script[T]) -> T:
        """Run a script in the transaction that a caller's own connection is in; commit nothing.

        Raises:
            ConfigError: It is no connection of the driver's, or to other tables than these; or in
                no transaction, or in one that does not see what others commit.
            StorageError: The database refused; of the script nothing is in the transaction.
            PushkitError: What the script itself raised; the same holds.
        """

    async def read(self, script: Script[T]) -> T:
        """Run a script that only reads, on a consistent snapshot."""

    def now(self) -> Script[datetime]:
        """Return the present by the clock that all workers on this database share."""

    def exclusively(self, name: str) -> Script[None]:
        """Let other transactions that ask for this name wait until this one ends."""

    def hold(self, names: Sequence[str], *, wait: bool) -> Script[tuple[set[str], datetime]]:
        """Do so with several, in their order; return what is held, and the present as `now` does.

        Args:
            names: What is asked for.
            wait: Whether to wait for who holds them; or else, only those that nobody holds.
        """

    def wake(self) -> Script[None]:
        """Tell idle workers of other processes that there is work, once this commits."""

    def tell(self) -> Script[None]:
        """Tell other processes, once this commits, of what they need not work on."""

    async def listen(
        self, wake: Callable[[], None], news: Callable[[], None] = lambda: None
    ) -> None:
        """Call back whenever another process says `wake` or `tell`, until cancelled."""


@contextlib.asynccontextmanager
async def opened(database: Database, access: Access) -> AsyncIterator[Database]:
    """Open a database for what is meant, and close it in the end."""
    await database.open(access)
    try:
        yield database
    finally:
        await database.close()


async def read_now(database: Database, look: Callable[[datetime], Script[T]]) -> T:
    """Run a script that only reads, given what the database's clock says."""

    def script() -> Script[T]:
        now = yield from database.now()
        return (yield from look(now))

    return await database.read(script())


async def upgrade(database: Database) -> Schema:
    """Bring a database up to date, or make it; return what it held before.

    Raises:
        SchemaError: Newer code wrote it.
        StorageError: It is out of reach, or refuses.
    """
    before = await database.schema()
    before.check_not_newer()
    if not before.is_current:
        async with opened(database, Access.UPGRADE):
            pass
    return before


def open_location(
    location: str | Path,
    *,
    component: str,
    migrations: Sequence[Migration],
    clock: Callable[[], datetime],
) -> Database:
    """Return the database at a location: a PostgreSQL DSN, or the path of a SQLite file.

    Raises:
        ConfigError: Neither of them; or a DSN, and the driver is not installed.
    """
    dsn = postgres_dsn(location)
    if dsn is None:
        return SqliteDatabase(location, component=component, migrations=migrations, clock=clock)
    try:
        from pushkit.storage.postgres import PostgresDatabase
    except ImportError as exc:
        raise ConfigError("PostgreSQL needs asyncpg: pip install 'pushkit[postgres]'") from exc
    return PostgresDatabase(dsn, component=component, migrations=migrations)
