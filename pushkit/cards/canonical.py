"""The canonical forms that agent cards are signed in, one pure function each.

A2A 1.0 §8.4.1 defines one, and what is in use are six: the SDKs leave out more than it says, and
not all the same. `pushkit` signs in several, and verifies in those that the operator admits.

* `spec`: by field presence, RFC 8785. pushkit and strict implementations.
* `spec-with-defaults`: the same, with absent required fields added; the specification can be read
  either way (A2A#2122).
* `raw`: RFC 8785 of the card as served, without `signatures`. Hand-written signers.
* `sdk`: proto defaults and all empty values left out, RFC 8785. a2a-sdk (Python) from 1.1.4,
  @a2a-js/sdk over plain JSON.
* `sdk-without-security-schemes`: the same, and no `securitySchemes`. @a2a-js/sdk from 1.0.1 over
  its own `AgentCard`s (a2a-js#663).
* `python-ascii`: as `sdk`, but in Python's JSON. a2a-sdk 1.0.0 to 1.1.3.
* `python-0.3`: the 0.3 model without its defaults, in Python's JSON. a2a-sdk 0.3.21 to 0.3.26.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from enum import StrEnum
from typing import Final, TypeAlias

import rfc8785

from pushkit.bounded_json import JsonObject, JsonValue
from pushkit.cards.fields import CARD_0_3, CARD_1_0
from pushkit.cards.projection import (
    CleanedWalk,
    DoubleWalk,
    FilledWalk,
    Gap,
    PresenceWalk,
    Uncovered,
    without,
)
from pushkit.errors import CanonicalizationError

__all__ = [
    "Canonical",
    "CardForm",
    "canonical_json",
    "canonicalize",
    "python_0_3",
    "python_ascii",
    "raw",
    "sdk",
    "sdk_without_security_schemes",
    "spec",
    "spec_with_defaults",
]

_SIGNATURES: Final = "signatures"


class CardForm(StrEnum):
    """A canonical form, by its name; the stronger one stands before the weaker."""

    SPEC = "spec"
    SPEC_WITH_DEFAULTS = "spec-with-defaults"
    RAW = "raw"
    SDK = "sdk"
    SDK_WITHOUT_SECURITY_SCHEMES = "sdk-without-security-schemes"
    PYTHON_ASCII = "python-ascii"
    PYTHON_0_3 = "python-0.3"


@dataclass(frozen=True, slots=True, kw_only=True)
class Canonical:
    """A card in a canonical form.

    Attributes:
        form: Which form.
        payload: The bytes that are signed.
        uncovered: What of the card, `signatures` aside, has no part in them.
    """

    form: CardForm
    payload: bytes
    uncovered: tuple[Uncovered, ...]


def spec(card: Mapping[str, JsonValue]) -> Canonical:
    """A2A 1.0 §8.4.1: unknown members and `signatures` left out, field presence, RFC 8785.

    A required field that the card does not have is not added; see `spec_with_defaults`.

    Raises:
        CanonicalizationError: A number that RFC 8785 has no form for.
    """
    walk = PresenceWalk(CARD_1_0)
    kept = walk.message(without(card, _SIGNATURES), "AgentCard")
    return _canonical(CardForm.SPEC, canonical_json(kept), walk)


def spec_with_defaults(card: Mapping[str, JsonValue]) -> Canonical:
    """A2A 1.0 §8.4.1, read so that a required field is there even if it was not served.

    Raises:
        CanonicalizationError: A number that RFC 8785 has no form for.
    """
    walk = FilledWalk(CARD_1_0)
    kept = walk.message(without(card, _SIGNATURES), "AgentCard")
    return _canonical(CardForm.SPEC_WITH_DEFAULTS, canonical_json(kept), walk)


def raw(card: Mapping[str, JsonValue]) -> Canonical:
    """RFC 8785 of the card as served, without `signatures`: every member is covered.

    Raises:
        CanonicalizationError: A number that RFC 8785 has no form for.
    """
    payload = canonical_json(without(card, _SIGNATURES))
    return Canonical(form=CardForm.RAW, payload=payload, uncovered=())


def sdk(card: Mapping[str, JsonValue]) -> Canonical:
    """What a2a-sdk (Python) from 1.1.4 and @a2a-js/sdk sign: no empty value at all, RFC 8785.

    Raises:
        CanonicalizationError: A number outside a double's range.
    """
    kept, walk = _cleaned(without(card, _SIGNATURES))
    return _canonical(CardForm.SDK, canonical_json(kept), walk)


def sdk_without_security_schemes(card: Mapping[str, JsonValue]) -> Canonical:
    """What @a2a-js/sdk signs of an `AgentCard` instance: the security schemes get lost.

    Raises:
        CanonicalizationError: A number outside a double's range.
    """
    kept, walk = _cleaned(without(card, _SIGNATURES, "securitySchemes"))
    if "securitySchemes" in card:
        reason = "this form leaves out every security scheme"
        walk.uncovered.append(Uncovered(path="/securitySchemes", gap=Gap.CONTENT, reason=reason))
    return _canonical(CardForm.SDK_WITHOUT_SECURITY_SCHEMES, canonical_json(kept), walk)


def python_ascii(card: Mapping[str, JsonValue]) -> Canonical:
    r"""What a2a-sdk (Python) 1.0.0 to 1.1.3 sign: as `sdk`, but `\\uXXXX`, `1.0` and `1e-06`.

    Raises:
        CanonicalizationError: A number outside a double's range.
    """
    kept, walk = _cleaned(without(card, _SIGNATURES))
    return _canonical(CardForm.PYTHON_ASCII, _python_json(kept), walk)


def python_0_3(card: Mapping[str, JsonValue]) -> Canonical:
    """What a2a-sdk (Python) 0.3.21 to 0.3.26 sign: the 0.3 model, no default and no empty value."""
    walk = CleanedWalk(CARD_0_3)
    kept = walk.message(without(card, _SIGNATURES), "AgentCard")
    return _canonical(CardForm.PYTHON_0_3, _python_json(kept), walk)


_Form: TypeAlias = Callable[[Mapping[str, JsonValue]], Canonical]
_FORMS: Final[Mapping[CardForm, _Form]] = {
    CardForm.SPEC: spec,
    CardForm.SPEC_WITH_DEFAULTS: spec_with_defaults,
    CardForm.RAW: raw,
    CardForm.SDK: sdk,
    CardForm.SDK_WITHOUT_SECURITY_SCHEMES: sdk_without_security_schemes,
    CardForm.PYTHON_ASCII: python_ascii,
    CardForm.PYTHON_0_3: python_0_3,
}


def canonicalize(card: Mapping[str, JsonValue], form: CardForm) -> Canonical:
    """Return a card in the form of that name.

    Raises:
        CanonicalizationError: The card has no such form.
    """
    return _FORMS[form](card)


def canonical_json(value: JsonValue) -> bytes:
    """Write JSON as RFC 8785 says.

    Raises:
        CanonicalizationError: An integer beyond ±(2^53 - 1), which RFC 7493 §2.2 does not allow,
            or text that is not Unicode.
    """
    try:
        return rfc8785.dumps(value)
    except (rfc8785.CanonicalizationError, UnicodeEncodeError) as exc:
        raise CanonicalizationError(
            "no RFC 8785 form: an integer beyond 2^53 - 1 (write it as a string), or text that is"
            " not Unicode"
        ) from exc
    except RecursionError as exc:
        raise CanonicalizationError("no RFC 8785 form: nested too deeply") from exc


def _cleaned(card: JsonObject) -> tuple[JsonObject, DoubleWalk]:
    walk = DoubleWalk(CARD_1_0)
    return walk.message(card, "AgentCard"), walk


def _canonical(form: CardForm, payload: bytes, walk: PresenceWalk) -> Canonical:
    return Canonical(form=form, payload=payload, uncovered=tuple(walk.uncovered))


def _python_json(value: JsonObject) -> bytes:
    return json.dumps(value, sort_keys=True, separators=(",", ":")).encode("ascii")
