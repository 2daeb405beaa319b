"""A key host that is down or hangs affects only its own sender, for a limited time."""

from __future__ import annotations

import asyncio
import json
from collections.abc import AsyncIterator
from dataclasses import dataclass, field
from datetime import timedelta
from typing import TYPE_CHECKING

import pytest
from aiohttp import web

from pushkit.keys.jwk import SigningKey, public_jwk
from receiver import SenderProfile
from tests.eventually import eventually
from tests.served import answering

if TYPE_CHECKING:
    from pytest_aiohttp.plugin import AiohttpServer

    from tests.unit.receiver.conftest import World, WorldFactory

HOUR = timedelta(hours=1)


@dataclass
class KeyHost:
    """Serves a JWK Set, hangs, or fails."""

    keys: list[SigningKey]
    url: str = ""
    fails: bool = False
    asked: int = 0
    hanging: int = 0
    answers: asyncio.Event = field(default_factory=asyncio.Event)

    async def serve(self, _request: web.Request) -> web.Response:
        self.asked += 1
        self.hanging += 1
        try:
            await self.answers.wait()
        finally:
            self.hanging -= 1
        if self.fails:
            return web.Response(status=500)
        document = {"keys": [public_jwk(key) for key in self.keys]}
        headers = {"Cache-Control": "max-age=300"}
        return web.Response(text=json.dumps(document), headers=headers)

    async def was_asked(self) -> bool:
        return self.asked > 0


@pytest.fixture
async def hosts(aiohttp_server: AiohttpServer, world: World) -> AsyncIterator[list[KeyHost]]:
    """Two of them, the first with the key of the trusted sender."""
    hosts = [KeyHost([world.draft().key]), KeyHost([])]
    for host in hosts:
        host.answers.set()
        server = await aiohttp_server(answering(host.serve))
        host.url = str(server.make_url("/jwks.json"))
    yield hosts
    for host in hosts:
        host.answers.set()


def fetching(make_world: WorldFactory, host: KeyHost, **sender: object) -> World:
    return make_world({"allow": ["127.0.0.1:*"]}, keys=None, jwks_url=host.url, **sender)


async def test_every_senders_keys_are_fetched_at_the_start_at_once(
    make_world: WorldFactory, hosts: list[KeyHost]
) -> None:
    for host in hosts:
        host.answers.clear()
    world = fetching(make_world, hosts[0])
    world.options["more_senders"] = [
        fetching(make_world, hosts[1], name="other", issuer="https://other.example.com").sender
    ]
    await world.start()  # waits for none of them
    for host in hosts:
        await eventually(host.was_asked)


async def test_a_due_set_is_answered_from_at_once_while_its_host_hangs(
    make_world: WorldFactory, hosts: list[KeyHost]
) -> None:
    world = fetching(make_world, hosts[0])
    assert (await world.receive(world.draft(1))).status == 202
    hosts[0].answers.clear()
    world.clock.advance(301)
    for number in range(2, 6):
        assert (await world.receive(world.draft(number))).status == 202

    await eventually(lambda: hosts[0].asked == 2)


@pytest.mark.parametrize(
    ("stale_for", "good", "over"),
    [
        pytest.param(None, 300 + 3599, 1, id="an hour by default"),
        pytest.param(timedelta(minutes=5), 300 + 299, 1, id="as configured"),
        pytest.param(timedelta(0), 299, 1, id="none"),
    ],
)
async def test_keys_count_for_so_long_while_they_cannot_be_fetched(
    make_world: WorldFactory,
    hosts: list[KeyHost],
    *,
    stale_for: timedelta | None,
    good: float,
    over: float,
) -> None:
    options = {} if stale_for is None else {"stale_for": stale_for}
    world = fetching(make_world, hosts[0], **options)
    assert (await world.receive(world.draft(1))).status == 202
    hosts[0].fails = True
    world.clock.advance(good)
    assert (await world.receive(world.draft(2))).status == 202
    world.clock.advance(over)
    verdict = await world.receive(world.draft(3))
    assert (verdict.status, verdict.code) == (503, "keys_unavailable")
    assert "Retry-After" in dict(verdict.headers)


async def test_a_sender_whose_key_host_hangs_does_not_delay_others_at_its_path(
    make_world: WorldFactory, hosts: list[KeyHost]
) -> None:
    """Senders without an issuer: the keys at hand are tried first."""
    legacy = {"profile": SenderProfile.A2A_SAMPLES, "issuer": None}
    world = fetching(make_world, hosts[0], **legacy)
    hanging = fetching(make_world, hosts[1], name="hanging", **legacy).sender
    world.options["more_senders"] = [hanging]
    hosts[1].answers.clear()
    await world.start()
    await eventually(hosts[1].was_asked)
    verdict = await world.receive(world.draft())
    assert verdict.status == 202
    assert hosts[1].hanging == 1


async def test_keys_that_are_only_being_fetched_are_no_fault(
    make_world: WorldFactory, hosts: list[KeyHost]
) -> None:
    """It would be an alert at every start, and readiness would wait for a sender's keys."""
    hosts[0].answers.clear()
    world = fetching(make_world, hosts[0])
    await world.start()
    await eventually(hosts[0].was_asked)
    assert await world.receiver.unready() == {}
    assert world.receiver.degraded() == {}


async def test_keys_that_have_ended_are_a_fault_once_they_cannot_be_fetched(
    make_world: WorldFactory, hosts: list[KeyHost]
) -> None:
    world = fetching(make_world, hosts[0], stale_for=timedelta(0))
    assert (await world.receive(world.draft(1))).status == 202
    world.clock.advance(301)
    assert world.receiver.degraded() == {}  # nobody has asked for them since
    hosts[0].fails = True
    assert (await world.receive(world.draft(2))).status == 503
    assert "older than may be trusted" in world.receiver.degraded()["keys"]
