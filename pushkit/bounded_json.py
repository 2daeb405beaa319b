"""JSON, read within limits and written strictly (RFC 8259, I-JSON's refusal of duplicate members).

The standard library's reader accepts `NaN`, duplicate members, lone surrogates and nesting up to
its recursion limit; this module refuses all of them.
"""

from __future__ import annotations

import functools
import json
import math
import re
from collections.abc import Callable, Iterable
from typing import NoReturn, TypeAlias

from pushkit.errors import MalformedJsonError

JsonValue: TypeAlias = "bool | int | float | str | list[JsonValue] | dict[str, JsonValue] | None"
JsonObject: TypeAlias = "dict[str, JsonValue]"

MAX_DEPTH = 64

_fast_dumps: Callable[[object], bytes]
_fast_loads: Callable[[bytes], JsonValue]
try:
    import orjson
except ModuleNotFoundError:  # not on every platform
    import pydantic_core

    _fast_dumps = pydantic_core.to_json
    _fast_loads = functools.partial(pydantic_core.from_json, allow_inf_nan=False)
else:
    _fast_dumps, _fast_loads = orjson.dumps, orjson.loads

_SURROGATE_ESCAPE = re.compile(rb"\\u[dD][89a-fA-F]")


def read_json(data: bytes) -> JsonValue:
    """Read one JSON text in UTF-8; the caller bounds its length.

    Raises:
        MalformedJsonError: Not UTF-8, not JSON, a duplicate member, a number that is not finite or
            too long, a lone surrogate, or nested too deeply.
    """
    if is_too_deep(data):
        raise MalformedJsonError(f"nested deeper than {MAX_DEPTH} levels")
    canonical, value = _read_canonical(data)
    return value if canonical else _read_strictly(data)


def _read_canonical(data: bytes) -> tuple[bool, JsonValue]:
    """Return True and the value of JSON that is spelled as pushkit would write it, as most is.

    The fast reader keeps the last of two equal members, and rounds numbers. Its result is written
    again: if that gives the same bytes, nothing was lost.
    """
    if b'": ' in data[:64]:  # pushkit writes no spaces
        return False, None
    try:
        value = _fast_loads(data)
        return _fast_dumps(value) == data, value
    except (ValueError, TypeError, RecursionError):
        return False, None  # the strict reader reports the reason


def _read_strictly(data: bytes) -> JsonValue:
    try:
        value: JsonValue = json.loads(
            data.decode("utf-8"),
            object_pairs_hook=_object_without_duplicates,
            parse_constant=_refuse_constant,
            parse_float=_finite_float,
        )
    except MalformedJsonError:
        raise
    except UnicodeDecodeError as exc:
        raise MalformedJsonError(f"not UTF-8 at byte {exc.start}") from exc
    except json.JSONDecodeError as exc:
        raise MalformedJsonError(f"not JSON: {exc.msg} at character {exc.pos}") from exc
    except RecursionError as exc:
        raise MalformedJsonError(f"nested deeper than {MAX_DEPTH} levels") from exc
    except ValueError as exc:  # an integer longer than the interpreter converts
        raise MalformedJsonError("a number has too many digits") from exc
    if _SURROGATE_ESCAPE.search(data):
        try:
            json.dumps(value, ensure_ascii=False).encode("utf-8")
        except UnicodeEncodeError as exc:
            raise MalformedJsonError("a string has half of a surrogate pair") from exc
    return value


def read_json_object(data: bytes) -> JsonObject:
    """Read one JSON text that must be an object; see `read_json`."""
    value = read_json(data)
    if not isinstance(value, dict):
        raise MalformedJsonError(f"expected a JSON object, found {json_type(value)}")
    return value


def json_pointer(parent: str, *steps: str | int) -> str:
    """Return a JSON Pointer with more steps at its end (RFC 6901 §3)."""
    return parent + "".join(f"/{str(step).replace('~', '~0').replace('/', '~1')}" for step in steps)


def _object_without_duplicates(pairs: list[tuple[str, JsonValue]]) -> JsonObject:
    members = dict(pairs)
    if len(members) != len(pairs):
        raise MalformedJsonError("an object has the same member twice")
    return members


def _refuse_constant(name: str) -> NoReturn:
    raise MalformedJsonError(f"{name} is not JSON")


def _finite_float(text: str) -> float:
    value = float(text)
    if not math.isfinite(value):
        raise MalformedJsonError("a number is outside the range of a double")
    return value


_AS_PARENTHESES = bytes.maketrans(b"[{]}", b"(())")
_ALL_BUT_BRACKETS_AND_QUOTES = bytes(set(range(256)) - set(b'[]{}"'))
_ALL_BUT_THOSE_AND_ESCAPES = bytes(set(_ALL_BUT_BRACKETS_AND_QUOTES) - set(b"\\/bfnrtu"))


def is_too_deep(data: bytes) -> bool:
    """Return whether JSON nests deeper than MAX_DEPTH, without parsing it; any bytes will do."""
    if data.count(b"[") + data.count(b"{") <= MAX_DEPTH:  # the common case needs no scan
        return False
    if b"\\" in data:  # blank out escapes in strings: first of backslashes, then of quotes
        # Twice as fast as a search in all of the text: this one is shorter, and keeps its length.
        data = data.translate(None, _ALL_BUT_THOSE_AND_ESCAPES)
        data = data.replace(rb"\\", b"nn").replace(rb"\"", b"nn")
    # Two adjacent quotes: a string without a bracket, or the end of one and the start of the next.
    found = data.translate(_AS_PARENTHESES, _ALL_BUT_BRACKETS_AND_QUOTES).replace(b'""', b"")
    if b'"' in found:
        found = b"".join(found.split(b'"')[::2])
    for _ in range(MAX_DEPTH):
        if not found:
            return False
        found = found.replace(b"()", b"")  # removes the innermost level everywhere
    return bool(found)


def json_type(value: JsonValue) -> str:
    """Return the name of a value's type, with its article, for messages."""
    names = {
        type(None): "null",
        bool: "a boolean",
        str: "a string",
        list: "an array",
        dict: "an object",
    }
    return names.get(type(value), "a number")


# --- writing -----------------------------------------------------------------------------------

_COMPACT = json.JSONEncoder(ensure_ascii=False, allow_nan=False, separators=(",", ":"))
_MAX_WRITTEN_DEPTH = 256


def write_json(value: object, *, foreign: bool = True) -> bytes:
    """Write one value, of dicts, lists, str, int, float, bool and None, as compact UTF-8 JSON.

    `foreign` means that a part of the value comes from outside pushkit. The fast writer accepts
    values that are not JSON (NaN, tuples, numbers as names), so its output must read the same.

    Raises:
        ValueError: It holds a value that JSON cannot carry, or nests too deeply; the message says
            where.
    """
    try:
        written = _fast_dumps(value)
        if not foreign or _fast_loads(written) == value:
            return written
    except (ValueError, TypeError, RecursionError):
        pass  # the rules below do not depend on which fast writer is installed
    try:
        complaint = _complaint(value, (), _MAX_WRITTEN_DEPTH)
        if complaint is None:
            return _COMPACT.encode(value).encode("utf-8")
    except RecursionError:
        complaint = "nested too deeply"
    except ValueError:
        complaint = "a number has too many digits"
    raise ValueError(complaint)


def _complaint(value: object, path: tuple[str, ...], levels: int) -> str | None:
    children: Iterable[tuple[object, object]] = ()
    match value:
        case None | bool():
            valid = True
        case int() | float():
            valid = isinstance(value, int) or math.isfinite(value)
        case str():
            valid = _is_unicode(value)
        case dict():
            valid = all(isinstance(name, str) and _is_unicode(name) for name in value)
            children = value.items()
        case list():
            valid, children = True, enumerate(value)
        case _:
            valid = False
    place = ".".join(path) or "the document"
    if not valid:
        return f"{place}: a value that JSON cannot represent"
    if not levels:
        return f"{'.'.join(path[:8])}: nested too deeply"
    found = (_complaint(child, (*path, str(step)), levels - 1) for step, child in children)
    return next((each for each in found if each is not None), None)


def _is_unicode(text: str) -> bool:
    try:
        text.encode("utf-8")
    except UnicodeEncodeError:  # half of a surrogate pair
        return False
    return True
