"""The Python SDK that is installed, as an oracle of the form `sdk`."""

from __future__ import annotations

from typing import Any

import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from pushkit.cards import CardForm, CardPolicy, Gap, canonicalize, sign_card, verify_card
from tests.unit.pushkit.cards.test_signing import sdk_sign, sdk_verify
from tests.unit.pushkit.cards.vectors import NOW, SIGNING_KEY, TRUST, as_bytes

ADMITTED = CardPolicy(admit=frozenset({CardForm.SDK}))
# What a protobuf Struct can say: no number but a double.
VALUES = st.recursive(
    st.none() | st.booleans() | st.sampled_from(["", "x", 0, 1.5, -1, [], {}]),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.sampled_from("ab/~"), inner),
    max_leaves=8,
)
PARAMS = st.dictionaries(st.sampled_from("abc"), VALUES, max_size=3)


def card_with(params: dict[str, Any]) -> dict[str, Any]:
    return {
        "name": "An agent",
        "description": "",
        "version": "1",
        "supportedInterfaces": [{"url": "https://a.example.com/", "protocolBinding": "JSONRPC"}],
        "capabilities": {"extensions": [{"uri": "https://a.example.com/e", "params": params}]},
    }


@given(PARAMS)
@example({"a": ""})
@example({"a": {"b": [[], {}]}})
def test_what_the_sdk_signs_is_verified_in_its_form(params: dict[str, Any]) -> None:
    signed = as_bytes(sdk_sign(card_with(params)))
    verdict = verify_card(signed, TRUST, now=NOW, policy=ADMITTED)
    assert verdict.verified, verdict.reason
    assert verdict.best is not None
    assert CardForm.SDK in verdict.best.forms


@given(PARAMS)
@example({"a": ""})
def test_what_is_signed_here_in_its_form_the_sdk_verifies(params: dict[str, Any]) -> None:
    signed = sign_card(card_with(params), SIGNING_KEY, ("spec", "sdk"), now=NOW)
    sdk_verify(signed.card)


@pytest.mark.parametrize("params", [{"a": ""}, {"a": {"b": []}}, {"a": None}, {"a": [""]}])
def test_params_of_nothing_but_empty_values_are_left_out_and_told(params: dict[str, Any]) -> None:
    found = canonicalize(card_with(params), CardForm.SDK)
    assert b"params" not in found.payload
    paths = {left.path for left in found.uncovered if left.gap is Gap.CONTENT}
    assert paths == {"/capabilities/extensions/0/params"}
