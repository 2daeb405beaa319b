"""A signature that says in which form it was made holds in that form alone."""

from __future__ import annotations

import copy
import json
from collections.abc import Iterable
from itertools import combinations, permutations
from typing import Any

import pytest

from pushkit.cards import (
    EVERY_SDK,
    CardForm,
    CardPolicy,
    CardVerdict,
    canonicalize,
    sign_card,
    verify_card,
)
from pushkit.signing.jose import protected_header
from tests.unit.pushkit.cards.vectors import NOW, SIGNING_KEY, TRUST, as_bytes, load, signature

SAMPLE: dict[str, Any] = load("cards_v10")["c21_spec_85_sample"]
# Nobody without the scheme gets in: made of empty values alone, and so no part of what SDKs sign.
GUARDED: dict[str, Any] = {**SAMPLE, "securityRequirements": [{"schemes": {"google": {}}}]}
OPEN = {name: value for name, value in SAMPLE.items() if name != "securityRequirements"}
BOTH = (CardForm.SPEC, CardForm.SDK)


def signatures(card: dict[str, Any], forms: Iterable[CardForm] | None = None) -> list[Any]:
    found: list[Any] = sign_card(card, SIGNING_KEY, forms, now=NOW).card["signatures"]  # type: ignore[assignment]
    return found


def stated(entries: list[Any]) -> list[Any]:
    return [protected_header(entry["protected"])["pushkit-form"] for entry in entries]


def unmarked(card: dict[str, Any], form: CardForm) -> dict[str, Any]:
    """Sign as an SDK does, which says nothing of its form."""
    return signature(canonicalize(card, form).payload, {"typ": "JOSE"})


def verify(card: dict[str, Any], entries: list[Any], *admit: CardForm) -> CardVerdict:
    policy = CardPolicy(admit=frozenset(admit))
    return verify_card(as_bytes({**card, "signatures": entries}), TRUST, now=NOW, policy=policy)


def test_what_sdks_leave_out_cannot_be_stripped_from_a_card_that_is_signed_by_default() -> None:
    entries = signatures(GUARDED)
    assert entries
    assert not any(verify(OPEN, [entry]).verified for entry in entries)


def test_what_sdks_leave_out_cannot_be_stripped_as_if_it_had_been_signed_by_the_specification() -> (
    None
):
    entries = signatures(GUARDED, BOTH)
    assert stated(entries) == ["spec", "sdk"]
    assert verify(GUARDED, entries).best.form is CardForm.SPEC  # type: ignore[union-attr]
    verdict = verify(OPEN, entries)
    assert [entry.form for entry in verdict.signatures] == [None, CardForm.SDK]
    assert "the form spec" in verdict.signatures[0].reason
    assert "security requirements" in " ".join(verdict.warnings)


def test_the_security_schemes_cannot_be_stripped_with_the_signature_for_javascript() -> None:
    entries = signatures(SAMPLE, EVERY_SDK)
    bare = {name: value for name, value in SAMPLE.items() if name != "securitySchemes"}
    verdict = verify(bare, entries)
    assert not verdict.verified
    assert "sdk-without-security-schemes, which is not admitted" in verdict.reason


@pytest.mark.parametrize("made", CardForm)
@pytest.mark.parametrize("said", CardForm)
def test_only_the_form_that_is_stated_is_tried(made: CardForm, said: CardForm) -> None:
    # The card has different bytes in every form.
    card = {
        **GUARDED,
        "name": "é",
        "description": "",
        "xVendor": 1,
        "protocolVersion": "0.3.0",
        "url": "https://agent.example.com/",
        "capabilities": {"streaming": True},
        "supportsAuthenticatedExtendedCard": True,
    }
    del card["version"]
    assert len({canonicalize(card, form).payload for form in CardForm}) == len(CardForm)
    header = {"typ": "JOSE", "pushkit-form": said.value}
    verdict = verify(card, [signature(canonicalize(card, made).payload, header)], *CardForm)
    assert verdict.verified is (made is said)
    if verdict.verified:
        assert verdict.best is not None
        assert verdict.best.forms == (said,)
        assert verdict.best.stated


@pytest.mark.parametrize("forms", list(permutations(BOTH)), ids=str)
def test_forms_of_the_same_bytes_share_a_signature_that_states_the_stronger(forms: Any) -> None:
    assert stated(signatures(SAMPLE, forms)) == ["spec"]
    assert stated(signatures(SAMPLE, (CardForm.SDK,))) == ["sdk"]


def test_the_default_adds_the_sdk_form_where_it_drops_what_means_its_absence() -> None:
    card = {**SAMPLE, "description": "", "documentationUrl": ""}
    signed = sign_card(card, SIGNING_KEY, now=NOW)
    assert signed.forms == BOTH
    assert signed.warnings == ()
    assert verify_card(signed.content, TRUST, now=NOW).warnings == ()


def test_the_default_leaves_the_sdk_form_out_where_it_drops_more_and_says_what() -> None:
    signed = sign_card(GUARDED, SIGNING_KEY, now=NOW)
    assert signed.forms == (CardForm.SPEC,)
    [warning] = signed.warnings
    assert "/securityRequirements" in warning
    assert "sdk" in warning
    verdict = verify_card(signed.content, TRUST, now=NOW)
    assert verdict.verified
    assert verdict.warnings == ()


def test_what_no_form_covers_is_no_reason_to_leave_the_sdk_form_out() -> None:
    card = {**SAMPLE, "description": "", "url": "https://agent.example.com/", "xVendor": 1}
    assert sign_card(card, SIGNING_KEY, now=NOW).forms == (
        CardForm.SPEC,
        CardForm.RAW,
        CardForm.SDK,
    )


def test_the_sdk_form_is_made_all_the_same_when_it_is_asked_for_and_warned_of() -> None:
    signed = sign_card(GUARDED, SIGNING_KEY, BOTH, now=NOW)
    assert stated(signed.card["signatures"]) == ["spec", "sdk"]  # type: ignore[arg-type]
    assert any("sdk does not cover /securityRequirements" in line for line in signed.warnings)


def test_an_unmarked_signature_that_could_be_either_holds_with_a_warning() -> None:
    verdict = verify(OPEN, [unmarked(GUARDED, CardForm.SDK)])
    assert verdict.verified
    assert verdict.best is not None
    assert not verdict.best.stated
    assert {CardForm.SPEC, CardForm.SDK} <= set(verdict.best.forms)
    [warning] = verdict.warnings
    assert "does not state its form" in warning
    assert "spec" in warning
    assert "sdk" in warning


def test_an_unmarked_signature_that_can_only_be_the_specifications_has_no_such_warning() -> None:
    card = {**SAMPLE, "description": ""}
    verdict = verify(card, [unmarked(card, CardForm.SPEC)])
    assert verdict.verified
    assert verdict.warnings == ()


def test_a_marked_signature_is_preferred_to_an_unmarked_one_over_the_same() -> None:
    for order in permutations([unmarked(SAMPLE, CardForm.SDK), *signatures(SAMPLE)]):
        verdict = verify(SAMPLE, list(order))
        assert verdict.best is not None
        assert verdict.best.stated
        assert verdict.warnings == ()


@pytest.mark.parametrize("value", ["jcs", "SPEC", "", None, 5, ["spec"], {"spec": 1}])
def test_a_form_that_is_not_known_refuses_the_signature(value: Any) -> None:
    payload = canonicalize(SAMPLE, CardForm.SPEC).payload
    entry = signature(payload, {"typ": "JOSE", "pushkit-form": value})
    verdict = verify(SAMPLE, [entry], *CardForm)
    assert not verdict.verified
    assert "pushkit-form" in verdict.reason


@pytest.mark.parametrize("form", CardForm)
def test_a_form_in_the_unprotected_header_refuses_the_signature(form: CardForm) -> None:
    entry = {**unmarked(SAMPLE, CardForm.SDK), "header": {"pushkit-form": form.value}}
    verdict = verify(SAMPLE, [entry], *CardForm)
    assert not verdict.verified
    assert "protected header" in verdict.reason
    [marked] = signatures(SAMPLE)
    assert not verify(SAMPLE, [{**marked, "header": {"pushkit-form": form.value}}]).verified


def test_a_form_that_must_be_understood_is_refused_like_every_extension() -> None:
    payload = canonicalize(SAMPLE, CardForm.SPEC).payload
    header: dict[str, Any] = {"typ": "JOSE", "crit": ["pushkit-form"], "pushkit-form": "spec"}
    verdict = verify(SAMPLE, [signature(payload, header)])
    assert "crit" in verdict.reason
    assert not verdict.verified


def test_signatures_in_any_order_and_number_come_to_the_same_verdict() -> None:
    card = {**SAMPLE, "description": ""}
    entries = [*signatures(card, EVERY_SDK), unmarked(card, CardForm.SDK), {"protected": "?"}]
    for order in permutations(entries[:4]):
        verdict = verify(card, [*order, *entries, *order])
        assert verdict.verified
        assert verdict.warnings == ()
        assert verdict.best is not None
        assert (verdict.best.form, verdict.best.stated) == (CardForm.SPEC, True)


WEAKENED = {
    "requirements": ("securityRequirements",),
    "schemes": ("securitySchemes",),
    "schemes-and-requirements": ("securitySchemes", "securityRequirements"),
    "description": ("description",),
    "params": ("capabilities",),
}


@pytest.mark.parametrize("members", WEAKENED.values(), ids=WEAKENED)
@pytest.mark.parametrize("form", ["spec", "spec-with-defaults", "raw"])
def test_no_choice_of_signatures_proves_a_weaker_card_in_a_form_that_covers_everything(
    members: tuple[str, ...], form: str
) -> None:
    card = copy.deepcopy({**GUARDED, "description": ""})
    card["capabilities"]["extensions"] = [{"uri": "urn:x", "params": {"deny": [], "limit": ""}}]
    entries = signatures(card, EVERY_SDK)
    weaker = {name: value for name, value in card.items() if name not in members}
    if "capabilities" in members:
        weaker["capabilities"] = {**card["capabilities"], "extensions": [{"uri": "urn:x"}]}
    assert json.dumps(weaker) != json.dumps(card)
    for count in range(1, len(entries) + 1):
        for chosen in combinations(entries, count):
            verdict = verify(weaker, list(chosen), *CardForm)
            assert form not in {found.form for found in verdict.signatures}
