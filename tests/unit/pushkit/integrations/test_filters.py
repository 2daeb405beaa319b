"""Filters of push configs: the operator's option of an adapter, and the client's extension."""

from __future__ import annotations

from dataclasses import replace
from datetime import timedelta
from typing import Any

import pytest
from a2a.auth.user import UnauthenticatedUser
from a2a.server.context import ServerCallContext
from a2a.types import TaskPushNotificationConfig

from pushkit import Filter, PushSender, StatusUpdate, TaskState, TaskStatus
from pushkit.errors import InvalidPushConfigError
from pushkit.integrations.a2a_sdk import PushkitConfigStore
from pushkit.integrations.push_config_api import PushConfigApi
from pushkit.subscriptions.filters import FILTER_EXTENSION

URL = "https://client.example.com/a2a"
ENDS = Filter(states=["completed", "failed"])


def asking(**members: Any) -> dict[str, Any]:
    return {"url": URL, FILTER_EXTENSION: members}


async def set_config(api: PushConfigApi, config: dict[str, Any], owner: str = "alice") -> Any:
    params = {"taskId": "task-1", **config}
    method = "CreateTaskPushNotificationConfig"
    return await api.call(method, params, owner=owner, version="1.0")


async def wanted(push: PushSender) -> dict[str, Filter]:
    return {each.key.owner: each.wanted for each in await push.subscribers("task-1")}


async def test_an_adapter_filters_for_all_its_clients(push: PushSender) -> None:
    store = PushkitConfigStore(push, filter=ENDS)
    context = ServerCallContext(user=UnauthenticatedUser())
    await store.set_info("task-1", TaskPushNotificationConfig(url=URL), context)
    working = StatusUpdate(
        task_id="task-1", context_id="c", status=TaskStatus(state=TaskState.WORKING)
    )
    assert (await push.notify(working)).unwanted == 1


@pytest.mark.parametrize(
    ("options", "gathers"),
    [
        pytest.param({}, timedelta(seconds=1), id="by default"),
        pytest.param({"min_interval": timedelta(seconds=3)}, timedelta(seconds=3), id="longer"),
        pytest.param({"min_interval": None}, None, id="not"),
    ],
)
async def test_an_adapter_gathers_the_chunks_of_streams(
    push: PushSender, options: dict[str, Any], gathers: timedelta | None
) -> None:
    store = PushkitConfigStore(push, filter=lambda _: ENDS, **options)
    context = ServerCallContext(user=UnauthenticatedUser())
    await store.set_info("task-1", TaskPushNotificationConfig(url=URL), context)
    [found] = await push.subscribers("task-1")
    assert found.wanted == replace(ENDS, states=frozenset(ENDS.states or ()), min_interval=gathers)


@pytest.mark.parametrize(("asked", "gets"), [(0.25, 1), (2.5, 2.5)])
async def test_of_two_intervals_the_longer_one_counts(
    push: PushSender, asked: float, gets: float
) -> None:
    wanted = Filter(min_interval=timedelta(seconds=1))
    found = await push.subscribe("task-1", asking(minInterval=asked), version="1.0", filter=wanted)
    assert found.wanted.min_interval == timedelta(seconds=gets)


async def test_the_push_config_api_filters_for_each_owner(push: PushSender) -> None:
    choice = {"alice": ENDS, "bob": Filter(last_chunk_only=True)}
    api = PushConfigApi(push, task_exists=None, filter=choice.__getitem__)
    for owner in choice:
        await set_config(api, {"url": URL}, owner)
    found = await wanted(push)
    assert set(found["alice"].states or ()) == {"completed", "failed"}
    assert found["bob"] == choice["bob"]


@pytest.mark.parametrize("version", ["0.1", "0.3", "1.0"])
async def test_a_client_asks_for_a_filter_in_its_config(push: PushSender, version: str) -> None:
    config = asking(states=["TASK_STATE_COMPLETED", "failed"], kinds=["statusUpdate", "task"])
    found = await push.subscribe("task-1", config, version=version)
    assert found.wanted == Filter(
        states=frozenset({TaskState.COMPLETED, TaskState.FAILED}),
        kinds=frozenset({"status-update", "task"}),
    )


async def test_a_client_reads_back_what_it_gets(push: PushSender) -> None:
    api = PushConfigApi(push, task_exists=None, filter=Filter(states=["completed"]))
    written = await set_config(api, asking(lastChunkOnly=True))
    assert written[FILTER_EXTENSION] == {"states": ["completed"], "lastChunkOnly": True}
    params = {"taskId": "task-1", "id": "task-1"}
    read = await api.call("GetTaskPushNotificationConfig", params, owner="alice", version="1.0")
    assert read == written


async def test_a_client_gets_what_it_and_the_operator_want(push: PushSender) -> None:
    api = PushConfigApi(push, task_exists=None, filter=ENDS)
    await set_config(api, asking(states=["working", "completed"]))
    assert (await wanted(push))["alice"].states == {"completed"}


@pytest.mark.parametrize(
    ("asked", "says"),
    [
        pytest.param({"state": ["completed"]}, "found 'state', expected only the", id="member"),
        pytest.param({"states": ["done"]}, ".states: found 'done', expected one of", id="state"),
        pytest.param({"kinds": ["event"]}, ".kinds: found 'event', expected one of", id="kind"),
        pytest.param({"kinds": "task"}, ".kinds: found a string, expected a list", id="text"),
        pytest.param({"lastChunkOnly": 1}, ".lastChunkOnly: expected a valid boolean", id="flag"),
        pytest.param({"minInterval": 0}, "a number of seconds, more than 0", id="no interval"),
        pytest.param({"minInterval": 1e300}, "and up to 3600", id="a long interval"),
        pytest.param({"minInterval": True}, ".minInterval: expected a number", id="a flag"),
        pytest.param(["completed"], "v1: expected an object", id="list"),
    ],
)
async def test_what_is_not_understood_is_refused(push: PushSender, asked: Any, says: str) -> None:
    config = {"url": URL, FILTER_EXTENSION: asked}
    with pytest.raises(InvalidPushConfigError) as caught:
        await push.subscribe("task-1", config, version="1.0")
    assert says in str(caught.value)
    assert FILTER_EXTENSION in str(caught.value)
    assert await push.subscribers("task-1") == []
