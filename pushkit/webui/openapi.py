"""The description of a dashboard's API (OpenAPI 3.1), and the parameters of its requests."""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from enum import StrEnum
from typing import Any, Final, Generic, TypeVar

from pushkit.bounded_json import JsonObject, JsonValue
from pushkit.version import __version__
from pushkit.webui.asgi import Refused
from pushkit.webui.documents import Schemas

T = TypeVar("T")
E = TypeVar("E", bound=StrEnum)

# A sender's ids may have control characters, but no NUL, which PostgreSQL cannot store.
TEXT: Final = r"[^\x00]{1,512}"
TEXT_IN_WORDS: Final = "at most 512 characters, without a NUL"


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
    is_filter: bool = False  # whether it selects what is listed, on every page of a list
    is_required: bool = False
    is_in_path: bool = False

    def of(self, values: Mapping[str, str]) -> T:
        """Return its value. Raises Refused: it is not as expected, or required and not there."""
        given = values.get(self.name, "")
        if not given and not self.is_required:
            return self.default
        if not re.fullmatch(self.pattern, given):
            status = 404 if self.is_in_path else 400
            raise Refused(status, f"{self.name}: expected {self.expected}")
        return self.read(given)


def text(name: str, says: str) -> Parameter[str | None]:
    """Return a parameter that filters by a text."""
    return Parameter(name, says, TEXT, TEXT_IN_WORDS, str, None, is_filter=True)


def choice(name: str, says: str, of: type[E]) -> Parameter[E | None]:
    """Return a parameter that filters by a member of an enumeration."""
    expected = f"one of {', '.join(of)}"
    return Parameter(name, says, "|".join(of), expected, of, None, of, is_filter=True)


def flag(name: str, says: str, *, is_filter: bool = False) -> Parameter[bool]:
    """Return a parameter that is 0 or 1."""
    return Parameter(name, says, "[01]", "0 or 1", "1".__eq__, False, is_filter=is_filter)


def position(name: str, pattern: str, read: Callable[[str], T]) -> Parameter[T | None]:
    """Return the parameter that leads to the next page of a list."""
    of = f"`{name}` of the previous page"
    return Parameter(name, f"{of[0].upper()}{of[1:]}.", pattern, f"the {of}", read, None)


def id_in_path(pattern: str, read: Callable[[str], T], none: T) -> Parameter[T]:
    """Return the `{id}` of a path."""
    schema: JsonObject = {"type": "string", "minLength": 1, "maxLength": 128}
    expected = "an id of what there is"
    return Parameter(
        "id", "Its id.", pattern, expected, read, none, schema, is_required=True, is_in_path=True
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


@dataclass(frozen=True, slots=True, kw_only=True)
class Problem:
    """A refusal (RFC 9457)."""

    type: str = "about:blank"
    status: int
    detail: str


class Api:
    """The operations of an API."""

    def __init__(self, title: str) -> None:
        self._title = title
        self._schemas = Schemas()
        self._paths: dict[str, JsonValue] = {}

    def add(
        self,
        method: str,
        path: str,
        says: str,
        parameters: Sequence[Parameter[Any]],
        answer: object,  # its type
    ) -> None:
        """Add an operation."""
        found: JsonObject = {"application/json": {"schema": self._schemas.of(answer)}}
        problem: JsonObject = {"application/problem+json": {"schema": self._schemas.of(Problem)}}
        answers: JsonObject = {"200": {"description": "Found.", "content": found}}
        for status, why in _REFUSALS.items():
            answers[status] = {"description": why, "content": problem}
        self._paths[path] = {
            method.lower(): {
                "summary": says,
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
            "schema": schema if isinstance(schema, dict) else self._schemas.of(schema),
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
                "schemas": self._schemas.by_name,
                "securitySchemes": {"token": {"type": "http", "scheme": "bearer"}},
            },
        }
