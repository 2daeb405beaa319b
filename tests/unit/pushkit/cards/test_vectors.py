"""Cards signed by five SDK releases and by the specification's strict reading."""

from __future__ import annotations

from typing import Any

import pytest

from pushkit.cards import (
    FULL_COVERAGE,
    CardForm,
    CardPolicy,
    CardVerdict,
    Gap,
    canonicalize,
    verify_card,
)
from pushkit.errors import CanonicalizationError
from tests.unit.pushkit.cards.vectors import FOLDER, NOW, TRUST, as_bytes, each, load, served

FORMS = {
    "signed_py_1.3.0": CardForm.SDK,
    "signed_py_1.0.3": CardForm.PYTHON_ASCII,
    "signed_js_1.0.1": CardForm.SDK_WITHOUT_SECURITY_SCHEMES,
    "signed_ref_spec": CardForm.SPEC,
    "signed_py_0.3.26": CardForm.PYTHON_0_3,
}
SIZES = {**dict.fromkeys(FORMS, 21), "signed_py_0.3.26": 9}
EMPTIES_IN_PARAMS = {
    f"/capabilities/extensions/0/params/{name}"
    for name in ("n", "e", "l", "o", "nested", "arr/1", "arr/2", "arr/3", "arr/4")
}
# What each strict refusal names. Cards that are not listed are verified.
REFUSED_FULL_COVERAGELY = {
    "signed_py_1.3.0": {
        "c11_params_empties": EMPTIES_IN_PARAMS,
        "c12_securityreq_empty_scopes": {"/securityRequirements"},
    },
    "signed_py_1.0.3": {
        "c02_non_ascii": set(),
        "c10_params_numbers": set(),
        "c11_params_empties": EMPTIES_IN_PARAMS,
        "c12_securityreq_empty_scopes": {"/securityRequirements"},
        "c13_nonbmp_key_order": set(),
        "c16_html_ctrl": set(),
        "c19_params_big_int": set(),
    },
    "signed_js_1.0.1": {
        "c10_params_numbers": {"/capabilities/extensions/0/params/mid"},
        "c11_params_empties": EMPTIES_IN_PARAMS,
        "c12_securityreq_empty_scopes": {"/securitySchemes", "/securityRequirements"},
        "c13_nonbmp_key_order": {"/securitySchemes"},
        "c17_oauth_scopes": {"/securitySchemes"},
        "c18_oauth_empty_scopes": {"/securitySchemes"},
        "c19_params_big_int": {"/capabilities/extensions/0/params/id"},
        "c21_spec_85_sample": {"/securitySchemes"},
    },
    "signed_ref_spec": {},
}


def content_left_out(verdict: CardVerdict) -> set[str]:
    return {left.path for left in verdict.uncovered if left.gap is Gap.CONTENT}


@pytest.mark.parametrize(("name", "card", "wire"), each(*FORMS))
def test_every_card_verifies_with_its_form_admitted(
    name: str, card: str, wire: dict[str, Any]
) -> None:
    policy = CardPolicy(admit=frozenset({FORMS[name]}))
    verdict = verify_card(as_bytes(wire), TRUST, now=NOW, policy=policy)
    assert verdict.verified, (card, verdict.reason)
    assert verdict.best is not None
    assert verdict.best.key is not None
    assert verdict.best.key.key.kid == "key-1"


@pytest.mark.parametrize("name", FORMS)
def test_the_files_have_the_cards_that_they_should_have(name: str) -> None:
    assert len(load(name)) == SIZES[name]
    assert len(served(name)) == SIZES[name] - (name == "signed_ref_spec")


@pytest.mark.parametrize(("name", "card", "wire"), each(*FORMS))
def test_the_canonical_form_is_the_one_that_the_signer_hashed(
    name: str, card: str, wire: dict[str, Any]
) -> None:
    entry = load(name)[card]
    expected = entry.get("canonical") or entry["canonical_by_verifier_path"]
    assert canonicalize(wire, FORMS[name]).payload.decode() == expected


@pytest.mark.parametrize(("name", "card", "wire"), each(*REFUSED_FULL_COVERAGELY))
def test_strict_mode_refuses_what_is_not_covered_and_names_it(
    name: str, card: str, wire: dict[str, Any]
) -> None:
    verdict = verify_card(as_bytes(wire), TRUST, now=NOW, policy=FULL_COVERAGE)
    refused = REFUSED_FULL_COVERAGELY[name].get(card)
    assert verdict.verified is (refused is None), verdict.reason
    if refused is not None:
        assert content_left_out(verdict) == refused
        assert "not admitted" in verdict.reason or all(path in verdict.reason for path in refused)


@pytest.mark.parametrize(("name", "card", "wire"), each("signed_py_0.3.26"))
def test_strict_mode_admits_no_signature_of_0_3(name: str, card: str, wire: dict[str, Any]) -> None:
    verdict = verify_card(as_bytes(wire), TRUST, now=NOW)
    assert not verdict.verified, (name, card)


def test_what_no_version_knows_is_tolerated_by_the_specification_and_told() -> None:
    wire = served("signed_ref_spec")["c14_unknown_field"]
    verdict = verify_card(as_bytes(wire), TRUST, now=NOW)
    assert verdict.verified
    uncovered, unmarked = verdict.warnings
    assert uncovered == "not covered: /xVendor"
    assert "does not state its form" in unmarked


def test_the_reference_has_no_form_for_an_integer_beyond_a_double_and_neither_have_we() -> None:
    assert "CanonicalizationError" in load("signed_ref_spec")["c19_params_big_int"]["error"]
    with pytest.raises(CanonicalizationError, match="write it as a string"):
        canonicalize(load("cards_v10")["c19_params_big_int"], CardForm.SPEC)


def test_the_placeholder_signature_of_the_specification_is_refused() -> None:
    sample = (FOLDER / "spec_85_sample_with_sig.json").read_bytes()
    everything = CardPolicy(admit=frozenset(CardForm))
    verdict = verify_card(sample, TRUST, now=NOW, policy=everything)
    assert not verdict.verified
    assert "it is invalid" in verdict.reason
