"""An agent of a2a-sdk 1.x that is called by gRPC, in both versions on one port."""

from __future__ import annotations

from collections.abc import AsyncIterator
from typing import Any

import grpc
import pytest
from a2a.compat.v0_3 import a2a_v0_3_pb2, a2a_v0_3_pb2_grpc
from a2a.compat.v0_3.grpc_handler import CompatGrpcHandler
from a2a.server.agent_execution import AgentExecutor
from a2a.server.context import ServerCallContext
from a2a.server.request_handlers import DefaultRequestHandler
from a2a.server.request_handlers.grpc_handler import GrpcHandler
from a2a.server.tasks import InMemoryTaskStore
from a2a.types import AgentCapabilities, AgentCard, Task, a2a_pb2_grpc

from pushkit import PushSender
from pushkit.integrations.a2a_sdk import PushkitConfigStore
from tests.unit.pushkit.integrations.push_config_api.conftest import serving_grpc
from tests.unit.pushkit.integrations.push_config_api.sdk_steps import URL, config


class Idle(AgentExecutor):
    async def execute(self, context: Any, event_queue: Any) -> None:
        raise NotImplementedError

    async def cancel(self, context: Any, event_queue: Any) -> None:
        raise NotImplementedError


@pytest.fixture
async def channel(push: PushSender) -> AsyncIterator[Any]:
    tasks = InMemoryTaskStore()
    await tasks.save(Task(id="task-1", context_id="context-1"), ServerCallContext())
    handler = DefaultRequestHandler(
        agent_executor=Idle(),
        task_store=tasks,
        agent_card=AgentCard(capabilities=AgentCapabilities(push_notifications=True)),
        push_config_store=PushkitConfigStore(push),
    )
    async with (
        serving_grpc(GrpcHandler(handler), CompatGrpcHandler(handler)) as address,
        grpc.aio.insecure_channel(address) as channel,
    ):
        yield channel


@pytest.mark.parametrize(
    "metadata",
    [
        pytest.param([("a2a-version", "0.3")], id="names it"),
        pytest.param([], id="names none, as those of a2a-sdk 0.3 and a2a-go 0.3"),
    ],
)
async def test_a_client_of_0_3_gets_0_3(
    channel: Any, push: PushSender, metadata: list[tuple[str, str]]
) -> None:
    named = a2a_v0_3_pb2.PushNotificationConfig(id="c", url=URL)
    request = a2a_v0_3_pb2.CreateTaskPushNotificationConfigRequest(
        parent="tasks/task-1",
        config_id="c",
        config=a2a_v0_3_pb2.TaskPushNotificationConfig(push_notification_config=named),
    )
    stub = a2a_v0_3_pb2_grpc.A2AServiceStub(channel)
    await stub.CreateTaskPushNotificationConfig(request, metadata=metadata)
    [subscription] = await push.subscriptions("task-1")
    assert subscription.version == "0.3"


async def test_a_client_of_1_0_gets_1_0(channel: Any, push: PushSender) -> None:
    stub = a2a_pb2_grpc.A2AServiceStub(channel)
    await stub.CreateTaskPushNotificationConfig(config(), metadata=[("a2a-version", "1.0")])
    [subscription] = await push.subscriptions("task-1")
    assert subscription.version == "1.0"
