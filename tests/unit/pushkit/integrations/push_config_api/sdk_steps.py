"""The calls of the official SDK's client to the API, for every binding."""

from __future__ import annotations

from typing import Any

import pytest
from a2a.client import Client, ClientConfig, ClientFactory, client_factory
from a2a.compat.v0_3.grpc_transport import CompatGrpcTransport
from a2a.types import a2a_pb2
from a2a.utils.errors import InvalidParamsError, TaskNotFoundError

from pushkit import PushSender

URL = "https://client.example.com/hook"
# Where a2a.server.routes was imported first, a2a-sdk 1.3.0 has None here (its modules import each
# other), and speaks 1.0 to a service of 0.3.
vars(client_factory)["CompatGrpcTransport"] = CompatGrpcTransport


def client_of(url: str, binding: str, version: str, **settings: Any) -> Client:
    interface = a2a_pb2.AgentInterface(url=url, protocol_binding=binding, protocol_version=version)
    card = a2a_pb2.AgentCard(
        name="agent",
        supported_interfaces=[interface],
        capabilities=a2a_pb2.AgentCapabilities(push_notifications=True),
    )
    return ClientFactory(ClientConfig(supported_protocol_bindings=[binding], **settings)).create(
        card
    )


def config(config_id: str = "c", **members: str) -> a2a_pb2.TaskPushNotificationConfig:
    authentication = a2a_pb2.AuthenticationInfo(scheme="Bearer", credentials="cred-1")
    named = {"task_id": "task-1", "url": URL, "token": "tok-1"} | members
    return a2a_pb2.TaskPushNotificationConfig(id=config_id, authentication=authentication, **named)


async def create_read_list_and_delete(client: Client, sender: PushSender, version: str) -> None:
    """Do it, and see that no answer has a secret in it."""
    named = a2a_pb2.GetTaskPushNotificationConfigRequest(task_id="task-1", id="c")

    created = await client.create_task_push_notification_config(config())
    read = await client.get_task_push_notification_config(named)
    assert created == read
    assert (read.id, read.task_id, read.url) == ("c", "task-1", URL)
    assert (read.token, read.authentication.scheme, read.authentication.credentials) == (
        "",
        "Bearer",
        "",
    )
    [to_send_with] = await sender.configs_to_send_with("task-1")
    assert to_send_with.token == "tok-1"
    [subscription] = await sender.subscriptions("task-1", owner="alice")
    assert subscription.version == version  # of the binding that registered it

    listed = await client.list_task_push_notification_configs(
        a2a_pb2.ListTaskPushNotificationConfigsRequest(task_id="task-1")
    )
    assert list(listed.configs) == [read]
    await client.delete_task_push_notification_config(
        a2a_pb2.DeleteTaskPushNotificationConfigRequest(task_id="task-1", id="c")
    )
    assert await sender.subscriptions("task-1", owner="alice") == []


async def meet_the_errors(client: Client) -> None:
    """Make calls that fail: for unknown and for refused configs."""
    with pytest.raises(TaskNotFoundError):
        await client.get_task_push_notification_config(
            a2a_pb2.GetTaskPushNotificationConfigRequest(task_id="task-1", id="nothing")
        )
    with pytest.raises(TaskNotFoundError):
        await client.create_task_push_notification_config(config(task_id="nobody"))
    with pytest.raises(InvalidParamsError, match="URL"):
        await client.create_task_push_notification_config(config(url="https://127.0.0.1/"))


async def page_through_a_tenant(client: Client, sender: PushSender) -> None:
    """Register three configs of a tenant, and read them in pages of two."""
    for config_id in "abc":
        await client.create_task_push_notification_config(config(config_id, tenant="acme"))
    assert await sender.subscriptions("task-1", owner="alice") == []
    found, token = [], ""
    for _ in range(2):
        page = await client.list_task_push_notification_configs(
            a2a_pb2.ListTaskPushNotificationConfigsRequest(
                tenant="acme", task_id="task-1", page_size=2, page_token=token
            )
        )
        found.append([(each.id, each.tenant) for each in page.configs])
        token = page.next_page_token
    assert found == [[("a", "acme"), ("b", "acme")], [("c", "acme")]]
    assert token == ""
