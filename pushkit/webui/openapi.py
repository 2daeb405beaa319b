"""Helpers with which both dashboards describe their APIs (OpenAPI 3.1)."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Final

from pushkit.bounded_json import JsonObject, JsonValue
from pushkit.version import __version__
from pushkit.webui.documents import MAX_CHARS, TEXT_PATTERN, Verdict

_WORDS: Final[dict[str, JsonObject]] = {
    "text": {"type": "string"},
    "number": {"type": "number"},
    "integer": {"type": "integer"},
    "flag": {"type": "boolean"},
    "moment": {"type": "string", "format": "date-time"},
    "name": {"type": "string", "maxLength": MAX_CHARS, "pattern": TEXT_PATTERN},
    "shown": {"type": "string", "enum": ["0", "1"]},
    "object": {"type": "object"},
    "counts": {"type": "object", "additionalProperties": {"type": "integer"}},
}


def schema_of(written: str) -> JsonObject:
    """Return the schema of a word, or a reference to the schema of that name.

    A trailing `[]` means a list of it, a trailing `?` that or null.
    """
    if written.endswith("?"):
        return {"anyOf": [schema_of(written[:-1]), {"type": "null"}]}
    if written.endswith("[]"):
        return {"type": "array", "items": schema_of(written[:-2])}
    return _WORDS.get(written) or {"$ref": f"#/components/schemas/{written}"}


def record(*lines: str) -> JsonObject:
    """Return a schema of an object that has these members, and no others.

    Each line is `names: schema # description`: names separated by spaces, the description optional.
    """
    members: dict[str, JsonValue] = {}
    for line in lines:
        names, _, rest = line.partition(": ")
        written, _, says = rest.partition(" # ")
        description: JsonObject = {"description": says} if says else {}
        members |= {name: schema_of(written) | description for name in names.split()}
    return {
        "type": "object",
        "properties": members,
        "required": [*members],
        "additionalProperties": False,
    }


def one_of(names: Iterable[str]) -> JsonObject:
    """Return a schema of an enumeration."""
    return {"type": "string", "enum": [*map(str, names)]}


def parameter(
    name: str, schema: JsonObject | str, says: str, where: str = "query", *, required: bool = False
) -> JsonObject:
    """Describe a parameter; one in a path is always required."""
    return {
        "name": name,
        "in": where,
        "required": required or where == "path",
        "description": says,
        "schema": schema_of(schema) if isinstance(schema, str) else schema,
    }


LIMIT: Final = parameter(
    "limit", {"type": "integer", "minimum": 1, "maximum": 200}, "How many at most; 50 by default."
)
_SHARED: Final[dict[str, JsonValue]] = {
    "AtMost": record("number: integer", "more: flag # Counting stopped at the number."),
    "Verdict": one_of(Verdict),
    "Severity": one_of(("note", "warning", "failure")),
    "Finding": record("severity: Severity", "says mend link: text"),
    "Percentiles": record("p50 p95 p99: number?"),
    "Problem": record("type detail: text", "status: integer"),
}


def api_document(
    server: str, *, title: str, says: str, paths: JsonObject, schemas: dict[str, JsonValue]
) -> JsonObject:
    """Return the description of an API whose paths are below `server`.

    `schemas` are the API's own, by name; those that all dashboards share are added.
    """
    return {
        "openapi": "3.1.0",
        "info": {"title": title, "version": __version__, "description": says},
        "servers": [{"url": server}],
        "security": [{"token": []}],
        "paths": paths,
        "components": {
            "schemas": {**_SHARED, **schemas},
            "securitySchemes": {"token": {"type": "http", "scheme": "bearer"}},
        },
    }


def get(schema: str, says: str, *parameters: JsonObject) -> JsonObject:
    """Describe a path that answers GET."""
    return {"get": operation(schema, says, *parameters)}


_REFUSALS: Final = {
    "400": "A parameter is wrong.",
    "401": "No token, or a wrong one.",
    "403": "Not allowed.",
    "404": "Not found.",
    "503": "The database cannot be read.",
}


def operation(schema: str, says: str, *parameters: JsonObject) -> JsonObject:
    """Describe an operation by the schema of its answer."""
    found: JsonObject = {"application/json": {"schema": schema_of(schema)}}
    problem: JsonObject = {"application/problem+json": {"schema": schema_of("Problem")}}
    answers: JsonObject = {"200": {"description": "Found.", "content": found}}
    for status, why in _REFUSALS.items():
        answers[status] = {"description": why, "content": problem}
    return {"summary": says, "parameters": [*parameters], "responses": answers}
