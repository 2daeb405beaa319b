"""Arguments of wrong types that would be misread silently are refused."""

from __future__ import annotations

import itertools
import logging
from dataclasses import replace
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import pytest
from a2a.types import TaskStatusUpdateEvent

from pushkit import (
    DeliveryFilter,
    KeyRing,
    PushSender,
    StatusUpdate,
    SubscriptionFilter,
    TaskState,
    TaskStatus,
)
from pushkit.a2a import MessageUpdate, Task, TaskSnapshot
from pushkit.errors import ConfigError
from tests.unit.pushkit.delivery.conftest import enqueue, status

HOOK = {"url": "https://client.example.com/hook", "id": "1"}


async def test_a_provider_that_returns_no_task_fails_for_its_owner_alone(
    sender: PushSender, caplog: pytest.LogCaptureFixture
) -> None:
    await sender.subscribe("task-1", HOOK, version="0.3", owner="alice")
    await sender.subscribe("task-1", HOOK, version="1.0", owner="bob")

    async def snapshot(_: str) -> Any:
        return {"id": "task-1"}

    with caplog.at_level(logging.ERROR):
        result = await sender.notify(status(), snapshot=snapshot)

    assert {each.owner for each in result.deliveries} >= {"bob"}
    assert "its provider failed" in caplog.text


@pytest.mark.parametrize(
    ("argument", "says"),
    [
        ({"owner": 7}, "owner: found int, expected str"),
        ({"owner": None}, "owner: found NoneType, expected str"),
        ({"tenant": None}, "tenant: found NoneType, expected str"),
        ({"task_id": 5}, "task_id: found int, expected str"),
        ({"filter": {}}, "filter: found dict, expected Filter"),
    ],
)
async def test_subscribing_with_an_argument_of_a_wrong_type_is_refused(
    sender: PushSender, argument: dict[str, Any], says: str
) -> None:
    given = {"task_id": "task-1", "config": HOOK, "version": "1.0", **argument}
    with pytest.raises(ConfigError, match=f"^{says}$"):
        await sender.subscribe(**given)
    assert await sender.subscribers("task-1") == []


@pytest.mark.parametrize(
    ("argument", "says"),
    [
        ({"idempotency_key": 5}, "idempotency_key: found int, expected str"),
        ({"snapshot": {"id": "task-1"}}, "snapshot: found dict, expected Task"),
        ({"tenant": None}, "tenant: found NoneType, expected str"),
    ],
)
async def test_an_update_with_an_argument_of_a_wrong_type_is_not_stored(
    sender: PushSender, argument: dict[str, Any], says: str
) -> None:
    await sender.subscribe("task-1", HOOK, version="1.0")
    with pytest.raises(ConfigError, match=f"^{says}$"):
        await sender.notify(status(), **argument)
    assert await sender.deliveries("task-1") == []


WRONG: Any = "working"
NUMBER: Any = 7


@pytest.mark.parametrize(
    ("update", "says"),
    [
        (StatusUpdate(task_id="task-1", status=WRONG), "status: found str, expected TaskStatus"),
        (replace(status(), status=TaskStatus(state=WRONG)), "state: found str, expected TaskState"),
        (TaskSnapshot(task=WRONG), "task: found str, expected Task"),
        (TaskSnapshot(task=Task(id="1", status=WRONG)), "task.status: found str, expected Task"),
        (MessageUpdate(message=WRONG), "message: found str, expected Message"),
        (StatusUpdate(task_id=NUMBER, status=status().status), "task_id: found int, expected str"),
        ({"taskId": "task-1"}, "update: found dict, expected"),
        (None, "update: found NoneType, expected"),
        (TaskStatusUpdateEvent(task_id="1"), "update: found TaskStatusUpdateEvent, expected"),
    ],
)
async def test_an_update_of_a_wrong_type_or_with_such_a_member_is_refused(
    sender: PushSender, update: Any, says: str
) -> None:
    with pytest.raises(ConfigError, match=f"^{says}"):
        await sender.notify(update)


@pytest.mark.parametrize("version", ["0.3", "1.0"])
async def test_a_message_of_a_wrong_type_is_refused_by_its_place(
    sender: PushSender, version: str
) -> None:
    await sender.subscribe("task-1", HOOK, version=version)
    told = TaskStatus(state=TaskState.WORKING, message=WRONG)

    result = await sender.notify(replace(status(), status=told))

    [refused] = result.refused
    assert refused.code == "invalid_update"
    assert refused.message.endswith("status.message: found str, expected Message")


@pytest.mark.parametrize("action", ["redrive", "resend", "retry_now", "cancel", "remove"])
async def test_an_id_instead_of_a_list_is_refused(sender: PushSender, action: str) -> None:
    subscription = await sender.subscribe("task-1", HOOK, version="1.0")
    [delivery_id] = (await sender.notify(status())).ids
    admin: Any = sender.outbox
    if action == "remove":
        admin, delivery_id = sender.subscription_admin, subscription.id

    with pytest.raises(ConfigError, match=rf"expected a list: \['{delivery_id}'\]"):
        await getattr(admin, action)(delivery_id)


OF_CONFIGS = ["unsubscribe", "pause", "resume", "disable", "enable", "send_test", "subscriptions"]
OF_TASKS = ["subscribers", "configs_to_send_with", "deliveries"]


@pytest.mark.parametrize(
    ("method", "name"),
    [
        *itertools.product(OF_CONFIGS, ["task_id", "config_id", "owner", "tenant"]),
        *itertools.product(OF_TASKS, ["task_id", "tenant"]),
    ],
)
async def test_an_id_of_a_wrong_type_selects_nothing_silently(
    sender: PushSender, method: str, name: str
) -> None:
    given: dict[str, Any] = {"task_id": "task-1", name: 7}
    with pytest.raises(ConfigError, match=f"^{name}: found int, expected str"):
        await getattr(sender, method)(**given)


def test_a_tracing_that_is_none_is_refused_by_the_constructor(tmp_path: Path) -> None:
    keys = KeyRing.create(datetime.now(UTC))
    given: dict[str, Any] = {"tracing": True}
    with pytest.raises(ConfigError, match=r"^tracing: found bool, expected Tracing$"):
        PushSender(issuer="https://agent.example.com", keys=keys, database=tmp_path / "o", **given)


@pytest.mark.parametrize(
    ("limit", "says"), [(0, "found 0, expected at least 1"), (None, "found NoneType, expected int")]
)
async def test_a_page_has_a_length(sender: PushSender, limit: Any, says: str) -> None:
    await enqueue(sender)
    with pytest.raises(ConfigError, match=f"^limit: {says}$"):
        await sender.outbox.browse(limit=limit)
    with pytest.raises(ConfigError, match=f"^limit: {says}$"):
        await sender.subscription_admin.browse(limit=limit)


async def test_a_state_that_there_is_not_is_refused(sender: PushSender) -> None:
    wanted = DeliveryFilter(state="gone")  # type: ignore[arg-type]
    with pytest.raises(ConfigError, match="state: found 'gone', expected one of pending"):
        await sender.outbox.find(wanted)


async def test_a_filter_of_something_else_is_refused(sender: PushSender) -> None:
    wanted: Any = SubscriptionFilter(owner="alice")
    with pytest.raises(ConfigError, match="wanted: found SubscriptionFilter, expected a list"):
        await sender.outbox.redrive(wanted)
