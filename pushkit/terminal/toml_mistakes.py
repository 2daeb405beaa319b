"""Describes the errors in a TOML document in its author's terms, not in those of pydantic.

Values may be secrets and are not repeated, except numbers.
"""

from __future__ import annotations

from collections.abc import Iterator
from datetime import date, time
from typing import Final, TypeGuard, get_args

from pydantic import BaseModel, ValidationError
from pydantic_core import ErrorDetails

from pushkit.terminal.toml_places import Location, did_you_mean

# By the beginning of pydantic's name for the mistake.
_EXPECTED: Final = {
    "string_type": "a string",
    "path_type": "a string",
    "int_": "a whole number",
    "float_": "a number",
    "finite_number": "a finite number",
    "bool_": "true or false",
    "list_type": "a list",
    "tuple_type": "a list",
    "model_": "a table",
    "greater_than_equal": "at least {ge}",
    "greater_than": "more than {gt}",
    "less_than_equal": "at most {le}",
    "enum": "{expected}",
    "literal_error": "{expected}",
    "too_short": "at least one",
    "string_too_short": "at least one character",
}
_TYPES: Final = (
    (bool, "true or false"),
    (str, "a string"),
    (int, "a whole number"),
    (float, "a number"),
    (dict, "a table"),
    (list, "a list"),
    ((date, time), "a date or time"),
)


def mistakes_of(error: ValidationError, model: type[BaseModel]) -> Iterator[tuple[Location, str]]:
    """Yield the location of each mistake, and a message with what was expected there."""
    for mistake in error.errors(include_url=False):
        yield mistake["loc"], _message(mistake, model)


def _message(mistake: ErrorDetails, model: type[BaseModel]) -> str:
    kind, where = mistake["type"], mistake["loc"]
    if kind == "missing":
        return "expected, but missing"
    if kind == "extra_forbidden":
        return _unknown_setting(where, model)
    expected = next((says for name, says in _EXPECTED.items() if kind.startswith(name)), None)
    if expected is None:
        return mistake["msg"].removeprefix("Value error, ")
    found = _found(kind, mistake["input"])
    hint = (
        f": write [[{where[-1]}]]" if found == ", found a table" and _table_at(where, model) else ""
    )
    return f"expected {expected.format_map(mistake.get('ctx', {}))}{found}{hint}"


def _found(kind: str, found: object) -> str:
    if kind.endswith("_parsing"):
        return ", found text"
    if kind.endswith("_type"):
        named = (name for types, name in _TYPES if isinstance(found, types))
        return f", found {next(named, 'something else')}"
    return f", found {found}" if isinstance(found, int | float) else ""


def _unknown_setting(location: Location, model: type[BaseModel]) -> str:
    name, table = str(location[-1]), _table_at(location[:-1], model) or model
    if name not in table.model_fields and name in model.model_fields:
        return "there is no such setting here: it belongs above the first [table]"
    return f"there is no such setting{did_you_mean(name, table.model_fields)}"


def _table_at(location: Location, model: type[BaseModel]) -> type[BaseModel] | None:
    """Return the model of the table, or of the list of tables, at a location; None for neither."""
    found: type[BaseModel] | None = model
    for step in location:
        if isinstance(step, str) and found is not None:
            annotation: object = found.model_fields[step].annotation
            inner = (annotation, *get_args(annotation))
            found = next((each for each in inner if _is_model(each)), None)
    return found


def _is_model(annotation: object) -> TypeGuard[type[BaseModel]]:
    return isinstance(annotation, type) and issubclass(annotation, BaseModel)
