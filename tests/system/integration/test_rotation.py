"""Keys change under traffic, faster than receivers fetch them, and no notification is refused."""

from __future__ import annotations

import asyncio
import contextlib
import itertools
from collections.abc import AsyncIterator, Iterator
from dataclasses import dataclass, field
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import TYPE_CHECKING

import aiohttp
import pytest
from aiohttp import web

from pushkit import (
    DeliveryState,
    KeyRing,
    PushSender,
    StatusUpdate,
    TaskState,
    TaskStatus,
    load_key_ring,
    save_key_ring,
)
from pushkit.integrations.aiohttp import jwks_route
from pushkit.keys.files import update_key_ring
from pushkit.keys.jwks import JWKS_PATH
from pushkit.keys.ring import KeyState
from receiver import Notification, Receiver, TaskPolicy, TrustedSender
from receiver.testing import SigningAgent
from tests.eventually import eventually

if TYPE_CHECKING:
    from pytest_aiohttp.plugin import AiohttpServer

ISSUER = "https://agent.example.com"
TOKEN = "a-token-that-does-not-rotate"
TASK = "task-1"

MAX_AGE = timedelta(seconds=1)
LEAD = timedelta(seconds=2)  # and what writing a key file may take on a slow disk
ROTATIONS = 10
BETWEEN_ROTATIONS = timedelta(milliseconds=100)


@dataclass
class House:
    """A sender with a key file, and a receiver that fetches its keys over HTTP."""

    keys: Path
    push: PushSender
    webhook: str
    called: list[Notification] = field(default_factory=list)
    sent: int = 0
    stopped: bool = False

    async def notify(self) -> None:
        """Send one update of the one task."""
        await self.push.notify(working())
        self.sent += 1

    async def traffic(self) -> None:
        """Send updates until told to stop; one that is cancelled may be stored all the same."""
        while not self.stopped:
            await self.notify()
            await asyncio.sleep(0.02)

    def change_keys(self, *, revoke: str | None = None) -> KeyRing:
        """Rotate, or revoke a key, as another process would."""
        now = datetime.now(UTC)
        return update_key_ring(
            self.keys,
            lambda ring: ring.revoke(revoke, now) if revoke else ring.add(now).rotate(now),
        )

    async def all_called(self) -> bool:
        """Say whether every update that was sent has been called back."""
        return len(self.called) >= self.sent


def working() -> StatusUpdate:
    return StatusUpdate(
        task_id=TASK, context_id="context-1", status=TaskStatus(state=TaskState.WORKING)
    )


@pytest.fixture
async def house(
    tmp_path: Path, aiohttp_server: AiohttpServer, unused_tcp_port: int
) -> AsyncIterator[House]:
    keys = tmp_path / "keys.json"
    ring = KeyRing.create(datetime.now(UTC), max_age=MAX_AGE, activation_lead=LEAD)
    save_key_ring(keys, ring)
    push = PushSender(
        issuer=ISSUER, keys=keys, database=tmp_path / "outbox.db", allow=["127.0.0.1:*"]
    )
    url = f"http://127.0.0.1:{unused_tcp_port}"
    house = House(keys=keys, push=push, webhook=f"{url}/a2a/push")

    published = web.Application()
    published.add_routes([jwks_route(push)])
    server = await aiohttp_server(published)
    receiver = Receiver(
        url=url,
        senders=[
            TrustedSender(
                name="agent",
                issuer=ISSUER,
                jwks_url=str(server.make_url(JWKS_PATH)),
                tokens=[TOKEN],
                tasks=TaskPolicy.ANY,
            )
        ],
        database=tmp_path / "inbox.db",
        allow=["127.0.0.1:*"],
    )

    @receiver.on_update()
    async def called(notification: Notification) -> None:
        house.called.append(notification)

    await aiohttp_server(receiver.app(), port=unused_tcp_port)
    async with push:
        await push.subscribe(TASK, {"url": house.webhook, "token": TOKEN}, version="1.0")
        yield house


@contextlib.asynccontextmanager
async def traffic(house: House) -> AsyncIterator[None]:
    """Keep updates flowing while the block runs."""
    house.stopped = False
    flowing = asyncio.create_task(house.traffic())
    try:
        yield
    finally:
        house.stopped = True
        await flowing


def count_in(state: KeyState, ring: KeyRing) -> int:
    now = datetime.now(UTC)
    return sum(ring.state(entry.kid, now) is state for entry in ring.keys)


async def test_many_rotations_under_traffic_lose_nothing(house: House) -> None:
    pending = []
    async with traffic(house):
        for _ in range(ROTATIONS):
            ring = await asyncio.to_thread(house.change_keys)
            pending.append(count_in(KeyState.PENDING, ring))
            await asyncio.sleep(BETWEEN_ROTATIONS.total_seconds())
        last = ring.keys[-1].kid

        await eventually(lambda: any(notification.kid == last for notification in house.called))
    await eventually(house.all_called)

    async def all_settled() -> bool:  # a callback may be quicker than the sender's own note of it
        found = await house.push.deliveries(TASK)
        return all(row.state is not DeliveryState.IN_FLIGHT for row in found)

    await eventually(all_settled)

    assert max(pending) >= 5
    rows = await house.push.deliveries(TASK)
    assert len(rows) == house.sent
    assert {(row.state, row.attempts, row.last_status) for row in rows} == {("delivered", 1, 202)}
    assert [notification.seq for notification in house.called] == list(range(1, house.sent + 1))
    assert len({notification.kid for notification in house.called}) > ROTATIONS // 2


@dataclass
class Thief:
    """Goes on signing with a key that it has a copy of, whatever its state."""

    agent: SigningAgent
    session: aiohttp.ClientSession
    numbers: Iterator[int] = field(default_factory=lambda: itertools.count(1))

    async def status(self) -> int:
        """Send one notification, and return what it was answered."""
        request = self.agent.draft(TASK, next(self.numbers)).request()
        async with self.session.post(
            request.target, data=request.body, headers=list(request.headers)
        ) as answer:
            return answer.status

    async def is_refused(self) -> bool:
        """Send one notification, and say whether its key is trusted no longer."""
        return await self.status() == 401


@pytest.fixture
async def thief(house: House) -> AsyncIterator[Thief]:
    key = load_key_ring(house.keys).signing_key(datetime.now(UTC))
    agent = SigningAgent(webhook_url=house.webhook, issuer=ISSUER, token=TOKEN, key=key)
    async with aiohttp.ClientSession() as session:
        yield Thief(agent=agent, session=session)


async def test_revoking_the_active_key_under_traffic_loses_nothing(
    house: House, thief: Thief
) -> None:
    async with traffic(house):
        assert await thief.status() == 202
        await asyncio.to_thread(house.change_keys, revoke=thief.agent.key.kid)
        await eventually(thief.is_refused)
        successor = load_key_ring(house.keys).signing_key(datetime.now(UTC))

        await eventually(
            lambda: any(notification.kid == successor.kid for notification in house.called)
        )
        assert await thief.is_refused()
    assert successor.kid != thief.agent.key.kid
