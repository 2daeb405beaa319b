"""`PushMiddleware`: push configs in front of an agent that knows of none."""

from __future__ import annotations

import json
from collections.abc import AsyncIterator
from typing import Any

import aiohttp
import pytest
from starlette.applications import Starlette
from starlette.requests import Request
from starlette.responses import JSONResponse, Response, StreamingResponse
from starlette.routing import Route

from pushkit import PushSender
from pushkit.integrations.push_middleware import PushMiddleware, register_inline_config
from tests.asgi_server import serving

HOOK = "https://client.example.com/a2a"
FORBIDDEN = "http://169.254.169.254/"
V1_0 = {"A2A-Version": "1.0"}


class Agent:
    """Answers messages as a framework does, and keeps what it was asked."""

    def __init__(self) -> None:
        self.asked: list[dict[str, Any]] = []
        self.registers = True

    async def card(self, _request: Request) -> Response:
        return JSONResponse({"name": "agent", "capabilities": {"pushNotifications": False}})

    async def rpc(self, request: Request) -> Response:
        body = await request.body()
        assert len(body) == int(request.headers["content-length"])
        self.asked.append(json.loads(body))
        if self.asked[-1]["method"] == "SendStreamingMessage":
            return StreamingResponse(self.stream())
        if self.registers:
            await register_inline_config("task-1")
        return JSONResponse({"jsonrpc": "2.0", "id": 1, "result": {"task": {"id": "task-1"}}})

    async def stream(self) -> AsyncIterator[bytes]:
        await register_inline_config("task-1")
        yield b"data: {}\n\n"


@pytest.fixture
def agent() -> Agent:
    return Agent()


@pytest.fixture
async def client(push: PushSender, agent: Agent) -> AsyncIterator[aiohttp.ClientSession]:
    routes = [
        Route("/.well-known/agent-card.json", agent.card),
        Route("/rpc", agent.rpc, methods=["POST"]),
    ]

    def owner(scope: Any) -> str | None:
        return dict(scope["headers"]).get(b"user", b"alice").decode() or None

    app = PushMiddleware(
        Starlette(routes=routes), push=push, owner=owner, task_exists=lambda _, task: task != "none"
    )
    async with serving(app) as url, aiohttp.ClientSession(url) as session:
        yield session


async def call(
    client: aiohttp.ClientSession, method: str, params: object, headers: dict[str, str] = V1_0
) -> Any:
    call = {"jsonrpc": "2.0", "id": 7, "method": method, "params": params}
    async with client.post("/rpc", json=call, headers=headers) as answer:
        text = await answer.text()
    return json.loads(text.removeprefix("data: "))


def message(**configuration: object) -> dict[str, object]:
    return {"message": {"messageId": "m", "parts": []}, "configuration": configuration}


async def test_the_card_says_that_the_agent_pushes(client: aiohttp.ClientSession) -> None:
    async with client.get("/.well-known/agent-card.json") as answer:
        capabilities = (await answer.json())["capabilities"]
        assert capabilities["pushNotifications"] is True
        uris = {each["uri"] for each in capabilities["extensions"] if not each["required"]}
        assert {"urn:pushkit:push-filter:v1", "urn:pushkit:delivery-state:v1"} <= uris


async def test_the_keys_are_served(client: aiohttp.ClientSession) -> None:
    async with client.get("/.well-known/jwks.json") as answer:
        assert len((await answer.json())["keys"]) == 1


async def test_config_methods_are_answered_at_the_agents_endpoint(
    client: aiohttp.ClientSession, push: PushSender, agent: Agent
) -> None:
    config = {"taskId": "task-1", "url": HOOK}
    assert (await call(client, "CreateTaskPushNotificationConfig", config))["id"] == 7
    [found] = await push.subscribers("task-1")
    assert found.key.owner == "alice"
    refused = await call(client, "GetTaskPushNotificationConfig", {"taskId": "none", "id": "x"})
    assert refused["error"]["code"] == -32001
    assert agent.asked == []


@pytest.mark.parametrize(
    ("method", "version"),
    [("SendMessage", "1.0"), ("SendStreamingMessage", "1.0"), ("message/send", "0.3")],
)
async def test_the_config_of_a_message_is_kept_until_the_task_has_an_id(
    client: aiohttp.ClientSession,
    push: PushSender,
    agent: Agent,
    method: str,
    version: str,
) -> None:
    member = "taskPushNotificationConfig" if version == "1.0" else "pushNotificationConfig"
    await call(client, method, message(**{member: {"url": HOOK}, "historyLength": 3}))
    [found] = await push.subscribers("task-1")
    assert (found.config.url, found.version, found.key.owner) == (HOOK, version, "alice")
    assert agent.asked[0]["params"]["configuration"] == {"historyLength": 3}


@pytest.mark.parametrize("method", ["SendMessage", "SendStreamingMessage"])
@pytest.mark.parametrize(
    "config",
    [
        pytest.param({"url": FORBIDDEN}, id="at once"),
        pytest.param({"url": HOOK, "urn:pushkit:push-filter:v1": []}, id="by the hook"),
    ],
)
async def test_a_refused_config_is_the_answer(
    client: aiohttp.ClientSession, push: PushSender, method: str, config: dict[str, object]
) -> None:
    sent = message(taskPushNotificationConfig=config)
    answer = await call(client, method, sent)
    assert (answer["id"], answer["error"]["code"]) == (7, -32602)
    assert "allow" not in answer["error"]["message"]
    assert await push.subscribers("task-1") == []


async def test_a_malformed_config_does_not_reach_the_agent(
    client: aiohttp.ClientSession, agent: Agent
) -> None:
    answer = await call(client, "SendMessage", message(taskPushNotificationConfig={"url": 5}))
    assert answer["error"]["code"] == -32602
    assert agent.asked == []


async def test_a_configuration_that_held_only_the_config_does_not_reach_the_agent(
    client: aiohttp.ClientSession, agent: Agent
) -> None:
    await call(client, "SendMessage", message(taskPushNotificationConfig={"url": HOOK}))
    assert "configuration" not in agent.asked[0]["params"]


async def test_an_unknown_caller_registers_nothing(
    client: aiohttp.ClientSession, push: PushSender, agent: Agent
) -> None:
    sent = message(taskPushNotificationConfig={"url": HOOK})
    answer = await call(client, "SendMessage", sent, {**V1_0, "User": ""})
    assert answer["error"]["code"] == -32600
    assert agent.asked == []
    assert await push.subscribers("task-1") == []


async def test_what_any_web_page_can_post_registers_nothing(
    client: aiohttp.ClientSession, push: PushSender, agent: Agent
) -> None:
    sent = message(taskPushNotificationConfig={"url": HOOK})
    body = json.dumps({"jsonrpc": "2.0", "id": 7, "method": "SendMessage", "params": sent})
    async with client.post("/rpc", data=body, headers={"Content-Type": "text/plain"}) as answer:
        assert answer.status == 415
    assert agent.asked == []
    assert await push.subscribers("task-1") == []


async def test_other_calls_pass_unchanged(client: aiohttp.ClientSession, agent: Agent) -> None:
    assert (await call(client, "SendMessage", message()))["result"]["task"]["id"] == "task-1"
    assert agent.asked[0]["params"] == message()


async def test_a_framework_without_a_hook_is_reported(
    client: aiohttp.ClientSession, agent: Agent, caplog: pytest.LogCaptureFixture
) -> None:
    agent.registers = False
    await call(client, "SendMessage", message(taskPushNotificationConfig={"url": HOOK}))
    assert "register_inline_config" in caplog.text


async def test_a_sender_that_the_application_did_not_start_is_reported(
    idle: PushSender, agent: Agent, caplog: pytest.LogCaptureFixture
) -> None:
    app = Starlette(routes=[Route("/rpc", agent.rpc, methods=["POST"])])
    middleware = PushMiddleware(app, push=idle, task_exists=None)
    async with serving(middleware) as url, aiohttp.ClientSession(url) as session:
        config = {"taskId": "task-1", "url": HOOK}
        await call(session, "CreateTaskPushNotificationConfig", config)
    assert "a push config was registered, but the sender was not started" in caplog.text
