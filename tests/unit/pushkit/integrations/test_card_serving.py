"""The signed card over HTTP, from aiohttp and from ASGI."""

from __future__ import annotations

import asyncio
import json
from collections.abc import AsyncIterator, Awaitable, Callable
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import httpx
import pytest
from a2a.client import A2ACardResolver
from a2a.utils.signing import InvalidSignaturesError, create_signature_verifier
from aiohttp import web
from aiohttp.test_utils import TestServer
from starlette.applications import Starlette
from starlette.routing import Route

from pushkit.cards import CARD_PATH, LEGACY_CARD_PATH, CardPublisher, TrustedKeys, verify_card
from pushkit.integrations.aiohttp import card_routes
from pushkit.integrations.asgi import CardApp
from pushkit.keys.files import save_key_ring, update_key_ring
from pushkit.keys.jwk import Algorithm, generate_key, public_pem
from pushkit.keys.ring import KeyRing
from tests.asgi_server import answers_to_a_websocket, serving
from tests.unit.pushkit.cards.vectors import load

CARD = load("cards_v10")["c21_spec_85_sample"]
OLD_CARD = load("cards_v03")["v07_sec"]


@dataclass(frozen=True)
class Agent:
    """An agent that serves its card, and the file with its keys."""

    client: httpx.AsyncClient
    key_file: Path

    async def get(self, path: str = CARD_PATH, **headers: str) -> httpx.Response:
        return await self.client.get(path, headers=headers)

    def trust(self, ring: KeyRing) -> TrustedKeys:
        keys = (entry.key.to_verification_key() for entry in ring.published(datetime.now(UTC)))
        return TrustedKeys.pinned(*keys)


@pytest.fixture(params=["aiohttp", "asgi"])
async def agent(request: pytest.FixtureRequest, tmp_path: Path) -> AsyncIterator[Agent]:
    key_file = tmp_path / "keys.json"
    save_key_ring(key_file, KeyRing.create(datetime.now(UTC) - timedelta(days=1)))
    publisher = CardPublisher(CARD, key_file)
    legacy = CardPublisher(OLD_CARD, key_file, forms=("raw", "python-0.3"))
    if request.param == "aiohttp":
        app = web.Application()
        app.add_routes(card_routes(publisher, legacy))
        server = TestServer(app)
        await server.start_server()
        async with httpx.AsyncClient(base_url=str(server.make_url("/"))) as client:
            yield Agent(client, key_file)
        await server.close()
    else:
        starlette = Starlette(
            routes=[
                Route(CARD_PATH, CardApp(publisher)),
                Route(LEGACY_CARD_PATH, CardApp(legacy)),
            ]
        )
        transport = httpx.ASGITransport(app=starlette)
        async with httpx.AsyncClient(transport=transport, base_url="http://agent") as client:
            yield Agent(client, key_file)


async def test_the_card_is_served_signed(agent: Agent) -> None:
    answer = await agent.get()
    assert answer.status_code == 200
    assert answer.headers["content-type"] == "application/json"
    assert answer.headers["cache-control"] == "public, max-age=300"
    ring = update_key_ring(agent.key_file, lambda ring: ring)
    assert verify_card(answer.content, agent.trust(ring), now=datetime.now(UTC)).verified


async def test_a_client_of_the_sdk_takes_the_card(agent: Agent) -> None:
    await agent.get()
    ring = update_key_ring(agent.key_file, lambda ring: ring)
    pem = public_pem(ring.signing_key(datetime.now(UTC)))
    verifier = create_signature_verifier(lambda _kid, _jku: pem, algorithms=["ES256"])
    resolver = A2ACardResolver(agent.client, base_url="")
    card = await resolver.get_agent_card(signature_verifier=verifier)
    assert card.name == CARD["name"]
    other = public_pem(generate_key(Algorithm.ES256))
    stranger = create_signature_verifier(lambda _kid, _jku: other, algorithms=["ES256"])
    with pytest.raises(InvalidSignaturesError):
        await resolver.get_agent_card(signature_verifier=stranger)


async def test_a_client_that_has_it_already_gets_304(agent: Agent) -> None:
    first = await agent.get()
    again = await agent.get(**{"If-None-Match": first.headers["etag"]})
    assert (again.status_code, again.content) == (304, b"")
    assert (await agent.get(**{"If-None-Match": '"other"'})).status_code == 200


async def test_a_rotation_signs_the_card_anew(agent: Agent) -> None:
    first = await agent.get()
    now = datetime.now(UTC)
    ring = update_key_ring(
        agent.key_file, lambda ring: ring.rotate(now, activate_now=True, force=True)
    )
    second = await agent.get(**{"If-None-Match": first.headers["etag"]})
    assert second.status_code == 200
    assert second.headers["etag"] != first.headers["etag"]
    for answer in (first, second):  # the former key is still published
        assert verify_card(answer.content, agent.trust(ring), now=now).verified


async def test_older_clients_get_their_own_card(agent: Agent) -> None:
    answer = await agent.get(LEGACY_CARD_PATH)
    assert answer.json()["url"] == OLD_CARD["url"]
    ring = update_key_ring(agent.key_file, lambda ring: ring)
    verdict = verify_card(answer.content, agent.trust(ring), now=datetime.now(UTC))
    assert verdict.verified
    assert len(verdict.signatures) == 2


async def test_head_has_no_body_and_nothing_else_is_served(agent: Agent) -> None:
    head = await agent.client.head(CARD_PATH)
    assert (head.status_code, head.content) == (200, b"")
    assert "etag" in head.headers
    assert (await agent.client.post(CARD_PATH)).status_code == 405


async def test_without_a_legacy_card_both_paths_serve_the_same(
    aiohttp_client: Callable[..., Awaitable[Any]],
) -> None:
    app = web.Application()
    app.add_routes(card_routes(CardPublisher(CARD, KeyRing.create(datetime.now(UTC)))))
    client = await aiohttp_client(app)
    one, two = [await (await client.get(p)).read() for p in (CARD_PATH, LEGACY_CARD_PATH)]
    assert one == two


async def test_a_card_that_cannot_be_signed_is_a_503_and_one_line_of_the_log(
    agent: Agent, caplog: pytest.LogCaptureFixture
) -> None:
    later = datetime.now(UTC) + timedelta(days=1)
    save_key_ring(agent.key_file, KeyRing.create(later))
    for _ in range(20):
        answer = await agent.get()
        assert (answer.status_code, answer.content) == (503, b"")
        assert answer.headers["Retry-After"] == "10"
    assert "Cache-Control" not in answer.headers
    [line] = [each.getMessage() for each in caplog.records if each.name.startswith("pushkit")]
    assert "the agent card cannot be served: no ES256 key is active" in line


async def test_an_http_1_0_client_gets_the_card_without_chunks(tmp_path: Path) -> None:
    save_key_ring(tmp_path / "keys.json", KeyRing.create(datetime.now(UTC)))
    async with serving(CardApp(CardPublisher(CARD, tmp_path / "keys.json"))) as url:
        reader, writer = await asyncio.open_connection("127.0.0.1", int(url.rpartition(":")[2]))
        writer.write(b"GET / HTTP/1.0\r\n\r\n")
        head, _, body = (await reader.read()).partition(b"\r\n\r\n")
        writer.close()
        await writer.wait_closed()
    assert b"chunked" not in head.lower()
    assert json.loads(body)["signatures"]


async def test_a_websocket_is_closed(tmp_path: Path) -> None:
    save_key_ring(tmp_path / "keys.json", KeyRing.create(datetime.now(UTC)))
    app = CardApp(CardPublisher(CARD, tmp_path / "keys.json"))
    assert await answers_to_a_websocket(app) == [{"type": "websocket.close", "code": 1000}]
