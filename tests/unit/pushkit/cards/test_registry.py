"""Fetching cards through the guarded transport, and checking many of them."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from datetime import UTC, datetime
from typing import Any

import pytest
from aiohttp import web
from aiohttp.test_utils import TestServer

from pushkit.cards import (
    CARD_PATH,
    CardOutcome,
    CardPublisher,
    CardTrust,
    OriginTrust,
    TrustedKey,
    card_url,
    fetch_card,
    sign_card,
    verify_cards,
)
from pushkit.cards.document import MAX_CARD_BYTES
from pushkit.errors import (
    CardUnavailableError,
    ConfigError,
    DestinationRefusedError,
    TransportError,
)
from pushkit.integrations.aiohttp import card_routes
from pushkit.keys.jwk import Algorithm, generate_key
from pushkit.keys.jwks import jwks_document
from pushkit.keys.ring import KeyRing
from pushkit.net.destination import DestinationPolicy
from pushkit.net.transport import Transport
from tests.eventually import eventually
from tests.unit.pushkit.cards.vectors import KEY, SIGNING_KEY, load

CARD = load("cards_v10")["c21_spec_85_sample"]
NOW = datetime.now(UTC)
RING = KeyRing.create(NOW)


class Agents:
    """One server that is many agents' worth of cards, by path."""

    def __init__(self) -> None:
        self.at_once = self.most_at_once = 0
        self.server: TestServer
        self.jwks_fetched = 0
        good = sign_card(CARD, SIGNING_KEY, now=NOW).content
        self.bodies = {
            "/good": good,
            "/by-ring": sign_card(CARD, RING, now=NOW).content,
            "/tampered": good.replace(b"GeoSpatial", b"Evil"),
            "/unsigned": good.split(b',"signatures"')[0] + b"}",
            "/stranger": sign_card(CARD, generate_key(Algorithm.ES256), now=NOW).content,
            "/malformed": b"[1]",
            "/long": b'{"name":"' + b"a" * MAX_CARD_BYTES + b'"}',
            "/big": sign_card({**CARD, "description": "d" * 100_000}, SIGNING_KEY, now=NOW).content,
        }

    def connections(self) -> int:
        assert self.server.handler is not None
        return len(self.server.handler.connections)

    def url(self, path: str) -> str:
        return str(self.server.make_url(path))

    async def serve(self, request: web.Request) -> web.Response:
        self.at_once += 1
        self.most_at_once = max(self.at_once, self.most_at_once)
        await asyncio.sleep(0)
        self.at_once -= 1
        match request.path:
            case "/moved":
                return web.Response(status=302, headers={"Location": "/good"})
            case "/packed":
                return web.Response(body=self.bodies["/good"], headers={"Content-Encoding": "gzip"})
            case path if path in self.bodies:
                return web.Response(body=self.bodies[path], content_type="application/json")
        return web.Response(status=404)

    async def jwks(self, _request: web.Request) -> web.Response:
        self.jwks_fetched += 1
        return web.Response(body=jwks_document(RING, NOW))


@pytest.fixture
async def agents() -> AsyncIterator[Agents]:
    found = Agents()
    app = web.Application()
    app.router.add_get("/jwks.json", found.jwks)
    app.add_routes(card_routes(CardPublisher(CARD, RING)))
    app.router.add_get("/{path}", found.serve)
    found.server = TestServer(app)
    await found.server.start_server()
    yield found
    await found.server.close()


@pytest.fixture
async def transport() -> AsyncIterator[Transport]:
    found = Transport(DestinationPolicy(["127.0.0.1:*"]))
    yield found
    await found.close()


def trust_in(agents: Agents, transport: Transport) -> CardTrust:
    origin = OriginTrust(keys=(TrustedKey(key=KEY),), jwks_urls=(agents.url("/jwks.json"),))
    return CardTrust({agents.url("/"): origin}, transport=transport)


async def test_a_list_of_cards_is_checked_and_summed_up(
    agents: Agents, transport: Transport
) -> None:
    expected = {
        "/good": CardOutcome.VERIFIED,
        "/by-ring": CardOutcome.VERIFIED,
        "/big": CardOutcome.VERIFIED,
        "/": CardOutcome.VERIFIED,
        "/tampered": CardOutcome.REFUSED,
        "/stranger": CardOutcome.REFUSED,
        "/unsigned": CardOutcome.UNSIGNED,
        "/malformed": CardOutcome.FAILED,
        "/none": CardOutcome.FAILED,
        "/moved": CardOutcome.FAILED,
        "/packed": CardOutcome.FAILED,
        "/long": CardOutcome.FAILED,
    }
    urls = [agents.url(path) for path in expected]
    trust = trust_in(agents, transport)
    summary = await verify_cards(urls, trust, now=NOW)
    found = dict(zip(expected, (check.outcome for check in summary.checks), strict=True))
    assert found == expected, [check.reason for check in summary.checks]
    assert summary.counts[CardOutcome.FAILED] == 5
    assert summary.counts[CardOutcome.UNTRUSTED] == 0
    assert not summary.all_verified
    assert agents.most_at_once > 1
    assert agents.jwks_fetched in (1, 2)  # the second time for a key of the stranger alone
    await trust.close()


async def test_the_same_card_twice_is_checked_once(agents: Agents, transport: Transport) -> None:
    url = agents.url("/good")
    trust = trust_in(agents, transport)
    summary = await verify_cards([url, url], trust, now=NOW)
    assert [check.url for check in summary.checks] == [url]
    assert summary.all_verified


async def test_nothing_can_be_said_about_an_origin_that_nobody_trusts(
    agents: Agents, transport: Transport
) -> None:
    summary = await verify_cards([agents.url("/good")], CardTrust({}, transport=transport), now=NOW)
    [check] = summary.checks
    assert check.outcome is CardOutcome.UNTRUSTED
    assert not summary.all_verified


async def test_keys_that_cannot_be_had_are_a_failure_and_not_a_forgery(
    agents: Agents, transport: Transport
) -> None:
    origin = OriginTrust(jwks_urls=(agents.url("/none"),))
    trust = CardTrust({agents.url("/"): origin}, transport=transport)
    summary = await verify_cards([agents.url("/by-ring")], trust, now=NOW)
    [check] = summary.checks
    assert check.outcome is CardOutcome.FAILED
    assert "could not be fetched" in check.reason


async def test_no_card_is_no_success() -> None:
    transport = Transport(DestinationPolicy())
    summary = await verify_cards([], CardTrust({}, transport=transport), now=NOW)
    assert not summary.all_verified


async def test_an_open_trust_fetches_cards_and_keys_and_closes_what_it_opened(
    agents: Agents,
) -> None:
    origins = {agents.url("/"): OriginTrust(jwks_urls=(agents.url("/jwks.json"),))}
    async with CardTrust.open(origins) as trust:
        [check] = (await verify_cards([agents.url("/by-ring")], trust, now=NOW)).checks
        assert check.outcome is CardOutcome.VERIFIED, check.reason
        assert await fetch_card(trust.transport, agents.url("/good"))
        assert agents.connections()
    await eventually(lambda: not agents.connections())
    with pytest.raises(ConfigError, match=r"CardTrust\.open"):
        CardTrust(origins)
    with pytest.raises(ConfigError, match=r"CardTrust\.open"):
        await verify_cards([agents.url("/by-ring")], CardTrust({}), now=NOW)


@pytest.mark.parametrize(
    ("path", "reason"),
    [
        ("/moved", "redirects are not followed"),
        ("/none", "found 404"),
        ("/packed", "compressed"),
        ("/long", "longer than"),
    ],
)
async def test_an_answer_that_is_no_card(
    agents: Agents, transport: Transport, path: str, reason: str
) -> None:
    with pytest.raises(CardUnavailableError, match=reason):
        await fetch_card(transport, agents.url(path))


async def test_cards_are_fetched_from_public_hosts_alone(agents: Agents) -> None:
    strict = Transport(DestinationPolicy())
    with pytest.raises(DestinationRefusedError):
        await fetch_card(strict, agents.url("/good"))
    summary = await verify_cards(
        [agents.url("/good"), "https://[::1", "file:///etc/passwd", "https://169.254.169.254/"],
        CardTrust({}, transport=strict),
        now=NOW,
    )
    assert {check.outcome for check in summary.checks} == {CardOutcome.FAILED}
    await strict.close()


async def test_nobody_there(transport: Transport) -> None:
    with pytest.raises(TransportError):
        await fetch_card(transport, "http://127.0.0.1:9/card.json")


@pytest.mark.parametrize(
    ("url", "expected"),
    [
        ("https://a.example.com", f"https://a.example.com{CARD_PATH}"),
        ("https://a.example.com/", f"https://a.example.com{CARD_PATH}"),
        ("https://a.example.com:8443", f"https://a.example.com:8443{CARD_PATH}"),
        ("https://a.example.com/agents/1", "https://a.example.com/agents/1"),
        ("https://a.example.com/?id=1", "https://a.example.com/?id=1"),
        ("https://[::1", "https://[::1"),
    ],
)
def test_a_url_without_path_means_the_well_known_card(url: str, expected: Any) -> None:
    assert card_url(url) == expected
