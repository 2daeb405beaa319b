"""`open_location`: the choice between SQLite and PostgreSQL."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from datetime import datetime
from pathlib import Path

from pushkit.lazy import from_extra
from pushkit.storage.database import Database
from pushkit.storage.location import postgres_dsn
from pushkit.storage.migrations import Migration
from pushkit.storage.sqlite import SqliteDatabase


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
