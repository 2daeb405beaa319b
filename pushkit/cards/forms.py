"""The canonical forms that agent cards are signed in, as one table.

A2A 1.0 §8.4.1 defines one, and what is in use are more: the SDKs leave out more than it says, and
not all the same. `docs/cards.md` says who signs in which.
"""

from __future__ import annotations

import json
import re
from collections.abc import Callable, Mapping
from enum import StrEnum
from typing import Final, NamedTuple

import rfc8785

from pushkit.bounded_json import JsonObject, JsonValue
from pushkit.cards.schema import CARD_0_3, CARD_1_0, Schema
from pushkit.cards.walks import (
    CleanedWalk,
    DoubleWalk,
    FilledWalk,
    Gap,
    Omission,
    PresenceWalk,
    Uncovered,
    WholeWalk,
)
from pushkit.errors import CanonicalizationError


class CardForm(StrEnum):
    """A canonical form, by its name; the stronger one stands before the weaker."""

    SPEC = "spec"
    SPEC_WITH_DEFAULTS = "spec-with-defaults"
    RAW = "raw"
    SDK = "sdk"
    SDK_WITHOUT_SECURITY_SCHEMES = "sdk-without-security-schemes"
    PYTHON_ASCII = "python-ascii"
    PYTHON_0_3 = "python-0.3"


class Canonical(NamedTuple):
    """A card in a canonical form."""

    form: CardForm
    payload: bytes  # what is signed
    uncovered: tuple[Uncovered, ...]  # what of the card, `signatures` aside, has no part in it


_SORTED: Final = json.JSONEncoder(ensure_ascii=False, sort_keys=True, separators=(",", ":"))
_STRING: Final = re.compile(r'"[^"\\]*(?:\\.[^"\\]*)*"')
_NUMBER: Final = re.compile("[0-9IN]")


def canonical_json(value: JsonValue) -> bytes:
    """Write JSON as RFC 8785 says.

    Raises:
        CanonicalizationError: An integer beyond ±(2^53 - 1), which RFC 7493 §2.2 does not allow,
            or text that is not Unicode.
    """
    try:
        text = _SORTED.encode(value)
        # Python sorts and escapes as RFC 8785 does, but for numbers (and what is no JSON), and for
        # names beyond U+FFFF, which UTF-16 sorts elsewhere.
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
    """How a card is brought into a form, and what a signature over that is worth."""

    walk: type[WholeWalk]  # what is kept of the card
    schema: Schema  # the fields that it is held beside
    drops: tuple[str, ...] = ()  # members that go before that, beside `signatures`
    write: Callable[[JsonObject], bytes] = canonical_json  # makes bytes of what is kept
    # What the form may leave out and still count without being admitted. The specification itself
    # has unknown members ignored (§8.4.1); the others leave out more than it says, and get no such
    # benefit. None: it never does.
    tolerates: frozenset[Gap] | None = None
    # What might have been added to the card or taken away, and the form does not show it.
    hides: str = ""


_EMPTIES: Final = (
    "empty values were added or taken away, among them security requirements without scopes"
)
_SPEC: Final = frozenset({Gap.EMPTY, Gap.UNKNOWN})

FORMS: Final[Mapping[CardForm, Form]] = {
    CardForm.SPEC: Form(PresenceWalk, CARD_1_0, tolerates=_SPEC),
    # The specification can be read either way: required fields that are absent added (A2A#2122).
    CardForm.SPEC_WITH_DEFAULTS: Form(FilledWalk, CARD_1_0, tolerates=_SPEC | {Gap.ABSENT}),
    CardForm.RAW: Form(WholeWalk, CARD_1_0, tolerates=frozenset()),
    CardForm.SDK: Form(DoubleWalk, CARD_1_0, tolerates=frozenset({Gap.EMPTY}), hides=_EMPTIES),
    CardForm.SDK_WITHOUT_SECURITY_SCHEMES: Form(
        DoubleWalk, CARD_1_0, drops=("securitySchemes",), hides=f"{_EMPTIES}, or security schemes"
    ),
    CardForm.PYTHON_ASCII: Form(DoubleWalk, CARD_1_0, write=_python_json, hides=_EMPTIES),
    CardForm.PYTHON_0_3: Form(CleanedWalk, CARD_0_3, write=_python_json, hides=_EMPTIES),
}


def canonicalize(card: Mapping[str, JsonValue], form: CardForm) -> Canonical:
    """Return a card in the form of that name.

    Raises:
        CanonicalizationError: The card has no such form: a number that cannot be written so.
    """
    how = FORMS[form]
    walk = how.walk(how.schema)
    dropped = ("signatures", *how.drops)
    kept = walk.message({n: value for n, value in card.items() if n not in dropped}, "AgentCard")
    payload = how.write(kept)
    for name in how.drops:
        if name in card:
            walk.leave((name,), Omission.SECURITY_SCHEMES)
    return Canonical(form=form, payload=payload, uncovered=tuple(walk.uncovered))
