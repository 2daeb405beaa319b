"""The gRPC binding, judged by the official SDK's own client; both versions on one port."""

from __future__ import annotations

from typing import Any

import grpc
import pytest
from a2a.client import Client
from a2a.compat.v0_3 import a2a_v0_3_pb2, a2a_v0_3_pb2_grpc
from a2a.types import a2a_pb2, a2a_pb2_grpc
from a2a.utils.errors import PushNotificationNotSupportedError

from pushkit import Filter, PushSender
from pushkit.integrations.push_config_api import PushConfigApi
from tests.unit.pushkit.integrations.push_config_api import sdk_steps
from tests.unit.pushkit.integrations.push_config_api.conftest import without_push
from tests.unit.pushkit.integrations.push_config_api.sdk_steps import config


def client_of(channel: Any, address: str, version: str) -> Client:
    return sdk_steps.client_of(address, "GRPC", version, grpc_channel_factory=lambda _: channel)


@pytest.mark.parametrize("version", ["1.0", "0.3"])
@pytest.mark.parametrize(
    "chosen_filter",
    [
        pytest.param(Filter(), id="everything"),
        pytest.param(Filter(states=["completed"]), id="filter for which answers have no place"),
    ],
)
async def test_a_config_is_created_read_listed_and_deleted(
    channel: Any, address: str, sender: PushSender, version: str
) -> None:
    client = client_of(channel, address, version)
    await sdk_steps.create_read_list_and_delete(client, sender, version)


async def test_the_errors_are_the_ones_that_the_client_knows(channel: Any, address: str) -> None:
    await sdk_steps.meet_the_errors(client_of(channel, address, "1.0"))


@without_push
async def test_an_agent_without_push_says_so(channel: Any, address: str) -> None:
    with pytest.raises(PushNotificationNotSupportedError):
        await client_of(channel, address, "1.0").create_task_push_notification_config(config())


async def test_pages_and_tenants_of_1_0(channel: Any, address: str, sender: PushSender) -> None:
    await sdk_steps.page_through_a_tenant(client_of(channel, address, "1.0"), sender)


async def refusal(call: Any) -> tuple[str, str]:
    with pytest.raises(grpc.aio.AioRpcError) as refused:
        await call
    return refused.value.code().name, refused.value.details() or ""


async def test_a_caller_that_is_not_known_is_refused(channel: Any, sender: PushSender) -> None:
    stub = a2a_pb2_grpc.A2AServiceStub(channel)
    call = stub.CreateTaskPushNotificationConfig(config(), metadata=[("x-user", "")])
    assert (await refusal(call))[0] == "UNAUTHENTICATED"
    assert await sender.configs_to_send_with("task-1") == []


async def test_callers_do_not_see_each_others_configs(channel: Any) -> None:
    stub = a2a_pb2_grpc.A2AServiceStub(channel)
    await stub.CreateTaskPushNotificationConfig(config())
    named = a2a_pb2.GetTaskPushNotificationConfigRequest(task_id="task-1", id="c")
    bob = stub.GetTaskPushNotificationConfig(named, metadata=[("x-user", "bob")])
    assert (await refusal(bob))[0] == "NOT_FOUND"


async def test_another_version_than_the_services_is_refused(channel: Any) -> None:
    stub = a2a_pb2_grpc.A2AServiceStub(channel)
    call = stub.CreateTaskPushNotificationConfig(config(), metadata=[("a2a-version", "0.3")])
    code, said = await refusal(call)
    assert code == "FAILED_PRECONDITION"
    assert "1.0" in said


async def test_a_request_over_the_limit_is_refused(channel: Any, api: PushConfigApi) -> None:
    stub = a2a_pb2_grpc.A2AServiceStub(channel)
    long = config(token="x" * api.max_body_bytes)
    assert (await refusal(stub.CreateTaskPushNotificationConfig(long)))[0] == "INVALID_ARGUMENT"


async def test_a_name_of_0_3_that_was_given_out_is_taken(channel: Any, sender: PushSender) -> None:
    stub = a2a_v0_3_pb2_grpc.A2AServiceStub(channel)
    config = a2a_v0_3_pb2.TaskPushNotificationConfig(
        push_notification_config={"id": "a/b", "url": "https://client.example.com/hook"}
    )
    created = await stub.CreateTaskPushNotificationConfig(
        a2a_v0_3_pb2.CreateTaskPushNotificationConfigRequest(parent="tasks/task-1", config=config)
    )

    request = a2a_v0_3_pb2.DeleteTaskPushNotificationConfigRequest(name=created.name)
    await stub.DeleteTaskPushNotificationConfig(request)

    assert await sender.subscribers("task-1") == []


@pytest.mark.parametrize("name", ["", "task-1", "tasks/", "tasks/a/b", "tasks/a/configs/c"])
async def test_a_resource_of_0_3_that_is_none_is_refused(channel: Any, name: str) -> None:
    stub = a2a_v0_3_pb2_grpc.A2AServiceStub(channel)
    for call in (
        stub.ListTaskPushNotificationConfig(
            a2a_v0_3_pb2.ListTaskPushNotificationConfigRequest(parent=name)
        ),
        stub.GetTaskPushNotificationConfig(
            a2a_v0_3_pb2.GetTaskPushNotificationConfigRequest(name=name)
        ),
    ):
        code, said = await refusal(call)
        assert code == "INVALID_ARGUMENT"
        assert "expected tasks/{task}" in said
