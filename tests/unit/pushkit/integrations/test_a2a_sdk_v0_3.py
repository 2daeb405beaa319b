"""The adapter of a2a-sdk 0.2/0.3, over the 0.3 types that a2a-sdk 1.x ships for compatibility.

The real SDK 0.2.16 and 0.3.26 stand at the other end in `make interop`.
"""

from __future__ import annotations

import importlib.metadata
import importlib.util
import json
import sys
from types import ModuleType

import pytest
from a2a.compat.v0_3 import types as v0_3

from pushkit import Filter, PushSender, WireVersion
from pushkit.events import Event, PushConfigRefused
from pushkit.integrations import a2a_sdk
from pushkit.integrations.a2a_sdk import v1
from pushkit.integrations.a2a_sdk.v0_3 import PushkitConfigStore, PushkitNotificationSender
from tests.emitted import emitted
from tests.unit.pushkit.integrations.conftest import away

pytestmark = pytest.mark.usefixtures("_sdk_of_0_3")
HOOK = "https://client.example.com/hook"


class ServerError(Exception):
    """As `a2a.utils.errors` of 0.3 has it."""

    def __init__(self, error: v0_3.InvalidParamsError) -> None:
        super().__init__(error.message)
        self.error = error


@pytest.fixture
def _sdk_of_0_3(monkeypatch: pytest.MonkeyPatch) -> None:
    errors = ModuleType("a2a.utils.errors")
    errors.__dict__["ServerError"] = ServerError
    monkeypatch.setitem(sys.modules, "a2a.types", v0_3)
    monkeypatch.setitem(sys.modules, "a2a.utils.errors", errors)


def config(url: str = HOOK, config_id: str | None = None) -> v0_3.PushNotificationConfig:
    return v0_3.PushNotificationConfig(
        url=url,
        id=config_id,
        token="tok-1",
        authentication=v0_3.PushNotificationAuthenticationInfo(schemes=["Bearer"], credentials="c"),
    )


def task() -> v0_3.Task:
    return v0_3.Task(
        id="task-1",
        context_id="context-1",
        status=v0_3.TaskStatus(state=v0_3.TaskState.working),
        kind="task",
    )


async def test_a_config_becomes_a_subscription_of_0_3(push: PushSender) -> None:
    store = PushkitConfigStore(push)
    await store.set_info("task-1", config())
    [found] = await store.get_info("task-1")
    assert isinstance(found, v0_3.PushNotificationConfig)
    assert (found.url, found.id) == (HOOK, "task-1")
    [subscription] = await push.subscribers("task-1")
    assert subscription.version == "0.3"
    assert found.token is None  # the SDK hands this to clients
    [to_send_with] = await push.configs_to_send_with("task-1")
    assert to_send_with.token == "tok-1"


async def test_configs_get_the_filter_of_the_adapter(push: PushSender) -> None:
    store = PushkitConfigStore(push, filter=lambda owner: Filter(last_chunk_only=not owner))
    await store.set_info("task-1", config())
    [subscription] = await push.subscribers("task-1")
    assert subscription.wanted.last_chunk_only


async def test_a_refused_config_is_the_clients_error_and_reported(
    push: PushSender, events: list[Event]
) -> None:
    with pytest.raises(ServerError) as caught:
        await PushkitConfigStore(push).set_info("task-1", config("http://169.254.169.254/"))
    assert isinstance(caught.value.error, v0_3.InvalidParamsError)
    assert await push.subscribers("task-1") == []
    [event] = emitted(events, PushConfigRefused)
    assert (event.code, event.host) == ("destination_refused", "169.254.169.254")


async def test_a_client_is_not_told_why_the_outbox_is_out_of_reach(
    push: PushSender, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    for method in ("subscribe", "subscriptions", "unsubscribe"):
        monkeypatch.setattr(push, method, away)
    store = PushkitConfigStore(push)
    for call in (
        lambda: store.set_info("task-1", config()),
        lambda: store.get_info("task-1"),
        lambda: store.delete_info("task-1"),
    ):
        with pytest.raises(ServerError) as caught:
            await call()
        assert isinstance(caught.value.error, v0_3.InternalError)
        assert "10.0.0.7" not in str(caught.value.error)
    assert caplog.text.count("could not be served") == 1
    assert "10.0.0.7" in caplog.text


async def test_without_a_name_the_config_of_the_tasks_name_is_deleted(push: PushSender) -> None:
    store = PushkitConfigStore(push)
    await store.set_info("task-1", config())
    await store.set_info("task-1", config(config_id="another"))
    await store.delete_info("task-1")
    assert [found.id for found in await store.get_info("task-1")] == ["another"]


async def test_owners_are_kept_apart(push: PushSender) -> None:
    owner = "alice"
    store = PushkitConfigStore(push, owner_of=lambda: owner)
    await store.set_info("task-1", config())
    owner = "bob"
    assert await store.get_info("task-1") == []


async def test_a_task_is_enqueued_whole(push: PushSender) -> None:
    await PushkitConfigStore(push).set_info("task-1", config())
    await PushkitNotificationSender(push).send_notification(task())
    [delivery] = await push.deliveries("task-1")
    assert delivery.version is WireVersion.V0_3
    assert v0_3.Task.model_validate_json(delivery.body) == task()


async def test_a_task_waits_in_memory_while_the_outbox_is_away(
    push: PushSender, monkeypatch: pytest.MonkeyPatch
) -> None:
    await PushkitConfigStore(push).set_info("task-1", config())
    notifications = PushkitNotificationSender(push)
    with monkeypatch.context() as patch:
        patch.setattr(push, "notify", away)
        await notifications.send_notification(task())
        assert len(notifications.buffer) == 1
    await notifications.close()
    assert len(await push.deliveries("task-1")) == 1


NO_BASE64 = v0_3.Part(root=v0_3.FilePart(file=v0_3.FileWithBytes(bytes="no base64!")))


@pytest.mark.parametrize(
    ("members", "left_out"),
    [
        pytest.param(
            {"artifacts": [v0_3.Artifact(artifact_id="a", parts=[NO_BASE64])]},
            "Task.artifacts.0.parts.0.file.bytes",
            id="artifacts",
        ),
        pytest.param(
            {
                "status": v0_3.TaskStatus(
                    state=v0_3.TaskState.working,
                    message=v0_3.Message(message_id="m", role=v0_3.Role.agent, parts=[NO_BASE64]),
                )
            },
            "TaskStatus.message.parts.0.file.bytes",
            id="message of the status",
        ),
    ],
)
async def test_a_task_is_sent_without_the_members_that_cannot_be_sent(
    push: PushSender, caplog: pytest.LogCaptureFixture, members: dict[str, object], left_out: str
) -> None:
    await PushkitConfigStore(push).set_info("task-1", config())

    await PushkitNotificationSender(push).send_notification(task().model_copy(update=members))

    [delivery] = await push.deliveries("task-1")
    assert v0_3.Task.model_validate_json(delivery.body) == task()
    assert (
        f"task 'task-1': webhooks do not get all of it: {left_out}: expected base64" in caplog.text
    )


@pytest.mark.parametrize(
    ("members", "told"),
    [
        pytest.param({"id": ""}, "id: expected", id="no id"),
        pytest.param({"metadata": {"a": object()}}, "PydanticSerializationError", id="no JSON"),
    ],
)
async def test_a_task_that_cannot_be_sent_is_logged_and_not_raised(
    push: PushSender, caplog: pytest.LogCaptureFixture, members: dict[str, object], told: str
) -> None:
    await PushkitConfigStore(push).set_info("task-1", config())
    notifications = PushkitNotificationSender(push)

    await notifications.send_notification(task().model_copy(update=members))

    assert notifications.buffer.refused == 1
    assert told in caplog.text
    assert await push.deliveries("task-1") == []


def test_the_adapter_is_that_of_the_installed_release(monkeypatch: pytest.MonkeyPatch) -> None:
    assert a2a_sdk.adapter is v1
    monkeypatch.setattr(importlib.metadata, "version", lambda _name: "0.3.26")
    older = importlib.util.module_from_spec(importlib.util.find_spec(a2a_sdk.__name__))  # type: ignore[arg-type]
    older.__spec__.loader.exec_module(older)  # type: ignore[union-attr]
    assert older.adapter.__name__.endswith(".v0_3")


async def test_a_config_gets_the_task_as_it_stands_from_the_task_store(push: PushSender) -> None:
    class Tasks:
        async def get(self, task_id: str) -> v0_3.Task | None:
            return task() if task_id == "task-1" else None

    store = PushkitConfigStore(push, snapshots_from=Tasks())
    await store.set_info("task-1", config())
    await store.set_info("task-2", config())
    [sent] = await push.deliveries("task-1")
    assert (sent.seq, json.loads(sent.body)["status"]["state"]) == (1, "working")
    assert await push.deliveries("task-2") == []
