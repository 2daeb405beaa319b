"""The sender of a2a-sdk as it is, which signs nothing, and the policy that admits it by name."""

from __future__ import annotations

from collections.abc import AsyncIterator
from dataclasses import dataclass
from pathlib import Path

import httpx
import pytest
from a2a.auth.user import UnauthenticatedUser
from a2a.server.context import ServerCallContext
from a2a.server.tasks import BasePushNotificationSender, InMemoryPushNotificationConfigStore
from a2a.types import TaskPushNotificationConfig, TaskState, TaskStatus, TaskStatusUpdateEvent
from google.protobuf.json_format import ParseDict
from pytest_aiohttp.plugin import AiohttpServer

from receiver import (
    Expectation,
    Notification,
    Receiver,
    SenderProfile,
    TaskPolicy,
    TrustedSender,
)
from tests.eventually import DEADLINE


@dataclass
class Agent:
    """The SDK's sender, with the config that a client handed to it."""

    client: httpx.AsyncClient

    async def sends(self, task_id: str, expectation: Expectation) -> None:
        configs = InMemoryPushNotificationConfigStore()
        config = ParseDict(expectation.as_json(), TaskPushNotificationConfig())
        await configs.set_info(task_id, config, ServerCallContext(user=UnauthenticatedUser()))
        status = TaskStatus(state=TaskState.TASK_STATE_COMPLETED)
        event = TaskStatusUpdateEvent(task_id=task_id, context_id="context-1", status=status)
        await BasePushNotificationSender(self.client, configs).send_notification(task_id, event)


@pytest.fixture
async def agent() -> AsyncIterator[Agent]:
    async with httpx.AsyncClient() as client:
        yield Agent(client)


@pytest.fixture
async def receiver(tmp_path: Path, aiohttp_server: AiohttpServer, unused_tcp_port: int) -> Receiver:
    receiver = Receiver(
        url=f"http://127.0.0.1:{unused_tcp_port}",
        senders=[
            TrustedSender(
                name="sdk", profile=SenderProfile.UNSIGNED_SECRET_ONLY, tasks=TaskPolicy.BIND
            )
        ],
        database=tmp_path / "inbox.db",
    )
    await aiohttp_server(receiver.app(), port=unused_tcp_port)
    return receiver


@pytest.mark.parametrize("authentication", [None, "Bearer", "Basic", "ApiKey"])
async def test_its_notification_is_accepted_for_its_own_task(
    receiver: Receiver,
    agent: Agent,
    authentication: str | None,
    caplog: pytest.LogCaptureFixture,
) -> None:
    expectation = await receiver.expect(authentication=authentication)

    await agent.sends("task-1", expectation)
    await agent.sends("task-2", expectation)

    found: Notification = await receiver.wait("task-1", timeout=DEADLINE)
    assert found.sender == "sdk"
    assert "refused 404 task_not_expected" in caplog.text


async def test_without_what_was_handed_out_it_is_refused(
    receiver: Receiver, agent: Agent, caplog: pytest.LogCaptureFixture
) -> None:
    expectation = await receiver.expect(authentication="Bearer")
    await receiver.unregister(token=expectation.config.token)
    forged = await receiver.expect()
    object.__setattr__(forged.config, "token", "made-up")

    await agent.sends("task-1", expectation)
    await agent.sends("task-1", forged)

    assert "refused 404 task_not_expected" in caplog.text
    assert "refused 401 invalid_token" in caplog.text
