"""The keywords of JSON Schema, each costing steps, and none of them backtracking.

See `pushkit.schemas.bounded_schema`, which this is the inner half of.
"""

from __future__ import annotations

import json
import sys
import time
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextvars import ContextVar
from functools import cache, lru_cache
from typing import TYPE_CHECKING, Any

from pushkit.bounded_json import JsonValue
from pushkit.errors import ConfigError, InvalidSchemaError

if TYPE_CHECKING:
    from jsonschema.protocols import Validator

MISSING_EXTRA = "structured data needs the extra: pip install 'pushkit[schemas]'"
MAX_SECONDS = 2.0
_MAX_REGEX_CHARS = 1024
# Of an automaton and what is remembered while it runs; the worst is as slow as it is large.
_MAX_REGEX_BYTES = 1024 * 1024
_STATES_A_STEP = 1000
# Of the stack, for what one keyword calls.
_FRAMES_KEPT = 150
# Keywords that ask whether a schema holds: `is_valid`, `iter_errors` and a comprehension between.
_TRYING = frozenset({"oneOf", "not", "if", "contains", "dependencies", "disallow", "type"})


class UndecidedError(Exception):
    """Whether data fits cannot be said; the message says why."""


class Steps:
    """What one validation may still spend: steps, and the computing time of this thread.

    Steps say before something is done what it costs, but not to the last line of the library; time
    sees everything, but only once it is over. No step by itself takes long.

    The stack is bounded here too, before Python does it: its RecursionError inside of a library in
    Rust is a panic, which no `except Exception` catches.
    """

    def __init__(self, limit: int, seconds: float = MAX_SECONDS) -> None:
        self._left = limit
        self._until = time.thread_time() + seconds
        self._frames = 0

    def begin(self) -> None:
        """Look at how much of the stack is left to a validation that begins here."""
        frame, depth = sys._getframe(), 0
        while frame := frame.f_back:  # type: ignore[assignment]
            depth += 1
        self._frames = sys.getrecursionlimit() - depth - _FRAMES_KEPT

    def enter(self, name: str) -> int:
        """Take the stack that a keyword needs, and return how much that is."""
        frames = 7 if name in _TRYING else 4
        self._frames -= frames
        if self._frames < 0:
            self._frames += frames
            raise UndecidedError("the schema goes in a circle, or too deep")
        return frames

    def leave(self, frames: int) -> None:
        """Give it back."""
        self._frames += frames

    def spend(self, steps: int) -> None:
        """Spend some. Raises UndecidedError when they, or the time, are used up."""
        self._left -= steps
        if self._left < 0:
            raise UndecidedError("checking would take too many steps")
        if time.thread_time() > self._until:
            raise UndecidedError("checking takes too long")


# Of the validation that runs: a validator makes others as it descends, which cannot be handed it.
STEPS: ContextVar[Steps] = ContextVar("pushkit_schema_steps")


def walk(document: JsonValue) -> Iterator[tuple[JsonValue, int]]:
    """Return every value in a document, with its depth."""
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
    """Compile a pattern. Raises InvalidSchemaError: not one of RE2's, or too long."""
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
            "pattern: not one of RE2's, which has no look-around, or too large"
        ) from exc


def _searching(patterns: Iterable[str], characters: int) -> int:
    """Return how many steps it takes at worst to search a text for some patterns."""
    return sum(1 + characters * regex(p).programsize // _STATES_A_STEP for p in patterns)


def require_extra() -> None:
    """Import what checks schemas. Raises ConfigError: the extra `schemas` is not installed."""
    try:
        import jsonschema  # noqa: F401
        import re2  # noqa: F401
    except ImportError as exc:
        raise ConfigError(MISSING_EXTRA) from exc


Keyword = Callable[[Any, Any, Any, Any], Any]


@cache
def bounded(base: type[Validator]) -> Any:
    """Return a validator like `base`, whose keywords spend steps."""
    from jsonschema import validators

    extend: Any = validators.extend
    counted = {
        name: _counted(name, _OURS.get(name, keyword)) for name, keyword in base.VALIDATORS.items()
    }
    made = extend(base, counted)
    descend = made.descend
    made.descend = lambda *args, **named: map(_without_words, descend(*args, **named))
    made.evolve = _evolve
    return made


def _without_words(error: Any) -> Any:
    # They quote the data, and of a keyword that collects complaints all are kept.
    STEPS.get().spend(1)
    error.message, error.args = "", ()
    return error


def _evolve(validator: Any, **changes: Any) -> Any:
    # The library's own goes back to an unbounded validator where a schema names its dialect.
    import attrs

    for field in attrs.fields(type(validator)):
        if field.init:
            changes.setdefault(field.alias, getattr(validator, field.name))
    return type(validator)(**changes)


def _counted(name: str, keyword: Keyword) -> Keyword:
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
    """Return how many steps a keyword takes, apart from those of the schemas under it."""
    members = len(instance) if isinstance(instance, list | dict) else 0
    match name:
        case "enum" | "const":
            return 1 + nodes(value)
        case "uniqueItems":
            return 1 + nodes(instance)
        case "pattern":
            return 1 + (_searching([value], len(instance)) if isinstance(instance, str) else 0)
        case "patternProperties":
            return 1 + len(value) * members + _searching(value, _named(instance))
        case "additionalProperties":
            patterns = schema.get("patternProperties", ())
            return 1 + members * (1 + len(patterns)) + _searching(patterns, _named(instance))
    return 1 + (len(value) if isinstance(value, list | dict) else 0)


def _named(instance: Any) -> int:
    return sum(map(len, instance)) if isinstance(instance, dict) else 0


# --- keywords that would use `re`, or time that grows with a square -------------------------------


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
    # 1 and 1.0 are one number, and true is none.
    said = {json.dumps(_by_value(item), sort_keys=True) for item in instance}
    if len(said) < len(instance):
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


_OURS: Mapping[str, Keyword] = {
    "pattern": _pattern,
    "patternProperties": _pattern_properties,
    "additionalProperties": _additional_properties,
    "uniqueItems": _unique_items,
}
