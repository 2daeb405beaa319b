"""The words of which both dashboards describe their APIs (OpenAPI 3.1)."""

from __future__ import annotations

from typing import Final

from pushkit.bounded_json import JsonObject, JsonValue
from pushkit.version import __version__
from pushkit.webui.documents import MAX_CHARS, TEXT_PATTERN

TEXT: Final[JsonObject] = {"type": "string"}
NUMBER: Final[JsonObject] = {"type": "number"}
INTEGER: Final[JsonObject] = {"type": "integer"}
FLAG: Final[JsonObject] = {"type": "boolean"}
MOMENT: Final[JsonObject] = {"type": "string", "format": "date-time"}
NUMBERS: Final[JsonObject] = {"type": "array", "items": NUMBER}
NAME: Final[JsonObject] = {"type": "string", "maxLength": MAX_CHARS, "pattern": TEXT_PATTERN}
SHOWN: Final[JsonObject] = {"type": "string", "enum": ["0", "1"]}


def nullable(schema: JsonObject) -> JsonObject:
    """Return a schema of a value that may be missing."""
    return {"anyOf": [schema, {"type": "null"}]}


def ref(name: str) -> JsonObject:
    """Return a reference to a schema."""
    return {"$ref": f"#/components/schemas/{name}"}


def list_of(schema: JsonObject) -> JsonObject:
    """Return a schema of a list."""
    return {"type": "array", "items": schema}


def record(properties: dict[str, JsonValue], *optional: str) -> JsonObject:
    """Return a schema of an object that has these members, and no others."""
    required: list[JsonValue] = [name for name in properties if name not in optional]
    return {
        "type": "object",
        "properties": properties,
        "required": required,
        "additionalProperties": False,
    }


def each(schema: JsonObject, names: str) -> dict[str, JsonValue]:
    """Return members of one schema, by their names, parted by blanks."""
    return dict.fromkeys(names.split(), schema)


def page_of(name: str, schema: str) -> JsonObject:
    """Return a schema of a page of a list that is looked through from its newest."""
    return record({name: list_of(ref(schema)), "before": nullable(TEXT), "is_cut": FLAG})


def parameter(
    name: str, schema: JsonObject, says: str, where: str = "query", *, required: bool = False
) -> JsonObject:
    """Describe a parameter; what stands in a path is required."""
    return {
        "name": name,
        "in": where,
        "required": required or where == "path",
        "description": says,
        "schema": schema,
    }


LIMIT: Final = parameter(
    "limit", {"type": "integer", "minimum": 1, "maximum": 200}, "How many at most; 50 by default."
)

_FINDING: Final = record(
    {
        "severity": {"type": "string", "enum": ["note", "warning", "failure"]},
        "says": TEXT,
        "mend": TEXT,
        "link": TEXT,
    }
)
_SHARED: Final[dict[str, JsonValue]] = {
    "AtMost": record(
        {"number": INTEGER, "more": {**FLAG, "description": "Counting ended at the number."}}
    ),
    "Verdict": {"type": "string", "enum": ["healthy", "attention", "failing"]},
    "Findings": list_of(_FINDING),
    "Percentiles": record({name: nullable(NUMBER) for name in ("p50", "p95", "p99")}),
    "Problem": record({"type": TEXT, "status": INTEGER, "detail": TEXT}),
}


def api_document(
    server: str, *, title: str, says: str, paths: JsonObject, schemas: dict[str, JsonValue]
) -> JsonObject:
    """Return a description.

    Args:
        server: The path under which the API stands.
        title: What it is called.
        says: What it shows.
        paths: Its operations by path.
        schemas: What they answer, by name, beside what all dashboards do.
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
    """Describe a path that can be read."""
    return {"get": operation(schema, says, *parameters)}


def operation(schema: str, says: str, *parameters: JsonObject) -> JsonObject:
    """Describe an operation by what it answers."""
    problem: JsonObject = {"application/problem+json": {"schema": ref("Problem")}}
    refusals = {
        "400": "A parameter is wrong.",
        "401": "No token, or a wrong one.",
        "403": "Not allowed.",
        "404": "There is none.",
        "503": "The database cannot be read.",
    }
    return {
        "summary": says,
        "parameters": [*parameters],
        "responses": {
            "200": {
                "description": "Found.",
                "content": {"application/json": {"schema": ref(schema)}},
            },
            **{
                status: {"description": text, "content": problem}
                for status, text in refusals.items()
            },
        },
    }
