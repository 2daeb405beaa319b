"""What SQLite and PostgreSQL have in common: a database that runs scripts in transactions."""

from __future__ import annotations

import abc
import asyncio
import contextlib
import time
from collections.abc import AsyncIterator, Callable, Collection, Sequence
from datetime import datetime
from typing import Concatenate, Final, ParamSpec, TypeVar

from pushkit.errors import StorageError
from pushkit.storage.group_commit import GroupCommit
from pushkit.storage.migrations import Access, Schema
from pushkit.storage.script import Group, OnDone, Script
from pushkit.storage.worker_locks import WorkerLocks

Item = TypeVar("Item")
T = TypeVar("T")
P = ParamSpec("P")

_PROMPT_SECONDS: Final = 5.0
_FAULT_SECONDS: Final = 10.0


class RecentFault:
    """Why disk or server refused a write, which reading does not show, for ten seconds.

    It is not cleared earlier: a transaction that changes nothing succeeds on a full disk, too.
    """

    def __init__(self) -> None:
        self._reason: str | None = None
        self._until = 0.0

    def note(self, reason: str) -> None:
        """Remember why a write was refused just now."""
        self._reason, self._until = reason, time.monotonic() + _FAULT_SECONDS

    def reason(self) -> str | None:
        """Return why a write was refused in the last ten seconds; None if none was."""
        return self._reason if time.monotonic() < self._until else None


class Database(abc.ABC):
    """Runs scripts in transactions; `SqliteDatabase` and `PostgresDatabase` are databases.

    Attributes:
        location: The whole path of the file, or the DSN with its passwords masked.
        locks: The locks of the workers, if all of them are on one machine.
        write_fault: Why disk or server refused this process a write recently.
    """

    def __init__(self, location: str) -> None:
        self.location: str = location
        self.locks: WorkerLocks | None = None
        self.write_fault: RecentFault = RecentFault()
        self._group_commit: GroupCommit | None = None  # while it is open for writing

    @abc.abstractmethod
    async def open(self, access: Access = Access.UPGRADE) -> None:
        """Connect for a kind of access: by default, to serve, with the schema brought up to date.

        Does nothing if it is open already.

        Raises:
            SchemaError: The schema is newer than the code, or, without `UPGRADE`, not the same.
            StorageError: There is no such database, or it is out of reach.
        """

    @abc.abstractmethod
    async def schema(self) -> Schema:
        """Return the schema that was found, without changing it; the database need not be open.

        Raises:
            StorageError: There is no such database, or it is out of reach.
        """

    @abc.abstractmethod
    async def look(self, script: Script[T]) -> T:
        """Run a script that only reads, whatever the schema; the database need not be open.

        Raises:
            StorageError: There is no such database, it is out of reach, or it refuses.
        """

    @abc.abstractmethod
    async def close(self) -> None:
        """Finish the submitted items, and disconnect."""

    @abc.abstractmethod
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
        return await self.write(make())

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
        return (self._group_commit or self._open_group_commit()).submit(group, item, on_done)

    @abc.abstractmethod
    def _open_group_commit(self) -> GroupCommit:
        """Return what collects items. Raises StorageError: The database is not open for writing."""

    async def drain(self, within: float) -> None:
        """Wait until everything submitted by `write_together` is done, at most so many seconds."""
        if self._group_commit is not None:
            await self._group_commit.drain(within)

    @abc.abstractmethod
    async def write_on(self, connection: object, script: Script[T]) -> T:
        """Run a script in the transaction of a caller's own connection; commit nothing.

        Raises:
            ConfigError: It is no connection of the driver's, or to other tables than these; or in
                no transaction, or in one that does not see what others commit.
            StorageError: The database refused; the transaction holds nothing of the script.
            PushkitError: The script raised it; the transaction holds nothing of the script.
        """

    @abc.abstractmethod
    async def read(self, script: Script[T]) -> T:
        """Run a script that only reads, on a consistent snapshot."""

    @abc.abstractmethod
    def now(self) -> Script[datetime]:
        """Return the current time by the clock that all workers on this database share."""

    # SQLite has one writing transaction at a time, and its processes find work and news by polling.

    def hold(
        self,
        items: Sequence[Item],
        names: Callable[[Item], Collection[str]],  # noqa: ARG002
        *,
        wait: bool,  # noqa: ARG002
    ) -> Script[tuple[Sequence[Item], datetime]]:
        """Hold the names of items until this transaction ends, so that no other one has them.

        Args:
            items: What the transaction is about.
            names: Returns the names of an item.
            wait: Whether to wait for transactions that hold some, or to leave their items out.

        Returns:
            The items of which all names are held, in order, and the time.
        """
        return items, (yield from self.now())

    def wake(self) -> Script[None]:
        """Wake idle workers of other processes when this commits: there is work."""
        yield from ()

    def announce(self) -> Script[None]:
        """Notify other processes when this commits of rows that are no work for them."""
        yield from ()

    async def listen(
        self,
        wake: Callable[[], None],  # noqa: ARG002
        news: Callable[[], None] = lambda: None,  # noqa: ARG002
    ) -> None:
        """Call back whenever another process runs `wake` or `announce`, until cancelled."""
        await asyncio.Event().wait()


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


async def read_now(
    database: Database,
    look: Callable[Concatenate[datetime, P], Script[T]],
    *args: P.args,
    **kwargs: P.kwargs,
) -> T:
    """Run a script that only reads: `look`, with the time of the database's clock before `args`."""

    def script() -> Script[T]:
        now = yield from database.now()
        return (yield from look(now, *args, **kwargs))

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
