"""Both sides of pushkit, against other people's implementations on loopback."""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import pytest
from aiohttp import web
from pytest_aiohttp.plugin import AiohttpServer

from pushkit import PushSender
from pushkit.keys.jwks import JWKS_PATH
from receiver import Notification, Receiver, SenderProfile, TaskPolicy, TrustedSender
from tests.eventually import DEADLINE, eventually


@pytest.fixture(autouse=True)
def no_proxy(monkeypatch: pytest.MonkeyPatch) -> None:
    """Keep urllib, which PyJWKClient fetches with, from a proxy of the environment."""
    monkeypatch.setenv("NO_PROXY", "127.0.0.1")
    monkeypatch.setenv("no_proxy", "127.0.0.1")


async def attempted(push: PushSender, task_id: str) -> None:
    """Wait until every delivery of a task has been attempted and settled."""

    async def settled() -> bool:
        return all(row.last_status for row in await push.deliveries(task_id))

    await eventually(settled)


@dataclass
class OurSide:
    """Our receiver, and what it called back."""

    url: str
    receiver: Receiver
    called: list[Notification] = field(default_factory=list)

    async def settled(self, task_id: str) -> list[Notification]:
        """Return what was called back, once nothing of it is due any more."""
        await self.receiver.wait(task_id, timeout=DEADLINE)
        for _ in range(3):
            await self.receiver.dispatcher.run_once()
        return self.called


MakeReceiver = Callable[[SenderProfile, dict[str, Any]], Awaitable[OurSide]]


@pytest.fixture
async def receive_from(
    tmp_path: Path, aiohttp_server: AiohttpServer, unused_tcp_port: int
) -> MakeReceiver:
    """Start our receiver, which trusts one sender of a legacy profile by its served keys."""

    async def make(profile: SenderProfile, jwks: dict[str, Any]) -> OurSide:
        published = web.Application()

        async def serve_keys(_request: web.Request) -> web.Response:
            return web.json_response(jwks)

        published.router.add_get(JWKS_PATH, serve_keys)
        keys = await aiohttp_server(published)
        url = f"http://127.0.0.1:{unused_tcp_port}"
        trusted = TrustedSender(
            name="legacy",
            jwks_url=str(keys.make_url(JWKS_PATH)),
            profile=profile,
            tasks=TaskPolicy.ANY,
            token_required=False,
        )
        receiver = Receiver(
            url=url, senders=[trusted], database=tmp_path / "inbox.db", allow=["127.0.0.1:*"]
        )
        ours = OurSide(url=f"{url}{trusted.path}", receiver=receiver)

        @receiver.on_update()
        async def called(notification: Notification) -> None:
            ours.called.append(notification)

        await aiohttp_server(receiver.app(), port=unused_tcp_port)
        return ours

    return make
