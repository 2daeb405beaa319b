"""Members whose names some parser takes for a field of the card, however they are written."""

from __future__ import annotations

import sys
import unicodedata
from collections.abc import Iterator
from functools import cache
from time import process_time
from typing import Any

import pytest

from pushkit.cards import CardForm, CardPolicy, Gap, canonicalize, verify_card
from pushkit.cards.schema import CARD_0_3, CARD_1_0
from tests.unit.pushkit.cards.vectors import NOW, TRUST, as_bytes, load, signature

SAMPLE: dict[str, Any] = load("cards_v10")["c21_spec_85_sample"]
ROOT = sorted({*CARD_1_0["AgentCard"], *CARD_0_3["AgentCard"]})
CAPABILITIES = sorted({*CARD_1_0["AgentCapabilities"], *CARD_0_3["AgentCapabilities"]})


def folds(character: str) -> set[str]:
    """Return what parsers that compare without case may take a character for.

    Go folds by case (the long s is s, the Kelvin sign k), Java compares upper and then lower cases
    (both Turkish i are i), others normalise names before they fold them.
    """
    plain = unicodedata.normalize("NFKC", character)
    found = {f(c) for c in (character, plain) for f in (str.casefold, str.lower, str.upper)}
    found = {fold.replace("\u0307", "") for fold in found}
    return {fold.lower() for fold in found if fold.isascii() and fold.isalnum()}


@cache
def folding() -> list[tuple[str, set[str]]]:
    """Return the characters that are not ASCII and fold to some that are."""
    found = ((c, folds(c)) for c in map(chr, range(128, sys.maxunicode + 1)))
    return [(character, to) for character, to in found if to]


def spellings(fields: list[str]) -> Iterator[tuple[str, str]]:
    """Yield each character that is not ASCII and folds to it, with a field's name that has it."""
    for character, to in folding():
        for fold in to:
            field = next((field for field in fields if fold in field.lower()), None)
            if field is not None:
                start = field.lower().index(fold)
                yield character, field[:start] + character + field[start + len(fold) :]


@pytest.mark.slow
def test_every_character_that_folds_to_ascii_is_taken_for_it() -> None:
    at_root, inside = list(spellings(ROOT)), list(spellings(CAPABILITIES))
    seen = {character for character, _ in (*at_root, *inside)}
    assert seen >= set("\u017f\u212a\u0131\u0130\ufb01\uff55")
    cards: list[tuple[str, dict[str, Any]]] = [(c, {name: "x"}) for c, name in at_root]
    cards += [(c, {"capabilities": {name: "x"}}) for c, name in inside]
    for character, card in cards:
        [left] = canonicalize(card, CardForm.SPEC).uncovered
        assert left.gap is Gap.CONTENT, (f"U+{ord(character):04X}", card)


@pytest.mark.parametrize(
    "name",
    [
        "\u017fupportedInterfaces",
        "supportedInterface\u017f",
        "SUPPORTED_INTERFACES",
        "_s_k_i_l_l_s_",
        "s\u212aills",
        "descr\u0130ption",
        "url\u0000x",
        "URL\u0000",
        "descr\u0131ption",
        "\uff55\uff52\uff4c",
    ],
)
def test_a_member_that_another_parser_reads_cannot_be_added_unnoticed(name: str) -> None:
    payload = canonicalize(SAMPLE, CardForm.SPEC).payload
    entry = signature(payload, {"typ": "JOSE", "pushkit-form": "spec"})
    changed = as_bytes({**SAMPLE, name: "https://evil.example.com/", "signatures": [entry]})
    verdict = verify_card(changed, TRUST, now=NOW)
    assert not verdict.verified
    assert "does not cover" in verdict.reason
    admitted = CardPolicy(admit=frozenset({CardForm.SPEC}))
    told = verify_card(changed, TRUST, now=NOW, policy=admitted).warnings
    assert any("not covered" in warning for warning in told)


def test_a_name_of_combining_marks_costs_no_time() -> None:
    # U+0300 belongs after U+0316: each pair has to be sorted past all of those before it.
    card: dict[str, Any] = {"name": "A", "x" + "\u0300\u0316" * 60_000: 1}
    before = process_time()
    found = canonicalize(card, CardForm.SPEC)
    assert process_time() - before < 1
    assert [left.gap for left in found.uncovered] == [Gap.UNKNOWN]
