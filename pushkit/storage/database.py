"""The face of a database, and the choice between the two that there are."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from datetime import datetime
from pathlib import Path
from typing import Protocol, TypeVar

from pushkit.errors import ConfigError
from pushkit.storage.liveness import WorkerLocks
from pushkit.storage.migrations import Migration
from pushkit.storage.script import Group, Script
from pushkit.storage.sqlite import SqliteDatabase

__all__ = ["Database", "open_location"]

Item = TypeVar("Item")
T = TypeVar("T")

_POSTGRES = ("postgresql://", "postgres://")


class Database(Protocol):
    """Runs scripts in transactions. SQLite and PostgreSQL stand behind it."""

    @property
    def locks(self) -> WorkerLocks | None:
        """The locks of this machine's workers, where all of them are on one machine."""

    async def open(self) -> None:
        """Connect and bring the schema up to date. Does nothing if it is open already."""

    async def close(self) -> None:
        """Finish what was submitted, and disconnect."""

    async def write(self, script: Script[T]) -> T:
        """Run a script in a transaction; return its result once that is durable."""

    async def write_together(self, group: Group[Item, T], item: Item) -> T:
        """Run a group's script over this item, and over others that wait; return its result.

        Items of one group that wait at the same time become one script in one transaction. If that
        fails, each is run alone: nobody hears of another's error. On PostgreSQL such a script must
        wait for no row, or all would wait: what it cannot have at once it leaves `APART`.
        """

    async def write_on(self, connection: object, script: Script[T]) -> T:
        """Run a script in the transaction that a caller's own connection is in; commit nothing."""

    async def read(self, script: Script[T]) -> T:
        """Run a script that only reads, on a consistent snapshot."""

    def now(self) -> Script[datetime]:
        """Return the present by the clock that all workers on this database share."""

    def exclusively(self, name: str) -> Script[None]:
        """Let other transactions that ask for this name wait until this one ends."""

    def wake(self) -> Script[None]:
        """Tell idle workers of other processes that there is work, once this commits."""

    async def listen(self, wake: Callable[[], None]) -> None:
        """Call back whenever another process added work, until cancelled."""


def open_location(
    location: str | Path,
    *,
    component: str,
    migrations: Sequence[Migration],
    clock: Callable[[], datetime],
) -> Database:
    """Return the database at a location: a PostgreSQL DSN, or the path of a SQLite file.

    Raises:
        ConfigError: A DSN, and the driver is not installed.
    """
    if not str(location).startswith(_POSTGRES):
        return SqliteDatabase(location, component=component, migrations=migrations, clock=clock)
    try:
        from pushkit.storage.postgres import PostgresDatabase
    except ImportError as exc:
        raise ConfigError("PostgreSQL needs asyncpg: pip install 'pushkit[postgres]'") from exc
    return PostgresDatabase(str(location), component=component, migrations=migrations)
