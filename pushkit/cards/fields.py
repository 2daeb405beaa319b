"""The fields of an agent card, and what the absence of each one means.

A2A 1.0 §8.4.1 canonicalizes by field presence, which only the protocol definition knows (§4.4 and
the proto file it is generated from); neither an SDK nor the JSON Schema does. The 0.3 table is that
of the Python SDK's model, whose defaults its signatures leave out.
"""

from __future__ import annotations

import unicodedata
from collections.abc import Mapping
from dataclasses import dataclass
from enum import Enum
from typing import Final, TypeAlias

from pushkit.cards.tables import MESSAGES_0_3, MESSAGES_1_0, OLDER_MEMBERS

__all__ = ["CARD_0_3", "CARD_1_0", "Container", "Field", "Presence", "Schema", "is_read_by_a2a"]


class Presence(Enum):
    """When a field is part of the canonical form."""

    REQUIRED = "required"
    OPTIONAL = "optional"
    ONEOF = "oneof"
    MESSAGE = "message"
    IMPLICIT = "implicit"


class Container(Enum):
    """How many values a field holds."""

    ONE = "one"
    LIST = "list"
    MAP = "map"


@dataclass(frozen=True, slots=True, kw_only=True)
class Field:
    """A field of a message.

    Attributes:
        presence: When it counts as set.
        container: One value, a list or a map of them.
        message: The message type of a value; None for a scalar or free-form value.
        struct: Free-form JSON (`google.protobuf.Struct`).
        defaults: Values that the 0.3 model takes for granted, and leaves out of what it signs.
    """

    presence: Presence
    container: Container = Container.ONE
    message: str | None = None
    struct: bool = False
    defaults: tuple[str, ...] = ()


Schema: TypeAlias = Mapping[str, Mapping[str, Field]]

_PRESENCES: Final = {"required": Presence.REQUIRED, "optional": Presence.OPTIONAL}
_SCALARS: Final = frozenset({"string", "bool"})


def _field(text: str) -> Field:
    text, _, defaults = text.partition(" =")
    *words, type_ = text.split()
    container = Container.LIST if "list" in words else Container.ONE
    container = Container.MAP if "map" in words else container
    is_message = container is Container.ONE and type_ not in _SCALARS
    presence = Presence.MESSAGE if is_message else Presence.IMPLICIT
    if words and words[0] == "oneof":
        presence = Presence.ONEOF
    elif words:
        presence = _PRESENCES.get(words[0], presence)
    return Field(
        presence=presence,
        container=container,
        message=None if type_ in _SCALARS or type_ == "Struct" else type_,
        struct=type_ == "Struct",
        defaults=tuple(defaults.split("|")) if defaults else (),
    )


def _schema(text: Mapping[str, Mapping[str, str]]) -> Schema:
    return {
        message: {name: _field(line) for name, line in fields.items()}
        for message, fields in text.items()
    }


CARD_1_0: Final = _schema(MESSAGES_1_0)
CARD_0_3: Final = _schema(MESSAGES_0_3)


def _folded(name: str) -> str:
    """Return what any parser that is lenient with names would take a name for.

    Go folds by case (the long s is s, the Kelvin sign k), Java compares upper, then lower cases
    (both Turkish i are i), and some normalise; for C a name ends at its NUL. Compatible forms
    first, for only these have cases.
    """
    name, _, _ = name.partition("\0")
    folded = unicodedata.normalize("NFKC", name).upper().casefold()
    return folded.replace("\u0307", "").replace("_", "")


_READ: Final = {
    message: frozenset(
        _folded(name)
        for table in (CARD_1_0, CARD_0_3, OLDER_MEMBERS)
        for name in table.get(message, ())
    )
    for message in CARD_1_0
}


def is_read_by_a2a(message: str, name: str) -> bool:
    """Say whether some A2A software acts on a member that the 1.0 message does not have.

    Members of older versions; proto names (`supported_interfaces`), which protobuf's JSON parsers
    take for the field; and other cases (`URL`), which Go's does. A key directly in a security
    requirement is the name of a scheme, in 0.3.
    """
    return message == "SecurityRequirement" or _folded(name) in _READ.get(message, ())
