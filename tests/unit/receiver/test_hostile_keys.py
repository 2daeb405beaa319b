"""JWK Sets that are down, slow, broken or hostile, and what a genuine notification is answered."""

from __future__ import annotations

import asyncio
import gzip
import json
from collections.abc import AsyncIterator, Awaitable, Callable
from dataclasses import dataclass, field, replace
from datetime import timedelta
from typing import TYPE_CHECKING

import pytest
from aiohttp import web
from aiohttp.test_utils import TestServer
from pytest_aiohttp.plugin import AiohttpServer

from pushkit.bounded_json import JsonObject
from pushkit.keys.jwk import Algorithm, SigningKey, generate_key, public_jwk
from pushkit.net import jwks_client
from tests.served import answering

if TYPE_CHECKING:
    from tests.unit.receiver.conftest import World, WorldFactory

OTHER = generate_key(Algorithm.ES256)
RSA = generate_key(Algorithm.RS256)
SIZE = 100 * 2**20


@dataclass
class Publisher:
    """Serves the JWK Set of a sender; a test says how. As it stands it serves it well."""

    key: SigningKey
    answer: Callable[[Publisher, web.Request], Awaitable[web.StreamResponse]] | None = None
    sent: int = 0
    requests: int = 0
    end: asyncio.Event = field(default_factory=asyncio.Event)

    async def serve(self, request: web.Request) -> web.StreamResponse:
        self.requests += 1
        if self.answer is not None:
            return await self.answer(self, request)
        return keys(public_jwk(self.key))


def keys(*members: JsonObject) -> web.Response:
    return web.json_response({"keys": list(members)})


async def redirected(publisher: Publisher, _request: web.Request) -> web.StreamResponse:
    publisher.answer = None  # whoever follows gets the genuine set
    raise web.HTTPFound("/jwks.json")


async def slow(publisher: Publisher, request: web.Request) -> web.StreamResponse:
    response = web.StreamResponse()
    await response.prepare(request)
    await response.write(b'{"keys": [')
    await publisher.end.wait()
    return response


async def huge(publisher: Publisher, request: web.Request) -> web.StreamResponse:
    response = web.StreamResponse()
    await response.prepare(request)
    while publisher.sent < SIZE:
        await response.write(b" " * 2**16)
        publisher.sent += 2**16
    await response.write(json.dumps({"keys": [public_jwk(publisher.key)]}).encode())
    return response


async def compressed(publisher: Publisher, _request: web.Request) -> web.StreamResponse:
    body = gzip.compress(json.dumps({"keys": [public_jwk(publisher.key)]}).encode())
    return web.Response(body=body, headers={"Content-Encoding": "gzip"})


def text(body: str, status: int = 200) -> Callable[..., Awaitable[web.StreamResponse]]:
    async def answer(_publisher: Publisher, _request: web.Request) -> web.StreamResponse:
        return web.Response(text=body, status=status)

    return answer


def members(
    make: Callable[[SigningKey], list[JsonObject]],
) -> Callable[..., Awaitable[web.StreamResponse]]:
    async def answer(publisher: Publisher, _request: web.Request) -> web.StreamResponse:
        return keys(*make(publisher.key))

    return answer


def private(key: SigningKey) -> JsonObject:
    return public_jwk(key) | {"d": "dGhpcy1pcy1wcml2YXRl"}


@pytest.fixture
async def publisher(world: World) -> AsyncIterator[Publisher]:
    publisher = Publisher(key=world.draft().key)
    yield publisher
    publisher.end.set()


@pytest.fixture
async def server(publisher: Publisher, aiohttp_server: AiohttpServer) -> TestServer:
    return await aiohttp_server(answering(publisher.serve))


@pytest.fixture
def fetching(make_world: WorldFactory, server: TestServer) -> World:
    """A receiver that fetches its sender's keys."""
    url = str(server.make_url("/jwks.json"))
    return make_world({"allow": ["127.0.0.1:*"]}, keys=None, jwks_url=url)


async def test_a_good_set_is_accepted(fetching: World) -> None:
    assert (await fetching.post(fetching.draft())).status == 202


# A set that could not be had says nothing about the signature: come again.
UNAVAILABLE = [
    pytest.param(text("no", 500), id="an-error"),
    pytest.param(text("gone", 404), id="not-found"),
    pytest.param(redirected, id="redirecting"),
    pytest.param(slow, id="slow"),
    pytest.param(huge, id="100-MB"),
    pytest.param(compressed, id="compressed"),
    pytest.param(text("<html>"), id="not-json"),
    pytest.param(text("[]"), id="no-object"),
    pytest.param(text('{"keys": {}}'), id="no-array"),
    pytest.param(text('{"keys": ' + "[" * 20_000), id="deep"),
    pytest.param(members(lambda key: [public_jwk(key)] * 33), id="33-keys"),
]
# A set that was had, and has no such key.
NOT_IN_IT = [
    pytest.param(members(lambda _: []), id="empty"),
    pytest.param(members(lambda _: [public_jwk(OTHER)]), id="another-key"),
    pytest.param(members(lambda key: [private(key)]), id="a-private-key"),
    pytest.param(
        members(lambda key: [public_jwk(key), public_jwk(OTHER) | {"kid": key.kid}]),
        id="two-keys-of-one-kid",
    ),
    pytest.param(
        members(lambda key: [{"kty": "oct", "k": "c2VjcmV0", "kid": key.kid}]), id="symmetric"
    ),
    pytest.param(
        members(lambda key: [public_jwk(key) | {"use": "enc"}]), id="a-key-for-encryption"
    ),
    pytest.param(
        members(lambda key: [public_jwk(key) | {"alg": "ES384"}]), id="an-alg-that-contradicts"
    ),
]
# A set with another key under that name.
ANOTHER_KEY = [
    pytest.param(members(lambda key: [public_jwk(OTHER) | {"kid": key.kid}]), id="of-its-type"),
    pytest.param(members(lambda key: [public_jwk(RSA) | {"kid": key.kid}]), id="of-another-type"),
]


@pytest.mark.parametrize("answer", UNAVAILABLE)
async def test_a_set_that_cannot_be_had_is_to_come_again(
    fetching: World,
    publisher: Publisher,
    monkeypatch: pytest.MonkeyPatch,
    answer: Callable[..., Awaitable[web.StreamResponse]],
) -> None:
    monkeypatch.setattr(jwks_client, "_FETCH_TIMEOUT", timedelta(seconds=0.5))
    publisher.answer = answer

    refused = await fetching.post(fetching.draft())

    assert (refused.status, refused.code) == (503, "keys_unavailable")
    assert refused.headers["Retry-After"] == "5"
    assert publisher.requests == 1
    assert publisher.sent < SIZE / 2
    assert not any(fetching.rows().values())


async def test_a_set_that_comes_back_is_used(fetching: World, publisher: Publisher) -> None:
    publisher.answer = text("no", 500)
    refused = await fetching.receive(fetching.draft())
    publisher.answer = None
    fetching.clock.advance(5)

    accepted = await fetching.receive(fetching.draft())

    assert [refused.status, accepted.status] == [503, 202]


@pytest.mark.parametrize("answer", [*NOT_IN_IT, *ANOTHER_KEY])
async def test_a_set_without_the_senders_key_refuses_it(
    fetching: World, publisher: Publisher, answer: Callable[..., Awaitable[web.StreamResponse]]
) -> None:
    publisher.answer = answer

    refused = await fetching.post(fetching.draft())

    assert (refused.status, refused.code) == (401, "invalid_signature")
    assert not any(fetching.rows().values())


async def test_unknown_kids_of_strangers_do_not_hammer_the_publisher(
    fetching: World, publisher: Publisher
) -> None:
    await fetching.receive(fetching.draft())

    for number in range(50):
        draft = replace(fetching.draft(number), header={"kid": f"unknown-{number}"})
        assert (await fetching.receive(draft)).status == 401

    assert publisher.requests == 2


async def test_a_private_key_beside_the_public_one_takes_nothing_away(
    fetching: World, publisher: Publisher, caplog: pytest.LogCaptureFixture
) -> None:
    publisher.answer = members(lambda key: [public_jwk(key), private(OTHER)])

    assert (await fetching.post(fetching.draft())).status == 202
    assert f"left out: {OTHER.kid} (" in caplog.text
    assert str(private(OTHER)["d"]) not in caplog.text
