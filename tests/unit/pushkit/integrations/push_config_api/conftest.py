"""The API over a real outbox, behind both of its adapters."""

from __future__ import annotations

import json
from collections.abc import AsyncIterator, Mapping
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import Any, Literal

import grpc
import httpx
import pytest
from a2a.compat.v0_3 import a2a_v0_3_pb2_grpc
from a2a.types import a2a_pb2_grpc
from aiohttp import web
from pytest_aiohttp.plugin import AiohttpServer
from starlette.applications import Starlette
from starlette.routing import Mount

from pushkit import KeyRing, PushSender, SenderOptions
from pushkit.clock import utc_now
from pushkit.integrations.push_config_api import (
    Caller,
    PushConfigApi,
    PushConfigAsgi,
    push_config_app,
)
from pushkit.integrations.push_config_api.grpc import PushConfigServicer, PushConfigServicerV03
from tests.unit.pushkit.delivery.conftest import clock, outbox, senders, webhook

__all__ = ["clock", "outbox", "senders", "webhook"]  # fixtures of the sender's tests

MAX_CONFIGS = 7


@cache
def key_ring() -> KeyRing:
    return KeyRing.create(utc_now())


@pytest.fixture
async def sender(tmp_path: Path) -> AsyncIterator[PushSender]:
    sender = PushSender(
        issuer="https://agent.example.com",
        keys=key_ring(),
        database=tmp_path / "outbox.db",
        options=SenderOptions(max_configs_per_task=MAX_CONFIGS),
    )
    await sender.open()
    yield sender
    await sender.close()


def task_exists(caller: Caller, task_id: str) -> bool:
    """Tell of tasks that are the caller's: theirs, or of a tenant that they work for."""
    if caller.tenant not in ("", "acme"):
        return False
    return task_id.startswith("task") or task_id.endswith(f"of/{caller.owner}")


@pytest.fixture
def api(sender: PushSender) -> PushConfigApi:
    return PushConfigApi(sender, task_exists=task_exists)


@dataclass
class Server:
    """The URL of the API, and a client that is logged in as alice."""

    url: str
    http: httpx.AsyncClient
    # Starlette's Mount answers without its slash by a redirect.
    json_rpc_path: str = ""

    async def call(
        self, method: str, params: object = None, *, user: str | None = "alice", **headers: str
    ) -> Any:
        request = {"jsonrpc": "2.0", "id": 1, "method": method, "params": params}
        answer = await self.post(json.dumps(request).encode(), user=user, **headers)
        assert answer.status_code == 200
        assert answer.headers["Content-Type"] == "application/json"
        document = answer.json()
        assert (document["jsonrpc"], document["id"]) == ("2.0", 1)
        return document

    async def post(
        self, body: bytes, path: str = "", *, user: str | None = "alice", **headers: str
    ) -> httpx.Response:
        return await self.request("POST", path, content=body, user=user, **headers)

    async def request(
        self,
        method: str,
        path: str,
        *,
        content: bytes = b"",
        user: str | None = "alice",
        **more: str,
    ) -> httpx.Response:
        headers = {"Content-Type": "application/json"} if method == "POST" else {}
        headers |= {name.replace("_", "-"): value for name, value in more.items()}
        headers |= {"X-User": user} if user else {}
        return await self.http.request(
            method, self.url + (path or self.json_rpc_path), content=content, headers=headers
        )


Kind = Literal["aiohttp", "asgi"]


async def serve(api: PushConfigApi, kind: Kind, aiohttp_server: AiohttpServer) -> Server:
    if kind == "aiohttp":
        app = web.Application()
        app.add_subapp("/a2a", push_config_app(api, owner=lambda r: r.headers.get("X-User")))
        running = await aiohttp_server(app)
        # Plain HTTP: to read the system's roots takes longer than most tests.
        http = httpx.AsyncClient(trust_env=False, verify=False)  # noqa: S501
        return Server(f"http://127.0.0.1:{running.port}/a2a", http)

    async def owner(scope: Mapping[str, Any]) -> str | None:
        return dict(scope["headers"]).get(b"x-user", b"").decode() or None

    app_ = Starlette(routes=[Mount("/a2a", PushConfigAsgi(api, owner=owner))])
    transport = httpx.ASGITransport(app=app_)
    return Server("http://agent.example.com/a2a", httpx.AsyncClient(transport=transport), "/")


@pytest.fixture(params=["aiohttp", "asgi"])
async def server(
    request: pytest.FixtureRequest, api: PushConfigApi, aiohttp_server: AiohttpServer
) -> AsyncIterator[Server]:
    server = await serve(api, request.param, aiohttp_server)
    yield server
    await server.http.aclose()


@pytest.fixture(params=["aiohttp", "asgi"])
async def server_without_push(
    request: pytest.FixtureRequest, aiohttp_server: AiohttpServer
) -> AsyncIterator[Server]:
    api = PushConfigApi(None, task_exists=None)
    server = await serve(api, request.param, aiohttp_server)
    yield server
    await server.http.aclose()


# --- over gRPC ------------------------------------------------------------------------------------


def owner_of_call(context: Any) -> str | None:
    named = dict(context.invocation_metadata()).get("x-user", "alice")
    return str(named) or None


async def serve_grpc(api: PushConfigApi) -> tuple[Any, str]:
    server = grpc.aio.server()
    a2a_pb2_grpc.add_A2AServiceServicer_to_server(
        PushConfigServicer(api, owner=owner_of_call), server
    )
    a2a_v0_3_pb2_grpc.add_A2AServiceServicer_to_server(
        PushConfigServicerV03(api, owner=owner_of_call), server
    )
    port = server.add_insecure_port("127.0.0.1:0")
    await server.start()
    return server, f"127.0.0.1:{port}"


@pytest.fixture
async def address(api: PushConfigApi) -> AsyncIterator[str]:
    server, address = await serve_grpc(api)
    yield address
    await server.stop(None)


@pytest.fixture
async def channel(address: str) -> AsyncIterator[Any]:
    async with grpc.aio.insecure_channel(address) as channel:
        yield channel
