"""The agent's card as the gateway serves it."""

from __future__ import annotations

import json
from collections.abc import Callable
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from pushkit.bounded_json import JsonObject
from pushkit.cards.origins import CardTrust
from pushkit.cards.signing import sign_card
from pushkit.cards.trust import OriginTrust, TrustedKeys
from pushkit.cards.verify import verify_card
from pushkit.errors import CardUnavailableError
from pushkit.gateway.card import CardRewriter, facts_of
from pushkit.gateway.options import GatewayOptions
from pushkit.keys.jwks import jwks_document, jwks_response
from pushkit.keys.ring import KeyRing
from pushkit.net.connection import HttpAnswer
from pushkit.url import Url
from pushkit.webhook import Headers
from tests.unit.pushkit.gateway.agent import ScriptedAgent
from tests.unit.pushkit.gateway.conftest import Start

PUBLIC = "https://agent.example.com"


def rewriter(upstream: str = "http://agent:8000", *extensions: JsonObject) -> CardRewriter:
    return CardRewriter(
        upstream=Url.parse(upstream),
        public_url=PUBLIC,
        ring=no_keys,
        trust=None,
        extensions=extensions,
    )


async def changed(text: str, upstream: str = "http://agent:8000") -> str:
    return (await rewriter(upstream).rewritten(text.encode())).decode()


async def test_only_what_names_the_agent_changes() -> None:
    card = (
        '{ "name":"a",  "url" : "http://agent:8000/a2a","x": 1.50, "capabilities":'
        '{"streaming":true, "pushNotifications" :false},\n'
        '  "iconUrl":"http://agent:8000/i.png", "documentationUrl":"https://docs.example.com/",'
        '"description":"see http://agent:8000/ or \\u00e9" }'
    )
    expected = (
        card.replace('"http://agent:8000/a2a"', f'"{PUBLIC}/a2a"')
        .replace('"http://agent:8000/i.png"', f'"{PUBLIC}/i.png"')
        .replace(":false", ":true")
    )
    assert await changed(card) == expected


async def test_the_name_that_the_agent_has_for_itself_is_replaced_too() -> None:
    card = '{"url":"http://localhost:9999/","capabilities":{"streaming":true}}'
    expected = f'{{"url":"{PUBLIC}/","capabilities":{{"pushNotifications":true,"streaming":true}}}}'
    assert await changed(card) == expected


@pytest.mark.parametrize(
    ("card", "expected"),
    [
        ('{"capabilities":{}}', '{"capabilities":{"pushNotifications":true}}'),
        ('{"name":"a"}', '{"capabilities":{"pushNotifications":true},"name":"a"}'),
        ('{"capabilities":null}', '{"capabilities":{"pushNotifications":true}}'),
    ],
)
async def test_a_card_that_says_nothing_of_push_says_it(card: str, expected: str) -> None:
    assert await changed(card) == expected


async def test_the_base_path_of_the_agent_is_not_the_gateways() -> None:
    card = '{"url":"http://agent:8000/base/rpc","capabilities":{"pushNotifications":true}}'
    found = await changed(card, "http://agent:8000/base")
    assert json.loads(found)["url"] == f"{PUBLIC}/rpc"


@pytest.mark.parametrize(
    "order", [("GRPC", "JSONRPC"), ("JSONRPC", "GRPC"), ("JSONRPC", "GRPC", "HTTP+JSON")]
)
async def test_an_interface_that_the_gateway_does_not_speak_is_left_out(
    order: tuple[str, ...],
) -> None:
    interfaces = [{"url": f"http://agent:8000/{n}", "protocolBinding": n} for n in order]
    card = json.dumps({"supportedInterfaces": interfaces, "capabilities": {}}, indent=2)
    found = json.loads(await changed(card))["supportedInterfaces"]
    spoken = [name for name in order if name != "GRPC"]
    assert [each["protocolBinding"] for each in found] == spoken
    assert all(each["url"].startswith(PUBLIC) for each in found)


def test_a_card_of_grpc_alone_is_refused() -> None:
    card = b'{"supportedInterfaces":[{"url":"http://a/","protocolBinding":"GRPC"}]}'
    with pytest.raises(CardUnavailableError, match="does not speak gRPC"):
        facts_of(card, "")


@pytest.mark.parametrize("body", [b"[]", b"{", b'{"a":1,"a":2}', b"\xff"])
async def test_what_is_no_card_is_refused(body: bytes) -> None:
    with pytest.raises(CardUnavailableError):
        await rewriter().rewritten(body)


_TEXTS = st.text(max_size=8)
_VALUES = st.recursive(
    st.none()
    | st.booleans()
    | st.integers()
    | st.floats(allow_nan=False, allow_infinity=False)
    | _TEXTS,
    lambda inner: st.lists(inner, max_size=4) | st.dictionaries(_TEXTS, inner, max_size=4),
    max_leaves=12,
)


@given(
    st.dictionaries(_TEXTS, _VALUES, max_size=4),
    st.sampled_from([None, 0, 1, 4]),
    st.booleans(),
)
def test_every_value_stays_where_it_is(
    card: dict[str, Any], indent: int | None, ascii_only: bool
) -> None:
    text = json.dumps(card | {"capabilities": card}, indent=indent, ensure_ascii=ascii_only)
    whole = json.loads(text)
    found = json.loads(rewriter().changed(text, whole))
    capabilities = card | {"pushNotifications": True}
    assert found == card | {"capabilities": capabilities}


# --- signed cards -------------------------------------------------------------------------------


@pytest.fixture
def signed(monkeypatch: pytest.MonkeyPatch) -> Callable[[], KeyRing]:
    """Make agents sign their cards; return their keys."""
    ring = KeyRing.create(datetime.now(UTC))
    plain: property = vars(ScriptedAgent)["card"]

    def card(self: ScriptedAgent) -> Any:
        whole = {
            **plain.__get__(self),
            "description": "d",
            "version": "1",
            "defaultInputModes": ["text"],
            "defaultOutputModes": ["text"],
        }
        return sign_card(whole, ring, now=datetime.now(UTC)).card

    monkeypatch.setattr(ScriptedAgent, "card", property(card))
    return lambda: ring


@pytest.mark.usefixtures("signed")
async def test_a_signed_card_without_trust_stops_the_start(start: Start) -> None:
    with pytest.raises(CardUnavailableError, match="give --trust"):
        async with start():
            pass


@pytest.mark.parametrize("right", [True, False])
async def test_a_signed_card_is_verified_and_signed_anew(
    start: Start,
    agent: ScriptedAgent,
    tmp_path: Path,
    ring: KeyRing,
    signed: Callable[[], KeyRing],
    *,
    right: bool,
) -> None:
    theirs = signed() if right else KeyRing.create(datetime.now(UTC))
    jwks = tmp_path / "jwks.json"
    jwks.write_bytes(jwks_response(theirs, datetime.now(UTC)).body)
    trust = tmp_path / "trust.toml"
    trust.write_text(f'[[origins."{agent.origin}".keys]]\nfile = "jwks.json"\n')
    options = GatewayOptions(shared_configs=True, trust=trust)
    if not right:
        with pytest.raises(CardUnavailableError, match="no signature counts"):
            async with start(options):
                pass
        return
    async with start(options) as front:
        async with front.client.get(f"{front.origin}/.well-known/agent-card.json") as answer:
            body = await answer.read()
        card = json.loads(body)
        assert card["url"].startswith(PUBLIC)
        assert card["capabilities"]["pushNotifications"] is True
        assert is_by(ring, body)


NOW = datetime.now(UTC)


def signer(
    ours: Callable[[], KeyRing],
    theirs: Callable[[], KeyRing],
    clock: Callable[[], datetime] = lambda: NOW,
) -> CardRewriter:
    async def fetch(_url: str, _etag: str | None) -> HttpAnswer:
        return HttpAnswer(status=200, headers=Headers(), body=jwks_document(theirs(), NOW))

    trust = OriginTrust(jwks_urls=("http://agent:8000/jwks.json",))
    return CardRewriter(
        upstream=Url.parse("http://agent:8000"),
        public_url=PUBLIC,
        ring=ours,
        trust=CardTrust({"http://agent:8000": trust}, fetch=fetch, clock=clock),
    )


def signed_by(ring: KeyRing) -> bytes:
    return sign_card({"name": "a", "url": "http://agent:8000/"}, ring, now=NOW).content


async def test_a_signed_card_follows_the_keys_of_both_sides() -> None:
    ours, theirs, now = KeyRing.create(NOW), KeyRing.create(NOW), NOW
    cards, card = signer(lambda: ours, lambda: theirs, lambda: now), signed_by(theirs)
    assert is_by(ours, await cards.rewritten(card))

    ours = ours.revoke(ours.signing_key(NOW).kid, NOW)
    assert is_by(ours, await cards.rewritten(card))

    theirs = theirs.revoke(theirs.signing_key(NOW).kid, NOW)
    now += theirs.max_age
    with pytest.raises(CardUnavailableError, match="no signature counts"):
        await cards.rewritten(card)


async def test_a_new_key_of_the_agent_is_fetched_when_its_card_names_it() -> None:
    ours, theirs = KeyRing.create(NOW), KeyRing.create(NOW)
    cards = signer(lambda: ours, lambda: theirs)
    assert is_by(ours, await cards.rewritten(signed_by(theirs)))
    theirs = KeyRing.create(NOW)
    assert is_by(ours, await cards.rewritten(signed_by(theirs)))


async def test_a_signed_card_that_cannot_be_read_is_one_that_cannot_be_served() -> None:
    with pytest.raises(CardUnavailableError, match="the agent's card: `signatures`: expected a l"):
        await signer(no_keys, no_keys).rewritten(b'{"name":"a","signatures":{"a":1}}')


def is_by(ring: KeyRing, card: bytes) -> bool:
    now = datetime.now(UTC)
    trusted = TrustedKeys.pinned(ring.signing_key(now).to_verification_key())
    return verify_card(card, trusted, now=now).verified


_INTERFACES = [
    {"url": "http://a/", "protocolBinding": "JSONRPC", "protocolVersion": "1.0"},
    {"url": "http://a/", "protocolBinding": "JSONRPC", "protocolVersion": "0.3"},
    {"url": "http://a/", "protocolBinding": "GRPC"},
]


def no_keys() -> KeyRing:
    raise AssertionError


@pytest.mark.parametrize(
    ("card", "expected"),
    [
        ('{"a":1}', '{"capabilities":{"pushNotifications":true,NEW},"a":1}'),
        ("{}", '{"capabilities":{"pushNotifications":true,NEW}}'),
        (
            '{"capabilities":{"pushNotifications":false}}',
            '{"capabilities":{NEW,"pushNotifications":true}}',
        ),
        (
            '{"capabilities":{"extensions": [ {"u":1}],"pushNotifications":true}}',
            '{"capabilities":{"extensions": [{"u":2}, {"u":1}],"pushNotifications":true}}',
        ),
        (
            '{"capabilities":{"extensions":[],"pushNotifications":true}}',
            '{"capabilities":{NEW,"pushNotifications":true}}',
        ),
        (
            '{"capabilities":{"extensions":null,"pushNotifications":true}}',
            '{"capabilities":{NEW,"pushNotifications":true}}',
        ),
    ],
)
async def test_the_gateways_extensions_stand_beside_the_agents(card: str, expected: str) -> None:
    found = (await rewriter("http://agent:8000", {"u": 2}).rewritten(card.encode())).decode()
    assert found == expected.replace("NEW", '"extensions":[{"u":2}]')


@pytest.mark.parametrize(
    ("card", "versions"),
    [
        ('{"url":"http://a/"}', ("0.3",)),
        ('{"url":"http://a/","protocolVersion":"0.2.6"}', ("0.3",)),
        ('{"url":"http://a/","protocolVersion":"9"}', ()),
        (json.dumps({"supportedInterfaces": _INTERFACES}), ("1.0", "0.3")),
    ],
)
def test_the_versions_of_an_agent_are_those_of_its_card(
    card: str, versions: tuple[str, ...]
) -> None:
    assert facts_of(card.encode(), "").versions == versions
