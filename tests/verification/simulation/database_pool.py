"""Migrated databases in memory, which one world after another reuses.

Creating tables and preparing some hundred statements takes as long as everything that a world
stores. So a database whose schema is unchanged is emptied, and reused by the next world.
"""

from __future__ import annotations

import functools
import sqlite3
from collections import defaultdict
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any, Generic, TypeVar

from pushkit.storage.migrations import Migration

__all__ = ["DatabasePool"]

C = TypeVar("C", bound=sqlite3.Connection)


@dataclass(frozen=True, slots=True, kw_only=True)
class _Made:
    """A database as it was created: its schema version, and its rows by table."""

    component: str
    migrations: tuple[Migration, ...]
    schema: int
    rows: dict[str, list[tuple[Any, ...]]]


class DatabasePool(Generic[C]):
    """The unused databases of one kind."""

    def __init__(
        self,
        connect: Callable[[], C],  # returns a connection to an empty database in memory
        # Creates the tables of a component there.
        make: Callable[[sqlite3.Connection, str, Sequence[Migration]], object],
    ) -> None:
        self._connect = connect
        self._make = make
        self._free: dict[tuple[str, tuple[Migration, ...]], list[C]] = defaultdict(list)
        self._made: dict[C, _Made] = {}

    def take(self, component: str, migrations: Sequence[Migration]) -> C:
        """Return a database with the empty tables of a component."""
        free = self._free[component, tuple(migrations)]
        if free:
            return free.pop()
        connection = self._connect()
        self._template(component, tuple(migrations)).backup(connection)
        self._made[connection] = _Made(
            component=component,
            migrations=tuple(migrations),
            schema=_schema_of(connection),
            rows=_rows_of(connection),
        )
        return connection

    def put_back(self, connection: C) -> None:
        """Empty a database and keep it, unless its schema was changed."""
        made = self._made.get(connection)
        if made is None or _schema_of(connection) != made.schema:
            return
        for table, rows in made.rows.items():
            _execute(connection, f"DELETE FROM {table}")
            for row in rows:
                places = ", ".join("?" * len(row))
                _execute(connection, f"INSERT INTO {table} VALUES ({places})", row)
        self._free[made.component, made.migrations].append(connection)

    @functools.cache  # noqa: B019  # pools live as long as the process
    def _template(self, component: str, migrations: tuple[Migration, ...]) -> sqlite3.Connection:
        connection = sqlite3.connect(":memory:", isolation_level=None)
        connection.row_factory = sqlite3.Row
        self._make(connection, component, migrations)
        return connection


def _execute(connection: sqlite3.Connection, sql: str, values: Sequence[Any] = ()) -> list[Any]:
    # Not by the connection's own method, which may inject faults.
    return sqlite3.Connection.execute(connection, sql, values).fetchall()


def _schema_of(connection: sqlite3.Connection) -> int:
    [(version,)] = _execute(connection, "PRAGMA schema_version")
    return int(version)


def _rows_of(connection: sqlite3.Connection) -> dict[str, list[tuple[Any, ...]]]:
    tables = _execute(connection, "SELECT name FROM sqlite_master WHERE type = 'table'")
    return {
        name: [tuple(row) for row in _execute(connection, f"SELECT * FROM {name}")]
        for (name,) in tables
    }
