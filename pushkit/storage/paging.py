"""What a page shows of many rows: some of them, newest first, and numbers up to a bound."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final, Generic, TypeVar

from pushkit.storage.script import Script, SqlValue, Statement

T = TypeVar("T")

WINDOW = 4000
"""How many rows one page looks through, however few of them it wants."""

_SMALL_WINDOW: Final = 500


def windows(limit: int, *, is_filtered: bool) -> tuple[int, ...]:
    """Return how many rows a page looks through: first few, then more if those did not fill it."""
    return (_SMALL_WINDOW, WINDOW) if is_filtered else (limit + 1,)


@dataclass(frozen=True, slots=True, kw_only=True)
class Page(Generic[T]):
    """What was found, and where to look further."""

    items: tuple[T, ...]  # what was found, newest first
    before: str | None = None  # what to pass as `before` for what is older; None if nothing is
    is_cut: bool = False  # whether so many rows were looked through that the page was not filled


_MOST_COUNTED: Final = 10_000


@dataclass(frozen=True, slots=True)
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
