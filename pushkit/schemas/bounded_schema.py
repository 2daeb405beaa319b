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
from collections.abc import Iterator
from typing import TYPE_CHECKING, Any

from pushkit.bounded_json import JsonObject, JsonValue, json_pointer
from pushkit.errors import InvalidSchemaError
from pushkit.record import record
from pushkit.schemas.keywords import (
    MAX_SECONDS,
    STEPS,
    Steps,
    UndecidedError,
    bounded,
    nodes,
    regex,
    require_extra,
    walk,
)

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
