"""Documents of the API: records as JSON, and the JSON Schema of each, both by its annotated fields.

So a schema cannot disagree with an answer. A record's fields may be records, lists, mappings by
text, times and plain values. `Annotated` chooses members of a record, or describes a field:

    figures: Annotated[OutboxFigures, Members("now pending", inline=True)]
    says: Annotated[str, "The verdict in a sentence."]
"""

from __future__ import annotations

import functools
from collections.abc import Mapping, Sequence
from dataclasses import fields, is_dataclass
from datetime import datetime
from enum import Enum
from types import NoneType, UnionType
from typing import (
    Annotated,
    Any,
    Final,
    Literal,
    NamedTuple,
    Union,
    get_args,
    get_origin,
    get_type_hints,
)

from pushkit.bounded_json import JsonObject, JsonValue


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
    for name, hint in _hints(kind, members.names).items():
        chosen = _chosen(hint)
        value = json_of(getattr(found, name), chosen)
        made |= value if chosen.inline and isinstance(value, dict) else {name: value}
    return made


class Schemas:
    """The schemas of documents, each by the name of its type."""

    def __init__(self) -> None:
        self.by_name: dict[str, JsonValue] = {}

    def of(self, hint: object, members: Members = _ALL) -> JsonObject:
        """Return the schema of a type: a reference if it has a name."""
        if get_origin(hint) is not None:
            return self._generic(hint, members)
        if hint in _PLAIN:
            return _PLAIN[hint]
        assert isinstance(hint, type)  # noqa: S101  # an enumeration or a record
        if members.names:
            return self._object(hint, members)
        if hint.__name__ not in self.by_name:
            self.by_name[hint.__name__] = {}  # while it is made: it may have itself as a part
            self.by_name[hint.__name__] = (
                {"type": "string", "enum": [each.value for each in hint]}
                if issubclass(hint, Enum)
                else self._object(hint, members)
            )
        return {"$ref": f"#/components/schemas/{hint.__name__}"}

    def _generic(self, hint: object, members: Members) -> JsonObject:
        origin: Any = get_origin(hint)
        args = get_args(hint)
        if origin is Annotated:
            says = [each for each in args[1:] if isinstance(each, str)]
            described: JsonObject = {"description": says[0]} if says else {}
            return self.of(args[0], _chosen(hint)) | described
        if origin in (Union, UnionType):
            return {"anyOf": [self.of(each, members) for each in args]}
        if origin is Literal:
            return {"enum": [*args]}
        if issubclass(origin, Mapping):
            return {"type": "object", "additionalProperties": self.of(args[1])}
        return {"type": "array", "items": self.of(args[0], members)}

    def _object(self, kind: type, members: Members) -> JsonObject:
        """Return the schema of an object that has these members, and no others."""
        found: dict[str, JsonValue] = {}
        for name, hint in _hints(kind, members.names).items():
            if (chosen := _chosen(hint)).inline:
                part = self._object(get_args(hint)[0], chosen)["properties"]
                found |= part if isinstance(part, dict) else {}
            else:
                found[name] = self.of(hint)
        required: list[JsonValue] = [*found]
        return {
            "type": "object",
            "properties": found,
            "required": required,
            "additionalProperties": False,
        }


def _chosen(hint: object) -> Members:
    return next((each for each in get_args(hint)[1:] if isinstance(each, Members)), _ALL)


@functools.cache
def _hints(kind: Any, names: str) -> dict[str, Any]:
    """Return the types of a record's members; of properties only if they are named."""
    hints = get_type_hints(kind, include_extras=True)
    if not names:
        known = [each.name for each in fields(kind)] if is_dataclass(kind) else [*hints]
        return {name: hints[name] for name in known}
    return {
        name: hints[name] if name in hints else get_type_hints(getattr(kind, name).fget)["return"]
        for name in names.split()
    }
