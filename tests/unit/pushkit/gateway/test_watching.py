"""Tasks behind a gateway: what webhooks are told, whatever breaks."""

from __future__ import annotations

import asyncio
import json
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import replace
from datetime import timedelta
from typing import Any

import pytest
from aiohttp import web

from pushkit import SenderOptions
from pushkit.a2a import WireVersion
from pushkit.delivery.watches import WatchRow
from pushkit.errors import StorageError
from pushkit.gateway import watcher
from pushkit.gateway.calls import Binding, Place
from pushkit.keys.ring import KeyRing
from tests.eventually import eventually
from tests.unit.pushkit.gateway.agent import ScriptedAgent
from tests.unit.pushkit.gateway.conftest import HOOK, Front, Start, config_of, gateway, message

COMPLETED = "TASK_STATE_COMPLETED"


def states(told: list[Any]) -> list[str]:
    """The state of each update, or the text of its chunk."""
    found = []
    for update in told:
        [(name, value)] = update.items()
        if name == "artifactUpdate":
            found.append(value["artifact"]["parts"][0]["text"])
        else:
            found.append(value["status"]["state"].removeprefix("TASK_STATE_"))
    return found


@pytest.fixture(autouse=True)
def quick(monkeypatch: pytest.MonkeyPatch) -> None:
    """Look at tasks more often."""
    for name in ("_FIRST_PAUSE", "_LONGEST_PAUSE", "_PAUSE_OF_CLIENT", "_PER_EVENT"):
        monkeypatch.setattr(watcher, name, 0.05)
    monkeypatch.setattr(watcher, "_CLAIMED_EVERY", 0.05)


async def test_each_event_of_a_message_is_told_in_order(front: Front) -> None:
    task = await front.send()
    assert task["status"]["state"] == "TASK_STATE_SUBMITTED"  # answered before the end
    front.agent.status(task["id"], "TASK_STATE_WORKING")
    front.agent.status(task["id"], COMPLETED, "done")
    assert states(await front.told(task["id"], 3)) == ["SUBMITTED", "WORKING", "COMPLETED"]
    await eventually(lambda: not len(front.service.watcher))
    assert await front.service.watcher.store.count() == 0


async def test_the_agent_never_sees_the_config(front: Front) -> None:
    await front.send()
    [params] = front.agent.asked("SendStreamingMessage")
    assert "configuration" not in params
    assert HOOK not in str(front.agent.received)


async def test_a_client_that_waits_gets_the_whole_task_at_its_end(front: Front) -> None:
    waiting = asyncio.create_task(front.rpc("SendMessage", message(early=False)))
    await eventually(lambda: bool(front.agent.tasks))
    [task_id] = front.agent.tasks
    await eventually(lambda: front.agent.watchers(task_id) == 1)
    front.agent.chunk(task_id, "one ")
    front.agent.chunk(task_id, "two")
    assert not waiting.done()
    front.agent.status(task_id, COMPLETED)
    answer = await waiting
    assert answer["id"] == 7
    assert answer["result"]["task"] == front.agent.tasks[task_id]
    assert states(await front.told(task_id, 4))[-1] == "COMPLETED"


async def test_a_client_that_waits_gets_the_task_that_was_done_at_once(front: Front) -> None:
    """The agent may remember no task."""
    task = {"id": "task-9", "contextId": "c", "status": {"state": COMPLETED}}
    front.agent.answer = {"task": task}
    assert await front.send(early=False) == task
    assert states(await front.told("task-9", 1)) == ["COMPLETED"]


async def test_a_client_that_streams_gets_the_agents_bytes(front: Front) -> None:
    async with front.post("SendStreamingMessage", message()) as got:
        await eventually(lambda: bool(front.agent.tasks))
        [task_id] = front.agent.tasks
        await eventually(lambda: front.agent.watchers(task_id) == 1)
        front.agent.status(task_id, COMPLETED)
        lines = [line async for line in got.content if line.strip()]
    assert len(lines) == 2
    assert all(b'"id": 7' in line for line in lines)
    assert states(await front.told(task_id, 2)) == ["SUBMITTED", "COMPLETED"]


async def test_a_client_that_leaves_loses_no_update(front: Front) -> None:
    async with front.post("SendStreamingMessage", message()) as got:
        await got.content.readline()
        got.close()
    [task_id] = front.agent.tasks
    front.agent.chunk(task_id, "one")
    front.agent.status(task_id, COMPLETED)
    assert states(await front.told(task_id, 3)) == ["SUBMITTED", "one", "COMPLETED"]


async def test_an_agent_without_streams_is_asked_again_and_again(
    agent: ScriptedAgent, location: str, ring: KeyRing
) -> None:
    agent.streams = agent.subscribes = False
    async with gateway(agent, location, ring) as front:
        task = await front.send()
        assert states(await front.told(task["id"], 1)) == ["SUBMITTED"]
        agent.status(task["id"], "TASK_STATE_WORKING")
        await front.told(task["id"], 2)
        agent.status(task["id"], COMPLETED)
        assert states(await front.told(task["id"], 3)) == ["SUBMITTED", "WORKING", "COMPLETED"]


async def test_a_stream_that_breaks_is_joined_again(front: Front) -> None:
    task = await front.send()
    await front.told(task["id"], 1)
    front.agent.break_streams(task["id"])
    front.agent.status(task["id"], "TASK_STATE_WORKING")  # which no stream tells
    await eventually(lambda: front.agent.watchers(task["id"]) == 1)
    front.agent.chunk(task["id"], "one")
    front.agent.status(task["id"], COMPLETED)
    told = states(await front.told(task["id"], 4))
    assert told == ["SUBMITTED", "WORKING", "one", "COMPLETED"]


@pytest.mark.parametrize("method", ["GET", "POST"])
async def test_a_stream_of_http_json_is_joined_as_its_agent_knows_it(
    front: Front, monkeypatch: pytest.MonkeyPatch, method: str
) -> None:
    handle = front.agent._handle_rest

    async def by(request: web.Request, *given: Any) -> web.StreamResponse:
        if request.path.endswith(":subscribe") and request.method != method:
            return web.Response(status=405)
        return await handle(request, *given)

    monkeypatch.setattr(front.agent, "_handle_rest", by)
    _, answer = await front.rest("POST", "/message:send", message(early=False, config=False))
    task_id, config = answer["task"]["id"], {"url": HOOK, "id": "c1"}
    await front.rest("POST", f"/tasks/{task_id}/pushNotificationConfigs", config)
    await eventually(lambda: front.agent.watchers(task_id) == 1)
    front.agent.chunk(task_id, "one")
    front.agent.status(task_id, COMPLETED)
    assert states(await front.told(task_id, 2)) == ["one", "COMPLETED"]


async def test_a_stream_of_0_3_that_breaks_is_followed_by_whole_tasks(front: Front) -> None:
    task_id = await front.send_0_3()
    await front.told(task_id, 1)
    front.agent.break_streams(task_id)
    front.agent.chunk(task_id, "one")
    front.agent.chunk(task_id, " two")
    await eventually(lambda: front.agent.watchers(task_id) == 1)
    front.agent.status(task_id, COMPLETED)
    await eventually(lambda: front.is_told(task_id, "completed"))
    told = await front.told(task_id, 1)
    assert [part["text"] for part in told[-1]["artifacts"][0]["parts"]] == ["one", " two"]


async def test_a_joined_stream_that_says_nothing_does_not_hide_the_task(
    agent: ScriptedAgent, location: str, ring: KeyRing
) -> None:
    agent.streams = agent.replays = False
    async with gateway(agent, location, ring) as front:
        task = await front.send()
        await eventually(lambda: agent.watchers(task["id"]) == 1)
        assert states(await front.told(task["id"], 1)) == ["SUBMITTED"]


async def test_a_stream_whose_head_comes_with_its_first_event_does_not_hide_the_task(
    front: Front, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(watcher, "_JOINED_WITHIN", 0.05)
    task = await front.send()
    await front.told(task["id"], 1)
    stream, more = front.agent._stream, asyncio.Event()

    async def waits(*given: Any, **named: Any) -> web.StreamResponse:
        await more.wait()
        return await stream(*given, **named)

    monkeypatch.setattr(front.agent, "_stream", waits)
    front.agent.break_streams(task["id"])
    front.agent.status(task["id"], "TASK_STATE_WORKING")
    assert states(await front.told(task["id"], 2)) == ["SUBMITTED", "WORKING"]
    more.set()
    await eventually(lambda: front.agent.watchers(task["id"]) == 1)
    front.agent.chunk(task["id"], "one")
    front.agent.status(task["id"], COMPLETED)
    told = states(await front.told(task["id"], 4))
    assert told == ["SUBMITTED", "WORKING", "one", "COMPLETED"]


@pytest.mark.parametrize("is_refused", [True, False])
async def test_an_agent_whose_streams_end_at_once_is_asked_less_and_less(
    front: Front, monkeypatch: pytest.MonkeyPatch, *, is_refused: bool
) -> None:
    """As those of a task whose work ended with a former process of the agent."""
    monkeypatch.setattr(watcher, "_LONGEST_PAUSE", 30.0)
    task = await front.send()
    await front.told(task["id"], 1)

    async def ends(_request: web.Request, number: Any, *_: Any, **__: Any) -> web.Response:
        said = {"error": {"code": -32001}} if is_refused else {"result": {"task": task}}
        data = f"data: {json.dumps({'jsonrpc': '2.0', 'id': number, **said})}\n\n"
        return web.Response(text=data, content_type="text/event-stream")

    monkeypatch.setattr(front.agent, "_stream", ends)
    front.agent.break_streams(task["id"])
    began = asyncio.get_running_loop().time()
    await eventually(lambda: len(front.agent.asked("SubscribeToTask")) > 5)
    assert asyncio.get_running_loop().time() - began > 0.05 + 0.1 + 0.2 + 0.4 + 0.8


async def test_a_client_of_0_3_gets_a_task_of_0_3_from_a_stream_of_1_0(front: Front) -> None:
    front.agent.mixes = True
    task_id = await front.send_0_3()
    front.agent.status(task_id, COMPLETED)
    assert [each["status"]["state"] for each in await front.told(task_id, 2)][-1] == "completed"


async def test_the_end_of_a_quick_task_of_0_3_is_told_once(front: Front) -> None:
    task_id = await front.send_0_3()
    front.agent.status(task_id, "TASK_STATE_WORKING")  # the task is ahead of its events
    front.agent.chunk(task_id, "one")
    front.agent.status(task_id, COMPLETED)
    await eventually(lambda: not len(front.service.watcher))
    told = [each["status"]["state"] for each in await front.told(task_id)]
    assert told.count("completed") == 1
    assert told[-1] == "completed"


async def test_an_agent_of_0_3_is_asked_as_clients_of_0_3_ask(front: Front) -> None:
    asking = asyncio.create_task(front.send_0_3(early=False))
    await eventually(lambda: bool(front.agent.tasks))
    front.agent.status(next(iter(front.agent.tasks)), COMPLETED)
    await asking
    heads = [head for method, head, _ in front.agent.received if method == "tasks/get"]
    assert heads
    assert not any("A2A-Version" in head for head in heads)  # which 0.3 does not know


@pytest.mark.parametrize("subscribes", [True, False])
async def test_another_gateway_goes_on_and_tells_nothing_twice(
    agent: ScriptedAgent, location: str, ring: KeyRing, *, subscribes: bool
) -> None:
    agent.subscribes = subscribes
    async with gateway(agent, location, ring) as first:
        task = await first.send()
        agent.status(task["id"], "TASK_STATE_WORKING")
        agent.chunk(task["id"], "one ")
        await first.told(task["id"], 3)
        async with gateway(agent, location, ring) as second:
            assert not len(second.service.watcher)  # the first one watches
            await first.service.watcher.stop()
            await eventually(lambda: len(second.service.watcher) == 1)
            agent.status(task["id"], COMPLETED, "done")
            told = states(await second.told(task["id"], 4))
            assert told == ["SUBMITTED", "WORKING", "one ", "COMPLETED"]
            await eventually(lambda: not len(second.service.watcher))


async def test_a_task_is_not_watched_for_longer_than_it_may_be(start: Start) -> None:
    async with start(watch_for=timedelta(seconds=1)) as front:
        task = await front.send()
        front.agent.break_streams(task["id"])
        front.agent.subscribes = False
        await eventually(lambda: not len(front.service.watcher), within=10)
        await asyncio.sleep(0.3)  # for longer than it is claimed within
        assert not len(front.service.watcher)
        assert await front.sender.watches().count() == 0


async def test_a_config_that_another_gateway_accepts_as_a_task_is_dropped_is_told(
    agent: ScriptedAgent, location: str, ring: KeyRing, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(watcher, "_UNWANTED", timedelta(0))
    async with gateway(agent, location, ring) as first, gateway(agent, location, ring) as second:
        task = await first.send()
        await first.told(task["id"], 1)
        store = first.service.watcher.store
        remove = store.remove
        is_removed = asyncio.Event()

        async def remove_after_config(*key: str) -> None:
            answer = await second.rpc("CreateTaskPushNotificationConfig", config_of(task["id"]))
            assert "result" in answer
            await remove(*key)
            is_removed.set()

        monkeypatch.setattr(store, "remove", remove_after_config)
        await first.rpc("DeleteTaskPushNotificationConfig", {"taskId": task["id"], "id": "c1"})
        agent.break_streams(task["id"])
        await is_removed.wait()
        agent.status(task["id"], COMPLETED)
        assert "COMPLETED" in states(await second.told(task["id"], 2))


async def test_what_happened_between_two_gateways_is_told(
    agent: ScriptedAgent, location: str, ring: KeyRing
) -> None:
    async with gateway(agent, location, ring) as first:
        task = await first.send()
        await first.told(task["id"], 1)
    agent.chunk(task["id"], "one ")
    agent.status(task["id"], COMPLETED)
    async with gateway(agent, location, ring) as second:
        told = await second.told(task["id"], 2)
        assert states(told) == ["SUBMITTED", "COMPLETED"]
        assert told[1]["task"]["artifacts"][0]["parts"] == [{"text": "one "}]


async def test_an_update_that_was_stored_before_a_death_is_not_stored_again(
    agent: ScriptedAgent, location: str, ring: KeyRing, monkeypatch: pytest.MonkeyPatch
) -> None:
    async with gateway(agent, location, ring) as first:
        task = await first.send()
        await first.told(task["id"], 1)

        async def dies(*_: object, **__: object) -> bool:
            raise asyncio.CancelledError

        # The update is stored, and that it was told is not.
        monkeypatch.setattr(first.service.watcher.store, "set_told", dies)
        agent.status(task["id"], "TASK_STATE_WORKING", "half")
        await first.told(task["id"], 2)
        await eventually(lambda: not len(first.service.watcher))
    async with gateway(agent, location, ring) as second:
        await eventually(lambda: agent.watchers(task["id"]) == 1)
        agent.status(task["id"], COMPLETED)
        told = states(await second.told(task["id"], 3))
        assert told == ["SUBMITTED", "WORKING", "COMPLETED"]


async def test_the_end_of_a_task_that_is_too_large_is_told_without_its_artifacts(
    start: Start, agent: ScriptedAgent
) -> None:
    agent.streams = agent.subscribes = False
    async with start() as front:
        task = await front.send()
        agent.chunk(task["id"], "much " * 2**18)
        agent.status(task["id"], COMPLETED, "done")
        await eventually(lambda: not len(front.service.watcher))
        told = await front.told(task["id"])
        assert states(told) == ["SUBMITTED", "COMPLETED"]
        assert told[1]["task"]["status"]["message"]["parts"] == [{"text": "done"}]


async def test_a_state_for_which_there_was_no_room_is_told_once_there_is(
    agent: ScriptedAgent, location: str, ring: KeyRing
) -> None:
    agent.streams = agent.subscribes = False
    sending = SenderOptions(max_backlog_per_subscription=1)
    async with gateway(agent, location, ring, sending=sending) as front:
        task = await front.send()
        await front.told(task["id"], 1)
        agent.status(task["id"], "TASK_STATE_INPUT_REQUIRED", "which?")
        await eventually(lambda: front.sender.counts.refused)
        [first] = await front.sender.deliveries(task["id"])
        await front.sender.outbox.cancel([first.id])
        assert states(await front.told(task["id"], 2)) == ["SUBMITTED", "INPUT_REQUIRED"]


async def test_a_state_whose_message_is_too_large_is_told_without_it(front: Front) -> None:
    task = await front.send()
    front.agent.status(task["id"], COMPLETED, "much " * 2**18)
    await eventually(lambda: not len(front.service.watcher))
    assert states(await front.told(task["id"])) == ["SUBMITTED", "COMPLETED"]


async def test_a_row_of_another_version_does_not_end_the_watching(front: Front) -> None:
    """A newer gateway beside this one, or before it, may have written it."""
    row = WatchRow(
        tenant="",
        task_id="odd",
        version="9.0",
        binding="JSONRPC",
        path="/",
        credentials=None,
        told="",
        view="",
        created_at=0,
    )
    store, task = front.service.watcher.store, await front.send(config=False)
    assert await store.add(row, hold=False)
    assert await store.add(replace(row, task_id=task["id"], version="1.0"), hold=False)
    await eventually(lambda: front.service.watcher.get("", task["id"]) is not None)


async def test_a_config_for_a_task_under_way_is_told_from_then_on(front: Front) -> None:
    task_id = (await front.send(config=False))["id"]
    front.agent.status(task_id, "TASK_STATE_WORKING")
    assert not len(front.service.watcher)  # nobody wants to know
    stored = await front.rpc("CreateTaskPushNotificationConfig", config_of(task_id))
    assert stored["result"]["url"] == HOOK
    await eventually(lambda: front.agent.watchers(task_id) == 2)
    front.agent.status(task_id, COMPLETED)
    assert states(await front.told(task_id, 1)) == ["COMPLETED"]


async def test_a_task_whose_config_was_stored_is_watched_even_if_its_client_leaves(
    front: Front, monkeypatch: pytest.MonkeyPatch
) -> None:
    task_id = (await front.send(config=False))["id"]
    subscribe, is_stored = front.sender.subscribe, asyncio.Event()

    async def subscribe_slowly(*args: Any, **kwargs: Any) -> Any:
        stored = await subscribe(*args, **kwargs)
        is_stored.set()
        await asyncio.sleep(0.2)
        return stored

    monkeypatch.setattr(front.sender, "subscribe", subscribe_slowly)
    setting = front.rpc("CreateTaskPushNotificationConfig", config_of(task_id))
    calling = asyncio.create_task(setting)
    await is_stored.wait()
    calling.cancel()
    await eventually(lambda: front.agent.watchers(task_id) == 2, within=10)
    front.agent.status(task_id, COMPLETED)
    assert states(await front.told(task_id, 1)) == ["COMPLETED"]


async def test_a_task_that_waited_for_its_client_goes_on(
    front: Front, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(watcher, "_PAUSE_OF_CLIENT", 30.0)  # nothing is seen by asking
    task = await front.send()
    front.agent.status(task["id"], "TASK_STATE_INPUT_REQUIRED", "which?")
    await front.told(task["id"], 2)
    more = asyncio.create_task(front.send(task_id=task["id"]))
    await eventually(lambda: front.agent.watchers(task["id"]) >= 1)
    front.agent.status(task["id"], COMPLETED)
    await more
    told = states(await front.told(task["id"], 4))
    assert told == ["SUBMITTED", "INPUT_REQUIRED", "WORKING", "COMPLETED"]


async def test_clients_of_0_3_get_whole_tasks(front: Front) -> None:
    task = await front.send()
    await front.set_0_3(task["id"])
    front.agent.chunk(task["id"], "one ")
    front.agent.chunk(task["id"], "two")
    front.agent.status(task["id"], COMPLETED)
    await eventually(lambda: front.is_told(task["id"], "completed"))
    [*_, last] = await front.told(task["id"], config_id="old")
    assert last["status"]["state"] == "completed"
    assert [part["text"] for part in last["artifacts"][0]["parts"]] == ["one ", "two"]


async def test_clients_of_0_3_are_told_the_end_once_though_the_agent_is_ahead(front: Front) -> None:
    task = await front.send()
    await front.set_0_3(task["id"])
    for number in range(3):
        front.agent.chunk(task["id"], f"{number}")
    front.agent.status(task["id"], COMPLETED)
    await eventually(lambda: not len(front.service.watcher))
    told = await front.told(task["id"], config_id="old")
    assert [each["status"]["state"] for each in told].count("completed") == 1
    assert told[-1]["status"]["state"] == "completed"


async def test_a_message_of_the_agent_is_the_answer(front: Front) -> None:
    said = {"messageId": "x", "role": "ROLE_AGENT", "parts": [{"text": "no task"}]}
    front.agent.answer = {"message": said}
    answer = await front.rpc("SendMessage", message())
    assert answer["result"]["message"]["messageId"] == "x"
    assert not len(front.service.watcher)


async def test_a_task_that_the_agent_forgot_is_given_up(
    front: Front, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setattr(watcher, "_UNSEEN", timedelta(0))
    task = await front.send()
    del front.agent.tasks[task["id"]]
    front.agent.break_streams(task["id"])
    await eventually(lambda: not len(front.service.watcher))
    assert "the agent knows it no longer" in caplog.text


async def test_a_stream_that_lingers_after_the_end_is_not_cut(front: Front) -> None:
    front.agent.lingers = 0.5
    async with front.post("SendStreamingMessage", message()) as got:
        [task_id] = front.agent.tasks
        front.agent.status(task_id, COMPLETED)
        await eventually(lambda: not len(front.service.watcher))  # it is told
        assert (await got.read()).count(b"data:") == 2


async def test_a_stream_that_stays_open_while_a_task_waits_hides_no_other(front: Front) -> None:
    front.agent.lingers = 60.0
    task = await front.send()
    front.agent.status(task["id"], "TASK_STATE_INPUT_REQUIRED", "which?")
    await front.told(task["id"], 2)
    await front.send(task_id=task["id"])
    front.agent.status(task["id"], COMPLETED)
    told = states(await front.told(task["id"], 4))
    assert told == ["SUBMITTED", "INPUT_REQUIRED", "WORKING", "COMPLETED"]


async def test_what_a_message_brings_is_left_to_its_stream(
    front: Front, monkeypatch: pytest.MonkeyPatch
) -> None:
    """What is asked for meanwhile may be newer than the beginning of the stream."""
    task = await front.send()
    front.agent.status(task["id"], "TASK_STATE_INPUT_REQUIRED", "which?")
    await front.told(task["id"], 2)
    add = front.service.watcher.add

    async def add_late(*args: Any, **kwargs: Any) -> bool:
        front.agent.chunk(task["id"], "one")
        before = len(front.agent.asked("GetTask"))
        await eventually(lambda: len(front.agent.asked("GetTask")) > before + 2)
        return await add(*args, **kwargs)

    monkeypatch.setattr(front.service.watcher, "add", add_late)
    await front.send(task_id=task["id"])
    front.agent.status(task["id"], COMPLETED)
    told = states(await front.told(task["id"], 5))
    assert told == ["SUBMITTED", "INPUT_REQUIRED", "WORKING", "one", "COMPLETED"]


async def test_the_end_is_told_to_a_config_of_its_last_moment_as_soon_as_it_can_be_stored(
    front: Front, monkeypatch: pytest.MonkeyPatch
) -> None:
    task = await front.send()
    store, notify = front.service.watcher.store, front.sender.notify
    remove = store.remove
    faults = [StorageError("out of reach"), StorageError("out of reach")]

    async def notify_later(*args: Any, **kwargs: Any) -> Any:
        if faults:
            raise faults.pop()
        return await notify(*args, **kwargs)

    async def remove_after_config(*key: str) -> None:
        await front.sender.subscribe(task["id"], {"url": HOOK, "id": "2"}, version="1.0")
        await remove(*key)
        monkeypatch.setattr(front.sender, "notify", notify_later)

    monkeypatch.setattr(store, "remove", remove_after_config)
    front.agent.status(task["id"], COMPLETED)
    await eventually(lambda: not len(front.service.watcher))
    assert await front.told_of_end(task["id"]) == ["2", "c1"]


@pytest.mark.parametrize("watched", [True, False])
async def test_a_task_that_ends_as_its_config_is_set_is_told_once(
    front: Front, monkeypatch: pytest.MonkeyPatch, *, watched: bool
) -> None:
    task_id = (await front.send(config=watched))["id"]
    subscribe = front.sender.subscribe

    async def subscribe_late(*args: Any, **kwargs: Any) -> Any:
        front.agent.status(task_id, COMPLETED)
        await eventually(lambda: not len(front.service.watcher))
        return await subscribe(*args, **kwargs)

    monkeypatch.setattr(front.sender, "subscribe", subscribe_late)
    await front.rpc("CreateTaskPushNotificationConfig", {"taskId": task_id, "url": HOOK, "id": "2"})
    await front.told(task_id, 3 if watched else 1)
    await eventually(lambda: not len(front.service.watcher))
    assert await front.told_of_end(task_id) == (["2", "c1"] if watched else ["2"])


async def test_a_whole_task_of_0_3_holds_no_chunk_twice(front: Front) -> None:
    task = await front.send()
    await front.set_0_3(task["id"])
    front.agent.chunk(task["id"], "0 ")
    front.agent.status(task["id"], "TASK_STATE_WORKING")
    for number in range(1, 5):  # the agent is ahead of its stream
        front.agent.chunk(task["id"], f"{number} ")
    front.agent.status(task["id"], COMPLETED)
    await eventually(lambda: not len(front.service.watcher))
    for told in await front.told(task["id"], config_id="old"):
        for artifact in told.get("artifacts", ()):
            text = "".join(part["text"] for part in artifact["parts"])
            assert "0 1 2 3 4 ".startswith(text)


async def test_an_event_of_a_later_version_is_told_as_it_is(front: Front) -> None:
    task = await front.send()
    await front.told(task["id"], 1)
    front.agent.babble(task["id"])
    front.agent.chunk(task["id"], "one")
    front.agent.status(task["id"], COMPLETED)
    first, unknown, *others = await front.told(task["id"], 4)
    assert states([first, *others]) == ["SUBMITTED", "one", "COMPLETED"]
    assert list(unknown) == ["odd"]


async def test_a_stream_that_is_not_wanted_any_more_is_closed_before_it_was_read(
    front: Front,
) -> None:
    """As when a message brings the task's stream while the watcher joins another one."""
    task, upstream = await front.send(), front.service.upstream
    place = Place(WireVersion.V1_0, Binding.JSON_RPC, "/")
    stream = await upstream.subscribe(place, task["id"], [])
    assert stream is not None
    stream.unwatch()
    await eventually(lambda: upstream.streams == 1)  # that of the message
    assert stream.answer.closed


@pytest.mark.parametrize(
    "greeting", [b"id: 1\ndata:\n\n", b'event: ping\ndata: {"type": "ping"}\n\n']
)
async def test_an_event_that_says_nothing_does_not_hide_the_task(
    front: Front, greeting: bytes
) -> None:
    """Some servers send one at once: a client has an id to resume at, or a sign of life."""
    front.agent.greeting = greeting
    task = await front.send()
    front.agent.status(task["id"], COMPLETED)
    assert states(await front.told(task["id"], 2)) == ["SUBMITTED", "COMPLETED"]


async def test_a_stream_whose_task_cannot_be_watched_is_read_no_further_once_it_is_over(
    front: Front, monkeypatch: pytest.MonkeyPatch
) -> None:
    async def fails(*_: object, **__: object) -> bool:
        raise StorageError("out of reach")

    monkeypatch.setattr(front.service.watcher.store, "add", fails)
    front.agent.lingers = 60.0
    front.agent.tasks["t"] = {"id": "t", "contextId": "c", "status": {"state": COMPLETED}}
    async with front.post("SendMessage", message(task_id="t")) as refused:
        assert refused.status == 503
    await eventually(lambda: not front.service.upstream.streams, within=10)


async def test_events_that_nobody_can_read_say_that_a_task_changed(
    start: Start, monkeypatch: pytest.MonkeyPatch
) -> None:
    agent = ScriptedAgent()
    agent.replays = False
    monkeypatch.setattr("tests.unit.pushkit.gateway.agent._old_update", lambda _: "mumble")
    async with agent.served(), start(before=agent) as front:
        task = await front.send(config=False)
        await front.rpc("CreateTaskPushNotificationConfig", config_of(task["id"]))
        await eventually(lambda: agent.watchers(task["id"]) == 2)
        await eventually(lambda: len(agent.asked("tasks/get")) == 2)  # as no event came
        agent.status(task["id"], "TASK_STATE_WORKING")
        assert states(await front.told(task["id"], 1)) == ["WORKING"]


async def test_a_quiet_stream_does_not_hide_what_the_agent_did_not_show_at_once(
    front: Front, monkeypatch: pytest.MonkeyPatch
) -> None:
    task_id, refused = await front.send_0_3(), len(front.agent.asked("tasks/get")) + 1
    with monkeypatch.context() as patch:
        patch.setattr(front.agent, "owners", {task_id: "somebody else"})
        front.agent.status(task_id, "TASK_STATE_WORKING")
        await eventually(lambda: len(front.agent.asked("tasks/get")) >= refused)
        assert not await front.is_told(task_id, "working")
    await eventually(lambda: front.is_told(task_id, "working"))


async def test_what_the_agent_answered_is_told_even_if_it_forgets(
    agent: ScriptedAgent, location: str, ring: KeyRing, monkeypatch: pytest.MonkeyPatch
) -> None:
    agent.streams = False
    async with gateway(agent, location, ring) as front:
        subscribe = front.sender.subscribe

        async def subscribe_late(*args: Any, **kwargs: Any) -> Any:
            agent.tasks.clear()
            return await subscribe(*args, **kwargs)

        monkeypatch.setattr(front.sender, "subscribe", subscribe_late)
        task = await front.send()
        assert states(await front.told(task["id"], 1)) == ["SUBMITTED"]


async def test_a_client_that_waits_does_not_delay_a_stop(
    agent: ScriptedAgent, location: str, ring: KeyRing
) -> None:
    async with gateway(agent, location, ring) as front:
        waiting = asyncio.create_task(front.rpc("SendMessage", message(early=False)))
        await eventually(lambda: len(front.service.watcher) == 1)
        stopping = asyncio.get_running_loop().time()
    waiting.cancel()
    assert asyncio.get_running_loop().time() - stopping < 30


async def test_a_whole_task_of_0_3_is_not_followed_by_an_older_one(front: Front) -> None:
    """What was asked for may be ahead of the stream that begins meanwhile."""
    task_id = await front.send_0_3()
    await front.told(task_id, 1)
    front.agent.hold = asyncio.Event()
    front.agent.status(task_id, "TASK_STATE_INPUT_REQUIRED")
    await eventually(lambda: front.agent.held == 1)  # the whole task, for this update
    await front.send_0_3(task_id=task_id)
    front.agent.chunk(task_id, "one")
    front.agent.hold.set()
    await eventually(lambda: front.agent.held > 1)
    front.agent.status(task_id, COMPLETED)
    await eventually(lambda: not len(front.service.watcher))
    told = await front.told(task_id)
    assert told[-1]["status"]["state"] == "completed"
    whole = ["artifacts" in task for task in told]
    assert whole == sorted(whole)  # what was there is not gone again


# --- agents and databases that are slow, or silent ---


@asynccontextmanager
async def missing_at_a_look(agent: ScriptedAgent, task_id: str) -> AsyncIterator[None]:
    """Have the agent not know a task, until it was asked for it since."""
    kept, looks = agent.tasks.pop(task_id), len(agent.asked("GetTask"))
    yield
    await eventually(lambda: len(agent.asked("GetTask")) > looks)
    await asyncio.sleep(0.1)
    agent.tasks[task_id] = kept


async def test_a_task_that_a_stream_showed_meanwhile_is_not_missing_since_before(
    front: Front, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setattr(watcher, "_UNSEEN", timedelta(seconds=1))
    agent = front.agent
    task = await front.send()
    await front.told(task["id"], 1)
    kept = agent.tasks.pop(task["id"])  # the agent starts again: it does not know the task yet
    agent.break_streams(task["id"])
    await eventually(lambda: len(agent.asked("GetTask")) > 1)
    agent.tasks[task["id"]] = kept  # now it does
    await eventually(lambda: agent.watchers(task["id"]) == 1)
    agent.status(task["id"], "TASK_STATE_WORKING")
    await front.told(task["id"], 2)
    await asyncio.sleep(1.2)
    async with missing_at_a_look(agent, task["id"]):  # and once more
        agent.break_streams(task["id"])
    agent.status(task["id"], COMPLETED)
    assert "knows it no longer" not in caplog.text
    assert states(await front.told(task["id"], 3))[-1] == "COMPLETED"


async def test_a_refusal_is_no_sign_that_a_task_is_missing(
    front: Front, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setattr(watcher, "_UNSEEN", timedelta(seconds=1))
    agent = front.agent
    task = await front.send()
    await front.told(task["id"], 1)
    agent.users = {"another": "one"}  # the token has expired
    agent.break_streams(task["id"])
    await asyncio.sleep(1.2)
    async with missing_at_a_look(agent, task["id"]):
        agent.users = {}
    agent.status(task["id"], COMPLETED)
    assert "knows it no longer" not in caplog.text
    assert states(await front.told(task["id"], 2))[-1] == "COMPLETED"


async def test_an_agent_is_asked_at_a_bounded_rate_after_it_waited_for_its_client(
    front: Front, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(watcher, "_PER_EVENT", 1.0)
    agent = front.agent
    over = "tests.unit.pushkit.gateway.agent._is_over"
    monkeypatch.setattr(over, lambda update: COMPLETED in str(update))
    task_id = await front.send_0_3()
    await eventually(lambda: agent.watchers(task_id) == 1)
    agent.status(task_id, "TASK_STATE_INPUT_REQUIRED", "log in")
    await front.told(task_id, 2)
    agent.status(task_id, "TASK_STATE_WORKING")
    await front.told(task_id, 3)
    before = len(agent.asked("tasks/get"))
    for number in range(50):
        agent.chunk(task_id, f"{number} ")
        await asyncio.sleep(0.02)
    assert len(agent.asked("tasks/get")) - before <= 4


async def test_a_look_that_is_not_answered_does_not_hold_up_a_stream(
    front: Front,
) -> None:
    agent = front.agent
    task = await front.send()
    agent.status(task["id"], "TASK_STATE_INPUT_REQUIRED", "which?")
    await front.told(task["id"], 2)
    agent.hold = asyncio.Event()  # a connection that died, say: its answer never comes
    await eventually(lambda: agent.held)
    try:
        await front.send(task_id=task["id"])
        agent.status(task["id"], "TASK_STATE_WORKING", "on it")
        async with asyncio.timeout(5):
            told = states(await front.told(task["id"], 4))
        assert told == ["SUBMITTED", "INPUT_REQUIRED", "WORKING", "WORKING"]
    finally:
        agent.hold.set()


async def test_an_agent_that_answers_only_its_streams_is_followed(
    front: Front, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A stream that is joined begins with the task, but late."""
    agent = front.agent
    task = await front.send()
    await front.told(task["id"], 1)

    async def late(request: Any, number: Any, task_id: Any, **_: Any) -> Any:
        response = web.StreamResponse(headers={"Content-Type": "text/event-stream"})
        await response.prepare(request)
        await asyncio.sleep(0.3)  # > _PER_EVENT
        said = {"jsonrpc": "2.0", "id": number, "result": {"task": agent.tasks[task_id]}}
        await response.write(f"data: {json.dumps(said)}\n\n".encode())
        await asyncio.sleep(60)
        return response

    def refuse(*_: Any, **__: Any) -> web.Response:
        return web.Response(status=500)

    monkeypatch.setattr(agent, "_stream", late)
    monkeypatch.setattr(agent, "_answer", refuse)  # of GetTask
    agent.status(task["id"], "TASK_STATE_WORKING", "on it")
    await front.told(task["id"], 2)
    agent.tasks[task["id"]]["status"] = {"state": COMPLETED}
    agent.break_streams(task["id"])
    async with asyncio.timeout(5):
        assert states(await front.told(task["id"], 3))[-1] == "COMPLETED"


async def test_a_state_for_which_there_was_no_room_is_told_though_its_stream_is_quiet(
    agent: ScriptedAgent, location: str, ring: KeyRing
) -> None:
    agent.lingers = 60.0  # the stream stays open while the task waits for its client
    sending = SenderOptions(max_backlog_per_subscription=1)
    async with gateway(agent, location, ring, sending=sending) as front:
        task = await front.send()
        await front.told(task["id"], 1)
        agent.status(task["id"], "TASK_STATE_INPUT_REQUIRED", "which?")
        await eventually(lambda: front.sender.counts.refused)
        [first] = await front.sender.deliveries(task["id"])
        await front.sender.outbox.cancel([first.id])
        async with asyncio.timeout(5):
            assert states(await front.told(task["id"], 2)) == ["SUBMITTED", "INPUT_REQUIRED"]


async def test_a_joined_stream_that_stays_quiet_does_not_hide_the_end(
    front: Front, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(watcher, "_QUIET", 0.2)
    agent = front.agent
    task = await front.send()
    await front.told(task["id"], 1)
    agent.break_streams(task["id"])
    await eventually(lambda: agent.watchers(task["id"]) == 1)
    await asyncio.sleep(0.2)
    agent.tasks[task["id"]]["status"] = {"state": COMPLETED}  # another process of the agent did it
    async with asyncio.timeout(5):
        assert states(await front.told(task["id"], 2))[-1] == "COMPLETED"


async def test_a_task_that_the_agent_does_not_show_in_time_delays_no_other_client(
    front: Front, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(watcher, "_SHOWN_WITHIN", 0.2)
    agent = front.agent
    task = await front.send()
    await front.set_0_3(task["id"])  # its webhook gets whole tasks
    await front.told(task["id"], 1)
    agent.hold = asyncio.Event()  # no answer to GetTask, for ten minutes
    agent.status(task["id"], "TASK_STATE_WORKING")
    try:
        async with asyncio.timeout(5):
            told = states(await front.told(task["id"], 2, config_id="c1"))
        assert told == ["SUBMITTED", "WORKING"]
    finally:
        agent.hold.set()


async def test_a_stream_that_died_unnoticed_does_not_keep_the_next_one_from_being_read(
    front: Front, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The agent's machine is gone, and no packet says so: another one goes on with the task."""
    monkeypatch.setattr(watcher, "_SILENT", 0.2)
    agent = front.agent
    task = await front.send()
    await front.told(task["id"], 1)
    agent._streams[task["id"]].clear()  # nothing comes of the first stream any more
    await asyncio.sleep(0.3)
    await front.send(task_id=task["id"])
    assert agent.watchers(task["id"]) == 1
    agent.status(task["id"], COMPLETED)
    async with asyncio.timeout(5):
        assert states(await front.told(task["id"], 2))[-1] == "COMPLETED"


async def test_a_task_for_which_there_is_no_room_is_said(
    start: Start, caplog: pytest.LogCaptureFixture
) -> None:
    async with start(max_watches=1) as front:
        await front.send()
        await front.send()
        await eventually(lambda: "1 tasks are watched, as many as may be" in caplog.text)


async def test_leases_are_renewed_before_rows_that_failed_here_are_given_back(
    front: Front, monkeypatch: pytest.MonkeyPatch
) -> None:
    """As on a gateway that lacks a secret key, of which many rows are sealed."""
    watching = front.service.watcher
    task = await front.send()
    odd = WatchRow(
        tenant="", task_id="odd", version="9.0", binding="JSONRPC", path="/",
        credentials=None, told="", view="", created_at=0,
    )  # fmt: skip
    await watching.store.add(odd, hold=True)
    watched, renewed = watching.get("", task["id"]), list[tuple[float, set[tuple[str, str]]]]()

    async def give_back(keys: set[tuple[str, str]]) -> None:
        assert watched is not None
        renewed.append((watched.leased_until, keys))

    monkeypatch.setattr(watching.store, "give_back", give_back)
    until = asyncio.get_running_loop().time() + 1000
    await watching._renew(until)
    assert (until, {("", "odd")}) in renewed
