"""Cards with members of A2A 0.2 and 0.3, as a2a-sdk's real client and server treat them."""

from __future__ import annotations

import json
from typing import Any

import httpx
import pytest
from a2a.client.card_resolver import A2ACardResolver
from a2a.client.errors import AgentCardResolutionError
from a2a.server.request_handlers.response_helpers import agent_card_to_dict
from a2a.types import AgentCard
from a2a.utils.signing import (
    InvalidSignaturesError,
    ProtectedHeader,
    create_agent_card_signer,
    create_signature_verifier,
)
from google.protobuf.json_format import ParseDict

from pushkit.cards import EVERY_SDK, CardForm, Coverage, Gap, canonicalize, sign_card, verify_card
from pushkit.errors import CanonicalizationError
from pushkit.keys.jwk import public_pem, signing_key_to_pem
from tests.unit.pushkit.cards.vectors import KEY, NOW, SIGNING_KEY, TRUST, as_bytes, load

CARDS: dict[str, Any] = {**load("cards_older"), **load("cards_v03")}
USUAL: dict[str, Any] = CARDS["0.3: all usual members"]
NEW: dict[str, Any] = {
    "name": "Agent",
    "description": "d",
    "version": "1",
    "capabilities": {"streaming": True},
    "supportedInterfaces": [
        {"url": "https://a.example.com/", "protocolBinding": "JSONRPC", "protocolVersion": "1.0"}
    ],
    "defaultInputModes": ["text/plain"],
    "defaultOutputModes": ["text/plain"],
    "skills": [{"id": "s", "name": "S", "description": "d", "tags": ["t"]}],
}
FLOW = {
    "authorizationUrl": "https://a.example.com/a",
    "tokenUrl": "https://a.example.com/t",
    "scopes": {"read": "r"},
}


async def resolve(content: bytes) -> AgentCard:
    """Fetch and verify a card as a client of the SDK does."""
    pem = public_pem(KEY)
    verifier = create_signature_verifier(lambda _kid, _jku: pem, algorithms=["ES256"])
    transport = httpx.MockTransport(lambda _: httpx.Response(200, content=content))
    async with httpx.AsyncClient(transport=transport) as client:
        resolver = A2ACardResolver(client, "https://a.example.com")
        return await resolver.get_agent_card(signature_verifier=verifier)


@pytest.mark.parametrize("card", CARDS.values(), ids=CARDS)
async def test_the_client_of_the_sdk_accepts_a_card_signed_for_every_sdk(
    card: dict[str, Any],
) -> None:
    signed = sign_card(card, SIGNING_KEY, EVERY_SDK, now=NOW)
    await resolve(signed.content)
    with pytest.raises(InvalidSignaturesError):
        await resolve(as_bytes({**signed.card, "name": "Evil"}))
    assert verify_card(signed.content, TRUST, now=NOW).verified


@pytest.mark.parametrize(
    "members",
    [
        pytest.param(
            {
                "security": [{"k": ["old"]}],
                "securityRequirements": [{"schemes": {"k": {"list": ["new"]}}}],
            },
            id="requirements-of-both",
        ),
        pytest.param(
            {
                "supportsAuthenticatedExtendedCard": True,
                "capabilities": {"extendedAgentCard": False},
            },
            id="capabilities-of-both",
        ),
        pytest.param({"securitySchemes": {"k": {"type": "apiKey", "name": "X"}}}, id="no-in"),
    ],
)
async def test_where_a_card_says_both_the_client_reads_what_1_0_says(
    members: dict[str, Any],
) -> None:
    signed = sign_card({**NEW, **members}, SIGNING_KEY, EVERY_SDK, now=NOW)
    await resolve(signed.content)


@pytest.mark.parametrize(
    "members",
    [
        {"supportedInterfaces": [{"url": "https://a", "protocolVersion": 3}, "x"]},
        {"securitySchemes": {"k": {"oauth2SecurityScheme": {"flows": {"implicit": 5}}}, "m": 1}},
        {"securityRequirements": ["x"], "skills": ["x"]},
    ],
    ids=str,
)
def test_what_a_copy_cannot_be_made_of_is_no_copy(members: dict[str, Any]) -> None:
    card = {**NEW, **members, "url": "https://a", "security": [{"k": []}]}
    found = canonicalize(card, CardForm.SPEC).uncovered
    assert {left.path for left in found if left.gap is Gap.CONTENT} >= {"/url", "/security"}


def test_a_requirement_without_scopes_has_its_copy_too() -> None:
    card = {**NEW, "securityRequirements": [{"schemes": {"k": {}}}], "security": [{"k": []}]}
    [left] = canonicalize(card, CardForm.SPEC).uncovered
    assert (left.path, left.gap) == ("/security", Gap.COPIED)


def test_a_card_that_says_no_version_is_signed_as_one_of_1_0() -> None:
    assert sign_card({"name": "A"}, SIGNING_KEY, now=NOW).forms == ("spec", "sdk")


async def test_a_member_that_only_looks_like_one_of_the_proto_file_is_signed_for_every_sdk() -> (
    None
):
    signed = sign_card({**NEW, "x_vendor": 1, "_": 2}, SIGNING_KEY, EVERY_SDK, now=NOW)
    await resolve(signed.content)


def test_what_the_client_of_the_sdk_reads_is_signed_byte_for_byte() -> None:
    found = json.loads(canonicalize(USUAL, CardForm.PYTHON_CLIENT).payload)
    assert found["supportedInterfaces"] == [
        {"url": USUAL["url"], "protocolBinding": "GRPC", "protocolVersion": "0.2.6"}
    ]
    assert found["securityRequirements"] == [{"schemes": {"k": {"list": ["read"]}}}]
    assert found["capabilities"]["extendedAgentCard"] is True
    assert not found.keys() & {"url", "security", "supportsAuthenticatedExtendedCard"}


@pytest.mark.parametrize(
    ("member", "reason"),
    [
        pytest.param({"supported_interfaces": []}, "reads '/supported_interfaces' as", id="proto"),
        pytest.param({"skills": None}, "/skills is null", id="null-where-it-loops"),
        pytest.param(
            {"capabilities": None, "supportsAuthenticatedExtendedCard": True},
            "/capabilities is null",
            id="null",
        ),
        pytest.param(
            {
                "securitySchemes": {
                    "k": {"type": "oauth2", "flows": {"authorizationCode": FLOW, "implicit": FLOW}}
                }
            },
            "/securitySchemes/k/oauth2SecurityScheme/flows: found authorizationCode and implicit",
            id="two-flows",
        ),
        pytest.param(
            {"security": [{"k": "read"}]}, "list: found a string, expected an array", id="scopes"
        ),
    ],
)
async def test_a_card_that_the_client_of_the_sdk_cannot_read_is_refused_for_every_sdk(
    member: dict[str, Any], reason: str
) -> None:
    card = {**NEW, **member}
    with pytest.raises(CanonicalizationError, match=reason):
        sign_card(card, SIGNING_KEY, EVERY_SDK, now=NOW)
    signed = sign_card(card, SIGNING_KEY, now=NOW)
    assert any("not signed for a2a-sdk" in told for told in signed.warnings)
    with pytest.raises((AgentCardResolutionError, InvalidSignaturesError)):
        await resolve(signed.content)


# --- what a2a-sdk's server adds ------------------------------------------------------------------

SERVED: dict[str, Any] = {
    **NEW,
    "capabilities": {"streaming": True, "extendedAgentCard": True},
    "supportedInterfaces": [
        *NEW["supportedInterfaces"],
        {"url": "https://a.example.com/g", "protocolBinding": "GRPC", "protocolVersion": "0.3"},
        {"url": "https://a.example.com/h", "protocolBinding": "HTTP+JSON", "protocolVersion": ""},
    ],
    "securitySchemes": {
        "key": {"apiKeySecurityScheme": {"location": "header", "name": "X"}},
        "http": {"httpAuthSecurityScheme": {"scheme": "Bearer", "description": "d"}},
        "oauth": {
            "oauth2SecurityScheme": {
                "flows": {"authorizationCode": {**FLOW, "pkceRequired": True}},
                "oauth2MetadataUrl": "https://a",
            }
        },
        "client": {
            "oauth2SecurityScheme": {
                "flows": {"clientCredentials": {"tokenUrl": "https://a", "scopes": {}}}
            }
        },
        "oidc": {"openIdConnectSecurityScheme": {"openIdConnectUrl": "https://a"}},
        "mtls": {"mtlsSecurityScheme": {"description": "d"}},
    },
    "securityRequirements": [{"schemes": {"key": {"list": ["x"]}, "oauth": {"list": ["read"]}}}],
    "skills": [
        {
            **NEW["skills"][0],
            "securityRequirements": [{"schemes": {"http": {"list": ["x"]}}}],
        }
    ],
}


def served_by_the_sdk(card: dict[str, Any]) -> dict[str, Any]:
    """Sign, and serve, as an agent of a2a-sdk does."""
    header = ProtectedHeader(alg="ES256", kid="key-1", jku=None, typ="JOSE")
    signer = create_agent_card_signer(signing_key_to_pem(SIGNING_KEY), header)
    return agent_card_to_dict(signer(ParseDict(card, AgentCard())))


TOP_LEVEL = (
    "url",
    "preferredTransport",
    "protocolVersion",
    "additionalInterfaces",
    "security",
    "supportsAuthenticatedExtendedCard",
)


def places(card: dict[str, Any]) -> dict[str, tuple[dict[str, Any], str]]:
    """Return each older member by its path: the object that has it, and its name."""
    found = {f"/{name}": (card, name) for name in TOP_LEVEL}
    found["/skills/0/security"] = (card["skills"][0], "security")
    for name, scheme in card["securitySchemes"].items():
        members = [member for member in scheme if not member.endswith("Scheme")]
        found |= {f"/securitySchemes/{name}/{member}": (scheme, member) for member in members}
    return found


PLACES = sorted(places(served_by_the_sdk(SERVED)))  # the order of protobuf's maps is random


def test_a_card_that_the_sdk_serves_for_0_3_too_is_verified() -> None:
    card = served_by_the_sdk(SERVED)
    assert len(PLACES) == 22
    verdict = verify_card(as_bytes(card), TRUST, now=NOW)
    assert verdict.verified, verdict.reason
    assert {left.path for left in verdict.uncovered if left.gap is Gap.COPIED} == set(PLACES)
    assert all(row.coverage is Coverage.WHOLE for row in verdict.fields if row.path in PLACES)
    # A card that pushkit signed, and such an agent serves.
    signed = ParseDict(sign_card(SERVED, SIGNING_KEY, now=NOW).card, AgentCard())
    assert verify_card(as_bytes(agent_card_to_dict(signed)), TRUST, now=NOW).verified


@pytest.mark.parametrize("path", PLACES)
@pytest.mark.parametrize(
    "value", ["https://evil.example.com/", None, [], [{"evil": []}], 1, False, {}], ids=repr
)
def test_a_forged_copy_is_refused_and_named(path: str, value: Any) -> None:
    card = served_by_the_sdk(SERVED)
    holder, name = places(card)[path]
    holder[name] = value
    verdict = verify_card(as_bytes(card), TRUST, now=NOW)
    assert not verdict.verified
    assert path in verdict.reason


@pytest.mark.parametrize("path", [path for path in PLACES if path != "/url"])
def test_a_copy_that_was_removed_beside_others_is_refused_and_named(path: str) -> None:
    card = served_by_the_sdk(SERVED)
    holder, name = places(card)[path]
    del holder[name]
    verdict = verify_card(as_bytes(card), TRUST, now=NOW)
    assert not verdict.verified
    assert path in verdict.reason


def test_without_an_interface_for_0_3_no_url_is_a_copy() -> None:
    card = {**SERVED, "supportedInterfaces": NEW["supportedInterfaces"]}
    signed = sign_card(card, SIGNING_KEY, now=NOW).card
    url = NEW["supportedInterfaces"][0]["url"]
    assert not verify_card(as_bytes({**signed, "url": url}), TRUST, now=NOW).verified
