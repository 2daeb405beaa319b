"""Many rows for operators: filters, pages, counts up to a bound, records, changes in batches."""

from __future__ import annotations

import asyncio
import functools
import itertools
import re
from collections.abc import AsyncGenerator, Callable, Mapping, Sequence
from contextlib import aclosing
from dataclasses import fields, replace
from datetime import datetime
from types import NoneType
from typing import (
    TYPE_CHECKING,
    Any,
    Final,
    Generic,
    NamedTuple,
    Self,
    TypeVar,
    cast,
    get_args,
    get_type_hints,
)

from pushkit.errors import ConfigError
from pushkit.options import check_count, check_list
from pushkit.progress import advance
from pushkit.record import record
from pushkit.storage.database import Database
from pushkit.storage.script import (
    Row,
    Script,
    SqlValue,
    Statement,
    count,
    from_micros,
    run_for_ids,
)

if TYPE_CHECKING:
    from _typeshed import DataclassInstance

T = TypeVar("T")
Id = TypeVar("Id", str, int)
D = TypeVar("D", bound="DataclassInstance")
F = TypeVar("F", bound="DataclassInstance")
R = TypeVar("R")

WINDOW = 4000
"""How many rows a page looks through at most, however few of them match."""

_SMALL_WINDOW: Final = 500
_PAUSE: Final = 0.02  # seconds between two batches, in which other transactions get their turn


@record(frozen=True, slots=True, kw_only=True)
class Page(Generic[T]):
    """A page of rows, and the position of the next one."""

    items: tuple[T, ...]  # the rows, newest first
    before: str | None = None  # the `before` of the next page, of older rows; None on the last page
    is_cut: bool = False  # whether it is not full because it looked through as many rows as it may


class Index(NamedTuple):
    """How a page finds the rows of a filter that has all of some conditions."""

    conditions: tuple[str, ...]  # those of the index, as `Listing.conditions_of` returns them
    order: str = "id"  # the columns by which the page is ordered, and the index its rows
    # The rows that may match, in SQL, if the index is in another order: they are looked through by
    # themselves if they are few.
    among: str = ""


@record(frozen=True, slots=True, kw_only=True)
class Listing(Generic[F, R]):
    """The rows of a table that operators list by a filter.

    The filter is a record. Each of its members is a column, and None is any value, unless
    `conditions` says otherwise.
    """

    by: type[F]  # the class of the filter
    table: str
    select: str  # selects rows of the table, with the columns that `read` needs
    read: Callable[[Row], R]
    columns: str  # that conditions and orders need, with `id`
    # By member: its column, or the condition in SQL of each value. Those are no parameters: a
    # partial index is for one state.
    conditions: Mapping[str, str | Mapping[Any, str]]
    indexes: Sequence[Index] = ()  # the most selective first

    def conditions_of(self, wanted: F) -> dict[str, str | None]:
        """Return the conditions of a filter: columns with their values, and SQL without one.

        Raises:
            ConfigError: A member has a value that is not among its conditions.
        """
        found: dict[str, str | None] = {}
        for name in (each.name for each in fields(wanted)):
            value, known = getattr(wanted, name), self.conditions.get(name, name)
            if not isinstance(known, str):
                if value in known:
                    found[known[value]] = None
                elif value not in (None, False):
                    says = ", ".join(str(each) for each in known if each is not None)
                    raise ConfigError(f"{name}: found {value!r}, expected one of {says}")
            elif value is not None:
                found[known] = str(value)
        return found

    def find(self, wanted: F, *, after: str | int | None, limit: int) -> Script[list[R]]:
        """Return rows by id, the oldest first, after the last id of the page before."""
        return (yield from self._read((yield from self.find_ids(wanted, after=after, limit=limit))))

    def find_ids(self, wanted: F, *, after: str | int | None, limit: int) -> Script[list[Any]]:
        """Return the ids of these rows."""
        where, values = _in_sql(self.conditions_of(wanted))
        if after:
            where, values = f"{where} AND id > ${len(values) + 1}", (*values, after)
        rows = yield Statement(
            f"SELECT id FROM {self.table} WHERE {where} ORDER BY id"
            f" LIMIT CAST(${len(values) + 1} AS BIGINT)",
            (*values, limit),
        )
        return [row["id"] for row in rows]

    def meeting(self, ids: Sequence[Any], *conditions: str) -> Script[list[Any]]:
        """Return those of some ids whose rows meet conditions in SQL, in the given order."""
        rows = yield from run_for_ids(
            f"SELECT id FROM {self.table} WHERE {' AND '.join(conditions)} AND id IN ($ids)", ids
        )
        found = {row["id"] for row in rows}
        return [each for each in ids if each in found]

    def _read(self, ids: Sequence[Any]) -> Script[list[R]]:
        rows = yield from run_for_ids(f"{self.select} WHERE id IN ($ids)", ids)
        found = {row["id"]: self.read(row) for row in rows}
        return [found[each] for each in ids]

    def browse(self, wanted: F, *, before: str | int | None, limit: int) -> Script[Page[R]]:
        """Return a page of rows, the newest first; it takes as long for a table of any size.

        It looks through few rows first, then through more if they did not fill it.

        Args:
            wanted: The filter.
            before: `Page.before` of the page before.
            limit: How many rows the page has at most.

        Raises:
            ConfigError: The limit is no int, or less than 1; or as `conditions_of`.
        """
        check_count("limit", limit)
        left = self.conditions_of(wanted)
        index = next((each for each in self.indexes if left.keys() >= {*each.conditions}), _BY_ID)
        table, indexed = self.table, dict[str, str | None]()
        if index.among:
            table = yield from self._narrowed(index.among)
        else:
            indexed = {each: left.pop(each) for each in index.conditions}
        source, values = self._source(table, indexed, index.order, before)
        where, more = _in_sql(left, after=len(values))
        limited = f"LIMIT CAST(${len(values) + len(more) + 1} AS BIGINT)"
        order = _newest_first(index.order)
        for window in (_SMALL_WINDOW, WINDOW) if left else (limit + 1,):
            rows = yield Statement(
                f"SELECT {index.order} FROM (SELECT {self.columns} {source} LIMIT {window}) w"
                f" WHERE {where} ORDER BY {order} {limited}",
                (*values, *more, limit + 1),
            )
            if is_full := len(rows) > limit:
                break
        ids = [row["id"] for row in rows[:limit]]
        last: Sequence[Row] = rows[limit - 1 : limit]
        if not is_full:
            one = f"LIMIT 1 OFFSET {window - 1}"
            last = yield Statement(f"SELECT {index.order} {source} {one}", values)
        return Page(
            items=tuple((yield from self._read(ids))),
            before=":".join(map(str, last[0])) if last else None,
            is_cut=bool(last) and not is_full,
        )

    def _source(
        self, table: str, indexed: Mapping[str, str | None], order: str, before: str | int | None
    ) -> tuple[str, tuple[SqlValue, ...]]:
        """Return what a page looks through, in its order, and the parameters of that."""
        where, values = _in_sql(indexed)
        if before:
            known, values = len(values), (*values, *_position(order, before))
            places = ", ".join(f"${number + 1}" for number in range(known, len(values)))
            where = f"{where} AND ({order}) < ({places})"
        return f"FROM {table} WHERE {where} ORDER BY {_newest_first(order)}", values

    def _narrowed(self, condition: str) -> Script[str]:
        """Return the table, or only its rows that meet a condition, if they are few."""
        table = f"{self.table} WHERE {condition}"
        if (yield from count(table, limit=WINDOW)) == WINDOW:
            return self.table
        # These are all of them: the limit is there so that the subquery is not flattened.
        return f"(SELECT {self.columns} FROM {table} LIMIT {WINDOW}) u"


_BY_ID: Final = Index(())
_NUMBER: Final = re.compile(r"[0-9]{1,18}")


def _position(order: str, before: str | int) -> Sequence[SqlValue]:
    """Return the values of the columns of an order: numbers, and the id.

    `Page.before` has them all, because the row may be gone when the next page is read. One of a
    page in another order has nothing behind it.
    """
    if order == "id":
        return [before]
    *numbers, last = str(before).split(":", order.count(","))
    if len(numbers) != order.count(",") or not all(map(_NUMBER.fullmatch, numbers)):
        return [*[0] * order.count(","), ""]
    return [*map(int, numbers), last]


def _newest_first(order: str) -> str:
    return ", ".join(f"{each} DESC" for each in order.split(", "))


def _in_sql(
    conditions: Mapping[str, str | None], *, after: int = 0
) -> tuple[str, tuple[SqlValue, ...]]:
    """Return conditions in SQL, and their parameters, numbered after `after` others."""
    values = tuple(value for value in conditions.values() if value is not None)
    numbers = itertools.count(after + 1)
    placed = [
        each if value is None else f"{each} = ${next(numbers)}"
        for each, value in conditions.items()
    ]
    return " AND ".join(placed or ["1 = 1"]), values


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


# --- changes ------------------------------------------------------------------------------------


async def chosen_ids(
    database: Database, of: Listing[F, R], wanted: Sequence[Id] | F, *more: str, size: int
) -> AsyncGenerator[Sequence[Id]]:
    """Yield the ids that were given, each once, or those of a filter, so many at a time.

    Args:
        database: Where the rows are.
        of: What the filter is of.
        wanted: The ids, or the filter.
        *more: Conditions in SQL that rows of the filter also meet: asked of a page of rows, so that
            no query looks for a full batch among many that do not meet them.
        size: How many at a time.
    """
    if isinstance(wanted, of.by):
        after = None
        while ids := await database.read(of.find_ids(wanted, after=after, limit=size)):
            after = ids[-1]
            if some := await database.read(of.meeting(ids, *more)) if more else ids:
                yield some
        return
    check_list("wanted", wanted)
    ids = list(dict.fromkeys(cast("Sequence[Id]", wanted)))
    for start in range(0, len(ids), size):
        yield ids[start : start + size]


async def in_batches(
    database: Database,
    chosen: AsyncGenerator[Sequence[Id]],
    script: Callable[[Sequence[Id]], Script[T]],
    *,
    dry_run: bool = False,
) -> AsyncGenerator[tuple[Sequence[Id], T]]:
    """Run a script over ids, each batch in a transaction; yield each batch with its result.

    Others get their turn in between. Whoever iterates closes it (`aclosing`), and it `chosen`.

    Args:
        database: Where the rows are.
        chosen: The batches of ids.
        script: Changes the rows of some ids.
        dry_run: Whether it only reads.
    """
    pause = 0.0
    async with aclosing(chosen):
        async for ids in chosen:
            if dry_run:
                yield ids, await database.read(script(ids))
                continue
            await asyncio.sleep(pause)
            pause = _PAUSE
            result = await database.write(script(ids))
            advance(len(ids))
            yield ids, result


def added(result: D, more: D) -> D:
    """Return the results of two batches as one: a record of numbers and lists, each added."""
    names = [each.name for each in fields(result)]
    return replace(result, **{name: getattr(result, name) + getattr(more, name) for name in names})
