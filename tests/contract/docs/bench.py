"""What the Python of the pages presumes: names of the application that it is put into."""

from __future__ import annotations

import asyncio
import contextlib
import json
import logging
from collections.abc import AsyncIterator, Callable, Mapping
from contextlib import AbstractAsyncContextManager
from dataclasses import replace
from datetime import timedelta
from pathlib import Path
from types import SimpleNamespace
from typing import Any, Protocol

from a2a.client import ClientConfig, create_client
from a2a.server.request_handlers import DefaultRequestHandler
from a2a.server.tasks import InMemoryTaskStore
from a2a.types import AgentCard
from aiohttp import web
from fastapi import FastAPI
from starlette.applications import Starlette
from starlette.routing import Route

from pushkit import PushSender, StatusUpdate, TaskState, TaskStatus
from pushkit.a2a import parse_inline_config
from pushkit.bounded_json import JsonValue
from pushkit.clock import utc_now
from pushkit.integrations.push_config_api import PushConfigApi
from receiver import Notification, Receiver, TaskPolicy, TrustedSender
from receiver.integrations.a2a_sdk import PushClient
from receiver.testing import SigningAgent
from tests.asgi_server import serving
from tests.contract.docs.blocks import ROOT
from tests.contract.docs.conftest import CARD, World
from tests.eventually import eventually
from tests.ports import free_port
from tests.unit.receiver.integrations.test_a2a_sdk import AskingAgent, agent_app
from tests.verification.simulation.scenario import Scenario, Step

__all__ = ["bench"]

Names = dict[str, Any]
ISSUER = "https://agent.example.com"

# What pages leave out as plain.
IMPORTED: Names = {
    each.__name__: each
    for each in (
        FastAPI,
        Mapping,
        Notification,
        Path,
        Protocol,
        PushClient,
        Route,
        Scenario,
        Starlette,
        Step,
        parse_inline_config,
        timedelta,
    )
} | {
    "DefaultRequestHandler": DefaultRequestHandler,
    "JsonValue": JsonValue,
    "json": json,
    "logging": logging,
}


@contextlib.asynccontextmanager
async def bench(page: str, world: World) -> AsyncIterator[Names]:
    """Yield the names that a page's Python begins with."""
    async with (
        PushSender(issuer=ISSUER, keys="keys.json", database="bench.db") as push,
        SCENES.get(page, nothing_else)(world) as names,
    ):
        given = {"push": push, "app": web.Application(), "agent_routes": [], "card": CARD}
        for name, value in {**IMPORTED, **given, "now": utc_now()}.items():
            names.setdefault(name, value)
        yield names


@contextlib.asynccontextmanager
async def nothing_else(_world: World) -> AsyncIterator[Names]:
    receiver = a_receiver()
    yield {
        "fastapi": FastAPI(),
        "receiver": receiver,
        "SECRETS": {"alice": ["whsec_c2VjcmV0LXRoYXQtaXMtbG9uZy1lbm91Z2g="]},
        "key": "a-key",
        "page_somebody": print,
        "secret": "a-secret",
        "token": "a-token-of-16-or-more",
        "update": completed("task-1"),
    }
    await receiver.close()


@contextlib.asynccontextmanager
async def an_sdk_agent(_world: World) -> AsyncIterator[Names]:
    yield {"task_store": InMemoryTaskStore(), "executor": AskingAgent(), "card": AgentCard()}


@contextlib.asynccontextmanager
async def a_request_for_an_agent(_world: World) -> AsyncIterator[Names]:
    config = {"url": "https://client.example.com/a2a/push"}
    call = {"jsonrpc": "2.0", "id": 1, "method": "GetTaskPushNotificationConfig"}
    body = json.dumps({**call, "params": {"taskId": "task-1", "id": "none"}}).encode()

    async def read() -> bytes:
        return body

    async with PushSender(issuer=ISSUER, keys="keys.json", database="api.db") as push:
        yield {
            "api": PushConfigApi(push, task_exists=lambda _caller, _task: True),
            "request": SimpleNamespace(headers={"A2A-Version": "1.0"}, read=read),
            "method": call["method"],
            "user": "alice",
            "params": {"configuration": {"taskPushNotificationConfig": config}},
            "task": SimpleNamespace(id="task-1"),
        }


@contextlib.asynccontextmanager
async def a_client(world: World) -> AsyncIterator[Names]:
    """An SDK's client, its receiver at client.example.com, and an agent that asks back."""
    receiver = a_receiver()
    await world.serve("client.example.com", at_hooks(receiver))
    port = free_port()
    push = PushSender(issuer=ISSUER, keys="keys.json", database="outbox.db")
    async with serving(agent_app(f"http://127.0.0.1:{port}", push), port=port) as url:
        client = await create_client(url, ClientConfig(streaming=False))
        async with client:
            names = {"client": client, "receiver": receiver, "task_id": "task-1"}
            # For the receiver that the page makes.
            answering = asyncio.create_task(answer_what_is_expected(names, world))
            yield names
            answering.cancel()


async def answer_what_is_expected(names: Names, world: World) -> None:
    async def expected() -> Any:
        return names.get("expected")

    config = (await eventually(expected)).as_json()
    await world.serve("client.example.com", names["app"])
    async with PushSender(issuer=ISSUER, keys="keys.json", database="answers.db") as push:
        await push.subscribe("task-1", config, version="1.0", owner="alice")
        for _ in range(2):
            await push.notify(completed("task-1"))
        await asyncio.Event().wait()


@contextlib.asynccontextmanager
async def a_notification(_world: World) -> AsyncIterator[Names]:
    """One that arrives, for whoever verifies it by hand."""
    agent = SigningAgent(
        webhook_url="https://client.example.com/a2a/push", token="a-token-of-16-or-more"
    )
    Path("jwks.json").write_text(json.dumps(agent.jwks()))
    receiver = a_receiver()
    request = replace(agent.draft("task-1").request(), target="/a2a/push")
    yield {"request": request, "receiver": receiver}
    await receiver.close()


@contextlib.asynccontextmanager
async def vectors(_world: World) -> AsyncIterator[Names]:
    Path("docs").symlink_to(ROOT / "docs")
    document = json.loads((ROOT / "docs/vectors/notifications.json").read_bytes())
    expected = {
        json.dumps([*map(one["request"].get, ("method", "target", "headers", "body"))]): (
            one["expected"]["status"],
            one["expected"]["code"],
        )
        for one in document["vectors"]
    }

    def verify(method: str, target: str, headers: object, body: bytes) -> tuple[int, str]:
        return expected[json.dumps([method, target, headers, body.decode()])]

    yield {"document": document, "verify": verify}


def a_receiver() -> Receiver:
    agent = TrustedSender(name="agent", issuer=ISSUER, jwks_file=Path("jwks.json"),
                          tasks=TaskPolicy.BIND)  # fmt: skip
    return Receiver(url="https://client.example.com/hooks", senders=[agent], database="first.db")


def at_hooks(receiver: Receiver) -> web.Application:
    app = web.Application()
    app.add_subapp("/hooks", receiver.app())
    return app


def completed(task_id: str) -> StatusUpdate:
    status = TaskStatus(state=TaskState.COMPLETED)
    return StatusUpdate(task_id=task_id, context_id="context-1", status=status)


SCENES: dict[str, Callable[[World], AbstractAsyncContextManager[Names]]] = {
    "docs/extensions/mailbox.md": a_notification,
    "docs/how-to/a2a-sdk-client.md": a_client,
    "docs/how-to/fastapi.md": a_client,
    "docs/how-to/flask-and-django.md": a_client,
    "docs/push-config-api.md": a_request_for_an_agent,
    "docs/receiver-storage.md": a_client,
    "docs/receiver-trust.md": a_notification,
    "docs/receiving.md": a_client,
    "docs/sending.md": an_sdk_agent,
    "docs/vectors/README.md": vectors,
}
