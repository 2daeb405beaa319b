"""How commands write: records, tables, moments, durations, and what others wrote."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import fields
from datetime import datetime, timedelta
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from _typeshed import DataclassInstance

    from pushkit.bounded_json import JsonObject


def example(*lines: str) -> str:
    """Return the epilog of a command."""
    return "\n".join(("\b", "Example:", *(f"  {line}" for line in lines)))


def document(record: DataclassInstance) -> JsonObject:
    """Return a flat record as a JSON object, its moments as text."""
    found: JsonObject = {}
    for field in fields(record):
        value = getattr(record, field.name)
        found[field.name] = value.isoformat() if isinstance(value, datetime) else value
    return found


def table(*rows: Sequence[str]) -> str:
    """Return rows of cells, the first one with the headings, in columns."""
    widths = [max(len(cell) for cell in column) for column in zip(*rows, strict=True)]
    padded = ([c.ljust(w) for c, w in zip(row, widths, strict=True)] for row in rows)
    return "\n".join("  ".join(cells).rstrip() for cells in padded)


def moment(found: datetime | None) -> str:
    """Return a moment in UTC, to the second."""
    return "-" if found is None else found.strftime("%Y-%m-%dT%H:%M:%SZ")


def milliseconds(duration: timedelta | None) -> str:
    """Return a duration in milliseconds."""
    return "-" if duration is None else f"{duration.total_seconds() * 1000:.1f}"


def in_a_line(text: str) -> str:
    """Return a text that others wrote so that it stays on its line, and moves no cursor."""
    return harmless(text.encode("utf-8", "backslashreplace")).replace("\n", "\\n")


def harmless(text: bytes) -> str:
    """Return bytes that others wrote as text that moves no cursor and sets no title."""
    decoded = text.decode("utf-8", "backslashreplace")
    return "".join(
        char if char.isprintable() or char in "\n\t" else f"\\x{ord(char):02x}" for char in decoded
    )
