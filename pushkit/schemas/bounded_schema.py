"""JSON Schema validation within limits, so that a hostile schema cannot harm the process.

Schemas come from agents' cards. The limits, and the attacks that they prevent:

- Nothing is fetched: a `$ref` starts with `#`, and the registry is empty.
- Patterns run on RE2, in linear time: with `re`, `(a+)+$` backtracks exponentially. The size of
  their automata is limited, and the cost of a search depends on it.
- Each applied keyword costs steps, which are limited: n lines of references that double at each
  level cause 2^n applications. Computing time is limited too, and is checked at each step, because
  a step may cost more than estimated.
- Keywords that the library evaluates without applying others are refused: `unevaluated…`, and
  dynamic references.
- Schemas are limited in size and depth, and each value of the data costs a step. A schema is
  checked against the schema of its dialect under the same limits.
- Any error of the library is a verdict: a `$ref` may point at something that is not a schema.

A schema that breaks a rule is unusable; data that costs too much is undecided, never valid.
"""

from __future__ import annotations

import json
import sys
import time
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextvars import ContextVar
from functools import cache, lru_cache
from typing import TYPE_CHECKING, Any

from pushkit.bounded_json import JsonObject, JsonValue, json_pointer
from pushkit.errors import InvalidSchemaError
from pushkit.lazy import from_extra
from pushkit.record import record

if TYPE_CHECKING:
    from jsonschema.protocols import Validator

MAX_SCHEMA_CHARS = 64 * 1024
MAX_SCHEMA_DEPTH = 32
MAX_STEPS = 100_000
# For checking the schema itself: dozens of its dialect's keywords apply to each of its subschemas.
_MAX_STEPS_OF_SCHEMA = 20 * MAX_STEPS
_MAX_REGEXES = 256

_UNBOUNDED = ("unevaluatedProperties", "unevaluatedItems", "$dynamicRef", "$recursiveRef")
_DRAFT_2020_12 = "https://json-schema.org/draft/2020-12/schema"
MAX_SECONDS = 2.0
_MAX_REGEX_CHARS = 1024
# For an automaton and its cache; in the worst case, its time grows with its size.
_MAX_REGEX_BYTES = 1024 * 1024
_STATES_A_STEP = 1000
# Stack frames that are reserved for the calls within one keyword.
_FRAMES_KEPT = 150
# Keywords that try a schema: `is_valid`, `iter_errors` and a comprehension add frames.
_TRYING = frozenset({"oneOf", "not", "if", "contains", "dependencies", "disallow", "type"})


@record(frozen=True, slots=True, kw_only=True)
class Complaint:
    """Why data does not fit. Never contains the data itself."""

    path: str  # a JSON Pointer into the data
    rule: str  # the keyword of the schema


class BoundedSchema:
    """A schema that was checked, and checks data.

    Raises:
        InvalidSchemaError: The document is not a schema, or exceeds a limit.
        ConfigError: The extra `schemas` is not installed.
    """

    def __init__(
        self,
        document: JsonValue,
        *,
        max_seconds: float = MAX_SECONDS,  # of computing time to check the schema
    ) -> None:
        require_extra()
        if not isinstance(document, dict | bool):
            raise InvalidSchemaError("expected an object or a boolean")
        steps = Steps(_MAX_STEPS_OF_SCHEMA, max_seconds)
        _check_size(document)
        dialect = document.get("$schema", _DRAFT_2020_12) if isinstance(document, dict) else ""
        base = _validator_class(dialect or _DRAFT_2020_12)
        try:
            _check_keywords(document, steps)
            _check_schema(base, document, steps)
        except UndecidedError as exc:
            raise InvalidSchemaError(f"the schema itself: {exc}") from exc
        self._document = document
        self._base = base

    def check(self, data: JsonValue, steps: Steps | None = None) -> Complaint | None:
        """Return the first complaint about data, or None; several checks may share `steps`.

        Raises:
            UndecidedError: The limits were reached, or the schema cannot be applied.
        """
        from referencing import Registry

        validator = bounded(self._base)(self._document, registry=Registry())
        return _first_complaint(validator, data, Steps(MAX_STEPS) if steps is None else steps)


def _first_complaint(validator: Any, data: JsonValue, steps: Steps) -> Complaint | None:
    from referencing.exceptions import Unresolvable

    outer = STEPS.set(steps)
    try:
        steps.begin()
        steps.spend(nodes(data))
        error = next(validator.iter_errors(data), None)
    except RecursionError as exc:
        raise UndecidedError("the schema is recursive without end, or nested too deeply") from exc
    except Unresolvable as exc:
        raise UndecidedError("a reference of the schema leads nowhere") from exc
    except UndecidedError:
        raise
    except Exception as exc:
        # For example, a `$ref` to something that is not a schema, or a number beyond all floats.
        raise UndecidedError("the schema cannot be applied to this data") from exc
    finally:
        STEPS.reset(outer)
    if error is None:
        return None
    return Complaint(
        path=json_pointer("", *error.absolute_path), rule=str(error.validator or "false")
    )


# --- the schema ----------------------------------------------------------------------------------


def _check_size(document: JsonValue) -> None:
    try:
        size = len(json.dumps(document))
    except (RecursionError, ValueError) as exc:
        raise InvalidSchemaError("nested too deeply, or not JSON") from exc
    if size > MAX_SCHEMA_CHARS:
        raise InvalidSchemaError(f"{size} characters, expected at most {MAX_SCHEMA_CHARS}")


def _check_keywords(document: JsonValue, steps: Steps) -> None:
    """Refuse members that break a rule anywhere in the document, even if they are not keywords."""
    patterns: list[str] = []
    for node, depth in walk(document):
        if depth > MAX_SCHEMA_DEPTH:
            raise InvalidSchemaError(f"nested deeper than {MAX_SCHEMA_DEPTH} levels")
        if isinstance(node, dict):
            _check_references(node, at_root=depth == 0)
            patterns += _patterns(node)
    if len(patterns) > _MAX_REGEXES:
        raise InvalidSchemaError(f"pattern: expected at most {_MAX_REGEXES} in a schema")
    for pattern in patterns:
        steps.spend(1)
        regex(pattern)


def _check_references(node: JsonObject, *, at_root: bool) -> None:
    if not at_root and isinstance(node.get("$schema"), str):
        raise InvalidSchemaError("$schema: expected only at the root")
    if found := next((name for name in _UNBOUNDED if name in node), None):
        raise InvalidSchemaError(f"{found}: not supported, because its cost cannot be bounded")
    target = node.get("$ref")
    # To find an anchor, the library searches the whole schema each time.
    if isinstance(target, str) and target != "#" and not target.startswith("#/"):
        raise InvalidSchemaError("$ref: expected a location in this schema, starting with #/")


def _patterns(node: JsonObject) -> Iterator[str]:
    pattern, by_pattern = node.get("pattern"), node.get("patternProperties")
    if isinstance(pattern, str):
        yield pattern
    if isinstance(by_pattern, dict):
        yield from by_pattern


def _check_schema(base: type[Validator], document: JsonValue, steps: Steps) -> None:
    complaint = _first_complaint(bounded(base)(base.META_SCHEMA), document, steps)
    if complaint is not None:
        raise InvalidSchemaError(f"not a schema at {complaint.path or '/'}")


def _validator_class(dialect: JsonValue) -> type[Validator]:
    from jsonschema.validators import validator_for

    if not isinstance(dialect, str):
        raise InvalidSchemaError("$schema: expected a string")
    unknown: Any = None
    known: type[Validator] | None = validator_for({"$schema": dialect}, default=unknown)
    if known is None:
        raise InvalidSchemaError("$schema: unknown dialect")
    return known


# --- the budget of a validation ------------------------------------------------------------------


class UndecidedError(Exception):
    """It cannot be decided whether data fits; the message says why."""


class Steps:
    """The remaining budget of one validation: steps, and the computing time of this thread.

    Steps are charged in advance, but are only an estimate of what the library does. Time is exact,
    but only known afterwards. No single step takes long.

    The stack is bounded here too, before Python's own limit: a RecursionError inside a library in
    Rust becomes a panic, which no `except Exception` catches.
    """

    def __init__(self, limit: int, seconds: float = MAX_SECONDS) -> None:
        self._left = limit
        self._until = time.thread_time() + seconds
        self._frames = 0

    def begin(self) -> None:
        """Measure how much of the stack is left for a validation that begins here."""
        frame, depth = sys._getframe(), 0
        while frame := frame.f_back:  # type: ignore[assignment]
            depth += 1
        self._frames = sys.getrecursionlimit() - depth - _FRAMES_KEPT

    def enter(self, name: str) -> int:
        """Reserve the stack frames that a keyword needs; return their number."""
        frames = 7 if name in _TRYING else 4
        self._frames -= frames
        if self._frames < 0:
            self._frames += frames
            raise UndecidedError("the schema is recursive without end, or nested too deeply")
        return frames

    def leave(self, frames: int) -> None:
        """Release reserved frames."""
        self._frames += frames

    def spend(self, steps: int) -> None:
        """Spend steps. Raises UndecidedError when the steps or the time are used up."""
        self._left -= steps
        if self._left < 0:
            raise UndecidedError("the check would take too many steps")
        if time.thread_time() > self._until:
            raise UndecidedError("the check takes too long")


# The steps of the current validation. A validator creates others as it descends, and cannot pass
# them an argument.
STEPS: ContextVar[Steps] = ContextVar("pushkit_schema_steps")


def walk(document: JsonValue) -> Iterator[tuple[JsonValue, int]]:
    """Yield every value in a document, with its depth."""
    level = [document]
    depth = 0
    while level:
        yield from ((node, depth) for node in level)
        level = [child for node in level for child in _children(node)]
        depth += 1


def _children(node: JsonValue) -> Iterable[JsonValue]:
    if isinstance(node, dict):
        return node.values()
    return node if isinstance(node, list) else ()


def nodes(document: JsonValue) -> int:
    """Return how many values a document holds."""
    return sum(1 for _ in walk(document))


@lru_cache(maxsize=256)
def regex(pattern: str) -> Any:
    """Compile a pattern. Raises InvalidSchemaError: RE2 does not support it, or it is too long."""
    import re2

    if len(pattern) > _MAX_REGEX_CHARS:
        raise InvalidSchemaError(f"pattern: longer than {_MAX_REGEX_CHARS} characters")
    options = re2.Options()
    options.log_errors = False
    options.max_mem = _MAX_REGEX_BYTES
    try:
        return re2.compile(pattern, options=options)
    except re2.error as exc:
        raise InvalidSchemaError(
            "pattern: too large, or not supported by RE2 (which has no look-around)"
        ) from exc


def _search_cost(patterns: Iterable[str], characters: int) -> int:
    """Return how many steps a search of a text for some patterns takes in the worst case."""
    return sum(1 + characters * regex(p).programsize // _STATES_A_STEP for p in patterns)


def require_extra() -> None:
    """Import the libraries. Raises ConfigError: the extra `schemas` is not installed."""
    with from_extra("schemas", "structured data needs the extra"):
        import jsonschema  # noqa: F401
        import re2  # noqa: F401


# --- keywords that cost steps and do not backtrack -----------------------------------------------


_Keyword = Callable[[Any, Any, Any, Any], Any]


@cache
def bounded(base: type[Validator]) -> Any:
    """Return a validator like `base`, whose keywords spend steps."""
    from jsonschema import validators

    extend: Any = validators.extend
    counted = {
        name: _counted(name, _REPLACED.get(name, keyword))
        for name, keyword in base.VALIDATORS.items()
    }
    made = extend(base, counted)
    descend = made.descend
    made.descend = lambda *args, **named: map(_without_words, descend(*args, **named))
    made.evolve = _evolve
    return made


def _without_words(error: Any) -> Any:
    # The messages quote the data, and keywords that collect errors would keep them all in memory.
    STEPS.get().spend(1)
    error.message, error.args = "", ()
    return error


def _evolve(validator: Any, **changes: Any) -> Any:
    # The library's `evolve` returns an unbounded validator for a schema that names its dialect.
    import attrs

    for field in attrs.fields(type(validator)):
        if field.init:
            changes.setdefault(field.alias, getattr(validator, field.name))
    return type(validator)(**changes)


def _counted(name: str, keyword: _Keyword) -> _Keyword:
    def apply(validator: Any, value: Any, instance: Any, schema: Any) -> Iterator[Any]:
        steps = STEPS.get()
        steps.spend(_cost(name, value, instance, schema))
        frames = steps.enter(name)
        try:
            for error in keyword(validator, value, instance, schema) or ():
                yield _without_words(error)
        finally:
            steps.leave(frames)

    return apply


def _cost(name: str, value: Any, instance: Any, schema: Any) -> int:
    """Return how many steps a keyword takes, without those of its subschemas."""
    members = len(instance) if isinstance(instance, list | dict) else 0
    match name:
        case "enum" | "const":
            return 1 + nodes(value)
        case "uniqueItems":
            return 1 + nodes(instance)
        case "pattern":
            return 1 + (_search_cost([value], len(instance)) if isinstance(instance, str) else 0)
        case "patternProperties":
            return 1 + len(value) * members + _search_cost(value, _name_characters(instance))
        case "additionalProperties":
            patterns = schema.get("patternProperties", ())
            searches = _search_cost(patterns, _name_characters(instance))
            return 1 + members * (1 + len(patterns)) + searches
    return 1 + (len(value) if isinstance(value, list | dict) else 0)


def _name_characters(instance: Any) -> int:
    return sum(map(len, instance)) if isinstance(instance, dict) else 0


# --- replacements for keywords that use `re`, or quadratic time -----------------------------------


def _pattern(validator: Any, pattern: str, instance: Any, _schema: Any) -> Iterator[Any]:
    if validator.is_type(instance, "string") and not regex(pattern).search(instance):
        yield _failed("pattern")


def _pattern_properties(
    validator: Any, patterns: Mapping[str, Any], instance: Any, _schema: Any
) -> Iterator[Any]:
    if not validator.is_type(instance, "object"):
        return
    for pattern, schema in patterns.items():
        for name, value in instance.items():
            if regex(pattern).search(name):
                yield from validator.descend(value, schema, path=name, schema_path=pattern)


def _additional_properties(
    validator: Any, additional: Any, instance: Any, schema: Mapping[str, Any]
) -> Iterator[Any]:
    if not validator.is_type(instance, "object"):
        return
    properties, patterns = schema.get("properties", {}), schema.get("patternProperties", {})
    for name, value in instance.items():
        if name in properties or any(regex(pattern).search(name) for pattern in patterns):
            continue
        if additional is False:
            yield _failed("additionalProperties")
        else:
            yield from validator.descend(value, additional, path=name)


def _unique_items(validator: Any, unique: Any, instance: Any, _schema: Any) -> Iterator[Any]:
    if not unique or not validator.is_type(instance, "array"):
        return
    # 1 and 1.0 are the same number, and true is not a number.
    distinct = {json.dumps(_by_value(item), sort_keys=True) for item in instance}
    if len(distinct) < len(instance):
        yield _failed("uniqueItems")


def _by_value(value: Any) -> Any:
    if isinstance(value, float) and value.is_integer():
        return int(value)
    if isinstance(value, list):
        return [_by_value(item) for item in value]
    if isinstance(value, dict):
        return {name: _by_value(item) for name, item in value.items()}
    return value


def _failed(keyword: str) -> Any:
    from jsonschema.exceptions import ValidationError

    return ValidationError(f"{keyword} does not hold")


_REPLACED: Mapping[str, _Keyword] = {
    "pattern": _pattern,
    "patternProperties": _pattern_properties,
    "additionalProperties": _additional_properties,
    "uniqueItems": _unique_items,
}
