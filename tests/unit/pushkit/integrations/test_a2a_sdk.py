"""The adapter of a2a-sdk 1.x: a fault of one task or client does not affect others."""

from __future__ import annotations

import json
from collections.abc import AsyncIterator, Awaitable, Callable
from typing import Any

import pytest
from a2a.server.context import ServerCallContext
from a2a.server.tasks import InMemoryTaskStore
from a2a.types import (
    Artifact,
    Part,
    Task,
    TaskArtifactUpdateEvent,
    TaskPushNotificationConfig,
    TaskState,
    TaskStatus,
    TaskStatusUpdateEvent,
)
from a2a.utils.errors import InternalError, InvalidParamsError

from pushkit import NotifyResult, PushSender
from pushkit.errors import CommitUncertainError
from pushkit.events import Event, RecipientRefused
from pushkit.integrations import enqueue_buffer
from pushkit.integrations.a2a_sdk import PushkitConfigStore, PushkitNotificationSender
from tests.emitted import emitted
from tests.eventually import eventually
from tests.unit.pushkit.integrations.conftest import FULL, away

HOOK = {"url": "https://client.example.com/a2a"}
CONFIG = TaskPushNotificationConfig(url="https://client.example.com/a2a")


@pytest.fixture(autouse=True)
def _soon(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(enqueue_buffer, "_FIRST_PAUSE", 0.01)


class Tasks:
    """A task store that has tasks by owner, and may do something when it is asked."""

    def __init__(self, *owners: str) -> None:
        self.owners = owners
        self.when_asked: Callable[[], Awaitable[object]] | None = None

    async def get(self, task_id: str, context: ServerCallContext) -> Task | None:
        when_asked, self.when_asked = self.when_asked, None
        if when_asked is not None:
            await when_asked()
        if context.user.user_name not in self.owners:
            return None
        status = TaskStatus(state=TaskState.TASK_STATE_WORKING)
        return Task(id=task_id, context_id="context-1", status=status, artifacts=[ARTIFACT])


ARTIFACT = Artifact(artifact_id="artifact-1", parts=[Part(text="a token")])


@pytest.fixture
def tasks() -> Tasks:
    return Tasks("bob")


@pytest.fixture
async def adapter(push: PushSender, tasks: Tasks) -> AsyncIterator[PushkitNotificationSender]:
    adapter = PushkitNotificationSender(push, task_store=tasks)
    yield adapter
    await adapter.close()


def status(
    task_id: str = "task-1", state: TaskState = TaskState.TASK_STATE_WORKING
) -> TaskStatusUpdateEvent:
    return TaskStatusUpdateEvent(
        task_id=task_id, context_id="context-1", status=TaskStatus(state=state)
    )


def artifact(task_id: str = "task-1") -> TaskArtifactUpdateEvent:
    return TaskArtifactUpdateEvent(task_id=task_id, context_id="context-1", artifact=ARTIFACT)


async def bodies(push: PushSender, task_id: str = "task-1") -> dict[str, Any]:
    return {each.owner: json.loads(each.body) for each in await push.deliveries(task_id)}


async def test_a_client_with_a_full_backlog_is_reported_and_does_not_affect_the_others(
    push: PushSender, adapter: PushkitNotificationSender, events: list[Event]
) -> None:
    await push.subscribe("task-1", HOOK, version="1.0", owner="down")
    for _ in range(FULL + 5):
        await adapter.send_notification("task-1", status())
    await push.subscribe("task-1", HOOK, version="1.0", owner="up")
    await push.subscribe("task-2", HOOK, version="1.0", owner="up")
    await adapter.send_notification("task-1", status())
    await adapter.send_notification("task-2", status("task-2"))
    assert len(adapter.buffer) == 0
    assert len(await push.deliveries("task-2")) == 1
    assert [each.owner for each in await push.deliveries("task-1")].count("up") == 1
    refused = emitted(events, RecipientRefused)
    assert {(each.owner, each.error) for each in refused} == {("down", "backlog_full")}
    assert len(refused) == push.counts.refused == 6


async def test_equal_updates_are_two(push: PushSender, adapter: PushkitNotificationSender) -> None:
    await push.subscribe("task-1", HOOK, version="1.0")
    for _ in range(2):
        await adapter.send_notification("task-1", artifact())
    assert len(await push.deliveries("task-1")) == 2


async def test_an_update_that_may_have_been_stored_is_stored_once(
    push: PushSender, adapter: PushkitNotificationSender, monkeypatch: pytest.MonkeyPatch
) -> None:
    await push.subscribe("task-1", HOOK, version="1.0")
    notify, calls = push.notify, 0

    async def breaks_in_the_commit(*arguments: Any, **options: Any) -> NotifyResult:
        nonlocal calls
        calls += 1
        result = await notify(*arguments, **options)
        if calls < 3:
            raise CommitUncertainError("the connection broke in the commit")
        return result

    monkeypatch.setattr(push, "notify", breaks_in_the_commit)
    await adapter.send_notification("task-1", status())
    assert len(adapter.buffer) == 1

    await eventually(lambda: not len(adapter.buffer))
    assert calls == 3
    assert len(await push.deliveries("task-1")) == 1


async def test_without_a_task_in_the_store_a_0_3_client_gets_statuses_and_the_others_everything(
    push: PushSender, adapter: PushkitNotificationSender, tasks: Tasks, events: list[Event]
) -> None:
    tasks.owners = ()
    await push.subscribe("task-1", HOOK, version="1.0", owner="alice")
    await push.subscribe("task-1", HOOK, version="0.3", owner="bob")
    await adapter.send_notification("task-1", artifact())
    assert list(await bodies(push)) == ["alice"]
    refused = emitted(events, RecipientRefused)
    assert [(each.owner, each.error) for each in refused] == [("bob", "snapshot_required")]
    await adapter.send_notification("task-1", status(state=TaskState.TASK_STATE_COMPLETED))
    assert (await bodies(push))["bob"] == {
        "id": "task-1",
        "contextId": "context-1",
        "kind": "task",
        "status": {"state": "completed"},
    }


async def test_each_0_3_client_gets_the_task_as_its_owner_sees_it(
    push: PushSender, adapter: PushkitNotificationSender
) -> None:
    for owner in ("bob", "mallory"):
        await push.subscribe("task-1", HOOK, version="0.3", owner=owner)
    await adapter.send_notification("task-1", status())
    found = await bodies(push)
    assert found["bob"]["artifacts"][0]["artifactId"] == "artifact-1"
    assert "artifacts" not in found["mallory"]


async def test_an_event_is_taken_as_it_was_when_it_was_sent(
    push: PushSender, adapter: PushkitNotificationSender, monkeypatch: pytest.MonkeyPatch
) -> None:
    await push.subscribe("task-1", HOOK, version="1.0")
    event = status()
    async with adapter:  # which stores at its end what waits
        with monkeypatch.context() as patch:
            patch.setattr(push, "notify", away)
            await adapter.send_notification("task-1", event)
            event.status.state = TaskState.TASK_STATE_COMPLETED
    [delivery] = await push.deliveries("task-1")
    assert json.loads(delivery.body)["statusUpdate"]["status"]["state"] == "TASK_STATE_WORKING"


async def test_a_client_is_not_told_why_the_outbox_is_out_of_reach(
    push: PushSender, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    for method in ("subscribe", "subscriptions", "unsubscribe"):
        monkeypatch.setattr(push, method, away)
    store, context = PushkitConfigStore(push), ServerCallContext()
    for call in (
        lambda: store.set_info("task-1", CONFIG, context),
        lambda: store.get_info("task-1", context),
        lambda: store.delete_info("task-1", context),
    ):
        with pytest.raises(InternalError, match=r"^Internal error$"):
            await call()
    assert caplog.text.count("could not be served") == 1
    assert "10.0.0.7" in caplog.text


async def test_a_client_is_not_told_that_the_sender_is_closed(push: PushSender) -> None:
    await push.close()
    with pytest.raises(InternalError, match=r"^Internal error$"):
        await PushkitConfigStore(push).set_info("task-1", CONFIG, ServerCallContext())


async def test_an_id_that_no_config_can_have_is_the_clients_error(push: PushSender) -> None:
    with pytest.raises(InvalidParamsError, match="printable"):
        await PushkitConfigStore(push).delete_info("task-1", ServerCallContext(), "\0")


async def test_a_config_is_of_the_tenant_that_the_call_names(push: PushSender) -> None:
    store = PushkitConfigStore(push)
    config = TaskPushNotificationConfig(url="https://client.example.com/a2a", tenant="acme")
    context = ServerCallContext(tenant="acme")

    returned = await store.set_info("task-1", config, context)

    assert returned.tenant == "acme"
    assert [each.tenant for each in await store.get_info("task-1", context)] == ["acme"]


async def test_a_0_3_client_gets_the_end_of_a_task_without_values_that_are_not_json(
    push: PushSender, adapter: PushkitNotificationSender
) -> None:
    await push.subscribe("task-1", HOOK, version="1.0", owner="alice")
    await push.subscribe("task-1", HOOK, version="0.3", owner="carol")
    end = status(state=TaskState.TASK_STATE_COMPLETED)
    end.metadata.update({"loss": float("nan")})

    await adapter.send_notification("task-1", end)

    found = await bodies(push)
    assert found.keys() == {"carol"}
    assert found["carol"]["status"] == {"state": "completed"}


@pytest.mark.parametrize("version", ["1.0", "0.3"])
async def test_a_config_gets_the_task_as_it_stands_from_the_task_store(
    push: PushSender, version: str
) -> None:
    context = ServerCallContext(state={"headers": {"A2A-Version": version}})
    tasks = InMemoryTaskStore()
    store = PushkitConfigStore(push, snapshots_from=tasks)

    await store.set_info("task-2", CONFIG, context)  # which is not there yet
    working = TaskStatus(state=TaskState.TASK_STATE_WORKING)
    await tasks.save(Task(id="task-1", context_id="context-1", status=working), context)
    await store.set_info("task-1", CONFIG, context)

    [sent] = await push.deliveries("task-1")
    document = json.loads(sent.body)
    assert (document.get("task") or document)["id"] == "task-1"
    assert (sent.seq, await push.deliveries("task-2")) == (1, [])
