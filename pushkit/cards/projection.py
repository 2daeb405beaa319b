"""What of a card a canonical form keeps, and an account of everything that it leaves out.

A walk over the card beside its field table. What is left out is told apart, because not all of it
matters: an empty field means what its absence means, but a security requirement without scopes is
made of nothing but empty values and still says who gets in.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from enum import Enum, StrEnum
from typing import Final, TypeAlias

from pushkit.bounded_json import JsonObject, JsonValue
from pushkit.cards.fields import Container, Field, Presence, Schema, is_read_by_a2a
from pushkit.errors import CanonicalizationError

__all__ = ["CleanedWalk", "DoubleWalk", "FilledWalk", "Gap", "PresenceWalk", "Uncovered", "pointer"]

_LARGEST_SAFE_INTEGER: Final = 2**53 - 1


class Gap(StrEnum):
    """What it means that something of a card is not signed.

    * `empty`: a field of the schema that is null, empty or has its default: the same as absent.
    * `absent`: a required field that is not there, and that was signed as its default.
    * `unknown`: a member that no version of A2A defines. Clients ignore it.
    * `content`: anything else. Whoever can change the card on its way can change this.
    """

    EMPTY = "empty"
    ABSENT = "absent"
    UNKNOWN = "unknown"
    CONTENT = "content"


@dataclass(frozen=True, slots=True, kw_only=True)
class Uncovered:
    """A part of the card as served that a signature does not protect.

    Attributes:
        path: JSON Pointer (RFC 6901) into the card.
        gap: What that means.
        reason: Why, for people.
    """

    path: str
    gap: Gap
    reason: str


class _Left(Enum):
    OUT = "out"


_Kept: TypeAlias = "JsonValue | _Left"


def pointer(path: str, member: str | int) -> str:
    """Return the JSON Pointer of a member (RFC 6901 §3)."""
    return f"{path}/{str(member).replace('~', '~0').replace('/', '~1')}"


def _is_default(value: JsonValue) -> bool:
    return value is None or value is False or value in ("", [], {})


class PresenceWalk:
    """A2A 1.0 §8.4.1: by field presence; unknown members go, free-form values are not touched."""

    def __init__(self, schema: Schema) -> None:
        self._schema = schema
        self.uncovered: list[Uncovered] = []

    def message(self, value: JsonObject, name: str, path: str = "") -> JsonObject:
        """Return what is kept of a message."""
        fields = self._schema[name]
        kept: JsonObject = {}
        for member, child in value.items():
            at = pointer(path, member)
            field = fields.get(member)
            found = (
                self._unknown(name, member, at) if field is None else self._field(field, child, at)
            )
            if not isinstance(found, _Left):
                kept[member] = found
        return kept

    def _leave(self, path: str, gap: Gap, reason: str) -> _Left:
        self.uncovered.append(Uncovered(path=path, gap=gap, reason=reason))
        return _Left.OUT

    def _unknown(self, message: str, member: str, at: str) -> _Left:
        if is_read_by_a2a(message, member):
            return self._leave(at, Gap.CONTENT, "no field of this version, but others read it")
        return self._leave(at, Gap.UNKNOWN, "unknown to the schema")

    def _field(self, field: Field, value: JsonValue, at: str) -> _Kept:
        if value is None:
            return self._leave(at, Gap.EMPTY, "null is not set")
        if field.presence is Presence.IMPLICIT and _is_default(value):
            return self._leave(at, Gap.EMPTY, "has its default")
        return self._values(field, value, at)

    def _values(self, field: Field, value: JsonValue, at: str) -> JsonValue:
        if field.container is Container.LIST and isinstance(value, list):
            return self._list(field, value, at)
        if field.container is Container.MAP and isinstance(value, dict):
            return self._map(field, value, at)
        if field.container is not Container.ONE:
            return value  # of the wrong type: kept and covered, whatever a parser makes of it
        found = self._value(field, value, at)
        return value if isinstance(found, _Left) else found

    def _list(self, field: Field, values: list[JsonValue], at: str) -> JsonValue:
        found = (self._value(field, child, pointer(at, n)) for n, child in enumerate(values))
        return [child for child in found if not isinstance(child, _Left)]

    def _map(self, field: Field, values: JsonObject, at: str) -> JsonValue:
        found = {key: self._value(field, child, pointer(at, key)) for key, child in values.items()}
        return {key: child for key, child in found.items() if not isinstance(child, _Left)}

    def _value(self, field: Field, value: JsonValue, at: str) -> _Kept:
        if field.message is not None and isinstance(value, dict):
            return self.message(value, field.message, at)
        return value


class FilledWalk(PresenceWalk):
    """The same, with required fields that are absent added with their defaults (A2A#2122)."""

    def message(self, value: JsonObject, name: str, path: str = "") -> JsonObject:
        """Return what is kept of a message, and what is missing from it."""
        kept = super().message(value, name, path)
        for member, field in self._schema[name].items():
            if field.presence is Presence.REQUIRED and member not in kept:
                kept[member] = self._default(field, pointer(path, member))
        return kept

    def _default(self, field: Field, at: str) -> JsonValue:
        self._leave(at, Gap.ABSENT, "absent, and signed as its default")
        if field.container is Container.LIST:
            return []
        return {} if field.container is Container.MAP or field.message else ""


class CleanedWalk(PresenceWalk):
    """What the SDKs do: then drop `""`, `[]`, `{}` and null everywhere, also in free-form values.

    In a list, a map or a free-form value nothing is merely empty: an element counts, a key says
    something, and what null means there only its reader knows.
    """

    def _field(self, field: Field, value: JsonValue, at: str) -> _Kept:
        if value in field.defaults:
            return self._leave(at, Gap.CONTENT, "the default, which is taken for granted")
        if value is False and field.presence is Presence.OPTIONAL:
            return value
        if _is_default(value):
            gap = Gap.CONTENT if field.presence is Presence.ONEOF else Gap.EMPTY
            return self._leave(at, gap, "empty")
        before = len(self.uncovered)
        kept = self._values(field, value, at)
        return kept if kept not in ([], {}) else self._emptied(field, at, before)

    def _emptied(self, field: Field, at: str, before: int) -> _Left:
        """Leave out a value of which nothing is left; its parts are not listed one by one."""
        gaps = {left.gap for left in self.uncovered[before:]}
        del self.uncovered[before:]
        if field.presence is not Presence.ONEOF and gaps <= {Gap.EMPTY}:
            return self._leave(at, Gap.EMPTY, "empty")
        return self._leave(at, Gap.CONTENT, "made of nothing but empty values")

    def _value(self, field: Field, value: JsonValue, at: str) -> _Kept:
        if field.message is None or not isinstance(value, dict):
            return self._free(value, at) if field.struct else self._element(field, value, at)
        before = len(self.uncovered)
        kept = self.message(value, field.message, at)
        if kept or field.container is Container.ONE:
            return kept
        del self.uncovered[before:]
        return self._leave(at, Gap.CONTENT, "made of nothing but empty values")

    def _element(self, field: Field, value: JsonValue, at: str) -> _Kept:
        if field.container is not Container.ONE and value in (None, "", [], {}):
            return self._leave(at, Gap.CONTENT, "empty")
        return value

    def _free(self, value: JsonValue, at: str) -> _Kept:
        if isinstance(value, dict | list) and value:
            return self._free_container(value, at)
        if value in (None, "", [], {}):
            return self._leave(at, Gap.CONTENT, "empty, in a free-form value")
        return self._number(value, at)

    def _free_container(self, value: JsonObject | list[JsonValue], at: str) -> _Kept:
        before = len(self.uncovered)
        members = value.items() if isinstance(value, dict) else enumerate(value)
        found = [(name, self._free(child, pointer(at, name))) for name, child in members]
        kept = [(str(name), child) for name, child in found if not isinstance(child, _Left)]
        if not kept:
            del self.uncovered[before:]
            return self._leave(at, Gap.CONTENT, "made of nothing but empty values")
        return dict(kept) if isinstance(value, dict) else [child for _, child in kept]

    def _number(self, value: JsonValue, at: str) -> JsonValue:  # noqa: ARG002 - for DoubleWalk
        return value


class DoubleWalk(CleanedWalk):
    """The same over protobuf, whose free-form values know no numbers but doubles."""

    def _number(self, value: JsonValue, at: str) -> JsonValue:
        if isinstance(value, bool) or not isinstance(value, int):
            return value
        try:
            double = float(value)
        except OverflowError as exc:
            raise CanonicalizationError(f"{at}: the integer is outside a double's range") from exc
        # Its neighbours have the same double: the signature does not tell them apart.
        if abs(value) > _LARGEST_SAFE_INTEGER:
            self._leave(at, Gap.CONTENT, "an integer that is signed rounded to a double")
        return double


def without(card: Mapping[str, JsonValue], *members: str) -> JsonObject:
    """Return a card without some of its members."""
    return {name: value for name, value in card.items() if name not in members}
