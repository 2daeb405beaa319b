"""What members hold: text, times, names of states, bytes, objects and lists of them."""

from __future__ import annotations

import base64
import binascii
import re
from collections.abc import Callable, Mapping, Sequence
from datetime import UTC, datetime
from enum import StrEnum
from typing import Any, TypeVar

from pushkit.a2a.table import Kind, MismatchError, Table, Writing
from pushkit.bounded_json import JsonValue

Name = TypeVar("Name", bound=StrEnum)


# --- text and flags ----------------------------------------------------------------------------


def _text(value: object, _: object = None) -> str:
    if not isinstance(value, str):
        raise MismatchError("expected a valid string")
    return value


def _flag(value: object, _: object = None) -> bool:
    if not isinstance(value, bool):
        raise MismatchError("expected a valid boolean")
    return value


def _integer(value: object) -> int:
    if isinstance(value, bool) or not isinstance(value, int):
        raise MismatchError("expected a valid integer")
    return value


TEXT = Kind(read=lambda value: _text(value) or None, write=_text, absent="", as_it_is=str)
"""Text; an empty one says nothing."""
EXACT_TEXT = Kind(read=_text, write=_text, empty_says=True, as_it_is=str)
FLAG = Kind(read=_flag, write=_flag, as_it_is=bool)
SAID_FLAG = Kind(read=_flag, write=_flag, empty_says=True, as_it_is=bool)
_NUMBER = re.compile(r"0|-?[1-9]\d{0,4000}", re.ASCII)


def is_index(text: str) -> bool:
    """Say whether an id is a number, as 0.1's are."""
    return _NUMBER.fullmatch(text) is not None


INDEX = Kind(
    read=lambda value: str(_integer(value)),
    write=lambda value, _: int(value) if is_index(value) else 0,
    absent="0",
    empty_says=True,
)
"""An id that is a number; another one is written as the first."""
TEXTS = Kind(
    read=lambda value: tuple(_each(_text, _list(value))),
    write=lambda value, _: _each(_text, value),
    absent=(),
)


# --- JSON that is the agent's own --------------------------------------------------------------


def _write_json(value: object, writing: Writing) -> object:
    writing.foreign = True
    return value


def _read_object(value: object) -> dict[str, JsonValue]:
    if not isinstance(value, dict):
        raise MismatchError("expected an object")
    return value


def _write_object(value: Mapping[str, JsonValue], writing: Writing) -> dict[str, JsonValue]:
    writing.foreign = True
    if not isinstance(value, Mapping):
        raise MismatchError("expected an object")
    return value if isinstance(value, dict) else dict(value)


CONTENT = Kind(read=lambda value: value, write=_write_json, empty_says=True)
"""Any JSON but null."""
DATA = Kind(read=lambda value: value, write=_write_json, empty_says=True, null_says=True)
"""Any JSON, also null."""
DATA_OBJECT = Kind(read=_read_object, write=_write_object, empty_says=True)
METADATA = Kind(read=_read_object, write=_write_object)


# --- names of states and roles -----------------------------------------------------------------


def names(
    written: Mapping[Name, str],  # one that does not stand here cannot be said
    *,
    absent: Name,  # what is read where there is no name, or one that is not known
    read: Mapping[JsonValue, Name] | None = None,  # what else is read as which
) -> Kind:
    """Names as a version spells them."""
    known: dict[JsonValue, Name] = {}
    for name, text in written.items():
        known.setdefault(text, name)
    known |= read or {}
    # A name that its version does not have, but that was met in it, goes back as it came.
    spelled = dict(written) | {
        name: met
        for met, name in known.items()
        if isinstance(met, str) and known.get(written.get(name)) is not name
    }

    def read_name(value: object) -> Name:
        if isinstance(value, bool) or not isinstance(value, str | int):
            raise MismatchError("expected a name, or a number")
        return known.get(value, absent)

    def write_name(value: Name, writing: Writing) -> str:
        text = (spelled if writing.keep else written).get(value)
        if text is None:
            raise MismatchError("expected a value that is not empty")
        return text

    return Kind(read=read_name, write=write_name, absent=absent)


# --- times -------------------------------------------------------------------------------------

# RFC 3339, and what is met: a space for the T, and no offset (the first Python SDKs wrote none).
_TIMESTAMP = re.compile(
    r"\d{4}-\d\d-\d\d[Tt ]\d\d:\d\d:\d\d(\.\d+)?([Zz]|[+-]\d\d:\d\d)?", re.ASCII
)


def read_timestamp(text: str) -> datetime | None:
    """Read a timestamp, cut to microseconds; without offset it is UTC; None if it is none."""
    if _TIMESTAMP.fullmatch(text) is None:
        return None
    try:
        moment = datetime.fromisoformat(text.upper())
        return moment.replace(tzinfo=UTC) if moment.tzinfo is None else moment.astimezone(UTC)
    except (ValueError, OverflowError):  # 30 February, a leap second, the year 0
        return None


_TWO_DIGITS = [f"{number:02}" for number in range(100)]


def format_timestamp(moment: datetime) -> str:
    """Write a timestamp as ProtoJSON does: UTC, `Z`, no, three or six digits of fraction."""
    at, two = (moment if moment.tzinfo is UTC else moment.astimezone(UTC)), _TWO_DIGITS
    # Half of what isoformat() takes, which writes an offset, too.
    century, year = divmod(at.year, 100)
    text = f"{two[century]}{two[year]}-{two[at.month]}-{two[at.day]}T"
    text += f"{two[at.hour]}:{two[at.minute]}:{two[at.second]}"
    if micros := at.microsecond:
        text += f".{micros:06}" if micros % 1000 else f".{micros // 1000:03}"
    return text + "Z"


def _write_time(value: datetime, _: Writing) -> str:
    if value.tzinfo is not UTC and value.utcoffset() is None:
        raise MismatchError("expected an aware datetime")
    try:
        return format_timestamp(value)
    except OverflowError:
        raise MismatchError("outside the years 1 to 9999 in UTC") from None


TIME = Kind(read=lambda value: read_timestamp(_text(value)), write=_write_time)


# --- bytes -------------------------------------------------------------------------------------


def read_base64(text: object) -> bytes | None:
    """Read base64 of either alphabet, padded or not, as ProtoJSON does; None if it is none."""
    if not isinstance(text, str):
        return None
    standard = text.rstrip("=").replace("-", "+").replace("_", "/")
    try:
        return base64.b64decode(standard + "=" * (-len(standard) % 4), validate=True)
    except (binascii.Error, ValueError):
        return None


def format_base64(raw: bytes) -> str:
    """Write base64 with the standard alphabet and padding (RFC 4648 §4)."""
    return base64.b64encode(raw).decode("ascii")


def _read_bytes(value: object) -> bytes:
    raw = read_base64(_text(value))
    if raw is None:
        raise MismatchError("expected base64 (RFC 4648 §4 or §5)")
    return raw


BASE64 = Kind(read=_read_bytes, write=lambda value, _: format_base64(value), empty_says=True)


# --- objects -----------------------------------------------------------------------------------


def one(table: Table) -> Kind:
    """An object of a table."""
    return Kind(read=table.read, write=table.write, table=table)


def many(table: Table) -> Kind:
    """A list of objects of a table."""

    def write(value: Sequence[Any], writing: Writing) -> list[Any]:
        return _each(lambda item: table.write(item, writing), value)

    return Kind(
        read=lambda value: tuple(_each(table.read, _list(value))),
        write=write,
        absent=(),
        table=table,
        several=True,
    )


def parts(
    told: Callable[[dict[str, JsonValue]], object],  # which kind an object is
    tables: Mapping[str, Table],  # of each kind; that of "" holds what its own version said alone
    *,
    may_be_none: bool = False,  # whether the version has lists without a part
) -> Kind:
    """A list of parts, of which each kind has a table."""
    unknown = tables[""].node
    by_class = {node: table for table in tables.values() for node in table.nodes}

    def read_one(item: object) -> Any:
        if not isinstance(item, dict):
            raise MismatchError("expected an object")
        kind = told(item)
        return tables[kind if isinstance(kind, str) and kind in tables else ""].read(item)

    def write(value: Sequence[Any], writing: Writing) -> list[Any]:
        sayable = [
            part for part in value if not isinstance(part, unknown) or (writing.keep and part.extra)
        ]
        if value and not sayable:
            raise MismatchError("expected a value that is not empty")
        return _each(lambda part: by_class[type(part)].write(part, writing), sayable)

    return Kind(
        read=lambda value: tuple(_each(read_one, _list(value))),
        write=write,
        absent=(),
        empty_says=may_be_none,
    )


def _list(value: object) -> list[Any]:
    if not isinstance(value, list):
        raise MismatchError("expected a list")
    return value


def _each(convert: Callable[[Any], Any], items: Sequence[Any]) -> list[Any]:
    """Return each item converted; a mismatch says which one it was."""
    converted: list[Any] = []
    try:
        for item in items:
            converted.append(convert(item))  # noqa: PERF401  # its length is the place of a mismatch
    except MismatchError as exc:
        raise exc.inside(len(converted)) from None
    return converted
