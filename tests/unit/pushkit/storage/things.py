"""A table for the tests of databases, scripts over it, and two ways to write them."""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Sequence
from datetime import timedelta
from pathlib import Path
from typing import Any, Protocol, TypeAlias, TypeVar

from pushkit.errors import PushkitError
from pushkit.storage.database import Database
from pushkit.storage.migrations import Access, Migration
from pushkit.storage.script import Script, Statement
from pushkit.storage.sqlite import SqliteDatabase

THINGS = Migration(1, ("CREATE TABLE things (name TEXT PRIMARY KEY, size BIGINT)",))
COLOURS = Migration(2, ("ALTER TABLE things ADD COLUMN colour TEXT DEFAULT 'red'",))

D = TypeVar("D", bound=Database)

Write: TypeAlias = Callable[[Any, Script[Any]], Awaitable[Any]]


def sqlite_things(
    path: Path,
    *migrations: Migration,
    busy_timeout: timedelta = timedelta(milliseconds=20),
    start_timeout: timedelta = timedelta(0),
) -> SqliteDatabase:
    """Return a database of things in a SQLite file, which waits for nobody for long."""
    return SqliteDatabase(
        path,
        component="things",
        migrations=(THINGS, *migrations),
        busy_timeout=busy_timeout,
        start_timeout=start_timeout,
    )


class Opens(Protocol):
    """Opens a database, and closes it after the test."""

    async def __call__(self, database: D, access: Access = ..., /) -> D: ...


class RefusedError(PushkitError):
    code = "refused_by_the_script"


def insert(name: str, size: int | None = None) -> Script[str]:
    yield Statement("INSERT INTO things (name, size) VALUES ($1, $2)", (name, size))
    return name


def names() -> Script[list[str]]:
    rows = yield Statement("SELECT name FROM things ORDER BY name")
    return [row["name"] for row in rows]


def insert_then_fail(name: str, error: Exception) -> Script[None]:
    yield from insert(name)
    raise error


def each(scripts: Sequence[Script[Any]], /, *, wait: bool) -> Script[list[Any]]:  # noqa: ARG001
    results = []
    for script in scripts:
        result = yield from script
        results.append(result)
    return results
