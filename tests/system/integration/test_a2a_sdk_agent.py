"""A real a2a-sdk agent behind a real server, with pushkit in the places of the SDK's own parts."""

from __future__ import annotations

import asyncio
import json
import uuid
from collections.abc import AsyncIterator
from dataclasses import dataclass, field
from datetime import UTC, datetime
from pathlib import Path
from typing import TYPE_CHECKING, Any

import aiohttp
import pytest
from a2a.auth.user import User
from a2a.helpers import new_task_from_user_message, new_text_part
from a2a.server.agent_execution import AgentExecutor, RequestContext
from a2a.server.events import EventQueue
from a2a.server.request_handlers import DefaultRequestHandler
from a2a.server.routes import create_jsonrpc_routes
from a2a.server.routes.common import DefaultServerCallContextBuilder
from a2a.server.tasks import InMemoryTaskStore, TaskUpdater
from a2a.types import AgentCapabilities, AgentCard, AgentInterface
from aiohttp import web
from google.protobuf.json_format import MessageToDict
from starlette.applications import Starlette
from starlette.requests import Request

from pushkit import KeyRing, PushSender, RetryPolicy, SenderOptions, wait_schedule
from pushkit.integrations.a2a_sdk import A2AIntegration, PushkitConfigStore
from tests.asgi_server import serving
from tests.eventually import eventually
from tests.served import answering

if TYPE_CHECKING:
    from pytest_aiohttp.plugin import AiohttpServer

ISSUER = "https://agent.example.com"
INVALID_PARAMS = -32602
VERSION_NOT_SUPPORTED = -32009
TASK_NOT_FOUND = -32001


class WorkingAgent(AgentExecutor):
    """Works, writes an artifact, and is done."""

    async def execute(self, context: RequestContext, event_queue: EventQueue) -> None:
        assert context.message is not None
        assert context.task_id is not None
        assert context.context_id is not None
        task = new_task_from_user_message(context.message)
        task.id, task.context_id = context.task_id, context.context_id
        await event_queue.enqueue_event(task)
        updater = TaskUpdater(event_queue, context.task_id, context.context_id)
        await updater.start_work()
        await updater.add_artifact([new_text_part("héllo <b>&")], name="result")
        await updater.complete()

    async def cancel(self, context: RequestContext, event_queue: EventQueue) -> None:
        raise NotImplementedError


class _Named(User):
    def __init__(self, name: str) -> None:
        self._name = name

    @property
    def is_authenticated(self) -> bool:
        return bool(self._name)

    @property
    def user_name(self) -> str:
        return self._name


class UserFromHeader(DefaultServerCallContextBuilder):
    """Stands for an agent's authentication."""

    def build_user(self, request: Request) -> User:
        return _Named(request.headers.get("X-User", ""))


@dataclass
class Webhook:
    """A client's webhook: what arrived, and how it answers."""

    status: int = 200
    url: str = ""
    open: asyncio.Event = field(default_factory=asyncio.Event)
    requests: list[tuple[str, dict[str, str], Any]] = field(default_factory=list)
    answered: int = 0

    async def receive(self, request: web.Request) -> web.Response:
        body = json.loads(await request.read())
        self.requests.append((request.path, dict(request.headers), body))
        await self.open.wait()
        self.answered += 1
        return web.Response(status=self.status)

    def bodies(self, path: str = "/hook") -> list[Any]:
        """Return the bodies that arrived at a path."""
        return [body for where, _, body in self.requests if where == path]

    async def has(self, count: int, path: str = "/hook") -> bool:
        """Say whether so many requests arrived at a path."""
        return len(self.bodies(path)) >= count


@pytest.fixture
async def webhook(aiohttp_server: AiohttpServer) -> AsyncIterator[Webhook]:
    webhook = Webhook()
    webhook.open.set()
    server = await aiohttp_server(answering(webhook.receive))
    webhook.url = str(server.make_url("/hook"))
    yield webhook
    webhook.open.set()


@dataclass
class Agent:
    """A client's view of the running agent."""

    url: str
    session: aiohttp.ClientSession
    push: PushSender

    async def call(
        self, method: str, params: dict[str, Any], *, user: str = "", version: str | None = "1.0"
    ) -> dict[str, Any]:
        """Call a JSON-RPC method, and return the whole answer."""
        headers = {"X-User": user} | ({"A2A-Version": version} if version else {})
        call = {"jsonrpc": "2.0", "id": 1, "method": method, "params": params}
        async with self.session.post(f"{self.url}/", json=call, headers=headers) as answer:
            found: dict[str, Any] = await answer.json()
            return found

    async def send(self, webhook_url: str | None, *, user: str = "") -> dict[str, Any]:
        """Send a message of A2A 1.0, blocking, and return the task."""
        configuration: dict[str, Any] = {}
        if webhook_url is not None:
            configuration["taskPushNotificationConfig"] = {"url": webhook_url, "token": "tok-1"}
        message = {"messageId": uuid.uuid4().hex, "role": "ROLE_USER", "parts": [{"text": "hi"}]}
        answer = await self.call(
            "SendMessage", {"message": message, "configuration": configuration}, user=user
        )
        task: dict[str, Any] = answer["result"]["task"]
        return task


@pytest.fixture
async def agent(tmp_path: Path) -> AsyncIterator[Agent]:
    push = PushSender(
        issuer=ISSUER,
        keys=KeyRing.create(datetime.now(UTC)),
        database=tmp_path / "outbox.db",
        allow=["127.0.0.1:*"],
        options=SenderOptions(retry=RetryPolicy(wait=wait_schedule([0.1] * 1000))),
    )
    async with serving(build_app(push)) as url, aiohttp.ClientSession() as session:
        yield Agent(url=url, session=session, push=push)


def build_app(push: PushSender) -> Starlette:
    task_store = InMemoryTaskStore(owner_resolver=lambda _context: "everybody")
    a2a = A2AIntegration(push, task_store=task_store)
    card = AgentCard(
        name="Working agent",
        description="Works.",
        version="1.0.0",
        supported_interfaces=[
            AgentInterface(url=ISSUER, protocol_binding="JSONRPC", protocol_version="1.0")
        ],
        capabilities=AgentCapabilities(push_notifications=True, streaming=True),
        default_input_modes=["text/plain"],
        default_output_modes=["text/plain"],
    )
    handler = DefaultRequestHandler(
        agent_executor=WorkingAgent(), agent_card=card, **a2a.handler_arguments
    )
    rpc = create_jsonrpc_routes(
        handler, rpc_url="/", context_builder=UserFromHeader(), enable_v0_3_compat=True
    )
    return Starlette(routes=rpc, lifespan=a2a.lifespan)


def kinds(bodies: list[Any]) -> list[str]:
    """Return what each A2A 1.0 body is, a status with its state."""
    return [
        body["statusUpdate"]["status"]["state"] if "statusUpdate" in body else next(iter(body))
        for body in bodies
    ]


EVERY_EVENT = ["task", "TASK_STATE_WORKING", "artifactUpdate", "TASK_STATE_COMPLETED"]


async def test_every_event_of_a_task_arrives_in_order(agent: Agent, webhook: Webhook) -> None:
    task = await agent.send(webhook.url)
    await eventually(lambda: webhook.has(4))
    assert kinds(webhook.bodies()) == EVERY_EVENT
    assert webhook.bodies()[0]["task"]["id"] == task["id"]
    artifact = webhook.bodies()[2]["artifactUpdate"]["artifact"]
    assert artifact["parts"] == [{"text": "héllo <b>&"}]
    for _, headers, _ in webhook.requests:
        assert headers["Content-Type"] == "application/a2a+json"
        assert headers["X-A2A-Notification-Token"] == "tok-1"


async def test_a_webhook_that_hangs_does_not_hold_up_the_agent(
    agent: Agent, webhook: Webhook
) -> None:
    webhook.open.clear()
    task = await agent.send(webhook.url)
    assert task["status"]["state"] == "TASK_STATE_COMPLETED"
    await eventually(lambda: webhook.has(1))
    assert webhook.answered == 0
    webhook.open.set()
    await eventually(lambda: webhook.has(4))
    assert kinds(webhook.bodies()) == EVERY_EVENT


async def test_two_owners_of_one_task_keep_their_own_configs(
    agent: Agent, webhook: Webhook
) -> None:
    task_id = (await agent.send(None))["id"]
    for user in ("alice", "bob"):
        url = webhook.url.replace("hook", user)
        await agent.call(
            "CreateTaskPushNotificationConfig",
            {"taskId": task_id, "url": url, "token": f"of-{user}"},
            user=user,
        )
    for user in ("alice", "bob"):
        found = await agent.call("ListTaskPushNotificationConfigs", {"taskId": task_id}, user=user)
        [config] = found["result"]["configs"]
        assert (config["url"], config["id"]) == (webhook.url.replace("hook", user), task_id)
        assert f"of-{user}" not in json.dumps(found)
    await agent.call(
        "DeleteTaskPushNotificationConfig", {"taskId": task_id, "id": task_id}, user="alice"
    )
    remaining = await agent.push.subscribers(task_id)
    assert [subscription.key.owner for subscription in remaining] == ["bob"]


async def test_configs_are_created_read_listed_and_deleted(agent: Agent, webhook: Webhook) -> None:
    config = {
        "id": "config-1",
        "url": webhook.url,
        "token": "tok-1",
        "authentication": {"scheme": "Bearer", "credentials": "cred-1"},
    }
    task_id = (await agent.send(None))["id"]
    named = {"taskId": task_id, "id": "config-1"}
    created = await agent.call("CreateTaskPushNotificationConfig", {"taskId": task_id, **config})
    # What goes back over the API has no secret in it; what is sent with has (A2A#1681).
    assert created["result"] == {
        "taskId": task_id,
        "id": "config-1",
        "url": webhook.url,
        "authentication": {"scheme": "Bearer"},
    }
    [to_send_with] = await PushkitConfigStore(agent.push).get_info_for_dispatch(task_id)
    assert MessageToDict(to_send_with) == {"taskId": task_id, **config}
    read = await agent.call("GetTaskPushNotificationConfig", named)
    assert read["result"] == created["result"]
    listed = await agent.call("ListTaskPushNotificationConfigs", {"taskId": task_id})
    assert listed["result"]["configs"] == [created["result"]]
    for _ in range(2):  # a second deletion is no error
        deleted = await agent.call("DeleteTaskPushNotificationConfig", named)
        assert "error" not in deleted
    gone = await agent.call("GetTaskPushNotificationConfig", named)
    assert gone["error"]["code"] == TASK_NOT_FOUND


@pytest.mark.parametrize(
    "url", ["https://10.0.0.1/hook", "https://user:secret@client.example.com/"]
)
async def test_a_refused_url_is_the_clients_error(agent: Agent, url: str) -> None:
    task_id = (await agent.send(None))["id"]
    answer = await agent.call("CreateTaskPushNotificationConfig", {"taskId": task_id, "url": url})
    assert answer["error"]["code"] == INVALID_PARAMS
    assert "secret" not in json.dumps(answer)
    assert await agent.push.subscribers(task_id) == []


async def test_a_version_that_is_not_spoken_is_refused_as_such(
    agent: Agent, webhook: Webhook
) -> None:
    task_id = (await agent.send(None))["id"]
    config = {"taskId": task_id, "url": webhook.url}
    # The SDK serves 1.1 as 1.0.
    answer = await agent.call("CreateTaskPushNotificationConfig", config, version="1.1")
    assert answer["error"]["code"] == VERSION_NOT_SUPPORTED
    assert await agent.push.subscribers(task_id) == []


async def test_a_refused_url_beside_a_message_starts_no_task(agent: Agent) -> None:
    message = {"messageId": "m1", "role": "ROLE_USER", "parts": [{"text": "hi"}]}
    config = {"url": "https://169.254.169.254/latest"}
    answer = await agent.call(
        "SendMessage",
        {"message": message, "configuration": {"taskPushNotificationConfig": config}},
    )
    assert answer["error"]["code"] == INVALID_PARAMS


async def test_a_client_of_0_3_gets_whole_tasks(agent: Agent, webhook: Webhook) -> None:
    message = {
        "kind": "message",
        "messageId": "m1",
        "role": "user",
        "parts": [{"kind": "text", "text": "hi"}],
    }
    config = {"url": webhook.url, "token": "tok-1"}
    params = {
        "message": message,
        "configuration": {"acceptedOutputModes": [], "pushNotificationConfig": config},
    }
    answer = await agent.call("message/send", params, version=None)
    await eventually(lambda: webhook.has(4))
    bodies = webhook.bodies()
    assert {body["kind"] for body in bodies} == {"task"}
    assert {body["id"] for body in bodies} == {answer["result"]["id"]}
    states = [body["status"]["state"] for body in bodies]
    assert states == ["submitted", "working", "working", "completed"]
    assert bodies[3]["artifacts"][0]["parts"] == [{"kind": "text", "text": "héllo <b>&"}]
    assert {headers["Content-Type"] for _, headers, _ in webhook.requests} == {"application/json"}


async def test_clients_of_both_versions_share_a_task(agent: Agent, webhook: Webhook) -> None:
    task_id = (await agent.send(None))["id"]
    new, old = (webhook.url.replace("hook", name) for name in ("new", "old"))
    await agent.call(
        "CreateTaskPushNotificationConfig", {"taskId": task_id, "url": new}, user="alice"
    )
    answer = await agent.call(
        "tasks/pushNotificationConfig/set",
        {"taskId": task_id, "pushNotificationConfig": {"url": old}},
        user="bob",
        version=None,
    )
    assert answer["result"]["pushNotificationConfig"]["url"] == old
    versions = {s.key.owner: s.version.value for s in await agent.push.subscribers(task_id)}
    assert versions == {"alice": "1.0", "bob": "0.3"}
