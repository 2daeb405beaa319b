"""A gateway in front of a scripted agent."""

from __future__ import annotations

import asyncio
import json
from collections.abc import AsyncIterator, Callable
from contextlib import AbstractAsyncContextManager, asynccontextmanager
from dataclasses import dataclass, replace
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import aiohttp
import pytest
from aiohttp import web
from multidict import CIMultiDict

from pushkit import PushSender, SenderOptions
from pushkit.gateway.options import GatewayOptions
from pushkit.gateway.service import Service
from pushkit.keys.ring import KeyRing
from pushkit.secrets.sealing import SecretKeys
from tests.unit.pushkit.gateway.agent import ScriptedAgent

HOOK = "https://client.example.com/a2a"
V1_0 = {"A2A-Version": "1.0"}
SHARED = GatewayOptions(shared_configs=True)


@dataclass
class Front:
    """A gateway that serves, with its client and its outbox."""

    agent: ScriptedAgent
    sender: PushSender
    service: Service
    origin: str
    client: aiohttp.ClientSession

    def post(
        self, method: str, params: dict[str, Any], *headers: tuple[str, str], path: str = "/"
    ) -> AbstractAsyncContextManager[aiohttp.ClientResponse]:
        """Call a method of JSON-RPC, and begin to read the answer."""
        body = {"jsonrpc": "2.0", "id": 7, "method": method, "params": params}
        version = {} if "/" in method else V1_0
        fields = CIMultiDict([*version.items(), *headers])
        return self.client.post(f"{self.origin}{path}", json=body, headers=fields)

    async def rpc(self, method: str, params: dict[str, Any], *headers: tuple[str, str]) -> Any:
        """Call a method; return the answer."""
        async with self.post(method, params, *headers) as answer:
            return json.loads(await answer.read() or b"null")

    async def rest(self, method: str, path: str, body: Any = None) -> tuple[int, Any]:
        """Make a request of HTTP+JSON; return status and answer."""
        async with self.client.request(
            method, f"{self.origin}/rest{path}", json=body, headers=V1_0
        ) as answer:
            return answer.status, json.loads(await answer.read() or b"null")

    async def send(self, *headers: tuple[str, str], **more: Any) -> Any:
        """Send a message of 1.0 with a config; return the task of the early answer."""
        answer = await self.rpc("SendMessage", message(**more), *headers)
        return answer["result"]["task"]

    async def send_0_3(self, *, task_id: str | None = None, early: bool = True) -> str:
        """Send a message of 0.3 with a config; return the id of its task."""
        said = {"kind": "message", "messageId": "m", "role": "user", "parts": []}
        named = {} if task_id is None else {"taskId": task_id}
        config = {"pushNotificationConfig": {"url": HOOK}} | ({"blocking": False} if early else {})
        params = {"message": said | named, "configuration": config}
        task_id = (await self.rpc("message/send", params))["result"]["id"]
        assert isinstance(task_id, str)
        return task_id

    async def set_0_3(self, task_id: str, *headers: tuple[str, str]) -> None:
        """Set a config of a task in 0.3, with the id `old`."""
        config = {"taskId": task_id, "pushNotificationConfig": {"url": HOOK, "id": "old"}}
        await self.rpc("tasks/pushNotificationConfig/set", config, *headers)

    async def told(self, task_id: str, count: int = 0, *, config_id: str = "") -> list[Any]:
        """What webhooks of a task are told, as soon as that many updates are stored."""
        async with asyncio.timeout(20):
            while True:
                stored = await self.sender.deliveries(task_id)
                found = [each for each in stored if config_id in ("", each.config_id)]
                if len(found) >= count:
                    return [json.loads(each.body) for each in found]
                await asyncio.sleep(0.02)

    async def is_told(self, task_id: str, state: str) -> bool:
        """Whether webhooks of a task are told of a state."""
        stored = await self.sender.deliveries(task_id)
        return any(state.encode() in each.body for each in stored)

    async def told_of_end(self, task_id: str) -> list[str]:
        """The configs whose webhooks are told that a task is completed, once for each time."""
        stored = await self.sender.deliveries(task_id)
        return sorted(each.config_id for each in stored if b"COMPLETED" in each.body)

    async def answers(self, status: int, method: str, path: str = "", **how: Any) -> bool:
        """Whether a request is answered with a status."""
        async with self.client.request(method, f"{self.origin}{path}", **how) as answer:
            return answer.status == status


def message(
    *, task_id: str | None = None, early: bool = True, config: bool = True, **more: Any
) -> dict[str, Any]:
    """The params of a message of A2A 1.0."""
    configuration: dict[str, Any] = {"returnImmediately": early} if early else {}
    if config:
        configuration["taskPushNotificationConfig"] = {"url": HOOK, "id": "c1"}
    said = {"messageId": "m", "role": "ROLE_USER", "parts": [{"text": "hi"}]}
    if task_id is not None:
        said["taskId"] = task_id
    return {"message": said, "configuration": configuration, **more}


def config_of(task_id: str) -> dict[str, Any]:
    """A config of A2A 1.0."""
    return {"taskId": task_id, "url": HOOK, "id": "c1", "token": "a-secret-token"}


def bearer(token: str) -> tuple[str, str]:
    """The header field of a caller with a token."""
    return "Authorization", f"Bearer {token}"


@pytest.fixture
def ring() -> KeyRing:
    return KeyRing.create(datetime.now(UTC))


@pytest.fixture
async def agent() -> AsyncIterator[ScriptedAgent]:
    async with ScriptedAgent().served() as agent:
        yield agent


@asynccontextmanager
async def gateway(
    agent: ScriptedAgent,
    database: str | Path,
    ring: KeyRing,
    options: GatewayOptions = SHARED,
    *,
    secrets: SecretKeys | None = None,
    sending: SenderOptions | None = None,
) -> AsyncIterator[Front]:
    """Serve a gateway, whose deliveries stay in the outbox."""
    sender = PushSender(
        issuer="https://agent.example.com",
        keys=ring,
        database=database,
        secrets=secrets,
        options=sending,
    )
    service = Service(
        agent.origin,
        sender=sender,
        ring=lambda: ring,
        public_url="https://agent.example.com",
        options=options,
    )
    await sender.open()
    try:
        await service.open()
        async with service.serving() as server, aiohttp.ClientSession() as client:
            runner = web.ServerRunner(server, shutdown_timeout=0.1)
            await runner.setup()
            await web.TCPSite(runner, "127.0.0.1", 0).start()
            origin = f"http://127.0.0.1:{runner.addresses[0][1]}"
            try:
                yield Front(agent, sender, service, origin, client)
            finally:
                await runner.cleanup()
    finally:
        await sender.close()


Start = Callable[..., AbstractAsyncContextManager[Front]]


@pytest.fixture
def start(agent: ScriptedAgent, tmp_path: Path, ring: KeyRing) -> Start:
    """Serve gateways with an outbox in a file, in front of the agent or another one."""

    def start(
        options: GatewayOptions = SHARED, *, before: ScriptedAgent = agent, **changed: Any
    ) -> Any:
        return gateway(before, tmp_path / "outbox.db", ring, replace(options, **changed))

    return start


@pytest.fixture
async def front(agent: ScriptedAgent, location: str, ring: KeyRing) -> AsyncIterator[Front]:
    async with gateway(agent, location, ring) as served:
        yield served
