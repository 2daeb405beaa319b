"""Reading many rows for operators: filters, pages, counts up to a bound, rows as records."""

from __future__ import annotations

import functools
from collections.abc import Callable, Mapping, Sequence
from dataclasses import fields
from datetime import datetime
from types import NoneType
from typing import Any, Final, Generic, Protocol, Self, TypeVar, get_args, get_type_hints

from pushkit.options import check_count
from pushkit.record import record
from pushkit.storage.script import (
    Row,
    Rows,
    Script,
    SqlValue,
    Statement,
    count,
    from_micros,
    run_for_ids,
)

T = TypeVar("T")
S = TypeVar("S")

WINDOW = 4000
"""How many rows a page looks through at most, however few of them match."""

_SMALL_WINDOW: Final = 500


@record(frozen=True, slots=True, kw_only=True)
class Page(Generic[T]):
    """A page of rows, and the position of the next one."""

    items: tuple[T, ...]  # the rows, newest first
    before: str | None = None  # the `before` of the next page, of older rows; None on the last page
    is_cut: bool = False  # whether it is not full because it looked through as many rows as it may


class RowFilter(Protocol):
    """A filter of rows."""

    def where(self, *, after: int = 0) -> tuple[str, tuple[str, ...]]:
        """Return the conditions in SQL, and their parameters, numbered after `after` others."""
        ...


_ALL: Final = "1 = 1"


def conditions(
    columns: Mapping[str, str | None], *more: str, after: int
) -> tuple[str, tuple[str, ...]]:
    """Return the conditions of a filter in SQL: values of columns (None is any), and `more`."""
    given = {column: value for column, value in columns.items() if value is not None}
    placed = [f"{column} = ${n}" for n, column in enumerate(given, start=after + 1)]
    return " AND ".join([*placed, *more] or [_ALL]), tuple(map(str, given.values()))


def rows_after(select: str, wanted: RowFilter, after: str | int, *, limit: int) -> Script[Rows]:
    """Return rows by id, the oldest first, after the last id of the page before."""
    where, values = wanted.where()
    n = len(values)
    return (
        yield Statement(
            f"{select} WHERE {where} AND id > ${n + 1} ORDER BY id LIMIT CAST(${n + 2} AS BIGINT)",
            (*values, after, limit),
        )
    )


@record(frozen=True, slots=True, kw_only=True)
class Search:
    """The query of a page."""

    looked_at: str  # the rows that it looks through, in `order`: `FROM … WHERE …`
    named: tuple[SqlValue, ...]  # the parameters of `looked_at`
    columns: str  # the columns that it reads, with `id` and those that `wanted` needs
    wanted: RowFilter  # which of these rows match
    order: str = "id DESC"


def find_records(
    search: Search, select: str, read: Callable[[Row], S], *, limit: int
) -> Script[Page[S]]:
    """Return a page: it looks through few rows first, then through more if they did not fill it.

    Args:
        search: The query.
        select: Selects the rows whose ids were found.
        read: Returns the record in a row.
        limit: How many rows the page has at most.

    Raises:
        ConfigError: The limit is no int, or less than 1.
    """
    check_count("limit", limit)
    where, given = search.wanted.where(after=len(search.named))
    windows = (limit + 1,) if where == _ALL else (_SMALL_WINDOW, WINDOW)
    number = len(search.named) + len(given) + 1
    source = f"{search.looked_at} ORDER BY {search.order}"
    for window in windows:
        rows = yield Statement(
            f"SELECT id FROM (SELECT {search.columns} {source} LIMIT {window}) w"
            f" WHERE {where} ORDER BY {search.order} LIMIT CAST(${number} AS BIGINT)",
            (*search.named, *given, limit + 1),
        )
        if is_full := len(rows) > limit:
            break
    ids = [row["id"] for row in rows[:limit]]
    last: Sequence[Row] = rows[limit - 1 : limit]
    if not is_full:
        last = yield Statement(f"SELECT id {source} LIMIT 1 OFFSET {window - 1}", search.named)
    records = yield from run_for_ids(f"{select} WHERE id IN ($ids)", ids)
    found = {row["id"]: read(row) for row in records}
    return Page(
        items=tuple(found[each] for each in ids),
        before=str(last[0]["id"]) if last else None,
        is_cut=bool(last) and not is_full,
    )


def read_record(kind: Callable[..., T], row: Row, **more: object) -> T:
    """Return a record from a row: its members are columns, times are in microseconds.

    It is slower than naming each column, for pages of operators.

    Args:
        kind: The record's class.
        row: The row.
        **more: Members that are not columns.
    """
    readers = _readers(kind).items()
    return kind(**{name: read(row[name]) for name, read in readers if name not in more}, **more)


@functools.cache
def _readers(kind: Any) -> Mapping[str, Callable[[Any], object]]:
    hints = get_type_hints(kind)
    return {each.name: _reader(hints[each.name]) for each in fields(kind)}


def _reader(hint: Any) -> Callable[[Any], object]:
    [kind] = [each for each in get_args(hint) or (hint,) if each is not NoneType]
    read = from_micros if kind is datetime else kind
    return lambda value: None if value is None else read(value)


def narrowed(table: str, condition: str, columns: str) -> Script[str]:
    """Return the source of a search for rows that meet a condition: only those, if they are few."""
    if (yield from count(f"{table} WHERE {condition}", limit=WINDOW)) == WINDOW:
        return table
    # These are all of them: the limit is there so that the subquery is not flattened.
    return f"(SELECT {columns} FROM {table} WHERE {condition} LIMIT {WINDOW}) u"


MOST_COUNTED: Final = 1_000_000
"""Up to how many rows are counted, unless a caller has less time."""


@record(frozen=True, slots=True)
class AtMost:
    """A count up to a bound."""

    number: int  # how many, or the bound if there are more
    more: bool = False  # whether there are more

    @classmethod
    def of(cls, found: int, at_most: int) -> Self:
        """Return the count, given up to one more than the bound."""
        return cls(min(found, at_most), more=found > at_most)

    def __str__(self) -> str:
        return f"{self.number:,}{'+' if self.more else ''}"


def count_at_most(at_most: int, source: str, *values: SqlValue) -> Script[AtMost]:
    """Count rows as `count` does, up to a bound."""
    found = yield from count(source, *values, limit=at_most + 1)
    return AtMost.of(found, at_most)
