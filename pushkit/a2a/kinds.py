"""The kinds of values that members hold: text, times, names, bytes, objects and lists of them."""

from __future__ import annotations

import base64
import binascii
import contextlib
import re
from collections.abc import Callable, Mapping, Sequence
from datetime import UTC, datetime, timedelta
from enum import StrEnum
from typing import Any, TypeVar

from pushkit.a2a.table import Kind, MismatchError, Reading, Table, Writing
from pushkit.bounded_json import JsonValue

Name = TypeVar("Name", bound=StrEnum)


# --- text, flags and counts --------------------------------------------------------------------


def _text(value: object, _: object = None) -> str:
    if not isinstance(value, str):
        raise MismatchError("expected a valid string")
    return value


def _flag(value: object, _: object = None) -> bool:
    if not isinstance(value, bool):
        raise MismatchError("expected a valid boolean")
    return value


def _read_index(value: object, _: object) -> str:
    if isinstance(value, bool) or not isinstance(value, int):
        raise MismatchError("expected a valid integer")
    return str(value)


TEXT = Kind(read=lambda value, _: _text(value) or None, write=_text, absent="", json_type=str)
"""Text; an empty string counts as absent."""
EXACT_TEXT = Kind(read=_text, write=_text, writes_empty=True, json_type=str)
FLAG = Kind(read=_flag, write=_flag, json_type=bool)
EXACT_FLAG = Kind(read=_flag, write=_flag, writes_empty=True, json_type=bool)
_NUMBER = re.compile(r"0|-?[1-9]\d{0,4000}", re.ASCII)


def is_index(text: str) -> bool:
    """Return whether an id is a number, as in 0.1."""
    return _NUMBER.fullmatch(text) is not None


def _read_count(value: object, _: object) -> int | None:
    if isinstance(value, str) and value.isascii() and value.isdecimal() and len(value) < 20:
        value = int(value)  # ProtoJSON writes 64 bits as text
    if isinstance(value, bool) or not isinstance(value, int) or not 0 <= value < 2**63:
        raise MismatchError("expected a whole number of at most 63 bits")
    return value or None


COUNT = Kind(read=_read_count, write=_read_count)
"""A number that is counted from 1: 0 counts as absent, as in ProtoJSON."""
INDEX = Kind(
    read=_read_index,
    write=lambda value, _: int(value) if is_index(value) else 0,
    absent="0",
    writes_empty=True,
)
"""An id that is a number; any other id is written as 0."""
TEXTS = Kind(
    read=lambda value, _: tuple(_each(_text, _list(value))),
    write=lambda value, _: _each(_text, _items(value)),
    absent=(),
)


# --- the agent's own JSON ----------------------------------------------------------------------


def _write_json(value: object, writing: Writing) -> object:
    writing.foreign = True
    return value


def _read_object(value: object, _: object) -> dict[str, JsonValue]:
    if not isinstance(value, dict):
        raise MismatchError("expected an object")
    return value


def _write_object(value: Mapping[str, JsonValue], writing: Writing) -> dict[str, JsonValue]:
    writing.foreign = True
    if not isinstance(value, Mapping):
        raise MismatchError("expected an object")
    return value if isinstance(value, dict) else dict(value)


CONTENT = Kind(read=lambda value, _: value, write=_write_json, writes_empty=True)
"""Any JSON value but null."""
DATA = Kind(read=lambda value, _: value, write=_write_json, writes_empty=True, writes_null=True)
"""Any JSON value."""
DATA_OBJECT = Kind(read=_read_object, write=_write_object, writes_empty=True)
METADATA = Kind(read=_read_object, write=_write_object)


# --- names of states and roles -----------------------------------------------------------------


def names(
    written: Mapping[Name, str],  # the version's names; a member that is missing cannot be written
    *,
    absent: Name,  # the result of reading no name, or an unknown one
    # Names that the version does not define, but that are written back where they were read.
    kept: Mapping[Name, str] | None = None,
    numbers: Mapping[int, Name] | None = None,  # as ProtoJSON readers accept them
) -> Kind:
    """Return the kind of an enum's names in a version.

    Agents also use the names of another version, of its gRPC binding (0.3's has
    `TASK_STATE_CANCELLED`), or of their language's enum: all of them are read.
    """
    known: dict[object, Name] = {_plain(member): member for member in type(absent)}
    for name, text in written.items():
        known.setdefault(_plain(text), name)
        if known[_plain(text)] is name:
            known[text] = name  # without a conversion
    known.update(numbers.items() if numbers else ())
    written_back = kept or written

    def read_name(value: object, _: object) -> Name:
        if isinstance(value, bool) or not isinstance(value, str | int):
            raise MismatchError("expected a name, or a number")
        found = known.get(value)
        if found is None and isinstance(value, str):
            found = known.get(_plain(value))
        return absent if found is None else found

    def write_name(value: Name, writing: Writing) -> str:
        text = (written_back if writing.keep else written).get(value)
        if text is None:
            raise MismatchError("expected a value that is not empty")
        return text

    return Kind(read=read_name, write=write_name, absent=absent)


_PREFIX = re.compile("^(?:task_?state_?|role_?)")
_SPELLINGS = {"cancelled": "canceled"}


def _plain(name: str) -> str:
    """Return the word of a name, without its prefix, case and separators."""
    text = _PREFIX.sub("", name.lower()).replace("_", "").replace("-", "")
    return _SPELLINGS.get(text, text)


# --- times -------------------------------------------------------------------------------------

# RFC 3339, and what senders write: a space for the T, and no offset (as the first Python SDKs).
_TIMESTAMP = re.compile(
    r"\d{4}-\d\d-\d\d[Tt ]\d\d:\d\d:\d\d(\.\d+)?([Zz]|[+-]\d\d:\d\d)?", re.ASCII
)


def read_timestamp(text: str) -> datetime | None:
    """Read a timestamp, cut to microseconds, in UTC if it has no offset; None if malformed."""
    if _TIMESTAMP.fullmatch(text) is None:
        return None
    try:
        moment = datetime.fromisoformat(text.upper())
        return moment.replace(tzinfo=UTC) if moment.tzinfo is None else moment.astimezone(UTC)
    except (ValueError, OverflowError):  # 30 February, a leap second, the year 0
        return None


_TWO_DIGITS = [f"{number:02}" for number in range(100)]


def format_timestamp(moment: datetime) -> str:
    """Write a timestamp as ProtoJSON: UTC with `Z`, and 0, 3 or 6 digits of fraction."""
    at, two = (moment if moment.tzinfo is UTC else moment.astimezone(UTC)), _TWO_DIGITS
    # Takes half the time of isoformat(), which also writes an offset.
    century, year = divmod(at.year, 100)
    text = f"{two[century]}{two[year]}-{two[at.month]}-{two[at.day]}T"
    text += f"{two[at.hour]}:{two[at.minute]}:{two[at.second]}"
    if micros := at.microsecond:
        text += f".{micros:06}" if micros % 1000 else f".{micros // 1000:03}"
    return text + "Z"


def _write_time(value: datetime, _: Writing) -> str:
    try:
        if value.tzinfo is not UTC and value.utcoffset() is None:
            raise MismatchError("expected an aware datetime")
        return format_timestamp(value)
    except AttributeError:
        found = type(value).__name__
        raise MismatchError(f"found {found}, expected an aware datetime") from None
    except OverflowError:
        raise MismatchError("outside the years 1 to 9999 in UTC") from None


_EPOCH = datetime(1970, 1, 1, tzinfo=UTC)
_FIRST_MILLISECONDS = 10**11  # as seconds that would be the year 5138


def _read_time(value: object, _: object) -> datetime:
    """Read a timestamp, or a number of seconds or milliseconds, as Java's libraries write them."""
    moment = None
    if isinstance(value, str):
        moment = read_timestamp(value)
    elif isinstance(value, int | float) and not isinstance(value, bool):
        unit = "milliseconds" if abs(value) >= _FIRST_MILLISECONDS else "seconds"
        with contextlib.suppress(OverflowError):
            moment = _EPOCH + timedelta(**{unit: value})
    if moment is None:
        raise MismatchError("expected a time, such as 2026-01-02T03:04:05Z")
    return moment


TIME = Kind(read=_read_time, write=_write_time)


# --- bytes -------------------------------------------------------------------------------------


def read_base64(text: object) -> bytes | None:
    """Read base64 of either alphabet, padded or not, as ProtoJSON does; None if malformed."""
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


def _read_bytes(value: object, _: object) -> bytes:
    raw = read_base64(_text(value))
    if raw is None:
        raise MismatchError("expected base64 (RFC 4648 §4 or §5)")
    return raw


def _write_bytes(value: bytes, _: Writing) -> str:
    try:
        return format_base64(value)
    except TypeError:
        raise MismatchError(f"found {type(value).__name__}, expected bytes") from None


BASE64 = Kind(read=_read_bytes, write=_write_bytes, writes_empty=True)


# --- objects -----------------------------------------------------------------------------------


def one(table: Table) -> Kind:
    """Return the kind of a member that holds an object of a table."""
    return Kind(read=table.read, write=table.write, table=table)


def many(table: Table) -> Kind:
    """Return the kind of a member that holds a list of objects of a table."""

    def write(value: Sequence[Any], writing: Writing) -> list[Any]:
        return _each(lambda item: table.write(item, writing), _items(value))

    return Kind(
        read=lambda value, reading: tuple(
            _each(lambda item: table.read(item, reading), _list(value))
        ),
        write=write,
        absent=(),
        table=table,
        several=True,
    )


class _ByClass(dict[type, Table]):
    """The tables of parts by the class of a part."""

    def __missing__(self, node: type) -> Table:
        raise MismatchError(f"found {node.__name__}, expected a part, such as TextPart")


def parts(
    name_of: Callable[[dict[str, JsonValue]], object],  # returns the kind of a part
    # By that kind; "" for unknown parts. The last one of a class writes its parts.
    tables: Mapping[str, Table],
    *,
    may_be_none: bool = False,  # whether the version allows an empty list
) -> Kind:
    """Return the kind of a list of parts, which have a table for each kind of part."""
    unknown = tables[""].node
    by_class = _ByClass({node: table for table in tables.values() for node in table.nodes})

    def read_one(item: object, reading: Reading | None) -> Any:
        if not isinstance(item, dict):
            raise MismatchError("expected an object")
        name = name_of(item)
        return tables[name if isinstance(name, str) and name in tables else ""].read(item, reading)

    def write(value: Sequence[Any], writing: Writing) -> list[Any]:
        sayable = [
            part
            for part in _items(value)
            if not isinstance(part, unknown) or (writing.keep and part.extra)
        ]
        if value and not sayable:
            raise MismatchError("expected a value that is not empty")
        return _each(lambda part: by_class[type(part)].write(part, writing), sayable)

    return Kind(
        read=lambda value, reading: tuple(
            _each(lambda item: read_one(item, reading), _list(value))
        ),
        write=write,
        absent=(),
        writes_empty=may_be_none,
    )


def _list(value: object) -> list[Any]:
    if not isinstance(value, list):
        raise MismatchError("expected a list")
    return value


_SEQUENCES = (tuple, list)  # of a string, each letter would become an item


def _items(value: Sequence[Any]) -> Sequence[Any]:
    if not isinstance(value, _SEQUENCES):
        raise MismatchError(f"found {type(value).__name__}, expected a tuple or a list")
    return value


def _each(convert: Callable[[Any], Any], items: Sequence[Any]) -> list[Any]:
    """Return each item converted; the path of a mismatch has the item's index."""
    converted: list[Any] = []
    try:
        for item in items:
            converted.append(convert(item))  # noqa: PERF401  # a mismatch is at its length
    except MismatchError as exc:
        raise exc.inside(len(converted)) from None
    return converted
