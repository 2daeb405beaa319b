"""Subscribers of several versions on one task of an a2a-sdk agent."""

from __future__ import annotations

import json
from collections.abc import AsyncIterator
from datetime import UTC, datetime
from pathlib import Path

import pytest
from a2a.server.tasks import InMemoryTaskStore
from a2a.types import TaskState as SdkState
from a2a.types import TaskStatus as SdkStatus
from a2a.types import TaskStatusUpdateEvent

from pushkit import KeyRing, PushSender
from pushkit.integrations.a2a_sdk import PushkitNotificationSender


@pytest.fixture
async def sender(tmp_path: Path) -> AsyncIterator[PushSender]:
    sender = PushSender(
        issuer="https://agent.example.com",
        keys=KeyRing.create(datetime.now(UTC)),
        database=tmp_path / "outbox.db",
    )
    await sender.open()
    yield sender
    await sender.close()


async def test_a_task_that_the_store_does_not_have_silences_nobody(sender: PushSender) -> None:
    hook = {"url": "https://client.example.com/a2a"}
    await sender.subscribe("task-1", hook, version="1.0", owner="alice")
    await sender.subscribe("task-1", hook, version="0.3", owner="bob")
    event = TaskStatusUpdateEvent(
        task_id="task-1",
        context_id="context-1",
        status=SdkStatus(state=SdkState.TASK_STATE_WORKING),
    )
    adapter = PushkitNotificationSender(sender, task_store=InMemoryTaskStore())
    await adapter.send_notification("task-1", event)

    bodies = {row.owner: json.loads(row.body) for row in await sender.deliveries("task-1")}
    assert bodies["alice"]["statusUpdate"]["status"] == {"state": "TASK_STATE_WORKING"}
    assert bodies["bob"]["kind"] == "task"
    assert bodies["bob"]["id"] == "task-1"
    assert bodies["bob"]["status"] == {"state": "working"}
