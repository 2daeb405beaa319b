"""What of a card a canonical form keeps, with an account of everything that it leaves out.

One walk over the card beside its schema makes both, so that the two cannot disagree. What is left
out is told apart, because not all of it matters: an empty field means what its absence means, but a
security requirement without scopes is made of nothing but empty values and still says who gets in.
"""

from __future__ import annotations

from collections.abc import Callable
from enum import Enum, StrEnum
from functools import partial
from typing import Final, NamedTuple, TypeAlias

from pushkit.bounded_json import JsonObject, JsonValue, json_pointer
from pushkit.cards.schema import Container, Field, Presence, Schema, is_read_by_a2a
from pushkit.errors import CanonicalizationError

_LARGEST_SAFE_INTEGER: Final = 2**53 - 1


class Gap(StrEnum):
    """What it means that something of a card is not signed."""

    EMPTY = "empty"  # a field that is null, empty or has its default: the same as absent
    ABSENT = "absent"  # a required field that is not there, and that was signed as its default
    UNKNOWN = "unknown"  # a member that no version of A2A defines: clients ignore it
    CONTENT = "content"  # anything else: whoever can change the card on its way can change this


class Omission(Enum):
    """Why something is left out: what that means, and how people are told."""

    NULL = Gap.EMPTY, "null is not set"
    DEFAULT = Gap.EMPTY, "has its default"
    EMPTY = Gap.EMPTY, "empty"
    ABSENT = Gap.ABSENT, "absent, and signed as its default"
    UNKNOWN = Gap.UNKNOWN, "unknown to the schema"
    OF_OTHER_VERSIONS = Gap.CONTENT, "no field of this version, but others read it"
    SDK_DEFAULT = Gap.CONTENT, "the default, which is taken for granted"
    EMPTY_ENTRY = Gap.CONTENT, "empty"
    NOTHING_BUT_EMPTY = Gap.CONTENT, "made of nothing but empty values"
    FREE_FORM_EMPTY = Gap.CONTENT, "empty, in a free-form value"
    ROUNDED = Gap.CONTENT, "an integer that is signed rounded to a double"
    SECURITY_SCHEMES = Gap.CONTENT, "this form leaves out every security scheme"


class Uncovered(NamedTuple):
    """A part of the card as served that a signature does not protect."""

    path: str  # JSON Pointer (RFC 6901) into the card
    why: Omission

    @property
    def gap(self) -> Gap:
        """What it means that this is not signed."""
        return self.why.value[0]

    @property
    def reason(self) -> str:
        """Why, for people."""
        return self.why.value[1]


class _Left(Enum):
    OUT = "out"


_Kept: TypeAlias = "JsonValue | _Left"
_Path: TypeAlias = tuple[str | int, ...]


def _is_default(value: JsonValue) -> bool:
    return value is None or value is False or value in ("", [], {})


def _each(value: JsonValue, at: _Path, keep: Callable[[JsonValue, _Path], _Kept]) -> JsonValue:
    """Return what is kept of a list's elements, or of a map's entries."""
    if isinstance(value, dict):
        found = {name: keep(child, (*at, name)) for name, child in value.items()}
        return {name: child for name, child in found.items() if child is not _Left.OUT}
    if isinstance(value, list):
        elements = [keep(child, (*at, n)) for n, child in enumerate(value)]
        return [child for child in elements if child is not _Left.OUT]
    return value


class WholeWalk:
    """The card as it was served: nothing is left out."""

    def __init__(self, schema: Schema) -> None:
        self._schema = schema
        self.uncovered: list[Uncovered] = []

    def message(self, value: JsonObject, name: str, path: _Path = ()) -> JsonObject:  # noqa: ARG002
        """Return what is kept of a message."""
        return value

    def leave(self, at: _Path, why: Omission) -> _Left:
        """Note that something is left out."""
        self.uncovered.append(Uncovered(path=json_pointer("", *at), why=why))
        return _Left.OUT


class PresenceWalk(WholeWalk):
    """A2A 1.0 §8.4.1: by field presence; unknown members go, free-form values are not touched."""

    def message(self, value: JsonObject, name: str, path: _Path = ()) -> JsonObject:
        """Return what is kept of a message."""
        fields = self._schema[name]
        kept: JsonObject = {}
        for member, child in value.items():
            at = (*path, member)
            field = fields.get(member)
            if field is not None:
                found = self._field(field, child, at)
            elif is_read_by_a2a(name, member):
                found = self.leave(at, Omission.OF_OTHER_VERSIONS)
            else:
                found = self.leave(at, Omission.UNKNOWN)
            if found is not _Left.OUT:
                kept[member] = found
        return kept

    def _field(self, field: Field, value: JsonValue, at: _Path) -> _Kept:
        if value is None:
            return self.leave(at, Omission.NULL)
        if field.presence is Presence.IMPLICIT and _is_default(value):
            return self.leave(at, Omission.DEFAULT)
        return self._values(field, value, at)

    def _values(self, field: Field, value: JsonValue, at: _Path) -> _Kept:
        if field.container is Container.ONE:
            return self._value(field, value, at)
        if isinstance(value, list if field.container is Container.LIST else dict):
            return _each(value, at, partial(self._value, field))
        return value  # of the wrong type: kept and covered, whatever a parser makes of it

    def _value(self, field: Field, value: JsonValue, at: _Path) -> _Kept:
        if field.message is not None and isinstance(value, dict):
            return self.message(value, field.message, at)
        return value


class FilledWalk(PresenceWalk):
    """The same, with required fields that are absent added with their defaults (A2A#2122)."""

    def message(self, value: JsonObject, name: str, path: _Path = ()) -> JsonObject:
        """Return what is kept of a message, and what is missing from it."""
        kept = super().message(value, name, path)
        for member, field in self._schema[name].items():
            if field.presence is Presence.REQUIRED and member not in kept:
                self.leave((*path, member), Omission.ABSENT)
                is_object = field.container is Container.MAP or field.message
                kept[member] = [] if field.container is Container.LIST else {} if is_object else ""
        return kept


class CleanedWalk(PresenceWalk):
    """What the SDKs do: then drop `""`, `[]`, `{}` and null everywhere, also in free-form values.

    In a list, a map or a free-form value nothing is merely empty: an element counts, a key says
    something, and what null means there only its reader knows.
    """

    def _field(self, field: Field, value: JsonValue, at: _Path) -> _Kept:
        if value in field.defaults:
            return self.leave(at, Omission.SDK_DEFAULT)
        if value is False and field.presence is Presence.OPTIONAL:
            return value
        is_choice = field.presence is Presence.ONEOF
        if _is_default(value):
            return self.leave(at, Omission.EMPTY_ENTRY if is_choice else Omission.EMPTY)
        before = len(self.uncovered)
        kept = self._values(field, value, at)
        if kept is _Left.OUT or kept not in ([], {}):
            return kept
        # Nothing is left of it: its parts are not listed one by one.
        gaps = {left.gap for left in self.uncovered[before:]}
        del self.uncovered[before:]
        says_nothing = gaps <= {Gap.EMPTY} and not is_choice
        return self.leave(at, Omission.EMPTY if says_nothing else Omission.NOTHING_BUT_EMPTY)

    def _value(self, field: Field, value: JsonValue, at: _Path) -> _Kept:
        if field.struct:
            return self._free(value, at)
        if field.message is not None and isinstance(value, dict):
            before = len(self.uncovered)
            kept = self.message(value, field.message, at)
            if kept or field.container is Container.ONE:
                return kept
            del self.uncovered[before:]
            return self.leave(at, Omission.NOTHING_BUT_EMPTY)
        if field.container is not Container.ONE and value in (None, "", [], {}):
            return self.leave(at, Omission.EMPTY_ENTRY)
        return value

    def _free(self, value: JsonValue, at: _Path) -> _Kept:
        if value in (None, "", [], {}):
            return self.leave(at, Omission.FREE_FORM_EMPTY)
        if not isinstance(value, dict | list):
            return self._number(value, at)
        before = len(self.uncovered)
        kept = _each(value, at, self._free)
        if kept:
            return kept
        del self.uncovered[before:]
        return self.leave(at, Omission.NOTHING_BUT_EMPTY)

    def _number(self, value: JsonValue, at: _Path) -> JsonValue:  # noqa: ARG002 - for DoubleWalk
        return value


class DoubleWalk(CleanedWalk):
    """The same over protobuf, whose free-form values know no numbers but doubles."""

    def _number(self, value: JsonValue, at: _Path) -> JsonValue:
        if isinstance(value, bool) or not isinstance(value, int):
            return value
        try:
            double = float(value)
        except OverflowError as exc:
            raise CanonicalizationError(
                f"{json_pointer('', *at)}: the integer is outside a double's range"
            ) from exc
        # Its neighbours have the same double: the signature does not tell them apart.
        if abs(value) > _LARGEST_SAFE_INTEGER:
            self.leave(at, Omission.ROUNDED)
        return double
