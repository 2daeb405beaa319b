"""`A2AIntegration`: all parts of an agent in one object, and what half of them reports."""

from __future__ import annotations

import aiohttp
import pytest
from a2a.server.context import ServerCallContext
from a2a.server.tasks import InMemoryTaskStore
from a2a.types import AgentCapabilities, AgentCard, TaskPushNotificationConfig, a2a_pb2
from starlette.applications import Starlette

from pushkit import PushSender, StatusUpdate, TaskState, TaskStatus
from pushkit.events import Event, PushConfigUnsent
from pushkit.integrations import client_configs
from pushkit.integrations.a2a_sdk import A2AIntegration, PushkitConfigStore
from tests.asgi_server import serving
from tests.emitted import emitted
from tests.system.integration.test_a2a_sdk_agent import WorkingAgent

CALL = ServerCallContext()


def config(task_id: str = "task-1") -> TaskPushNotificationConfig:
    return TaskPushNotificationConfig(task_id=task_id, url="https://client.example.com/a2a")


def test_the_card_says_that_the_agent_pushes(push: PushSender) -> None:
    a2a = A2AIntegration(push, task_store=InMemoryTaskStore())
    card = AgentCard(name="agent", capabilities=AgentCapabilities(streaming=True))
    changed = a2a.with_push(card)
    assert changed.capabilities.push_notifications
    assert changed.capabilities.streaming
    assert not card.capabilities.push_notifications


async def test_its_routes_serve_an_agent(push: PushSender) -> None:
    a2a = A2AIntegration(push, task_store=InMemoryTaskStore())
    card = a2a.with_push(AgentCard(name="agent"))
    agent = a2a.agent_routes(WorkingAgent(), card, prefix="/agent")
    app = Starlette(routes=[*a2a.routes, *a2a.operator_routes, *agent], lifespan=a2a.lifespan)
    async with serving(app) as url, aiohttp.ClientSession(url) as session:
        for path in (
            "/.well-known/jwks.json",
            "/agent/.well-known/agent-card.json",
            "/readyz",
            "/metrics",
        ):
            async with session.get(path) as answer:
                assert answer.status == 200, path


async def test_a_store_without_a_sender_is_reported(
    push: PushSender, events: list[Event], caplog: pytest.LogCaptureFixture
) -> None:
    await PushkitConfigStore(push).set_info("task-1", config(), CALL)
    [event] = emitted(events, PushConfigUnsent)
    assert (event.code, event.task_id) == ("no_sender", "task-1")
    assert "push_sender" in caplog.text
    assert len(await push.subscribers("task-1")) == 1


async def test_a_sender_that_was_not_started_is_reported(
    idle: PushSender, events: list[Event]
) -> None:
    a2a = A2AIntegration(idle, task_store=InMemoryTaskStore())
    await a2a.config_store.set_info("task-1", config(), CALL)
    await a2a.config_store.set_info("task-1", config(), CALL)  # the first one has started it
    assert [each.code for each in emitted(events, PushConfigUnsent)] == ["not_started"]


async def test_a_sender_that_the_handler_never_calls_is_reported(
    push: PushSender, events: list[Event], monkeypatch: pytest.MonkeyPatch
) -> None:
    a2a = A2AIntegration(push, task_store=InMemoryTaskStore())
    await a2a.config_store.set_info("task-1", config(), CALL)
    assert emitted(events, PushConfigUnsent) == []
    monkeypatch.setattr(client_configs, "_PATIENCE", -1.0)
    await a2a.config_store.set_info("task-2", config("task-2"), CALL)
    assert [each.code for each in emitted(events, PushConfigUnsent)] == ["unused"]
    assert (await a2a.unready())["sender"] == "sender: unused"


async def test_whoever_notifies_by_hand_is_not_reported(
    push: PushSender, events: list[Event]
) -> None:
    status = TaskStatus(state=TaskState.WORKING)
    await push.notify(StatusUpdate(task_id="task-0", context_id="c", status=status))
    await PushkitConfigStore(push).set_info("task-1", config(), CALL)
    assert emitted(events, PushConfigUnsent) == []


async def test_with_snapshot_each_config_gets_the_task_as_it_stands(push: PushSender) -> None:
    tasks = InMemoryTaskStore()
    working = a2a_pb2.TaskStatus(state=a2a_pb2.TASK_STATE_WORKING)
    await tasks.save(a2a_pb2.Task(id="task-1", context_id="c", status=working), CALL)
    for snapshot, number in ((False, 0), (True, 1)):
        a2a = A2AIntegration(push, task_store=tasks, snapshot=snapshot)
        await a2a.config_store.set_info("task-1", config(), CALL)
        assert len(await push.deliveries("task-1")) == number
