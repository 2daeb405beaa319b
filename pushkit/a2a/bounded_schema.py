"""JSON Schema validation that a hostile schema cannot turn against the process.

Schemas come from agents' cards. What is bounded, and against what:

- Nothing is fetched: a `$ref` is `#…`, and the registry knows nothing.
- Patterns run on RE2, in linear time: `re` backtracks, `(a+)+$` for ever.
- Every keyword that is applied costs steps, and steps are limited: references that double at each
  level reach 2^n applications in n lines.
- Schemas are limited in size and depth, data in how much of it there is.

A schema that breaks a rule is unusable, and data that costs too much is undecided: never valid.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextvars import ContextVar
from dataclasses import dataclass
from functools import cache, lru_cache
from typing import TYPE_CHECKING, Any

from pushkit.bounded_json import JsonObject, JsonValue
from pushkit.errors import ConfigError, InvalidSchemaError

if TYPE_CHECKING:
    from jsonschema.protocols import Validator

__all__ = ["BoundedSchema", "Complaint", "UndecidedError"]

MAX_SCHEMA_CHARS = 64 * 1024
MAX_SCHEMA_DEPTH = 32
MAX_STEPS = 100_000
_MAX_REGEX_CHARS = 1024
_MAX_REGEXES = 256

_REFERENCES = ("$ref", "$dynamicRef", "$recursiveRef")
_DRAFT_2020_12 = "https://json-schema.org/draft/2020-12/schema"


class UndecidedError(Exception):
    """Whether data fits cannot be said; the message says why."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Complaint:
    """Why data does not fit: where, and which rule. Never what stands there."""

    path: str
    rule: str


class BoundedSchema:
    """One schema, checked, with which data can be checked.

    Args:
        document: The schema.
        max_steps: How many keywords one validation may apply, more or less.

    Raises:
        InvalidSchemaError: Not a schema, or one that breaks a limit.
        ConfigError: The extra `schemas` is not installed.
    """

    def __init__(self, document: JsonValue, *, max_steps: int = MAX_STEPS) -> None:
        if not isinstance(document, dict | bool):
            raise InvalidSchemaError("expected an object or a boolean")
        _check_size(document)
        _check_keywords(document)
        dialect = document.get("$schema", _DRAFT_2020_12) if isinstance(document, dict) else ""
        base = _validator_class(dialect or _DRAFT_2020_12)
        _check_schema(base, document)
        self._document = _without_dialect(document)
        self._base = base
        self._max_steps = max_steps

    def check(self, data: JsonValue) -> Complaint | None:
        """Return what is wrong with data, or None.

        Raises:
            UndecidedError: It cannot be decided within the limits.
        """
        validator = _bounded(self._base)(self._document, registry=_empty_registry())
        steps = _Steps(self._max_steps)
        outer = _STEPS.set(steps)
        try:
            steps.spend(_nodes(data))
            error = next(validator.iter_errors(data), None)
        except RecursionError as exc:
            raise UndecidedError("the schema goes in a circle, or too deep") from exc
        except _unresolvable() as exc:
            raise UndecidedError("a reference of the schema leads nowhere") from exc
        finally:
            _STEPS.reset(outer)
        if error is None:
            return None
        return Complaint(path=_pointer(error.absolute_path), rule=str(error.validator or "false"))


class _Steps:
    def __init__(self, limit: int) -> None:
        self._left = limit

    def spend(self, steps: int) -> None:
        self._left -= steps
        if self._left < 0:
            raise UndecidedError("checking would take too many steps")


# Of the validation that runs: a validator makes others as it descends, which cannot be handed it.
_STEPS: ContextVar[_Steps] = ContextVar("pushkit_schema_steps")


# --- the schema ----------------------------------------------------------------------------------


def _check_size(document: JsonValue) -> None:
    try:
        size = len(json.dumps(document))
    except (RecursionError, ValueError) as exc:
        raise InvalidSchemaError("nested too deeply, or not JSON") from exc
    if size > MAX_SCHEMA_CHARS:
        raise InvalidSchemaError(f"{size} characters, expected at most {MAX_SCHEMA_CHARS}")


def _check_keywords(document: JsonValue) -> None:
    """Refuse what would leave the limits, wherever it stands, even where it is no keyword."""
    patterns: list[str] = []
    by_pattern = unevaluated = False
    for node, depth in _walk(document):
        if depth > MAX_SCHEMA_DEPTH:
            raise InvalidSchemaError(f"nested deeper than {MAX_SCHEMA_DEPTH} levels")
        if isinstance(node, dict):
            _check_references(node, at_root=depth == 0)
            patterns += _patterns(node)
            by_pattern = by_pattern or isinstance(node.get("patternProperties"), dict)
            unevaluated = unevaluated or "unevaluatedProperties" in node
    if by_pattern and unevaluated:
        # Its implementation would look for the patterns with `re`.
        raise InvalidSchemaError(
            "unevaluatedProperties and patternProperties: expected one of them"
        )
    if len(patterns) > _MAX_REGEXES:
        raise InvalidSchemaError(f"pattern: expected at most {_MAX_REGEXES} in a schema")
    for pattern in patterns:
        _regex(pattern)


def _check_references(node: JsonObject, *, at_root: bool) -> None:
    if not at_root and isinstance(node.get("$schema"), str):
        raise InvalidSchemaError("$schema: expected at the root alone")
    for name in _REFERENCES:
        target = node.get(name)
        if isinstance(target, str) and not target.startswith("#"):
            raise InvalidSchemaError(f"{name}: expected one within the schema, starting with #")


def _walk(document: JsonValue) -> Iterator[tuple[JsonValue, int]]:
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


def _nodes(document: JsonValue) -> int:
    return sum(1 for _ in _walk(document))


def _patterns(node: JsonObject) -> Iterator[str]:
    pattern, by_pattern = node.get("pattern"), node.get("patternProperties")
    if isinstance(pattern, str):
        yield pattern
    if isinstance(by_pattern, dict):
        yield from by_pattern


def _without_dialect(document: JsonObject | bool) -> JsonObject | bool:
    # With its dialect named, every step down would go back to the unbounded validator of that.
    if isinstance(document, bool):
        return document
    return {name: value for name, value in document.items() if name != "$schema"}


def _check_schema(base: type[Validator], document: JsonValue) -> None:
    from jsonschema import FormatChecker
    from jsonschema.exceptions import SchemaError

    try:
        base.check_schema(document, format_checker=FormatChecker(formats=()))  # type: ignore[arg-type, call-arg]
    except SchemaError as exc:
        raise InvalidSchemaError(f"not a schema at {_pointer(exc.absolute_path) or '/'}") from exc
    except RecursionError as exc:
        raise InvalidSchemaError("nested too deeply") from exc


# --- the libraries -------------------------------------------------------------------------------

_MISSING = "structured data needs the extra: pip install 'pushkit[schemas]'"


def _validator_class(dialect: JsonValue) -> type[Validator]:
    try:
        from jsonschema.validators import validator_for
    except ImportError as exc:  # pragma: no cover  # the tests have the extra
        raise ConfigError(_MISSING) from exc
    if not isinstance(dialect, str):
        raise InvalidSchemaError("$schema: expected a string")
    unknown: Any = None
    known: type[Validator] | None = validator_for({"$schema": dialect}, default=unknown)
    if known is None:
        raise InvalidSchemaError("$schema: not a dialect that is known")
    return known


def _empty_registry() -> Any:
    from referencing import Registry

    return Registry()


def _unresolvable() -> type[Exception]:
    from referencing.exceptions import Unresolvable

    return Unresolvable


@lru_cache(maxsize=1024)
def _regex(pattern: str) -> Any:
    try:
        import re2
    except ImportError as exc:  # pragma: no cover
        raise ConfigError(_MISSING) from exc
    if len(pattern) > _MAX_REGEX_CHARS:
        raise InvalidSchemaError(f"pattern: longer than {_MAX_REGEX_CHARS} characters")
    options = re2.Options()
    options.log_errors = False
    try:
        return re2.compile(pattern, options=options)
    except re2.error as exc:
        raise InvalidSchemaError("pattern: not one of RE2's, which has no look-around") from exc


Keyword = Callable[[Any, Any, Any, Any], Any]


@cache
def _bounded(base: type[Validator]) -> Any:
    """Return a validator like `base`, whose keywords spend steps."""
    from jsonschema import validators

    extend: Any = validators.extend
    counted = {
        name: _counted(name, _OURS.get(name, keyword)) for name, keyword in base.VALIDATORS.items()
    }
    return extend(base, counted)


def _counted(name: str, keyword: Keyword) -> Keyword:
    def apply(validator: Any, value: Any, instance: Any, schema: Any) -> Iterator[Any]:
        steps = _STEPS.get()
        steps.spend(_cost(name, value, instance, schema))
        for error in keyword(validator, value, instance, schema) or ():
            steps.spend(1)
            yield error

    return apply


def _cost(name: str, value: Any, instance: Any, schema: Any) -> int:
    """Return how many steps a keyword takes, apart from those of the schemas under it."""
    members = len(instance) if isinstance(instance, list | dict) else 0
    match name:
        case "enum" | "const":
            return 1 + _nodes(value)
        case "uniqueItems":
            return 1 + _nodes(instance)
        case "pattern":
            return 1 + (len(instance) // 64 if isinstance(instance, str) else 0)
        case "patternProperties":
            return 1 + len(value) * members
        case "additionalProperties":
            return 1 + members * (1 + len(schema.get("patternProperties", ())))
    return 1 + (len(value) if isinstance(value, list | dict) else 0)


# --- keywords that would use `re`, or time that grows with a square -------------------------------


def _pattern(validator: Any, pattern: str, instance: Any, _schema: Any) -> Iterator[Any]:
    if validator.is_type(instance, "string") and not _regex(pattern).search(instance):
        yield _failed("pattern")


def _pattern_properties(
    validator: Any, patterns: Mapping[str, Any], instance: Any, _schema: Any
) -> Iterator[Any]:
    if not validator.is_type(instance, "object"):
        return
    for pattern, schema in patterns.items():
        for name, value in instance.items():
            if _regex(pattern).search(name):
                yield from validator.descend(value, schema, path=name, schema_path=pattern)


def _additional_properties(
    validator: Any, additional: Any, instance: Any, schema: Mapping[str, Any]
) -> Iterator[Any]:
    if not validator.is_type(instance, "object"):
        return
    properties, patterns = schema.get("properties", {}), schema.get("patternProperties", {})
    for name, value in instance.items():
        if name in properties or any(_regex(pattern).search(name) for pattern in patterns):
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


def _pointer(path: Iterable[str | int]) -> str:
    """Return a JSON Pointer (RFC 6901)."""
    return "".join(f"/{str(step).replace('~', '~0').replace('/', '~1')}" for step in path)
