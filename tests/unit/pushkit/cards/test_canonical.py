"""The canonical forms, against the specifications and a second implementation."""

from __future__ import annotations

import json
import struct
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from pushkit.cards import CardForm, CardPolicy, Gap, canonicalize, verify_card
from pushkit.cards.forms import FORMS, canonical_json
from pushkit.cards.schema import CARD_1_0, Container, Presence
from pushkit.errors import CanonicalizationError
from tests.unit.pushkit.cards import independent_jcs
from tests.unit.pushkit.cards.vectors import FOLDER, NOW, TRUST, as_bytes, load, signature

VECTORS = json.loads((FOLDER / "canonical.json").read_bytes())
PRESENCE = json.loads((FOLDER / "presence_v1.0.json").read_bytes())["messages"]

D = {"description": "d"}
WORDS = {
    Presence.REQUIRED: "required",
    Presence.OPTIONAL: "optional",
    Presence.MESSAGE: "message: kept when set",
}
# The others are what a2a-sdk's client reads, which refuses values of a wrong type.
UNMAPPED = [form for form in CardForm if not FORMS[form].mapped]
JSON = st.recursive(
    st.none()
    | st.booleans()
    | st.integers(-(2**53) + 1, 2**53 - 1)
    | st.floats(allow_nan=False, allow_infinity=False)
    | st.text(),
    lambda inner: st.lists(inner, max_size=5) | st.dictionaries(st.text(), inner, max_size=5),
    max_leaves=25,
)


@pytest.mark.parametrize("vector", VECTORS["documents"], ids=lambda vector: vector["id"])
def test_documents_of_rfc_8785(vector: dict[str, str]) -> None:
    assert canonical_json(json.loads(vector["input"])).decode() == vector["canonical"]


@pytest.mark.parametrize("vector", VECTORS["numbers"], ids=lambda vector: vector["ieee"])
def test_numbers_of_rfc_8785_appendix_b(vector: dict[str, str]) -> None:
    (value,) = struct.unpack(">d", bytes.fromhex(vector["ieee"]))
    assert canonical_json(value).decode() == vector["canonical"]
    assert independent_jcs.number(value) == vector["canonical"]


@pytest.mark.parametrize("ieee", VECTORS["not_numbers"])
def test_what_is_not_a_number_has_no_form(ieee: str) -> None:
    (value,) = struct.unpack(">d", bytes.fromhex(ieee))
    with pytest.raises(CanonicalizationError):
        canonical_json(value)


@pytest.mark.parametrize("value", [2**53, -(2**53), "\ud800", {"\ud800": 1}])
def test_what_json_cannot_carry_has_no_form(value: Any) -> None:
    with pytest.raises(CanonicalizationError):
        canonical_json(value)


@given(JSON)
def test_any_json_has_the_form_that_a_second_implementation_gives_it(value: Any) -> None:
    assert canonical_json(value).decode("utf-8") == independent_jcs.canonicalize(value)


def test_the_worked_example_of_the_specification() -> None:
    example = VECTORS["a2a_8_4_1"]
    assert (
        canonicalize(json.loads(example["input"]), CardForm.SPEC).payload.decode()
        == (example["canonical"])
    )


def test_the_other_reading_adds_the_required_fields_that_are_absent() -> None:
    card = json.loads(VECTORS["a2a_8_4_1"]["input"])
    found = canonicalize(card, CardForm.SPEC_WITH_DEFAULTS)
    assert json.loads(found.payload) == {
        "capabilities": {"pushNotifications": False, "streaming": False},
        "defaultInputModes": [],
        "defaultOutputModes": [],
        "description": "",
        "name": "Example Agent",
        "skills": [],
        "supportedInterfaces": [],
        "version": "",
    }
    absent = {left.path for left in found.uncovered if left.gap is Gap.ABSENT}
    assert absent == {
        "/defaultInputModes",
        "/defaultOutputModes",
        "/supportedInterfaces",
        "/version",
    }


def test_a_required_message_or_map_that_is_absent_is_signed_as_an_empty_one() -> None:
    flows: dict[str, Any] = {"clientCredentials": {"tokenUrl": "https://a.example.com/token"}}
    schemes: dict[str, Any] = {
        "with": {"oauth2SecurityScheme": {"flows": flows}},
        "without": {"oauth2SecurityScheme": {"description": "d"}},
    }
    card: dict[str, Any] = {"name": "Example Agent", "securitySchemes": schemes}
    found = canonicalize(card, CardForm.SPEC_WITH_DEFAULTS)
    signed = json.loads(found.payload)
    assert signed["capabilities"] == {}
    assert signed["securitySchemes"] == {
        "with": {
            "oauth2SecurityScheme": {
                "flows": {
                    "clientCredentials": {"scopes": {}, "tokenUrl": "https://a.example.com/token"}
                }
            }
        },
        "without": {"oauth2SecurityScheme": {"description": "d", "flows": {}}},
    }
    absent = {left.path for left in found.uncovered if left.gap is Gap.ABSENT}
    assert "/capabilities" in absent
    assert "/securitySchemes/without/oauth2SecurityScheme/flows" in absent
    # What was signed with the defaults there is verified without them, and the other way round.
    entry = signature(found.payload, {"typ": "JOSE"})
    for served in (card, {**card, "capabilities": {}}):
        verdict = verify_card(as_bytes({**served, "signatures": [entry]}), TRUST, now=NOW)
        assert verdict.verified, verdict.reason
    changed = {**card, "capabilities": {"streaming": False}, "signatures": [entry]}
    assert not verify_card(as_bytes(changed), TRUST, now=NOW).verified


@pytest.mark.parametrize("message", sorted(PRESENCE.keys() - {"AgentCardSignature"}))
def test_the_table_says_what_the_protocol_definition_says(message: str) -> None:
    fields = {name: line for name, line in PRESENCE[message].items() if name != "signatures"}
    assert set(CARD_1_0[message]) == set(fields)
    for name, (type_, presence) in fields.items():
        field = CARD_1_0[message][name]
        assert field.container is _container(type_), name
        assert (field.message or "") == _message(type_), name
        assert (field.empty is False) == (type_ == "bool"), name
        if field.presence in WORDS:
            assert presence == WORDS[field.presence], name
        elif field.presence is Presence.ONEOF:
            assert presence.startswith("member of one-of"), name
        else:
            assert presence.startswith("dropped when"), name


def _container(type_: str) -> Container:
    return {"list ": Container.LIST, "map<s": Container.MAP}.get(type_[:5], Container.ONE)


def _message(type_: str) -> str:
    name = type_.removeprefix("list of ").removeprefix("map<string, ").removesuffix(">")
    return "" if name in ("string", "bool", "google.protobuf.Struct") else name


@pytest.mark.parametrize(
    ("card", "left"),
    [
        pytest.param({"name": "A"}, {}, id="nothing"),
        pytest.param({"iconUrl": ""}, {"/iconUrl": Gap.EMPTY}, id="an-empty-field"),
        pytest.param({"provider": {}}, {"/provider": Gap.EMPTY}, id="an-empty-message"),
        pytest.param(
            {"capabilities": {"extensions": []}}, {"/capabilities": Gap.EMPTY}, id="empty-inside"
        ),
        pytest.param({"xVendor": ""}, {"/xVendor": Gap.UNKNOWN}, id="unknown"),
        pytest.param({"url": "u"}, {"/url": Gap.CONTENT}, id="read-by-0.3"),
        pytest.param({"icon_url": "u"}, {"/icon_url": Gap.CONTENT}, id="proto-name"),
        pytest.param({"NAME": "n"}, {"/NAME": Gap.CONTENT}, id="other-case"),
        pytest.param({"authSchemes": []}, {"/authSchemes": Gap.CONTENT}, id="agentvault"),
        pytest.param(
            {"securityRequirements": [{"schemes": {"a": {"list": ["x"]}}}, {}]},
            {"/securityRequirements/1": Gap.CONTENT},
            id="no-security-as-an-alternative",
        ),
        pytest.param(
            {"securityRequirements": [{"schemes": {"a": {"list": ["x"]}, "b": {}}}]},
            {"/securityRequirements/0/schemes/b": Gap.CONTENT},
            id="a-scheme-without-scopes",
        ),
        pytest.param(
            {"securityRequirements": [{"a": []}]},
            {"/securityRequirements": Gap.CONTENT},
            id="a-requirement-of-0.3",
        ),
        pytest.param(
            {"securitySchemes": {"m": {"mtlsSecurityScheme": {}}}},
            {"/securitySchemes": Gap.CONTENT},
            id="mutual-tls",
        ),
        pytest.param(
            {"securitySchemes": {"o": {"oauth2SecurityScheme": {**D, "flows": {"implicit": {}}}}}},
            {"/securitySchemes/o/oauth2SecurityScheme/flows": Gap.CONTENT},
            id="a-choice",
        ),
        pytest.param(
            {
                "securitySchemes": {
                    "o": {"oauth2SecurityScheme": {**D, "flows": {"implicit": {"refreshUrl": ""}}}}
                }
            },
            {"/securitySchemes/o/oauth2SecurityScheme/flows": Gap.CONTENT},
            id="a-choice-of-empty-values",
        ),
        pytest.param(
            {"skills": [{"id": "s", "tags": ["t", ""]}]},
            {"/skills/0/tags/1": Gap.CONTENT},
            id="an-empty-element",
        ),
    ],
)
def test_the_sdk_form_says_what_it_leaves_out_and_what_that_means(
    card: dict[str, Any], left: dict[str, Gap]
) -> None:
    found = canonicalize(card, CardForm.SDK)
    assert {entry.path: entry.gap for entry in found.uncovered} == left


def test_an_integer_beyond_a_double_is_rounded_in_the_sdk_form_and_reported() -> None:
    card = load("cards_v10")["c19_params_big_int"]
    found = canonicalize(card, CardForm.SDK)
    assert b"12345678901234567000" in found.payload
    [left] = found.uncovered
    assert (left.path, left.gap) == ("/capabilities/extensions/0/params/id", Gap.CONTENT)


@pytest.mark.parametrize("form", CardForm)
def test_signatures_are_part_of_no_form(form: CardForm) -> None:
    card = load("cards_v10")["c01_minimal"]
    signed = {**card, "signatures": [{"protected": "a", "signature": "b"}]}
    assert canonicalize(signed, form) == canonicalize(card, form)


@pytest.mark.parametrize("form", UNMAPPED)
def test_values_of_the_wrong_type_are_kept_and_covered(form: CardForm) -> None:
    card: dict[str, Any] = {
        "name": 5,
        "skills": {"id": "s", "x": 1},
        "capabilities": [1],
        "provider": "x",
        "version": [{}, 1],
    }
    found = canonicalize(card, form)
    assert json.loads(found.payload)["name"] == 5
    assert json.loads(found.payload)["skills"] == {"id": "s", "x": 1}


@pytest.mark.parametrize("form", [CardForm.SPEC, CardForm.SDK])
@pytest.mark.parametrize(
    ("member", "default"), [("tenant", ""), ("required", False), ("examples", []), ("scopes", {})]
)
@pytest.mark.parametrize("value", ["", False, 0, 0.0, [], {}], ids=repr)
def test_only_the_default_of_its_own_type_means_the_same_as_no_field(
    form: CardForm, member: str, default: Any, value: Any
) -> None:
    # The JavaScript SDK reads {} as true where a boolean is expected, and false as "false".
    flow = {"tokenUrl": "https://a.example.com/token", "scopes": {"a": "b"}}
    card: dict[str, Any] = {
        "name": "A",
        "supportedInterfaces": [{"url": "https://a.example.com/"}],
        "capabilities": {"extensions": [{"uri": "https://a.example.com/e"}]},
        "skills": [{"id": "s", "examples": ["e"]}],
        "securitySchemes": {"s": {"oauth2SecurityScheme": {"flows": {"password": flow}}}},
    }
    at = {
        "tenant": card["supportedInterfaces"][0],
        "required": card["capabilities"]["extensions"][0],
        "examples": card["skills"][0],
        "scopes": flow,
    }[member]
    at.pop(member, None)
    without = canonicalize(card, form).payload
    at[member] = value
    same_type = type(value) is type(default)
    assert (canonicalize(card, form).payload == without) == same_type


SDKS = [form for form in CardForm if FORMS[form].hides]


@pytest.mark.parametrize("form", SDKS)
@pytest.mark.parametrize(
    ("message", "member", "means_absent"),
    [
        ("capabilities", "streaming", None),  # false was set: not the same as no member
        ("capabilities", "pushNotifications", None),
        ("provider", "url", ""),
        (None, "documentationUrl", ""),
        (None, "defaultInputModes", []),
        (None, "provider", {}),
    ],
)
def test_a_falsy_value_is_signed_by_sdks_unless_it_means_the_same_as_no_member(
    form: CardForm, message: str | None, member: str, means_absent: Any
) -> None:
    card: dict[str, Any] = {
        "name": "A",
        "url": "https://a.example.com/",
        "capabilities": {"extensions": [{"uri": "urn:x"}]},
        "provider": {"organization": "O"},
    }
    holder = card if message is None else card[message]
    holder.pop(member, None)
    signed = signature(canonicalize(card, form).payload, {"typ": "JOSE"})
    policy = CardPolicy(admit=frozenset(CardForm))
    falsy: tuple[Any, ...] = (None, False, 0, 0.0, "", [], {})
    for value in falsy:
        holder[member] = value
        served = as_bytes({**card, "signatures": [signed]})
        verdict = verify_card(served, TRUST, now=NOW, policy=policy)
        is_absent = value is None or (type(value) is type(means_absent) and value == means_absent)
        assert verdict.verified is is_absent, value
