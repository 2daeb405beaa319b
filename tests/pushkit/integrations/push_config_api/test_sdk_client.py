"""The official SDK's client as the judge of what is answered."""

from __future__ import annotations

import pytest
from a2a.client import Client, ClientConfig, ClientFactory
from a2a.types import a2a_pb2
from a2a.utils.errors import (
    InvalidParamsError,
    PushNotificationNotSupportedError,
    TaskNotFoundError,
)

from pushkit import PushSender
from tests.pushkit.integrations.push_config_api.conftest import Server

URL = "https://client.example.com/hook"
BINDINGS = [("JSONRPC", "1.0"), ("HTTP+JSON", "1.0"), ("JSONRPC", "0.3")]


def client_of(server: Server, binding: str, version: str) -> Client:
    server.http.headers["X-User"] = "alice"
    card = a2a_pb2.AgentCard(
        name="agent",
        supported_interfaces=[
            a2a_pb2.AgentInterface(
                url=server.url + server.json_rpc_path,
                protocol_binding=binding,
                protocol_version=version,
            )
        ],
        capabilities=a2a_pb2.AgentCapabilities(push_notifications=True),
    )
    config = ClientConfig(httpx_client=server.http, supported_protocol_bindings=[binding])
    return ClientFactory(config).create(card)


@pytest.fixture(params=BINDINGS, ids=" ".join)
async def client(request: pytest.FixtureRequest, server: Server) -> Client:
    return client_of(server, *request.param)


@pytest.fixture(params=BINDINGS, ids=" ".join)
async def client_without_push(
    request: pytest.FixtureRequest, server_without_push: Server
) -> Client:
    return client_of(server_without_push, *request.param)


def config(config_id: str = "c", **members: str) -> a2a_pb2.TaskPushNotificationConfig:
    authentication = a2a_pb2.AuthenticationInfo(scheme="Bearer", credentials="cred-1")
    named = {"task_id": "task-1", "url": URL, "token": "tok-1"} | members
    return a2a_pb2.TaskPushNotificationConfig(id=config_id, authentication=authentication, **named)


async def test_a_config_is_created_read_listed_and_deleted(
    client: Client, sender: PushSender
) -> None:
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

    listed = await client.list_task_push_notification_configs(
        a2a_pb2.ListTaskPushNotificationConfigsRequest(task_id="task-1")
    )
    assert list(listed.configs) == [read]
    await client.delete_task_push_notification_config(
        a2a_pb2.DeleteTaskPushNotificationConfigRequest(task_id="task-1", id="c")
    )
    assert await sender.subscriptions("task-1", owner="alice") == []


async def test_the_errors_are_the_ones_that_the_client_knows(client: Client) -> None:
    with pytest.raises(TaskNotFoundError):
        await client.get_task_push_notification_config(
            a2a_pb2.GetTaskPushNotificationConfigRequest(task_id="task-1", id="nothing")
        )
    with pytest.raises(TaskNotFoundError):
        await client.create_task_push_notification_config(config(task_id="nobody"))
    with pytest.raises(InvalidParamsError, match="URL"):
        await client.create_task_push_notification_config(config(url="https://127.0.0.1/"))


async def test_an_agent_without_push_says_so(client_without_push: Client) -> None:
    with pytest.raises(PushNotificationNotSupportedError):
        await client_without_push.create_task_push_notification_config(config())


@pytest.mark.parametrize("binding", ["JSONRPC", "HTTP+JSON"])
async def test_pages_and_tenants_of_1_0(server: Server, sender: PushSender, binding: str) -> None:
    client = client_of(server, binding, "1.0")
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
