"""Describes the errors in a TOML document in its author's terms, not in those of pydantic.

Values may be secrets and are not repeated, except numbers.
"""

from __future__ import annotations

import difflib
import re
from collections.abc import Iterable, Iterator
from datetime import date, time
from typing import Final, TypeAlias, TypeGuard, get_args, get_origin

from pydantic import BaseModel, ValidationError
from pydantic.fields import FieldInfo
from pydantic_core import ErrorDetails

Location: TypeAlias = tuple[int | str, ...]

_TABLE = re.compile(r"^\s*(\[\[?)\s*([\w.\"-]+)\s*\]\]?")
_KEY = re.compile(r"^\s*([\w\"-]+(?:\s*\.\s*[\w\"-]+)*)\s*=")
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
        where, says = mistake["loc"], _message(mistake, model)
        member, _, rest = says.partition(": ")
        while rest and member in settings_in(_table_at(where, model) or model):
            where, says = (where if where[-1:] == (member,) else (*where, member)), rest
            member, _, rest = says.partition(": ")
        yield where, says


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
    name, known = str(location[-1]), settings_in(_table_at(location[:-1], model) or model)
    if name not in known and name in settings_in(model):
        return "there is no such setting here: it belongs above the first [table]"
    return f"there is no such setting{did_you_mean(name, known)}"


def settings_in(model: type[BaseModel]) -> dict[str, FieldInfo]:
    """Return the settings of a table, by their names in the file."""
    return {field.alias or name: field for name, field in model.model_fields.items()}


def is_composite(annotation: object) -> bool:
    """Return whether a setting is a table or a list."""
    inner = (annotation, *get_args(annotation))
    return any(_is_model(each) or get_origin(each) is list for each in inner)


def _table_at(location: Location, model: type[BaseModel]) -> type[BaseModel] | None:
    """Return the model of the table, or of the list of tables, at a location; None for neither."""
    found: type[BaseModel] | None = model
    for step in location:
        if isinstance(step, str) and found is not None:
            field = settings_in(found).get(step)
            inner = (field.annotation, *get_args(field.annotation)) if field else ()
            found = next((each for each in inner if _is_model(each)), None)
    return found


def _is_model(annotation: object) -> TypeGuard[type[BaseModel]]:
    return isinstance(annotation, type) and issubclass(annotation, BaseModel)


def line_of(text: str, location: Location) -> int:
    """Return the line number of a member in a TOML document, or of its closest parent."""
    best, best_depth = 1, 0
    table: Location = ()
    here: Location
    counts: dict[str, int] = {}
    for number, line in enumerate(text.splitlines(), start=1):
        if header := _TABLE.match(line):
            table = here = _opened(header[2], counts, of_array=header[1] == "[[")
        elif key := _KEY.match(line):
            here = (*table, *(each.strip().strip('"') for each in key[1].split(".")))
        else:
            continue
        # Of a table, or an array of tables, that is the member itself: its first line.
        depth = min(len(here), len(location))
        if here[:depth] != location[:depth]:
            depth = 0
        if depth > best_depth:
            best, best_depth = number, depth
    return best


def name_of(location: Location) -> str:
    """Return the name of a member, for example `senders[0].issuer`."""
    steps = (f"[{step}]" if isinstance(step, int) else f".{step}" for step in location)
    return "".join(steps).removeprefix(".")


def did_you_mean(name: str, known: Iterable[str]) -> str:
    """Return a suggestion to append to a message about an unknown name; empty for none."""
    close = difflib.get_close_matches(name, list(known), n=1)
    return f"; did you mean {close[0]!r}?" if close else ""


def _opened(name: str, counts: dict[str, int], *, of_array: bool) -> Location:
    """Return the location of a table, and count the tables of each array."""
    if of_array:
        counts[name] = counts.get(name, -1) + 1
    path: list[int | str] = []
    steps = name.split(".")
    for depth, step in enumerate(steps, start=1):
        path.append(step.strip('"'))
        array = ".".join(steps[:depth])
        if array in counts:
            path.append(counts[array])
    return tuple(path)
