"""JSON from outside, read within limits (RFC 8259, I-JSON's refusal of duplicate members).

The standard library's reader accepts `NaN`, duplicate members, lone surrogates and nesting up to
its recursion limit; none of these may reach the code behind this door.
"""

from __future__ import annotations

import json
import math
import re
from collections.abc import Iterable
from typing import NoReturn, TypeAlias

from pushkit.errors import MalformedJsonError

__all__ = ["MAX_DEPTH", "JsonObject", "JsonValue", "read_json", "read_json_object"]

JsonValue: TypeAlias = "bool | int | float | str | list[JsonValue] | dict[str, JsonValue] | None"
JsonObject: TypeAlias = "dict[str, JsonValue]"

MAX_DEPTH = 64

_SURROGATE_ESCAPE = re.compile(rb"\\u[dD][89a-fA-F]")


def read_json(data: bytes, *, max_depth: int = MAX_DEPTH) -> JsonValue:
    """Read one JSON text.

    Args:
        data: UTF-8 bytes, already bounded in length by the caller.
        max_depth: How deep arrays and objects may nest.

    Raises:
        MalformedJsonError: Not UTF-8, not JSON, a duplicate member, a number that is not finite or
            too long, a lone surrogate, or nested too deeply.
    """
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
        raise MalformedJsonError(f"nested deeper than {max_depth} levels") from exc
    except ValueError as exc:  # an integer longer than the interpreter converts
        raise MalformedJsonError("a number has too many digits") from exc
    # Fewer brackets than levels allowed: the common case needs no walk.
    if data.count(b"[") + data.count(b"{") > max_depth:
        _check_depth(value, max_depth)
    if _SURROGATE_ESCAPE.search(data):
        _check_surrogates(value)
    return value


def read_json_object(data: bytes, *, max_depth: int = MAX_DEPTH) -> JsonObject:
    """Read one JSON text that must be an object; see `read_json`."""
    value = read_json(data, max_depth=max_depth)
    if not isinstance(value, dict):
        raise MalformedJsonError(f"expected a JSON object, found {_json_type(value)}")
    return value


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


def _check_depth(value: JsonValue, max_depth: int) -> None:
    level = _containers([value])
    for _ in range(max_depth):
        level = [child for node in level for child in _containers(_children(node))]
        if not level:
            return
    raise MalformedJsonError(f"nested deeper than {max_depth} levels")


def _containers(values: Iterable[JsonValue]) -> list[list[JsonValue] | JsonObject]:
    return [value for value in values if isinstance(value, list | dict)]


def _children(node: list[JsonValue] | JsonObject) -> Iterable[JsonValue]:
    return node.values() if isinstance(node, dict) else node


def _check_surrogates(value: JsonValue) -> None:
    try:
        json.dumps(value, ensure_ascii=False).encode("utf-8")
    except UnicodeEncodeError as exc:
        raise MalformedJsonError("a string has half of a surrogate pair") from exc


def _json_type(value: JsonValue) -> str:
    names = {type(None): "null", bool: "a boolean", str: "a string", list: "an array"}
    return names.get(type(value), "a number")
