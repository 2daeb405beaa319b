"""Scripts: the work of a store in one transaction, independent of the driver.

A script is a generator that yields statements and is sent their rows. It holds the SQL and the
decisions between statements; it opens no connection and awaits nothing. A driver runs it: the
SQLite writer thread, an asyncpg connection, or the caller's own connection. The same script
therefore runs unchanged in any transaction, and two scripts join into one by `yield from`.

    def rename(old: str, new: str) -> Script[bool]:
        rows = yield Statement("SELECT 1 FROM things WHERE name = $1", (old,))
        if not rows:
            return False
        yield Statement("UPDATE things SET name = $1 WHERE name = $2", (new, old))
        return True

Placeholders are `$1`, `$2`, … in both dialects. `FOR UPDATE` is written where PostgreSQL needs it:
SQLite's one writer needs no row locks, and its driver removes them. A column of growing numbers is
written as in SQLite, `INTEGER PRIMARY KEY AUTOINCREMENT`. Times are integers: microseconds since
the epoch.
"""

from __future__ import annotations

import functools
import itertools
import re
from collections.abc import Callable, Generator, Iterable, Iterator, Sequence
from datetime import UTC, datetime, timedelta
from enum import Enum
from typing import Any, Final, Protocol, TypeAlias, TypeVar

from pushkit.errors import PushkitError
from pushkit.record import record

T = TypeVar("T")
SqlValue: TypeAlias = "str | int | float | bytes | None"
Item = TypeVar("Item")
Item_contra = TypeVar("Item_contra", contravariant=True)
T_co = TypeVar("T_co", covariant=True)

_CHUNK = 128
_MOST_ROWS = 64  # of an INSERT
EPOCH = datetime(1970, 1, 1, tzinfo=UTC)
_MICROSECOND = timedelta(microseconds=1)


class Row(Protocol):
    """One row of a result, read by column name, or from the first column to the last."""

    def __iter__(self) -> Iterator[Any]: ...

    def __getitem__(self, key: str, /) -> Any: ...  # a column's type is the query's business


Rows: TypeAlias = "Sequence[Row]"


@record(frozen=True, slots=True)
class Statement:
    """One SQL statement and its parameters."""

    sql: str
    parameters: tuple[SqlValue, ...] = ()


Script: TypeAlias = Generator[Statement, Rows, T]


class Deferred(Enum):
    """The result of an item whose rows another transaction holds: it is run again later."""

    DEFERRED = "deferred"


DEFERRED: Final = Deferred.DEFERRED


@record(frozen=True, slots=True)
class Refused:
    """The result of an item that a group's script refused, and wrote nothing of."""

    error: PushkitError


class Group(Protocol[Item_contra, T_co]):
    """Makes one script for many items, with a result for each, in order."""

    def __call__(
        self, items: Sequence[Item_contra], /, *, wait: bool
    ) -> Script[Sequence[T_co | Deferred | Refused]]:
        """Make the script. If it raises, each item is run alone.

        Args:
            items: At least one.
            wait: Whether it may wait for rows that other transactions hold. If not, the result of
                an item that needs such a row is `DEFERRED`.
        """


OnDone: TypeAlias = "Callable[[T | BaseException], object]"  # gets an item's result, or its error


def alone(group: Group[Item, T], item: Item) -> Script[T]:
    """Run a group's script for one item; it may wait for rows."""
    [result] = yield from group([item], wait=True)
    if isinstance(result, Refused):
        raise result.error
    if isinstance(result, Deferred):
        raise TypeError("a script that may wait deferred an item")
    return result


def count(source: str, *values: SqlValue, limit: int | None = None) -> Script[int]:
    """Count the rows of `FROM source`, a table with conditions if any; at most `limit`."""
    if limit is not None:
        source = f"(SELECT 1 FROM {source} LIMIT CAST(${len(values) + 1} AS BIGINT)) counted"
        values = (*values, limit)
    rows = yield Statement(f"SELECT COUNT(*) AS found FROM {source}", values)
    return int(rows[0]["found"])


def driver_connection(connection: object) -> object:
    """Return the driver's own connection under SQLAlchemy's, or the connection itself."""
    return getattr(connection, "driver_connection", None) or connection


@functools.lru_cache(maxsize=256)  # all rows of a transaction have the same time
def to_micros(moment: datetime) -> int:
    """Return an aware moment as microseconds since the epoch."""
    return (moment - EPOCH) // _MICROSECOND


def from_micros(micros: int) -> datetime:
    """Return microseconds since the epoch as an aware moment in UTC."""
    return EPOCH + timedelta(microseconds=micros)


def moment_or_none(micros: int | None) -> datetime | None:
    """Return `from_micros` of a column that may be NULL."""
    return None if micros is None else from_micros(micros)


def run_for_ids(sql: str, ids: Sequence[str | int], *values: SqlValue) -> Script[list[Row]]:
    """Run a statement for ids, 128 at a time; return the rows of all.

    Args:
        sql: The statement, with `IN ($ids)` for the ids.
        ids: The ids. The last one is repeated up to a power of two, so that there are few different
            statements.
        *values: The other parameters, from `$1` on.
    """
    found: list[Row] = []
    for each in map(padded, chunks(ids)):
        found += yield Statement(_with_ids(sql, len(each), len(values)), (*values, *each))
    return found


def run_for_rows(sql: str, rows: Sequence[Sequence[str]]) -> Script[list[Row]]:
    """Run a statement for rows of texts, 128 at a time; return the rows of all.

    Args:
        sql: The statement, with `(VALUES $rows)` for these rows.
        rows: The rows, all of one length. The last one is repeated as in `run_for_ids`, so that a
            query may find what belongs to it several times.
    """
    found: list[Row] = []
    for each in map(padded, chunks(rows)):
        texts = _with_texts(sql, len(each), len(each[0]))
        found += yield Statement(texts, tuple(itertools.chain.from_iterable(each)))
    return found


def insert_rows(sql: str, sliced: Iterable[Sequence[Sequence[SqlValue]]]) -> Script[list[Row]]:
    """Run an INSERT for each slice of rows; return the rows of all.

    Args:
        sql: The statement, with `VALUES $rows` for the rows.
        sliced: The rows, all of one length, from `slices` or `filled`.
    """
    found: list[Row] = []
    for each in sliced:
        insert = _with_rows(sql, len(each), len(each[0]))
        found += yield Statement(insert, tuple(itertools.chain.from_iterable(each)))
    return found


def chunks(items: Sequence[T]) -> Sequence[Sequence[T]]:
    """Return items 128 at a time."""
    if 0 < len(items) <= _CHUNK:
        return (items,)
    return [items[start : start + _CHUNK] for start in range(0, len(items), _CHUNK)]


def padded(items: Sequence[T]) -> tuple[T, ...]:
    """Return items (at least one) with the last one repeated up to a power of two."""
    if len(items) == 1:
        return tuple(items)
    return (*items, *[items[-1]] * ((1 << (len(items) - 1).bit_length()) - len(items)))


def slices(items: Sequence[T]) -> list[Sequence[T]]:
    """Return items in slices of powers of two: rows of an INSERT, which cannot be padded."""
    found, start = list[Sequence[T]](), 0
    while start < len(items):
        size = min(1 << (len(items) - start).bit_length() - 1, _MOST_ROWS)
        found.append(items[start : start + size])
        start += size
    return found


def filled(items: Sequence[T]) -> Iterator[Sequence[T]]:
    """Yield items in slices that are padded with the last one to one of few sizes.

    For an INSERT that ignores rows that exist. At most a third of a slice is padding.
    """
    for start in range(0, len(items), _MOST_ROWS):
        each = items[start : start + _MOST_ROWS]
        size = 1 << (len(each) - 1).bit_length()
        if len(each) <= size * 3 // 4:
            size = size * 3 // 4
        yield (*each, *[each[-1]] * (size - len(each)))


@functools.cache
def rows_of_places(rows: int, width: int) -> str:
    """Return placeholders for `VALUES`: `($1, $2), ($3, $4)` for two rows of two."""
    return ", ".join(f"({_places(width, after=width * row)})" for row in range(rows))


@functools.cache
def _with_ids(sql: str, number: int, after: int) -> str:
    return sql.replace("$ids", _places(number, after=after))


@functools.cache
def _with_rows(sql: str, rows: int, width: int) -> str:
    return sql.replace("$rows", rows_of_places(rows, width))


@functools.cache
def _with_texts(sql: str, rows: int, width: int) -> str:
    # Cast, because the statement does not show their type.
    return sql.replace(
        "$rows", re.sub(r"(\$\d+)", r"CAST(\1 AS TEXT)", rows_of_places(rows, width))
    )


def _places(number: int, *, after: int) -> str:
    return ", ".join(f"${n}" for n in range(after + 1, after + number + 1))
