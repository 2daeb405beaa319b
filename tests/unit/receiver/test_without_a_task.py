"""Messages that belong to no task: accepted, stored and called back like any other update."""

from __future__ import annotations

import json
from dataclasses import replace
from typing import TYPE_CHECKING, Any

import pytest

from pushkit.a2a import MessageUpdate
from receiver import Notification, TaskPolicy
from receiver.testing import Draft
from tests.unit.receiver.drafts import claiming

if TYPE_CHECKING:
    from tests.unit.receiver.conftest import World, WorldFactory

MESSAGE = {"messageId": "m", "role": "agent", "parts": [{"text": "hi"}]}
OLD_MESSAGE = {**MESSAGE, "kind": "message", "parts": [{"kind": "text", "text": "hi"}]}


def message(world: World, number: int = 1, **document: Any) -> Draft:
    body = json.dumps(document or {"message": MESSAGE}).encode()
    return claiming(replace(world.draft(number), body=body), taskId=None)


@pytest.mark.parametrize(
    "document",
    [pytest.param({"message": MESSAGE}, id="1.0"), pytest.param(OLD_MESSAGE, id="0.3")],
)
async def test_a_message_without_a_task_is_accepted_once_and_called_back(
    world_behind: World, document: dict[str, Any]
) -> None:
    world, called = world_behind, list[Notification]()

    @world.receiver.on_update
    async def record(notification: Notification) -> None:
        called.append(notification)

    answers = [await world.post(message(world, **document)) for _ in range(2)]
    await world.until_done(1)

    assert [answer.status for answer in answers] == [202, 200]
    [notification] = called
    assert isinstance(notification.update, MessageUpdate)
    assert (notification.task_id, notification.state) == (None, None)
    assert (notification.seq, notification.missing, notification.late) == (1, 0, False)


@pytest.mark.parametrize("tasks", TaskPolicy)
async def test_a_message_without_a_task_comes_with_a_token_that_was_handed_out(
    make_world: WorldFactory, tasks: TaskPolicy
) -> None:
    world = make_world(tasks=tasks, tokens=())
    token = (await world.receiver.expect("agent")).config.token or ""
    drafts = [replace(message(world, 1), token=token), message(world, 2)]

    assert [(await world.receive(draft)).code for draft in drafts] == [
        "accepted",
        "invalid_token",
    ]
