"""Cards that pushkit signs: by its own verifier, and by the SDK that is installed."""

from __future__ import annotations

import copy
import json
from collections.abc import Iterable
from datetime import timedelta
from pathlib import Path
from typing import Any

import pytest
from a2a.types import AgentCard
from a2a.utils.signing import ProtectedHeader, create_agent_card_signer, create_signature_verifier
from google.protobuf.json_format import MessageToDict, ParseDict
from hypothesis import example, given
from hypothesis import strategies as st

from pushkit.cards import (
    EVERY_SDK,
    CardForm,
    CardPolicy,
    Gap,
    TrustedKeys,
    canonicalize,
    sign_card,
    verify_card,
)
from pushkit.errors import CanonicalizationError, ConfigError, MalformedCardError, NoSigningKeyError
from pushkit.keys.jwk import Algorithm, generate_key, public_pem, signing_key_to_pem
from pushkit.keys.ring import KeyRing
from tests.unit.pushkit.cards.vectors import (
    KEY,
    NOW,
    SIGNING_KEY,
    TRUST,
    as_bytes,
    headers,
    load,
    unsigned,
)

CARDS = load("cards_v10")
OLDER = {**load("cards_older"), **load("cards_v03")}
SAMPLE = CARDS["c21_spec_85_sample"]
BIG_INTEGER = "c19_params_big_int"
HOUR = timedelta(hours=1)


def sdk_verify(card: dict[str, Any]) -> None:
    """Verify as a client of a2a-sdk does.

    Raises:
        InvalidSignaturesError: It does not hold.
    """
    parsed = ParseDict(card, AgentCard(), ignore_unknown_fields=True)
    pem = public_pem(KEY)
    create_signature_verifier(lambda _kid, _jku: pem, algorithms=["ES256"])(parsed)


def sdk_sign(card: dict[str, Any]) -> dict[str, Any]:
    """Sign, and serve, as a server of a2a-sdk does."""
    header = ProtectedHeader(alg="ES256", kid="key-1", jku=None, typ="JOSE")
    signer = create_agent_card_signer(signing_key_to_pem(SIGNING_KEY), header)
    parsed = ParseDict(card, AgentCard(), ignore_unknown_fields=True)
    served: dict[str, Any] = MessageToDict(signer(parsed))
    return served


@pytest.mark.parametrize("card", CARDS.values(), ids=CARDS)
def test_a_card_that_is_signed_here_verifies_here_strictly(card: dict[str, Any]) -> None:
    forms = (CardForm.SDK,) if card is CARDS[BIG_INTEGER] else ("spec", "sdk")
    signed = sign_card(card, SIGNING_KEY, forms, now=NOW)
    assert unsigned(signed.card) == unsigned(card)
    verdict = verify_card(signed.content, TRUST, now=NOW)
    assert verdict.verified is (card is not CARDS[BIG_INTEGER]), verdict.reason


@pytest.mark.parametrize("card", CARDS, ids=CARDS)
def test_a_card_that_is_signed_here_verifies_in_the_sdk(card: str) -> None:
    forms = (CardForm.SDK,) if card == BIG_INTEGER else ("spec", "sdk")
    sdk_verify(sign_card(CARDS[card], SIGNING_KEY, forms, now=NOW).card)


@pytest.mark.parametrize("card", CARDS, ids=CARDS)
def test_a_card_that_the_sdk_signed_verifies_here(card: str) -> None:
    policy = CardPolicy(admit=frozenset({CardForm.SDK}))
    assert verify_card(as_bytes(sdk_sign(CARDS[card])), TRUST, now=NOW, policy=policy).verified


def test_the_header_says_what_the_specification_wants() -> None:
    url = "https://agent.example.com/.well-known/jwks.json"
    signed = sign_card(SAMPLE, SIGNING_KEY, now=NOW, jku=url)
    expected = {"alg": "ES256", "kid": "key-1", "typ": "JOSE", "jku": url}
    assert headers(signed.card) == [{**expected, "pushkit-form": "spec"}]
    [entry] = headers(sign_card(SAMPLE, SIGNING_KEY, now=NOW).card)
    assert "jku" not in entry


def test_forms_of_the_same_bytes_share_a_signature() -> None:
    assert len(headers(sign_card(SAMPLE, SIGNING_KEY, now=NOW).card)) == 1
    signed = sign_card(SAMPLE, SIGNING_KEY, EVERY_SDK, now=NOW)
    assert signed.forms == EVERY_SDK
    # This sample is ASCII, without empty values: only the security schemes make a difference.
    assert len(headers(signed.card)) == 2


def test_signing_again_replaces_our_signatures_and_keeps_others() -> None:
    other = generate_key(Algorithm.EDDSA)
    theirs = sign_card(SAMPLE, other, now=NOW)
    unreadable = {"protected": "???", "signature": ""}
    card: dict[str, Any] = copy.deepcopy(theirs.card)
    card["signatures"].append(unreadable)
    once = sign_card(card, SIGNING_KEY, now=NOW)
    twice = sign_card(once.content, SIGNING_KEY, ("spec", "raw"), now=NOW)
    kids = [found.kid for found in verify_card(twice.content, TRUST, now=NOW).signatures]
    assert kids == [other.kid, None, "key-1"]
    both = TrustedKeys.pinned(other.to_verification_key())
    assert verify_card(twice.content, both, now=NOW).verified


def test_a_ring_signs_with_its_active_key_and_replaces_what_its_former_keys_signed() -> None:
    ring = KeyRing.create(NOW)
    first = sign_card(SAMPLE, ring, now=NOW)
    ring = ring.rotate(NOW)
    later = NOW + HOUR
    second = sign_card(first.content, ring, now=later)
    assert first.kids != second.kids
    assert [entry["kid"] for entry in headers(second.card)] == list(second.kids)
    published = TrustedKeys.pinned(
        *(entry.key.to_verification_key() for entry in ring.published(later))
    )
    assert verify_card(second.content, published, now=later).verified


def test_several_keys_sign_side_by_side() -> None:
    keys = [generate_key(Algorithm.ES256), generate_key(Algorithm.RS256)]
    signed = sign_card(SAMPLE, keys, now=NOW)
    assert [entry["alg"] for entry in headers(signed.card)] == ["ES256", "RS256"]
    for key in keys:
        trust = TrustedKeys.pinned(key.to_verification_key())
        assert verify_card(signed.content, trust, now=NOW).verified


def test_the_signer_hears_what_verifiers_will_not_find_covered() -> None:
    legacy = {**SAMPLE, "url": "https://agent.example.com/", "xVendor": 1}
    signed = sign_card(legacy, SIGNING_KEY, ("spec", "sdk"), now=NOW)
    told = "\n".join(signed.warnings)
    assert "spec does not cover /url" in told
    assert "sdk does not cover /xVendor" in told
    assert "add the form raw" in told
    assert not verify_card(signed.content, TRUST, now=NOW).verified
    for forms in (("spec", "sdk", "raw"), None):
        whole = sign_card(legacy, SIGNING_KEY, forms, now=NOW)
        assert "add the form raw" not in "\n".join(whole.warnings)
        assert verify_card(whole.content, TRUST, now=NOW).verified


def test_the_signer_hears_of_required_fields_that_are_absent() -> None:
    absent = ("description", "version")
    card = {name: value for name, value in SAMPLE.items() if name not in absent}
    [warning] = sign_card(card, SIGNING_KEY, now=NOW).warnings
    assert warning.startswith("required, but absent from the card: /description, /version; add")
    assert sign_card(card, SIGNING_KEY, ("sdk",), now=NOW).warnings == ()


@pytest.mark.parametrize("card", OLDER.values(), ids=OLDER)
def test_a_card_of_any_version_that_is_signed_by_default_verifies_by_default(
    card: dict[str, Any],
) -> None:
    signed = sign_card(card, SIGNING_KEY, now=NOW)
    assert verify_card(signed.content, TRUST, now=NOW).verified
    is_0_3 = "supportedInterfaces" not in card
    assert signed.forms[:2] == ("raw", "python-0.3") if is_0_3 else signed.forms[0] == "spec"
    assert not any("; add " in warning for warning in signed.warnings)


def test_forms_of_another_version_are_signed_with_a_warning_that_names_the_one_that_helps() -> None:
    card = OLDER["v01_minimal"]
    signed = sign_card(card, SIGNING_KEY, ("spec", "sdk"), now=NOW)
    assert not verify_card(signed.content, TRUST, now=NOW).verified
    assert signed.warnings[-1].endswith("refuse it; add the form raw")
    signed = sign_card(card, SIGNING_KEY, ("spec", "sdk", "raw"), now=NOW)
    assert verify_card(signed.content, TRUST, now=NOW).verified
    [integer] = sign_card(CARDS[BIG_INTEGER], SIGNING_KEY, ("sdk",), now=NOW).warnings[1:]
    assert "write it as a string" in integer


@pytest.mark.parametrize(
    ("member", "reason"),
    [
        ({"capabilities": ["streaming"]}, "/capabilities: found an array, expected an object"),
        ({"capabilities": {"streaming": 1}}, "streaming: found a number, expected a boolean"),
        ({"skills": {}}, "/skills: found an object, expected an array"),
        ({"skills": [{"tags": ["t", None]}]}, "/skills/0/tags/1: found null, expected a string"),
        ({"version": 1}, "/version: found a number, expected a string"),
        ({"securitySchemes": {"a/b": "x"}}, "/securitySchemes/a~1b: found a string, expected an"),
        ({"security": ["x"]}, "/security/0: found a string, expected an object"),
        ({"url": ["u"]}, "/url: found an array, expected a string"),
    ],
)
@pytest.mark.parametrize("forms", [None, ("raw",)])
def test_a_member_of_a_wrong_type_is_named(
    forms: Iterable[str] | None, member: dict[str, Any], reason: str
) -> None:
    with pytest.raises(MalformedCardError, match=f"the card: .*{reason}"):
        sign_card({**SAMPLE, **member}, SIGNING_KEY, forms, now=NOW)


def test_a_card_that_has_no_such_form_is_not_signed() -> None:
    with pytest.raises(CanonicalizationError, match="form spec"):
        sign_card(CARDS[BIG_INTEGER], SIGNING_KEY, now=NOW)


@pytest.mark.parametrize(
    ("keys", "options", "reason"),
    [
        (SIGNING_KEY, {"forms": ()}, "at least one form"),
        (SIGNING_KEY, {"forms": ("jcs",)}, "found 'jcs', expected one of spec, "),
        (SIGNING_KEY, {"forms": "spec"}, r"found 'spec', expected a list: \['spec'\]"),
        (SIGNING_KEY, {"jku": "agent.example.com/jwks.json"}, "jku: URL: expected https"),
        ("keys.json", {}, r"expected a KeyRing \(load_key_ring\) or SigningKeys"),
        (Path("keys.json"), {}, r"expected a KeyRing \(load_key_ring\) or SigningKeys"),
        ([], {}, "at least one form and one key"),
        (KeyRing(keys=()), {}, "no ES256 key is active"),
    ],
    ids=str,
)
def test_what_cannot_sign_is_refused(keys: Any, options: dict[str, Any], reason: str) -> None:
    with pytest.raises((ConfigError, NoSigningKeyError), match=reason):
        sign_card(SAMPLE, keys, now=NOW, **options)


def test_no_more_signatures_than_a_verifier_looks_at() -> None:
    page = (Path(__file__).parents[4] / "docs" / "cards.md").read_text("utf-8")
    assert "at most 16 signatures" in page
    keys = [generate_key(Algorithm.EDDSA) for _ in range(17)]
    signed = sign_card(SAMPLE, keys[:16], now=NOW)
    last = TrustedKeys.pinned(keys[15].to_verification_key())
    assert verify_card(signed.content, last, now=NOW).verified
    with pytest.raises(ConfigError, match="17 signatures, expected up to 16"):
        sign_card(SAMPLE, keys, now=NOW)
    entries = signed.card["signatures"]
    with pytest.raises(MalformedCardError, match="found 17, expected at most 16"):
        verify_card({**SAMPLE, "signatures": [*entries, None]}, last, now=NOW)  # type: ignore[misc]


@pytest.mark.parametrize(
    ("document", "reason"),
    [
        pytest.param({"name": object()}, "something that is not JSON", id="object"),
        pytest.param({"name": float("nan")}, "the card: ", id="nan"),
        pytest.param({"name": "\ud800"}, "something that is not JSON", id="half-a-pair"),
        pytest.param("{}", "expected bytes or a mapping, found str", id="text"),
        pytest.param({}, "expected an agent card, which has a `name`", id="empty"),
        pytest.param({"keys": []}, "expected an agent card, which has a `name`", id="keys"),
        pytest.param({"Name": "a"}, "expected an agent card, which has a `name`", id="case"),
    ],
)
def test_what_is_no_card_is_not_signed(document: Any, reason: str) -> None:
    with pytest.raises(MalformedCardError, match=reason):
        sign_card(document, SIGNING_KEY, now=NOW)


def test_the_content_is_the_card() -> None:
    signed = sign_card(CARDS["c02_non_ascii"], SIGNING_KEY, now=NOW)
    assert json.loads(signed.content) == signed.card
    assert "Café".encode() in signed.content


# --- the SDK that is installed, as an oracle of the form `sdk` -----------------------------------


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
