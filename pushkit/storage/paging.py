"""What a page shows of many rows: some of them, newest first, and numbers up to a bound."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Final, Generic, TypeVar

from pushkit.record import record
from pushkit.storage.script import Row, Script, SqlValue, Statement

T = TypeVar("T")
S = TypeVar("S")

WINDOW = 4000
"""How many rows one page looks through, however few of them it wants."""

_SMALL_WINDOW: Final = 500


@record(frozen=True, slots=True, kw_only=True)
class Page(Generic[T]):
    """What was found, and where to look further."""

    items: tuple[T, ...]  # what was found, newest first
    before: str | None = None  # what to pass as `before` for what is older; None if nothing is
    is_cut: bool = False  # whether so many rows were looked through that the page was not filled

    def showing(self, items: Iterable[S]) -> Page[S]:
        """Return the same place, with its rows as they are shown."""
        return Page(items=tuple(items), before=self.before, is_cut=self.is_cut)


@record(frozen=True, slots=True, kw_only=True)
class Search:
    """What a page looks for, as SQL of ours."""

    looked_at: str  # the rows that it looks through in its order: `FROM … ORDER BY …`
    named: tuple[SqlValue, ...]  # the values of those
    columns: str  # what is named of a row, its `id` among them
    conditions: str  # what is left to be filtered; its values are numbered behind `named`
    given: tuple[SqlValue, ...]
    order: str
    is_filtered: bool  # whether `conditions` leave anything out


def find_rows(search: Search, *, limit: int, shown: str = "id") -> Script[Page[Row]]:
    """Return a page: first few rows are looked through, then more if those did not fill it.

    Args:
        search: What is looked for.
        limit: How many rows it has at most.
        shown: The columns of those, `id` among them.
    """
    windows = (_SMALL_WINDOW, WINDOW) if search.is_filtered else (limit + 1,)
    number = len(search.named) + len(search.given) + 1
    for window in windows:
        rows = yield Statement(
            f"SELECT {shown} FROM (SELECT {search.columns} {search.looked_at} LIMIT {window}) w"
            f" WHERE {search.conditions} ORDER BY {search.order}"
            f" LIMIT CAST(${number} AS BIGINT)",
            (*search.named, *search.given, limit + 1),
        )
        items = tuple(rows[:limit])
        if len(rows) > limit:
            return Page(items=items, before=str(items[-1]["id"]))
    last = yield Statement(
        f"SELECT id {search.looked_at} LIMIT 1 OFFSET {window - 1}", search.named
    )
    return Page(items=items, before=str(last[0]["id"]) if last else None, is_cut=bool(last))


def narrowed(table: str, condition: str, columns: str) -> Script[str]:
    """Return what to look through for rows that meet a condition: those alone if they are few."""
    counted = yield Statement(
        f"SELECT COUNT(*) AS found FROM (SELECT 1 FROM {table} WHERE {condition} LIMIT {WINDOW}) u"
    )
    if counted[0]["found"] >= WINDOW:
        return table
    # All of them. The limit keeps the query an inner one.
    return f"(SELECT {columns} FROM {table} WHERE {condition} LIMIT {WINDOW}) u"


_MOST_COUNTED: Final = 10_000


@record(frozen=True, slots=True)
class AtMost:
    """A number that was counted up to a bound."""

    number: int  # how many; the bound, if there are more
    more: bool = False  # whether there are more


def count_at_most(source: str, values: tuple[SqlValue, ...] = ()) -> Script[AtMost]:
    """Count the rows of a table and its conditions, as they stand behind `FROM`."""
    rows = yield Statement(
        f"SELECT COUNT(*) AS found FROM (SELECT 1 FROM {source} LIMIT {_MOST_COUNTED + 1}) counted",
        values,
    )
    found = int(rows[0]["found"])
    return AtMost(min(found, _MOST_COUNTED), more=found > _MOST_COUNTED)
