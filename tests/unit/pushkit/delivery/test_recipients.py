"""Recipients of an update are independent; each refusal is reported; on both databases."""

from __future__ import annotations

import json
import logging
from typing import Any

import pytest

from pushkit import Filter, PushSender, Task, UpdateKind
from pushkit.events import Event, RecipientRefused
from tests.clock import Clock
from tests.emitted import emitted
from tests.unit.pushkit.delivery.conftest import ARTIFACT, HOOK, Senders, enqueue, status, task

pytestmark = pytest.mark.usefixtures("location")  # every test runs on SQLite and PostgreSQL


async def owners(sender: PushSender, task_id: str = "task-1") -> list[str]:
    return sorted(each.owner for each in await sender.deliveries(task_id))


# --- results -----------------------------------------------------------------------------------


async def test_the_result_lists_deliveries_and_refusals_by_owner(
    sender: PushSender,
) -> None:
    for owner, version in (("alice", "1.0"), ("bob", "0.3"), ("carol", "1.0")):
        await sender.subscribe("task-1", HOOK | {"id": "c"}, version=version, owner=owner)
    result = await sender.notify(ARTIFACT)
    stored = {each.id: each for each in await sender.deliveries("task-1")}
    assert sorted(each.owner for each in result.deliveries) == ["alice", "carol"]
    for each in result.deliveries:
        row = stored[each.id]
        assert (row.owner, row.config_id, row.subscription_id) == (
            each.owner,
            each.config_id,
            each.subscription_id,
        )
    [refused] = result.refused
    [bobs] = await sender.subscriptions("task-1", owner="bob")
    assert (refused.owner, refused.config_id, refused.subscription_id) == ("bob", "c", bobs.id)
    assert refused.code == "snapshot_required"
    assert "whole task" in refused.message


async def test_problems_of_some_owners_do_not_keep_the_end_of_a_task_from_others(
    senders: Senders,
) -> None:
    sender = await senders.open(max_backlog_per_subscription=1)
    await enqueue(sender, owner="full")
    await sender.subscribe("task-1", HOOK, version="0.3", owner="no snapshot")
    await enqueue(sender, state="completed", owner="fine")
    assert await owners(sender) == ["fine", "full", "full", "no snapshot"]
    # Every subscription ends once its remaining deliveries are sent.
    for owner in ("full", "no snapshot", "fine"):
        [subscription] = await sender.subscriptions("task-1", owner=owner)
        assert subscription.ended


async def test_a_subscription_refused_the_last_update_ends_with_its_task(senders: Senders) -> None:
    sender = await senders.open(max_body_bytes=50)
    await sender.subscribe("task-1", HOOK, version="1.0")
    result = await sender.notify(status("completed"))
    assert [each.code for each in result.refused] == ["payload_too_large"]
    assert await sender.subscriptions("task-1") == []


async def test_a_repeated_update_is_offered_again_to_refused_recipients(
    sender: PushSender, clock: Clock
) -> None:
    await sender.subscribe("task-1", HOOK, version="0.3", owner="bob")
    clock.advance(1)
    await sender.subscribe("task-1", HOOK, version="1.0", owner="alice")
    first = await sender.notify(ARTIFACT, idempotency_key="key")
    assert [each.owner for each in first.refused] == ["bob"]
    clock.advance(1)
    again = await sender.notify(ARTIFACT, idempotency_key="key", snapshot=task())
    assert sorted(each.owner for each in again.deliveries) == ["alice", "bob"]
    assert set(first.ids) < set(again.ids)
    subscriptions = [each.subscription_id for each in again.deliveries]
    assert subscriptions == sorted(subscriptions)  # whichever delivery was stored first
    assert await owners(sender) == ["alice", "bob"]


# --- reporting ---------------------------------------------------------------------------------


async def test_a_process_that_only_enqueues_reports_refused_recipients(
    senders: Senders, caplog: pytest.LogCaptureFixture, events: list[Event]
) -> None:
    sender = await senders.open(on_event=events.append)
    subscription = await sender.subscribe("task-1", HOOK, version="0.3", owner="bob")
    await sender.subscribe("task-1", HOOK, version="1.0", owner="alice")
    result = await sender.notify(ARTIFACT)
    [event] = emitted(events, RecipientRefused)
    assert event == RecipientRefused(
        at=result.at,
        tenant="",
        owner="bob",
        task_id="task-1",
        subscription_id=subscription.id,
        origin="https://client.example.com:443",
        error="snapshot_required",
    )
    [line] = [each for each in caplog.records if "snapshot_required" in each.getMessage()]
    assert (line.levelno, line.name) == (logging.WARNING, "pushkit.delivery")
    assert "'bob'" in line.getMessage()


async def test_refusals_of_one_cause_are_logged_once_and_all_counted(
    senders: Senders, caplog: pytest.LogCaptureFixture
) -> None:
    sender = await senders.open(max_backlog_per_subscription=1)
    await sender.subscribe("task-1", HOOK, version="1.0", owner="alice")
    for _ in range(50):
        await sender.notify(status())
    assert len([each for each in caplog.records if "backlog_full" in each.getMessage()]) == 1
    assert (sender.counts.updates, sender.counts.deliveries, sender.counts.refused) == (50, 1, 49)


async def test_an_update_without_a_recipient_is_reported_counted_and_logged_for_debugging(
    sender: PushSender, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.DEBUG, "pushkit.delivery")
    nothing_yet = await sender.notify(status())
    assert (nothing_yet.for_nobody, nothing_yet.unwanted) == (True, 0)
    artifacts = Filter(kinds=frozenset({UpdateKind.ARTIFACT_UPDATE}))
    await sender.subscribe("task-1", HOOK, version="1.0", filter=artifacts)
    unwanted = await sender.notify(status())
    assert (unwanted.for_nobody, unwanted.unwanted) == (True, 1)
    assert not (await sender.notify(ARTIFACT)).for_nobody
    assert sender.counts.for_nobody == 2
    assert [
        each.getMessage() for each in caplog.records if "no recipient" in each.getMessage()
    ] == [
        f"task 'task-1': status-update has no recipient: {n} subscriptions do not want it"
        for n in (0, 1)
    ]


# --- the reserved place ------------------------------------------------------------------------


@pytest.mark.parametrize(
    "limit",
    [
        pytest.param({"max_backlog_per_subscription": 2}, id="of the subscription"),
        pytest.param({"max_backlog_per_owner": 2}, id="of the owner"),
        pytest.param({"max_backlog": 2}, id="of the outbox"),
    ],
)
async def test_a_full_backlog_accepts_the_end_of_a_task(
    senders: Senders, limit: dict[str, Any]
) -> None:
    sender = await senders.open(**limit)
    await sender.subscribe("task-1", HOOK, version="1.0", owner="alice")
    for _ in range(2):
        await sender.notify(status())
    assert [each.code for each in (await sender.notify(status())).refused] == ["backlog_full"]
    assert len((await sender.notify(status("completed"))).ids) == 1
    *_, last = await sender.deliveries("task-1")
    assert json.loads(last.body)["statusUpdate"]["status"] == {"state": "TASK_STATE_COMPLETED"}
    assert last.seq == 3
    # There is only one reserved place.
    for state in ("completed", "failed", "working"):
        assert [each.code for each in (await sender.notify(status(state))).refused] == [
            "backlog_full"
        ]
    assert len(await sender.deliveries("task-1")) == 3


# --- fetched snapshots -------------------------------------------------------------------------


class Tasks:
    """A provider of snapshots that records for which owners it was called."""

    def __init__(self, **tasks: Task) -> None:
        self.tasks = tasks
        self.asked: list[str] = []

    async def __call__(self, owner: str) -> Task | None:
        self.asked.append(owner)
        return self.tasks.get(owner)


async def test_a_snapshot_is_fetched_once_per_owner_that_needs_one(sender: PushSender) -> None:
    tasks = Tasks(bob=task(state="working"), carol=task(state="submitted"))
    await sender.subscribe("task-1", HOOK, version="1.0", owner="alice")
    await sender.notify(status(), snapshot=tasks)
    assert tasks.asked == []
    for owner in ("bob", "carol"):
        for config_id in ("1", "2"):
            config = HOOK | {"id": config_id}
            await sender.subscribe("task-1", config, version="0.3", owner=owner)
    assert len((await sender.notify(status(), snapshot=tasks)).ids) == 5
    assert sorted(tasks.asked) == ["bob", "carol"]
    found = {
        (each.owner, json.loads(each.body)["status"]["state"])
        for each in await sender.deliveries("task-1")
        if each.owner != "alice"
    }
    # Each owner gets its own view of the task.
    assert found == {("bob", "working"), ("carol", "submitted")}


async def test_an_owner_without_a_snapshot_does_not_affect_the_others(
    sender: PushSender, caplog: pytest.LogCaptureFixture
) -> None:
    async def snapshot(owner: str) -> Task | None:
        if owner == "broken":
            raise OSError("the task store is away")
        return task() if owner == "known" else None

    await sender.subscribe("task-1", HOOK, version="1.0", owner="new")
    for owner in ("known", "unknown", "broken"):
        await sender.subscribe("task-1", HOOK, version="0.3", owner=owner)
    result = await sender.notify(ARTIFACT, snapshot=snapshot)
    assert sorted(each.owner for each in result.deliveries) == ["known", "new"]
    assert sorted(each.owner for each in result.refused) == ["broken", "unknown"]
    assert "the task store is away" in caplog.text
    assert len((await sender.notify(status(), snapshot=snapshot)).ids) == 4


async def test_a_client_that_subscribes_during_a_snapshot_fetch_gets_the_update(
    sender: PushSender,
) -> None:
    asked: list[str] = []

    async def snapshot(owner: str) -> Task:
        asked.append(owner)
        if owner == "early":
            await sender.subscribe("task-1", HOOK, version="0.3", owner="late")
        return task()

    await sender.subscribe("task-1", HOOK, version="0.3", owner="early")
    result = await sender.notify(ARTIFACT, snapshot=snapshot)
    assert sorted(each.owner for each in result.deliveries) == ["early", "late"]
    assert (asked, result.refused) == (["early", "late"], ())


async def test_a_repeated_update_fetches_no_snapshot(sender: PushSender) -> None:
    tasks = Tasks(bob=task())
    await sender.subscribe("task-1", HOOK, version="0.3", owner="bob")
    first = (await sender.notify(status(), snapshot=tasks, idempotency_key="key")).ids
    assert (await sender.notify(status(), snapshot=tasks, idempotency_key="key")).ids == first
    assert tasks.asked == ["bob"]
