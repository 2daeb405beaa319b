"""The API over a real outbox, behind both of its adapters."""

from __future__ import annotations

import contextlib
import json
from collections.abc import AsyncIterator, Mapping
from dataclasses import dataclass
from typing import Any

import grpc
import httpx
import pytest
from a2a.compat.v0_3 import a2a_v0_3_pb2_grpc
from a2a.types import a2a_pb2_grpc
from aiohttp import web
from pytest_aiohttp.plugin import AiohttpServer
from starlette.applications import Starlette
from starlette.routing import Mount

from pushkit import Filter, PushSender
from pushkit.integrations.push_config_api import (
    Caller,
    PushConfigApi,
    PushConfigAsgi,
    push_config_app,
)
from pushkit.integrations.push_config_api.grpc import PushConfigServicer, PushConfigServicerV03
from tests.unit.pushkit.delivery.conftest import clock, outbox, senders, webhook

__all__ = ["clock", "outbox", "senders", "webhook"]  # fixtures of the sender's tests


@pytest.fixture
def sender(push: PushSender) -> PushSender:
    return push


def task_exists(caller: Caller, task_id: str) -> bool:
    """Tell of tasks that are the caller's: theirs, or of a tenant that they work for."""
    if caller.tenant not in ("", "acme"):
        return False
    return task_id.startswith("task") or task_id.endswith(f"of/{caller.owner}")


@pytest.fixture
def chosen_filter() -> Filter:
    """Return the filter of all clients."""
    return Filter()


@pytest.fixture
def api(sender: PushSender, chosen_filter: Filter) -> PushConfigApi:
    return PushConfigApi(sender, task_exists=task_exists, filter=chosen_filter)


without_push = pytest.mark.parametrize("api", [PushConfigApi(None, task_exists=None)])


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


@pytest.fixture(params=["aiohttp", "asgi"])
async def server(
    request: pytest.FixtureRequest, api: PushConfigApi, aiohttp_server: AiohttpServer
) -> AsyncIterator[Server]:
    if request.param == "aiohttp":
        app = web.Application()
        app.add_subapp("/a2a", push_config_app(api, owner=lambda r: r.headers.get("X-User")))
        running = await aiohttp_server(app)
        # Plain HTTP: to read the system's roots takes longer than most tests.
        async with httpx.AsyncClient(trust_env=False, verify=False) as http:  # noqa: S501
            yield Server(f"http://127.0.0.1:{running.port}/a2a", http)
        return

    async def owner(scope: Mapping[str, Any]) -> str | None:
        return dict(scope["headers"]).get(b"x-user", b"").decode() or None

    app_ = Starlette(routes=[Mount("/a2a", PushConfigAsgi(api, owner=owner))])
    async with httpx.AsyncClient(transport=httpx.ASGITransport(app=app_)) as http:
        yield Server("http://agent.example.com/a2a", http, "/")


# --- over gRPC ------------------------------------------------------------------------------------


def owner_of_call(context: Any) -> str | None:
    named = dict(context.invocation_metadata()).get("x-user", "alice")
    return str(named) or None


@contextlib.asynccontextmanager
async def serving_grpc(of_1_0: Any, of_0_3: Any) -> AsyncIterator[str]:
    """Serve both versions on one port while the block runs; yield its address."""
    server = grpc.aio.server()
    a2a_pb2_grpc.add_A2AServiceServicer_to_server(of_1_0, server)
    a2a_v0_3_pb2_grpc.add_A2AServiceServicer_to_server(of_0_3, server)
    port = server.add_insecure_port("127.0.0.1:0")
    await server.start()
    yield f"127.0.0.1:{port}"
    await server.stop(None)


@pytest.fixture
async def address(api: PushConfigApi) -> AsyncIterator[str]:
    of_1_0 = PushConfigServicer(api, owner=owner_of_call)
    of_0_3 = PushConfigServicerV03(api, owner=owner_of_call)
    async with serving_grpc(of_1_0, of_0_3) as address:
        yield address


@pytest.fixture
async def channel(address: str) -> AsyncIterator[Any]:
    async with grpc.aio.insecure_channel(address) as channel:
        yield channel
