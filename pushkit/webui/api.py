"""The API of a dashboard: documents as JSON, their schemas, parameters, and the description of all.

A document is a record. Its JSON and its schema are both made from its annotated fields, so that
they cannot disagree. Fields may be records, lists, mappings by text, times and plain values;
`Annotated` chooses members of a record, or describes a field:

    stats: Annotated[OutboxStats, Members("now pending", inline=True)]
    says: Annotated[str, "The verdict in a sentence."]

The description is an OpenAPI 3.1 document.
"""

from __future__ import annotations

import functools
import inspect
import re
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, fields, is_dataclass
from datetime import datetime
from enum import Enum, StrEnum
from types import NoneType, UnionType
from typing import (
    Annotated,
    Any,
    Final,
    Generic,
    Literal,
    NamedTuple,
    TypeVar,
    Union,
    cast,
    dataclass_transform,
    get_args,
    get_origin,
    get_type_hints,
)

from pushkit.bounded_json import JsonObject, JsonValue
from pushkit.version import __version__
from pushkit.webui.asgi import PageRefused

T = TypeVar("T")
E = TypeVar("E", bound=StrEnum)

# A sender's ids may have control characters, but no NUL, which PostgreSQL cannot store.
TEXT: Final = r"[^\x00]{1,512}"
TEXT_IN_WORDS: Final = "at most 512 characters, without a NUL"


@dataclass_transform(frozen_default=True, kw_only_default=True)
class Document:
    """A record that a page shows and the API returns; every subclass is a frozen dataclass."""

    def __init_subclass__(cls) -> None:
        dataclass(frozen=True, kw_only=True)(cls)


class Members(NamedTuple):
    """Which members of a record a document has; in a list, those of each record."""

    names: str = ""  # separated by blanks; all if it is empty
    inline: bool = False  # whether they are members of the document that has the record


_ALL: Final = Members()
_PLAIN: Final[dict[object, JsonObject]] = {
    bool: {"type": "boolean"},
    datetime: {"type": "string", "format": "date-time"},
    float: {"type": "number"},
    int: {"type": "integer"},
    object: {},
    str: {"type": "string"},
    NoneType: {"type": "null"},
}


def json_of(found: object, members: Members = _ALL) -> JsonValue:
    """Return a document, or a part of one, as JSON."""
    match found:
        case None | bool() | int() | float() | str():
            return found
        case datetime():
            return found.isoformat()
        case Mapping():
            return {str(name): json_of(value) for name, value in found.items()}
        case Sequence() if not hasattr(found, "_fields"):
            return [json_of(each, members) for each in found]
    kind: Any = type(found)
    made: JsonObject = {}
    for name, _, chosen in _parts(kind, members.names):
        value = json_of(getattr(found, name), chosen)
        if chosen.inline and isinstance(value, dict):
            made |= value
        else:
            made[name] = value
    return made


def json_object(record: object, names: str = "") -> JsonObject:
    """Return a record as a JSON object; `names` selects members, or all."""
    return cast("JsonObject", json_of(record, Members(names)))


def _chosen(hint: object) -> Members:
    return next((each for each in get_args(hint)[1:] if isinstance(each, Members)), _ALL)


@functools.cache
def _parts(kind: Any, names: str) -> list[tuple[str, Any, Members]]:
    """Return the members of a record with their types; properties only if they are named."""
    hints = get_type_hints(kind, include_extras=True)
    known = [each.name for each in fields(kind)] if is_dataclass(kind) else [*hints]
    chosen = names.split() or known
    for name in {*chosen} - {*hints}:
        hints[name] = get_type_hints(getattr(kind, name).fget, include_extras=True)["return"]
    return [(name, hints[name], _chosen(hints[name])) for name in chosen]


@dataclass(frozen=True, slots=True)
class Parameter(Generic[T]):
    """A parameter of a query, a path or a form."""

    name: str
    says: str  # what it does
    pattern: str  # what a value matches as a whole
    expected: str  # the same in words
    read: Callable[[str], T]  # returns the value of a text that matches
    default: T  # the value if there is none
    schema: object = None  # its type, or its JSON Schema if that is not a text by the pattern
    # The member of a filter that it is the value of: it selects what is listed, on every page.
    member: str | None = None
    is_required: bool = False
    is_in_path: bool = False

    def of(self, values: Mapping[str, str]) -> T:
        """Return its value. Raises PageRefused: it is wrong, or required and not there."""
        given = values.get(self.name, "")
        if not given and not self.is_required:
            return self.default
        if re.fullmatch(self.pattern, given):
            return self.read(given)
        if self.is_in_path:
            raise PageRefused(404, "there is nothing with this id")
        raise PageRefused(400, f"{self.name}: expected {self.expected}")


def selected(
    filters: Callable[..., T], by: Iterable[Parameter[Any]], values: Mapping[str, str]
) -> T:
    """Return a filter with the values of parameters. Raises PageRefused: one is wrong."""
    return filters(**{each.member: each.of(values) for each in by if each.member is not None})


def text(name: str, says: str, member: str | None = None) -> Parameter[str | None]:
    """Return a parameter that filters by a text, by the member of its name or another one."""
    return Parameter(name, says, TEXT, TEXT_IN_WORDS, str, None, member=member or name)


def choice(name: str, says: str, of: type[E]) -> Parameter[E | None]:
    """Return a parameter that filters by a member of an enumeration."""
    expected = f"one of {', '.join(of)}"
    return Parameter(name, says, "|".join(of), expected, of, None, of, member=name)


def flag(name: str, says: str, member: str | None = None) -> Parameter[bool]:
    """Return a parameter that is 0 or 1."""
    return Parameter(name, says, "[01]", "0 or 1", "1".__eq__, False, member=member)


def position(name: str, pattern: str, read: Callable[[str], T]) -> Parameter[T | None]:
    """Return the parameter that leads to the next page of a list."""
    of = f"`{name}` of the previous page"
    return Parameter(name, f"{of}.", pattern, f"the {of}", read, None)


def id_in_path(pattern: str, read: Callable[[str], T], none: T) -> Parameter[T]:
    """Return the `{id}` of a path."""
    return Parameter(
        "id", "Its id.", pattern, "an id", read, none, is_required=True, is_in_path=True
    )


LIMIT: Final = Parameter(
    "limit",
    "How many at most; 50 by default.",
    "[1-9][0-9]?|1[0-9][0-9]|200",
    "a number from 1 to 200",
    int,
    50,
    {"type": "integer", "minimum": 1, "maximum": 200},
)

_REFUSALS: Final = {
    "400": "A parameter is wrong.",
    "401": "No token, or a wrong one.",
    "403": "Not allowed.",
    "404": "Not found.",
    "503": "The database cannot be read.",
}


class Problem(Document):
    """A refusal (RFC 9457)."""

    type: str = "about:blank"
    status: int
    detail: str


class Api:
    """The operations of an API."""

    def __init__(self, title: str) -> None:
        self._title = title
        self._schemas: dict[str, JsonValue] = {}  # by the name of a type
        self._paths: dict[str, JsonValue] = {}

    def add(
        self,
        method: str,
        path: str,
        says: str,  # a docstring
        parameters: Sequence[Parameter[Any]],
        answer: object,  # its type
    ) -> None:
        """Add an operation."""
        summary, _, rest = inspect.cleandoc(says).partition("\n\n")
        found: JsonObject = {"application/json": {"schema": self._schema(answer)}}
        problem: JsonObject = {"application/problem+json": {"schema": self._schema(Problem)}}
        answers: JsonObject = {"200": {"description": "Found.", "content": found}}
        for status, why in _REFUSALS.items():
            answers[status] = {"description": why, "content": problem}
        self._paths[path] = {
            method.lower(): {
                "summary": summary,
                "description": rest,
                "parameters": [self._described(each) for each in parameters],
                "responses": answers,
            }
        }

    def _described(self, parameter: Parameter[Any]) -> JsonObject:
        schema = parameter.schema or {"type": "string", "pattern": f"^({parameter.pattern})$"}
        return {
            "name": parameter.name,
            "in": "path" if parameter.is_in_path else "query",
            "required": parameter.is_required,
            "description": parameter.says,
            "schema": schema if isinstance(schema, dict) else self._schema(schema),
        }

    def document(self, server: str) -> JsonObject:
        """Return the description of the API below `server`."""
        return {
            "openapi": "3.1.0",
            "info": {
                "title": f"{self._title} dashboard",
                "version": __version__,
                "description": "What the dashboard shows. Times are in UTC.",
            },
            "servers": [{"url": server}],
            "security": [{"token": []}],
            "paths": self._paths,
            "components": {
                "schemas": self._schemas,
                "securitySchemes": {"token": {"type": "http", "scheme": "bearer"}},
            },
        }

    def _schema(self, hint: object, members: Members = _ALL) -> JsonObject:
        """Return the schema of a type: a reference if it has a name."""
        if get_origin(hint) is not None:
            return self._generic(hint, members)
        if hint in _PLAIN:
            return _PLAIN[hint]
        assert isinstance(hint, type)  # noqa: S101  # an enumeration or a record
        if members.names:
            return self._object(hint, members)
        name = hint.__name__.removesuffix("Document")
        if name not in self._schemas:
            self._schemas[name] = {}  # while it is made: it may have itself as a part
            self._schemas[name] = (
                {"type": "string", "enum": [each.value for each in hint]}
                if issubclass(hint, Enum)
                else self._object(hint, members)
            )
        return {"$ref": f"#/components/schemas/{name}"}

    def _generic(self, hint: object, members: Members) -> JsonObject:
        origin: Any = get_origin(hint)
        args = get_args(hint)
        if origin is Annotated:
            says = [each for each in args[1:] if isinstance(each, str)]
            described: JsonObject = {"description": says[0]} if says else {}
            return self._schema(args[0], _chosen(hint)) | described
        if origin in (Union, UnionType):
            return {"anyOf": [self._schema(each, members) for each in args]}
        if origin is Literal:
            return {"enum": [*args]}
        if issubclass(origin, Mapping):
            return {"type": "object", "additionalProperties": self._schema(args[1])}
        return {"type": "array", "items": self._schema(args[0], members)}

    def _object(self, kind: type, members: Members) -> JsonObject:
        """Return the schema of an object that has these members, and no others."""
        found: dict[str, JsonValue] = {}
        for name, hint, chosen in _parts(kind, members.names):
            if chosen.inline:
                part = self._object(get_args(hint)[0], chosen)["properties"]
                found |= part if isinstance(part, dict) else {}
            else:
                found[name] = self._schema(hint)
        required: list[JsonValue] = [*found]
        return {
            "type": "object",
            "properties": found,
            "required": required,
            "additionalProperties": False,
        }
