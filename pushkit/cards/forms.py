"""The canonical forms in which agent cards are signed, and what each one leaves out.

A2A 1.0 §8.4.1 defines one form. Others are in use, because the SDKs leave out more than that, and
differ among themselves. `docs/cards.md` says which signer uses which form.

One walk over the card and its schema selects the parts that a form keeps, and records all that it
leaves out, so that the two cannot disagree. The records differ in what they mean: an empty field
means the same as its absence, but a security requirement without scopes consists of empty values
only and yet decides who gets access.
"""

from __future__ import annotations

import json
import re
from collections.abc import Callable, Collection, Mapping
from enum import Enum, StrEnum
from functools import partial
from typing import Final, NamedTuple, TypeAlias

import rfc8785

from pushkit.bounded_json import JsonObject, JsonValue, json_pointer
from pushkit.cards.older import ReadCard, as_client_reads, compare_copies
from pushkit.cards.schema import (
    CARD_0_3,
    CARD_1_0,
    Container,
    Field,
    Path,
    Presence,
    Schema,
    camel_case,
    is_read_by_a2a,
)
from pushkit.errors import CanonicalizationError

_LARGEST_SAFE_INTEGER: Final = 2**53 - 1
# Each path repeats the names above it: a long name above thousands of empty values would cost
# gigabytes. No genuine card needs a tenth of this.
_MAX_PATH_CHARACTERS: Final = 1024 * 1024


class Gap(StrEnum):
    """The kind of an unsigned part of a card."""

    EMPTY = "empty"  # a field that is null, empty or at its default: the same as absent
    ABSENT = "absent"  # a required field that is absent, and was signed with its default
    COPIED = "copied"  # a member of A2A 0.3 that says what members of 1.0 in the card say
    UNKNOWN = "unknown"  # a member that no version of A2A defines: clients ignore it
    CONTENT = "content"  # anything else: an attacker between server and client can change it


class Omission(Enum):
    """Why a part of a card is left out: the kind of gap, and the reason for people."""

    NULL = Gap.EMPTY, "null is not set"
    DEFAULT = Gap.EMPTY, "has its default"
    EMPTY = Gap.EMPTY, "empty"
    ABSENT = Gap.ABSENT, "absent, and signed as its default"
    COPIED = Gap.COPIED, "a copy for A2A 0.3 of what members of 1.0 say"
    NOT_COPIED = Gap.CONTENT, "absent, although a copy for A2A 0.3 needs it"
    UNKNOWN = Gap.UNKNOWN, "unknown to the schema"
    OF_OTHER_VERSIONS = Gap.CONTENT, "not a field of this version, but other versions read it"
    SDK_DEFAULT = Gap.CONTENT, "has its default, which this form leaves out"
    EMPTY_ENTRY = Gap.CONTENT, "empty"
    NOTHING_BUT_EMPTY = Gap.CONTENT, "consists of empty values only"
    FREE_FORM_EMPTY = Gap.CONTENT, "empty, in a free-form value"
    ROUNDED = Gap.CONTENT, "an integer that was rounded to a double before signing"
    SECURITY_SCHEMES = Gap.CONTENT, "this form leaves out every security scheme"


class Uncovered(NamedTuple):
    """A part of the card as served that a signature does not protect."""

    path: str  # JSON Pointer (RFC 6901) into the card
    why: Omission

    @property
    def gap(self) -> Gap:
        """The kind of gap."""
        return self.why.value[0]

    @property
    def reason(self) -> str:
        """Why it is not signed, for people."""
        return self.why.value[1]


class _Left(Enum):
    OUT = "out"


_Kept: TypeAlias = "JsonValue | _Left"


def _each(value: JsonValue, at: Path, keep: Callable[[JsonValue, Path], _Kept]) -> JsonValue:
    """Apply `keep` to the elements of a list or the entries of a map; drop those left out."""
    if isinstance(value, dict):
        found = {name: keep(child, (*at, name)) for name, child in value.items()}
        return {name: child for name, child in found.items() if child is not _Left.OUT}
    if isinstance(value, list):
        elements = [keep(child, (*at, n)) for n, child in enumerate(value)]
        return [child for child in elements if child is not _Left.OUT]
    return value


class WholeWalk:
    """The card as it was served: nothing is left out."""

    # `copies` are the paths of members that only repeat what others say.
    def __init__(self, schema: Schema, copies: Collection[Path] = ()) -> None:
        self._schema = schema
        self._copies = copies
        self._path_characters = 0
        self.uncovered: list[Uncovered] = []

    def message(self, value: JsonObject, name: str, path: Path = ()) -> JsonObject:  # noqa: ARG002
        """Return the part of a message that is kept."""
        return value

    def leave(self, at: Path, why: Omission) -> _Left:
        """Record that a value is left out.

        Raises:
            CanonicalizationError: So much is left out that it cannot be listed.
        """
        path = json_pointer("", *at)
        self._path_characters += len(path)
        if self._path_characters > _MAX_PATH_CHARACTERS:
            raise CanonicalizationError(
                "the paths of the values that it leaves out have more than"
                f" {_MAX_PATH_CHARACTERS} characters: use fewer empty values, or shorter names"
            )
        self.uncovered.append(Uncovered(path=path, why=why))
        return _Left.OUT


class PresenceWalk(WholeWalk):
    """A2A 1.0 §8.4.1: fields by presence, free-form values whole, no unknown members."""

    def message(self, value: JsonObject, name: str, path: Path = ()) -> JsonObject:
        """Return the part of a message that is kept."""
        fields = self._schema[name]
        kept: JsonObject = {}
        for member, child in value.items():
            at = (*path, member)
            field = fields.get(member)
            if field is not None:
                found = self._field(field, child, at)
            elif at in self._copies:
                found = self.leave(at, Omission.COPIED)
            elif is_read_by_a2a(name, member):
                found = self.leave(at, Omission.OF_OTHER_VERSIONS)
            else:
                found = self.leave(at, Omission.UNKNOWN)
            if found is not _Left.OUT:
                kept[member] = found
        return kept

    def _field(self, field: Field, value: JsonValue, at: Path) -> _Kept:
        if value is None:
            return self.leave(at, Omission.NULL)
        if field.presence is Presence.IMPLICIT and field.is_empty(value):
            return self.leave(at, Omission.DEFAULT)
        return self._values(field, value, at)

    def _values(self, field: Field, value: JsonValue, at: Path) -> _Kept:
        if field.container is Container.ONE:
            return self._value(field, value, at)
        if isinstance(value, list if field.container is Container.LIST else dict):
            return _each(value, at, partial(self._value, field))
        return value  # of the wrong type: kept and covered, however parsers treat it

    def _value(self, field: Field, value: JsonValue, at: Path) -> _Kept:
        if field.message is not None and isinstance(value, dict):
            return self.message(value, field.message, at)
        return value


class FilledWalk(PresenceWalk):
    """As `PresenceWalk`, with absent required fields added at their defaults (A2A#2122)."""

    def message(self, value: JsonObject, name: str, path: Path = ()) -> JsonObject:
        """Return the part of a message that is kept, with its absent required fields."""
        kept = super().message(value, name, path)
        for member, field in self._schema[name].items():
            if field.presence is Presence.REQUIRED and member not in kept:
                self.leave((*path, member), Omission.ABSENT)
                kept[member] = field.empty
        return kept


class CleanedWalk(PresenceWalk):
    """As the SDKs do: also drops `""`, `[]`, `{}` and null everywhere, even in free-form values.

    An empty value in a list, a map or a free-form value is a gap that matters: an element counts,
    a key has a meaning, and what null means there is up to the reader.
    """

    def _field(self, field: Field, value: JsonValue, at: Path) -> _Kept:
        if value in field.defaults:
            return self.leave(at, Omission.SDK_DEFAULT)
        if value is False and field.presence is Presence.OPTIONAL:
            return value
        is_choice = field.presence is Presence.ONEOF
        if value is None or field.is_empty(value):
            return self.leave(at, Omission.EMPTY_ENTRY if is_choice else Omission.EMPTY)
        before = len(self.uncovered)
        kept = self._values(field, value, at)
        if kept not in ([], {}) or kept == value:  # its own value: empty, but of another type
            return kept
        # Nothing is left of the value: it is recorded once, not part by part.
        gaps = {left.gap for left in self.uncovered[before:]}
        del self.uncovered[before:]
        says_nothing = gaps <= {Gap.EMPTY} and not is_choice
        return self.leave(at, Omission.EMPTY if says_nothing else Omission.NOTHING_BUT_EMPTY)

    def _value(self, field: Field, value: JsonValue, at: Path) -> _Kept:
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

    def _free(self, value: JsonValue, at: Path) -> _Kept:
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

    def _number(self, value: JsonValue, at: Path) -> JsonValue:  # noqa: ARG002 - for DoubleWalk
        return value


class DoubleWalk(CleanedWalk):
    """As `CleanedWalk`, through protobuf, in whose free-form values every number is a double."""

    def _number(self, value: JsonValue, at: Path) -> JsonValue:
        if isinstance(value, bool) or not isinstance(value, int):
            return value
        try:
            double = float(value)
        except OverflowError as exc:
            raise CanonicalizationError(
                f"{json_pointer('', *at)}: the integer is outside a double's range"
            ) from exc
        # Neighbouring integers become the same double: the signature does not distinguish them.
        if abs(value) > _LARGEST_SAFE_INTEGER:
            self.leave(at, Omission.ROUNDED)
        return double


class ClientWalk(DoubleWalk):
    """As `DoubleWalk`, for a2a-sdk's client, which also accepts the names of the proto file."""

    def message(self, value: JsonObject, name: str, path: Path = ()) -> JsonObject:
        """Return the part of a message that is kept."""
        for member in value:
            if "_" in member and (field := camel_case(member)) in self._schema[name]:
                raise CanonicalizationError(
                    f"a2a-sdk's client reads {json_pointer('', *path, member)!a} as {field}: write"
                    " that name"
                )
        return super().message(value, name, path)


# --- the table ----------------------------------------------------------------------------------


class CardForm(StrEnum):
    """The names of the canonical forms, from the strongest to the weakest."""

    SPEC = "spec"
    SPEC_WITH_DEFAULTS = "spec-with-defaults"
    RAW = "raw"
    SDK = "sdk"
    PYTHON_CLIENT = "python-client"
    SDK_WITHOUT_SECURITY_SCHEMES = "sdk-without-security-schemes"
    PYTHON_ASCII = "python-ascii"
    PYTHON_0_3 = "python-0.3"


class Canonical(NamedTuple):
    """A card in a canonical form."""

    form: CardForm
    payload: bytes  # what is signed
    uncovered: tuple[Uncovered, ...]  # the parts of the card that it omits, besides `signatures`


_SORTED: Final = json.JSONEncoder(ensure_ascii=False, sort_keys=True, separators=(",", ":"))
_STRING: Final = re.compile(r'"[^"\\]*(?:\\.[^"\\]*)*"')
_NUMBER: Final = re.compile("[0-9IN]")


def canonical_json(value: JsonValue) -> bytes:
    """Write JSON in the canonical form of RFC 8785.

    Raises:
        CanonicalizationError: An integer beyond ±(2^53 - 1), which RFC 7493 §2.2 does not allow,
            text that is not Unicode, or nesting that is too deep.
    """
    try:
        text = _SORTED.encode(value)
        # Python sorts and escapes as RFC 8785 does, except numbers (and values that are not JSON)
        # and names beyond U+FFFF, which have another order in UTF-16.
        if (text.isascii() or max(text) <= "\uffff") and not _NUMBER.search(_STRING.sub("", text)):
            return text.encode("utf-8")
        return rfc8785.dumps(value)
    except (rfc8785.CanonicalizationError, UnicodeEncodeError) as exc:
        raise CanonicalizationError(
            "no RFC 8785 form: an integer beyond 2^53 - 1 (write it as a string), or text that is"
            " not Unicode"
        ) from exc
    except RecursionError as exc:
        raise CanonicalizationError("no RFC 8785 form: nested too deeply") from exc


def _python_json(value: JsonObject) -> bytes:
    return json.dumps(value, sort_keys=True, separators=(",", ":")).encode("ascii")


class Form(NamedTuple):
    """How a card is brought into a form, and what a signature over that form proves."""

    walk: type[WholeWalk]  # selects the parts of the card that are kept
    schema: Schema  # the fields that the walk knows
    mapped: bool = False  # members of 0.2 and 0.3 are mapped to 1.0 first, as by a2a-sdk's client
    drops: tuple[str, ...] = ()  # members that are removed first, besides `signatures`
    write: Callable[[JsonObject], bytes] = canonical_json  # serializes the parts that are kept
    # The gaps with which a signature counts although its form is not admitted. Unknown members may
    # be missing only where the specification ignores them (§8.4.1); the other forms leave out more
    # than it says. None: a signature in this form counts only if the form is admitted.
    tolerates: frozenset[Gap] | None = None
    # Changes to a card that the form does not show, as a clause.
    hides: str = ""


_EMPTIES: Final = (
    "empty values were added or removed, among them security requirements without scopes"
)
_SDK: Final = frozenset({Gap.EMPTY, Gap.COPIED})
_SPEC: Final = _SDK | {Gap.UNKNOWN}

FORMS: Final[Mapping[CardForm, Form]] = {
    CardForm.SPEC: Form(PresenceWalk, CARD_1_0, tolerates=_SPEC),
    # The other reading of the specification: absent required fields are added (A2A#2122).
    CardForm.SPEC_WITH_DEFAULTS: Form(FilledWalk, CARD_1_0, tolerates=_SPEC | {Gap.ABSENT}),
    CardForm.RAW: Form(WholeWalk, CARD_1_0, tolerates=frozenset()),
    CardForm.SDK: Form(DoubleWalk, CARD_1_0, tolerates=_SDK, hides=_EMPTIES),
    CardForm.PYTHON_CLIENT: Form(ClientWalk, CARD_1_0, mapped=True, hides=_EMPTIES),
    CardForm.SDK_WITHOUT_SECURITY_SCHEMES: Form(
        DoubleWalk, CARD_1_0, drops=("securitySchemes",), hides=f"{_EMPTIES}, or security schemes"
    ),
    CardForm.PYTHON_ASCII: Form(
        ClientWalk, CARD_1_0, mapped=True, write=_python_json, hides=_EMPTIES
    ),
    CardForm.PYTHON_0_3: Form(CleanedWalk, CARD_0_3, write=_python_json, hides=_EMPTIES),
}


def canonicalize(card: Mapping[str, JsonValue], form: CardForm) -> Canonical:
    """Return a card in a canonical form.

    Raises:
        CanonicalizationError: The card cannot be written in this form, because of a number, text
            that is not Unicode, its nesting, or too many values that the form leaves out; or the
            software that the form is for cannot read it.
    """
    how = FORMS[form]
    dropped = ("signatures", *how.drops)
    content = {n: value for n, value in card.items() if n not in dropped}
    read = as_client_reads(content) if how.mapped else ReadCard(content, {})
    leaves_older = how.schema is CARD_1_0 and how.walk is not WholeWalk
    faithful, missing = compare_copies(content) if leaves_older else ((), ())
    walk = how.walk(how.schema, faithful)
    payload = how.write(walk.message(read.card, "AgentCard"))
    for path in missing:
        walk.leave(path, Omission.NOT_COPIED)
    for name in how.drops:
        if name in card:
            walk.leave((name,), Omission.SECURITY_SCHEMES)
    uncovered = (left._replace(path=read.source(left.path)) for left in walk.uncovered)
    return Canonical(form=form, payload=payload, uncovered=tuple(dict.fromkeys(uncovered)))
