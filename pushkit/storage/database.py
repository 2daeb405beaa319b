"""The interface of a database, and the choice between SQLite and PostgreSQL."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import AsyncIterator, Callable, Collection, Sequence
from datetime import datetime
from pathlib import Path
from typing import Protocol, TypeVar

from pushkit.errors import StorageError
from pushkit.lazy import from_extra
from pushkit.storage.faults import RecentFault
from pushkit.storage.location import postgres_dsn
from pushkit.storage.migrations import Access, Migration, Schema
from pushkit.storage.script import Group, OnDone, Script
from pushkit.storage.sqlite import SqliteDatabase
from pushkit.storage.worker_locks import WorkerLocks

Item = TypeVar("Item")
T = TypeVar("T")

_PROMPT_SECONDS = 5.0


class Database(Protocol):
    """Runs scripts in transactions; `SqliteDatabase` and `PostgresDatabase` implement it."""

    @property
    def location(self) -> str:
        """The whole path of the file, or the DSN with its passwords masked."""

    @property
    def locks(self) -> WorkerLocks | None:
        """The locks of the workers, if all of them are on one machine."""

    @property
    def write_fault(self) -> RecentFault:
        """Why disk or server refused this process a write recently: reading works meanwhile."""

    async def open(self, access: Access = Access.UPGRADE) -> None:
        """Connect for a kind of access: by default, to serve, with the schema brought up to date.

        Does nothing if it is open already.

        Raises:
            SchemaError: The schema is newer than the code, or, without `UPGRADE`, not the same.
            StorageError: There is no such database, or it is out of reach.
        """

    async def schema(self) -> Schema:
        """Return the schema that was found, without changing it; the database need not be open.

        Raises:
            StorageError: There is no such database, or it is out of reach.
        """

    async def look(self, script: Script[T]) -> T:
        """Run a script that only reads, whatever the schema; the database need not be open.

        Raises:
            StorageError: There is no such database, it is out of reach, or it refuses.
        """

    async def close(self) -> None:
        """Finish the submitted items, and disconnect."""

    async def write(self, script: Script[T]) -> T:
        """Run a script in a transaction; return its result once that is durable.

        Raises:
            CommitUncertainError: Disk or connection failed during the commit.
            SchemaError: The database was upgraded meanwhile, beyond what this code may write.
            StorageError: The database refused; nothing of the script has been stored.
            PushkitError: The script raised it; nothing of the script has been stored.
        """

    async def write_patiently(self, make: Callable[[], Script[T]]) -> T:
        """Run a script that may have to wait for rows that others hold; return its result.

        On PostgreSQL it waits without a connection, so that other scripts are not delayed.

        Args:
            make: Makes the script: again each time that one was cancelled because a row is held.

        Raises:
            StorageError: As `write`; or another transaction held a row for longer than a statement
                may take.
        """

    def write_together(
        self, group: Group[Item, T], item: Item, on_done: OnDone[T] | None = None
    ) -> asyncio.Future[T]:
        """Run a group's script over this item and others that wait; return its future result.

        The item is processed even if the future is cancelled, or nobody awaits it. `on_done` gets
        the result or the error in any case, in the event loop, before the future's awaiter does.

        Items of one group that wait at the same time become one script in one transaction. If that
        fails, each is run alone, so that one item's error does not reach another. On PostgreSQL
        such a script must not wait for a row, or all items would wait: the result of an item that
        needs a held row is `DEFERRED`.
        """

    async def drain(self, within: float) -> None:
        """Wait until everything submitted by `write_together` is done, at most so many seconds."""

    async def write_on(self, connection: object, script: Script[T]) -> T:
        """Run a script in the transaction of a caller's own connection; commit nothing.

        Raises:
            ConfigError: It is no connection of the driver's, or to other tables than these; or in
                no transaction, or in one that does not see what others commit.
            StorageError: The database refused; the transaction holds nothing of the script.
            PushkitError: The script raised it; the transaction holds nothing of the script.
        """

    async def read(self, script: Script[T]) -> T:
        """Run a script that only reads, on a consistent snapshot."""

    def now(self) -> Script[datetime]:
        """Return the current time by the clock that all workers on this database share."""

    def hold(
        self, items: Sequence[Item], names: Callable[[Item], Collection[str]], *, wait: bool
    ) -> Script[tuple[Sequence[Item], datetime]]:
        """Hold the names of items until this transaction ends, so that no other one has them.

        Args:
            items: What the transaction is about.
            names: Returns the names of an item.
            wait: Whether to wait for transactions that hold some, or to leave their items out.

        Returns:
            The items of which all names are held, in order, and the time.
        """

    def wake(self) -> Script[None]:
        """Wake idle workers of other processes when this commits: there is work."""

    def announce(self) -> Script[None]:
        """Notify other processes when this commits of rows that are no work for them."""

    async def listen(
        self, wake: Callable[[], None], news: Callable[[], None] = lambda: None
    ) -> None:
        """Call back whenever another process runs `wake` or `announce`, until cancelled."""


@contextlib.asynccontextmanager
async def promptly() -> AsyncIterator[None]:
    """Raise a `StorageError` if reading takes longer than a probe or a scrape may wait."""
    try:
        async with asyncio.timeout(_PROMPT_SECONDS):
            yield
    except TimeoutError as exc:
        reason = f"the database has not answered within {_PROMPT_SECONDS:g} s"
        raise StorageError(reason) from exc


async def fault_of(database: Database, reading: Script[object]) -> str | None:
    """Return why a database cannot be used: reading fails, or a write did recently."""
    try:
        async with promptly():
            await database.read(reading)
    except StorageError as exc:
        return str(exc)
    fault = database.write_fault.reason()
    return None if fault is None else f"it cannot be written: {fault}"


@contextlib.asynccontextmanager
async def opened(database: Database, access: Access) -> AsyncIterator[Database]:
    """Open a database, and close it at the end."""
    await database.open(access)
    try:
        yield database
    finally:
        await database.close()


async def read_now(database: Database, look: Callable[[datetime], Script[T]]) -> T:
    """Run a script that only reads, with the time of the database's clock."""

    def script() -> Script[T]:
        now = yield from database.now()
        return (yield from look(now))

    return await database.read(script())


async def upgrade(database: Database) -> Schema:
    """Bring a database up to date, or make it; return the schema that it had before.

    Raises:
        SchemaError: Newer code wrote the database.
        StorageError: The database is out of reach, or refuses.
    """
    before = await database.schema()
    before.check_known()
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
        ConfigError: It is neither; or a DSN, and the driver is not installed.
    """
    dsn = postgres_dsn(location)
    if dsn is None:
        return SqliteDatabase(location, component=component, migrations=migrations, clock=clock)
    with from_extra("postgres", "PostgreSQL needs asyncpg"):
        from pushkit.storage.postgres import PostgresDatabase
    return PostgresDatabase(dsn, component=component, migrations=migrations)
