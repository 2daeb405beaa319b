"""Back-pressure: limits of the backlog, and what coalescing drops first; on both databases."""

from __future__ import annotations

from typing import Any

import pytest

from pushkit import (
    Message,
    NotifyResult,
    PushSender,
    Role,
    StatusUpdate,
    TaskState,
    TaskStatus,
    TaskUpdate,
    TextPart,
)
from pushkit.a2a import parse_update
from pushkit.outbox.model import Delivery
from tests.clock import Clock
from tests.eventually import eventually
from tests.unit.pushkit.delivery.conftest import ARTIFACT, HOOK, Senders, claim, enqueue, status

pytestmark = pytest.mark.usefixtures("location")  # every test runs on SQLite and PostgreSQL
LATER = parse_update({"later": {"taskId": "task-1"}})


async def deliveries(sender: PushSender, task_id: str = "task-1") -> list[Delivery]:
    return await sender.deliveries(task_id)


def refusals(result: NotifyResult) -> list[str]:
    return [each.code for each in result.refused]


async def pending(sender: PushSender) -> list[int]:
    return [each.seq for each in await sender.deliveries("task-1") if each.state == "pending"]


def said(state: TaskState) -> StatusUpdate:
    message = Message(message_id="m", role=Role.AGENT, parts=(TextPart(text="half way"),))
    return StatusUpdate(
        task_id="task-1", context_id="context-1", status=TaskStatus(state=state, message=message)
    )


async def test_only_a_full_subscription_is_refused(senders: Senders) -> None:
    sender = await senders.open(max_backlog_per_subscription=2)
    await enqueue(sender, owner="alice")
    # bob subscribed later: his backlog is not full.
    await enqueue(sender, owner="bob")
    result = await sender.notify(status())
    assert [each.owner for each in result.deliveries] == ["bob"]
    [refused] = result.refused
    assert (refused.owner, refused.config_id, refused.code) == ("alice", "task-1", "backlog_full")
    assert "2 deliveries to https://client" in refused.message
    assert len(await deliveries(sender)) == 4


async def test_settled_deliveries_free_capacity(senders: Senders) -> None:
    sender = await senders.open(max_backlog_per_subscription=2)
    await sender.subscribe("task-1", HOOK, version="1.0", owner="alice")
    for _ in range(2):
        await sender.notify(status())
    await sender.unsubscribe("task-1", owner="alice")
    await sender.subscribe("task-1", HOOK, version="1.0", owner="alice")
    for _ in range(2):
        assert (await sender.notify(status())).ids
    assert refusals(await sender.notify(status())) == ["backlog_full"]


async def test_a_full_subscription_accepts_a_repeated_update(senders: Senders) -> None:
    sender = await senders.open(max_backlog_per_subscription=1)
    await sender.subscribe("task-1", HOOK, version="1.0")
    ids = (await sender.notify(status(), idempotency_key="key")).ids
    assert (await sender.notify(status(), idempotency_key="key")).ids == ids


async def test_a_full_outbox_refuses_every_task(senders: Senders) -> None:
    sender = await senders.open(max_backlog=2)
    for number in range(3):
        await sender.subscribe(f"task-{number}", HOOK, version="1.0")
    await sender.notify(status(task_id="task-0"))
    await sender.notify(status(task_id="task-1"))
    assert refusals(await sender.notify(status(task_id="task-2"))) == ["backlog_full"]
    assert await deliveries(sender, "task-2") == []


async def test_the_outbox_is_counted_again_after_a_second(senders: Senders, clock: Clock) -> None:
    sender, other = await senders.open(max_backlog=1), await senders.open()
    for task_id in ("task-1", "task-2"):
        await sender.subscribe(task_id, HOOK, version="1.0")
    await sender.notify(status())
    await other.unsubscribe("task-1")
    clock.advance(1)

    async def accepted() -> bool:
        return bool((await sender.notify(status(task_id="task-2"))).ids)

    await eventually(accepted)


@pytest.mark.parametrize(
    "limit", ["max_backlog_per_subscription", "max_backlog_per_owner", "max_backlog"]
)
async def test_a_superseded_working_is_dropped_before_an_update_is_refused(
    senders: Senders, limit: str
) -> None:
    options: dict[str, Any] = {limit: 3, "coalesce": True}
    sender = await senders.open(**options)
    await sender.subscribe("task-1", HOOK, version="1.0")
    for _ in range(3):
        await sender.notify(status("working"))
    await sender.notify(status("completed"))
    assert await pending(sender) == [4]
    dropped = [each for each in await deliveries(sender) if each.state == "cancelled"]
    assert {each.last_error for each in dropped} == {"superseded"}
    assert [each.seq for each in dropped] == [1, 2, 3]


async def test_nothing_is_dropped_without_coalesce(senders: Senders) -> None:
    sender = await senders.open(max_backlog_per_subscription=1)
    await enqueue(sender)
    assert refusals(await sender.notify(status("input-required"))) == ["backlog_full"]
    assert await pending(sender) == [1]


@pytest.mark.parametrize(
    "kept",
    [
        pytest.param(ARTIFACT, id="an artifact"),
        pytest.param(LATER, id="a later kind"),
        pytest.param(said(TaskState.WORKING), id="a working that says something"),
        pytest.param(said(TaskState.INPUT_REQUIRED), id="input-required"),
        pytest.param(said(TaskState.AUTH_REQUIRED), id="auth-required"),
        pytest.param(said(TaskState.COMPLETED), id="a terminal state"),
    ],
)
async def test_updates_that_must_not_be_missed_are_never_dropped(
    senders: Senders, kept: TaskUpdate
) -> None:
    sender = await senders.open(max_backlog_per_subscription=2, coalesce=True)
    await sender.subscribe("task-1", HOOK, version="1.0")
    await sender.notify(kept)
    await sender.notify(status("working"))
    await sender.notify(status("working"))  # replaces the one before
    assert await pending(sender) == [1, 3]
    await sender.notify(status("input-required"))
    assert await pending(sender) == [1, 4]
    assert refusals(await sender.notify(status("input-required"))) == ["backlog_full"]


@pytest.mark.parametrize(
    "other", [pytest.param(ARTIFACT, id="an artifact"), pytest.param(LATER, id="a later kind")]
)
async def test_what_is_no_status_does_not_displace_the_newest_working(
    senders: Senders, other: TaskUpdate
) -> None:
    sender = await senders.open(max_backlog_per_subscription=2, coalesce=True)
    await enqueue(sender)
    await sender.notify(status("working"))
    await sender.notify(other)
    assert await pending(sender) == [2, 3]
    assert refusals(await sender.notify(other)) == ["backlog_full"]


async def test_a_delivery_in_flight_is_never_dropped(senders: Senders) -> None:
    sender = await senders.open(max_backlog_per_subscription=2, coalesce=True)
    await enqueue(sender)
    await claim(sender)
    await sender.notify(status("working"))
    await sender.notify(status("working"))
    states = {each.seq: each.state.value for each in await deliveries(sender)}
    assert states == {1: "in_flight", 2: "cancelled", 3: "pending"}
