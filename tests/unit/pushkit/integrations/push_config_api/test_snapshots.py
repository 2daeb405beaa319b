"""`urn:pushkit:push-snapshot:v1`, which a client puts into its config."""

from __future__ import annotations

import json
from typing import Any

import pytest

from pushkit import PushSender, StatusUpdate, Task, TaskState, TaskStatus
from pushkit.integrations.push_config_api import Caller, PushConfigApi
from tests.unit.pushkit.integrations.push_config_api.conftest import Server, task_exists
from tests.unit.pushkit.integrations.push_config_api.test_json_rpc import CREATE, URL, every_version

URI = "urn:pushkit:push-snapshot:v1"
WORKING = TaskStatus(state=TaskState.WORKING)


@pytest.fixture
def api(sender: PushSender) -> PushConfigApi:
    async def task_of(caller: Caller, task_id: str) -> Task | None:
        assert caller.owner == "alice"
        return Task(id=task_id, context_id="c-1", status=WORKING) if task_id == "task-1" else None

    return PushConfigApi(sender, task_exists=task_exists, snapshot=task_of)


def asking(version: str, asked: Any = True) -> tuple[str, dict[str, Any]]:
    method, params = CREATE[version]
    if version == "1.0":
        return method, params | {URI: asked}
    return method, params | {"pushNotificationConfig": {"url": URL, URI: asked}}


@every_version
async def test_the_task_as_it_stands_is_the_first_notification(
    server: Server, sender: PushSender, version: str
) -> None:
    answer = await server.call(*asking(version))
    result = answer["result"]
    assert result.get(URI, result.get("pushNotificationConfig", {}).get(URI)) is True
    await sender.notify(StatusUpdate(task_id="task-1", context_id="c-1", status=WORKING))
    first, second = await sender.deliveries("task-1")
    document = json.loads(first.body)
    assert (document.get("task") or document)["id"] == "task-1"
    assert (first.seq, second.seq) == (1, 2)


async def test_http_json_takes_it_too(server: Server, sender: PushSender) -> None:
    path = "/tasks/task-1/pushNotificationConfigs"
    answer = await server.post(json.dumps({"url": URL, URI: True}).encode(), path)
    assert (answer.status_code, answer.json()[URI]) == (200, True)
    assert len(await sender.deliveries("task-1")) == 1


@every_version
async def test_who_does_not_ask_gets_none_and_notices_nothing(
    server: Server, sender: PushSender, version: str
) -> None:
    for params in (CREATE[version], asking(version, asked=False)):
        assert URI not in json.dumps(await server.call(*params))
    assert await sender.deliveries("task-1") == []


async def test_a_task_that_is_not_there_yet_is_no_error(server: Server, sender: PushSender) -> None:
    answer = await server.call(CREATE["1.0"][0], {"taskId": "task-2", "url": URL, URI: True})
    assert answer["result"][URI] is True
    assert await sender.deliveries("task-2") == []


async def test_another_value_is_refused(server: Server, sender: PushSender) -> None:
    answer = await server.call(*asking("1.0", asked={}))
    assert answer["error"]["code"] == -32602
    assert "expected true or false" in answer["error"]["message"]
    assert await sender.subscriptions("task-1", owner="alice") == []


async def test_an_api_without_a_task_store_ignores_it(sender: PushSender) -> None:
    api = PushConfigApi(sender, task_exists=None)
    method, params = asking("1.0")
    result = await api.call(method, params, owner="alice", version=None)
    assert isinstance(result, dict)
    assert URI not in result
    assert URI not in {each["uri"] for each in api.extensions}


def test_a_card_declares_it_where_it_is_served(api: PushConfigApi) -> None:
    assert URI in {each["uri"] for each in api.extensions}
