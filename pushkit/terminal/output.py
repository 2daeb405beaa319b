"""Formats the output of commands: records, tables, times, durations and untrusted text."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable, Sequence
from dataclasses import fields, is_dataclass
from datetime import datetime, timedelta
from operator import attrgetter
from typing import TYPE_CHECKING, Any, TypeAlias, cast

if TYPE_CHECKING:
    from _typeshed import DataclassInstance

    from pushkit.bounded_json import JsonObject, JsonValue


Columns: TypeAlias = "dict[str, str | Callable[[Any], object]]"
"""The columns of a table: for each heading, the path of an attribute or a function."""


def example(*lines: str) -> str:
    """Return the epilog of a command."""
    return "\n".join(("\b", "Example:", *(f"  {line}" for line in lines)))


def document(record: object, names: str = "") -> JsonObject:
    """Return a record as a JSON object with times as text; `names` selects members, or all."""
    members = names.split() or [each.name for each in fields(cast("DataclassInstance", record))]
    return {name: _as_json(getattr(record, name)) for name in members}


def _as_json(value: Any) -> JsonValue:
    if isinstance(value, datetime):
        return value.isoformat()
    if is_dataclass(value):
        return document(value)
    return [_as_json(each) for each in value] if isinstance(value, tuple) else value


def table(*rows: Sequence[str]) -> str:
    """Return rows of cells, of which the first are the headings, aligned in columns."""
    widths = [max(len(cell) for cell in column) for column in zip(*rows, strict=True)]
    padded = ([c.ljust(w) for c, w in zip(row, widths, strict=True)] for row in rows)
    return "\n".join("  ".join(cells).rstrip() for cells in padded)


def columns(paths: str, **made: Callable[[Any], object]) -> Columns:
    """Return the columns of a table.

    Args:
        paths: Paths of attributes, separated by blanks; `HEADING=path` if the heading is not the
            last name of the path.
        **made: Functions that make the cells of further columns, by heading.
    """
    found: dict[str, str | Callable[[Any], object]] = {}
    for each in paths.split():
        heading, _, path = each.rpartition("=")
        found[heading or path.rpartition(".")[2].replace("_", " ").upper()] = path
    return found | made


def table_of(columns: Columns, found: Iterable[object]) -> str:
    """Return a table with a row for each object."""
    cells = [attrgetter(each) if isinstance(each, str) else each for each in columns.values()]
    return table([*columns], *([_cell(read(each)) for read in cells] for each in found))


def lines_of(found: JsonObject) -> str:
    """Return a document as lines, one for each member."""
    shown = {
        name: ", ".join(map(str, value)) if isinstance(value, list) else value
        for name, value in found.items()
    }
    return "\n".join(f"{name:16} {_cell(value)}" for name, value in shown.items())


def _cell(value: object) -> str:
    match value:
        case None | "":
            return "-"
        case datetime():
            return moment(value)
        case timedelta():
            return milliseconds(value)
    return in_a_line(str(value))


def moment(found: datetime | None) -> str:
    """Return a time in UTC, to the second."""
    return "-" if found is None else found.strftime("%Y-%m-%dT%H:%M:%SZ")


def milliseconds(duration: timedelta | None) -> str:
    """Return a duration in milliseconds."""
    return "-" if duration is None else f"{duration.total_seconds() * 1000:.1f}"


def numbered(number: int, one: str) -> str:
    """Return a number of things, of which the name of one is given: `2 deliveries`."""
    return f"{number} {one if number == 1 else re.sub('y$', 'ie', one) + 's'}"


def in_a_line(text: str) -> str:
    """Return untrusted text on one line, without control characters."""
    return harmless(text.encode("utf-8", "backslashreplace")).replace("\n", "\\n")


def harmless(text: bytes) -> str:
    """Return untrusted bytes as text without control characters, except newlines and tabs."""
    decoded = text.decode("utf-8", "backslashreplace")
    return "".join(
        char if char.isprintable() or char in "\n\t" else _escaped(char) for char in decoded
    )


def _escaped(char: str) -> str:
    """Return a character as the log writes it, so that its digits end where they seem to."""
    return f"\\x{ord(char):02x}" if ord(char) < 0x100 else ascii(char)[1:-1]
