"""The canonical forms in which agent cards are signed, as one table.

A2A 1.0 §8.4.1 defines one form. Others are in use, because the SDKs leave out more than that, and
differ among themselves. `docs/cards.md` says which signer uses which form.
"""

from __future__ import annotations

import json
import re
from collections.abc import Callable, Mapping
from enum import StrEnum
from typing import Final, NamedTuple

import rfc8785

from pushkit.bounded_json import JsonObject, JsonValue
from pushkit.cards.older import ReadCard, as_client_reads, compare_copies
from pushkit.cards.schema import CARD_0_3, CARD_1_0, Schema
from pushkit.cards.walks import (
    CleanedWalk,
    ClientWalk,
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
