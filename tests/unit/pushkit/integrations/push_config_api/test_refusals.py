"""Every refusal is the operator's to see, and says to the client only what it can act on."""

from __future__ import annotations

import json
from typing import Any

import grpc
import pytest
from a2a.auth.user import User
from a2a.compat.v0_3 import a2a_v0_3_pb2, a2a_v0_3_pb2_grpc
from a2a.server.context import ServerCallContext
from a2a.types import a2a_pb2, a2a_pb2_grpc
from a2a.utils.errors import InvalidParamsError, VersionNotSupportedError
from prometheus_client.parser import text_string_to_metric_families
from pytest_aiohttp.plugin import AiohttpClient

from pushkit import PushSender
from pushkit.dashboard.app import sender_dashboard
from pushkit.errors import InvalidPushConfigError
from pushkit.events import PushConfigRefused
from pushkit.integrations.a2a_sdk import PushkitConfigStore
from tests.emitted import emitted
from tests.unit.pushkit.integrations.push_config_api.conftest import Server

TOKEN = "a-token-of-the-dashboard"
CREATE = "CreateTaskPushNotificationConfig"


def refused(events: list[Any]) -> tuple[str, str, str]:
    """Return code, owner and host of the one refusal."""
    [event] = emitted(events, PushConfigRefused)
    return event.code, event.owner, event.host


async def counted(sender: PushSender) -> dict[str, float]:
    """Return what `/metrics` counted, by code."""
    page = (await sender.metrics.page()).body.decode()
    return {
        sample.labels["code"]: sample.value
        for family in text_string_to_metric_families(page)
        for sample in family.samples
        if sample.name == "pushkit_push_configs_refused_total"
    }


async def test_a_refused_registration_is_logged_once_counted_and_shown(
    server: Server,
    sender: PushSender,
    aiohttp_client: AiohttpClient,
    caplog: pytest.LogCaptureFixture,
) -> None:
    assert await counted(sender) == {}
    site = sender_dashboard(sender, token=TOKEN, hosts=["127.0.0.1"])
    dashboard = await aiohttp_client(site.app(), headers={"Authorization": f"Bearer {TOKEN}"})
    for _ in range(3):
        await server.call(CREATE, {"taskId": "task-1", "url": "http://10.0.0.1/<b>?secret"})

    [line] = [each.getMessage() for each in caplog.records if "push config" in each.getMessage()]
    assert "(destination_refused)" in line
    assert "[owner=alice host=10.0.0.1 task=task-1]" in line
    assert await counted(sender) == {"destination_refused": 3}
    async with dashboard.get("/") as answer:
        page = await answer.text()
    async with dashboard.get("/api/v1/overview") as answer:
        overview = await answer.json()
    assert ">10.0.0.1</span>" in page
    assert overview["refused_configs"]["counts"] == {"destination_refused": 3}
    assert len(overview["refused_configs"]["newest"]) == 3
    assert "secret" not in page + line


async def test_text_of_a_client_stays_on_one_line_and_is_escaped(
    sender: PushSender, aiohttp_client: AiohttpClient, caplog: pytest.LogCaptureFixture
) -> None:
    site = sender_dashboard(sender, token=TOKEN, hosts=["127.0.0.1"])
    dashboard = await aiohttp_client(site.app(), headers={"Authorization": f"Bearer {TOKEN}"})
    hostile = "<i>\n code=ok \x1b[31m"
    config = {"url": f"http://user:pass@{hostile}"}
    with pytest.raises(InvalidPushConfigError):
        await sender.subscribe("task\n1", config, version="1.0", owner=hostile)
    [line] = [each.getMessage() for each in caplog.records]
    assert line.isprintable()
    assert " code=ok" not in line
    async with dashboard.get("/") as answer:
        page = await answer.text()
    assert "<i>" not in page
    assert "pass" not in line + page.partition("Refused push configs")[2]


@pytest.mark.parametrize(
    ("method", "params", "code"),
    [
        pytest.param(CREATE, {"taskId": "task-1"}, "invalid_push_config", id="no url"),
        pytest.param(
            CREATE, {"taskId": "task-1", "url": "https://a@b.example.com"}, "destination_refused",
            id="no webhook",
        ),
        pytest.param(CREATE, {"url": "https://b.example.com"}, "invalid_params", id="no task"),
        pytest.param(
            CREATE, {"taskId": "of/bob", "url": "https://b.example.com"}, "task_not_found",
            id="task of another",
        ),
        pytest.param(
            "ListTaskPushNotificationConfigs", {"taskId": "task-1", "pageToken": "?"},
            "invalid_params", id="page",
        ),
        pytest.param("SendMessage", {}, "method_not_found", id="method"),
    ],
)  # fmt: skip
async def test_every_refused_call_is_reported_with_its_code(
    server: Server, events: list[Any], method: str, params: dict[str, Any], code: str
) -> None:
    assert "error" in await server.call(method, params)
    assert refused(events)[:2] == (code, "alice")


@pytest.mark.parametrize(
    ("code", "call"),
    [
        pytest.param("unauthenticated", {"user": None}, id="nobody"),
        pytest.param("malformed_json", {"body": b"{"}, id="no JSON"),
        pytest.param("invalid_request", {"body": b"[]"}, id="a batch"),
        pytest.param("invalid_request", {"body": b" " * 70_000}, id="too long"),
        pytest.param("invalid_request", {"Content_Type": "text/plain"}, id="a form"),
        pytest.param("method_not_found", {"path": "/elsewhere"}, id="path"),
        pytest.param(
            "malformed_json", {"path": "/tasks/task-1/pushNotificationConfigs"}, id="HTTP+JSON"
        ),
    ],
)
async def test_every_refused_request_is_reported_with_its_code(
    server: Server, events: list[Any], code: str, call: dict[str, Any]
) -> None:
    answer = await server.post(**({"body": b"x"} | call))
    assert "error" in answer.json()
    user = call.get("user", "alice") or ""
    assert refused(events) == (code, user, "")


async def test_a_registration_by_grpc_is_reported_once(channel: Any, events: list[Any]) -> None:
    config = a2a_pb2.TaskPushNotificationConfig(task_id="task-1", url="http://10.0.0.1")
    with pytest.raises(grpc.aio.AioRpcError):
        await a2a_pb2_grpc.A2AServiceStub(channel).CreateTaskPushNotificationConfig(config)
    assert refused(events) == ("destination_refused", "alice", "10.0.0.1")


async def test_a_name_of_0_3_by_grpc_is_reported(channel: Any, events: list[Any]) -> None:
    request = a2a_v0_3_pb2.GetTaskPushNotificationConfigRequest(name="elsewhere")
    with pytest.raises(grpc.aio.AioRpcError):
        await a2a_v0_3_pb2_grpc.A2AServiceStub(channel).GetTaskPushNotificationConfig(request)
    assert refused(events) == ("invalid_params", "", "")


class Alice(User):
    is_authenticated = True
    user_name = "alice"


@pytest.mark.parametrize(
    ("config", "version", "error", "expected"),
    [
        pytest.param(
            {"url": "http://10.0.0.1"}, "1.0", InvalidParamsError,
            ("destination_refused", "alice", "10.0.0.1"), id="url",
        ),
        pytest.param(
            {}, "1.0", InvalidParamsError, ("invalid_push_config", "alice", ""), id="no url"
        ),
        pytest.param(
            {"url": "https://b.example.com"}, "9", VersionNotSupportedError,
            ("unsupported_version", "alice", ""), id="version",
        ),
    ],
)  # fmt: skip
async def test_the_sdks_config_store_reports_its_refusals(
    sender: PushSender, events: list[Any], config: Any, version: str, *, error: Any, expected: Any
) -> None:
    context = ServerCallContext(user=Alice(), state={"headers": {"A2A-Version": version}})
    proto = a2a_pb2.TaskPushNotificationConfig(**config)
    with pytest.raises(error):
        await PushkitConfigStore(sender).set_info("task-1", proto, context)
    assert refused(events) == expected


@pytest.mark.parametrize(
    "url",
    ["http://127.0.0.1:9000/hook", "http://localhost/", "https://10.0.0.1/", "https://a.corp/"],
)
async def test_no_client_is_told_what_only_the_operator_can_do(server: Server, url: str) -> None:
    found = json.dumps(await server.call(CREATE, {"taskId": "task-1", "url": url}))
    assert "allow" not in found.replace("not among the ports that are allowed", "")
