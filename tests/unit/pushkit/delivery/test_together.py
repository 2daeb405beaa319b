"""Storing several updates by one script has the result of storing one after another."""

from __future__ import annotations

import asyncio
import random
from collections.abc import Callable, Coroutine, Sequence
from dataclasses import dataclass
from typing import Any

import pytest

from pushkit import (
    Artifact,
    ArtifactUpdate,
    Filter,
    Message,
    NotifyResult,
    PushSender,
    Role,
    StatusUpdate,
    Task,
    TaskState,
    TaskStatus,
    TaskUpdate,
    TextPart,
)
from pushkit.delivery.enqueue import Notice
from pushkit.errors import IdempotencyConflictError, PushkitError
from pushkit.storage.script import Script
from tests.long_runs import examples
from tests.unit.pushkit.delivery.conftest import HOOK, Senders, status
from tests.unit.pushkit.delivery.sides import (
    SIDES,
    count_backlogs,
    everything_of,
    notice_of,
    read,
    run_group,
)

pytestmark = pytest.mark.usefixtures("location")  # every test runs on SQLite and PostgreSQL


Summary = tuple[int, tuple[str, ...]]  # how many were stored; the codes of the refusals
STORED: Summary = (1, ())


# --- a random history, on both sides -----------------------------------------------------------


@dataclass(frozen=True)
class Step:
    """An update of a task, for either side."""

    task: int
    update: Callable[[str], TaskUpdate]
    key: str | None

    def notice(self, sender: PushSender, side: str) -> Notice:
        return notice_of(sender, self.update(f"{side} {self.task}"), self.key)


def said(state: TaskState, text: str | None = None) -> Callable[[str], TaskUpdate]:
    parts = (TextPart(text=text or ""),)
    message = Message(message_id="m", role=Role.AGENT, parts=parts) if text else None
    status = TaskStatus(state=state, message=message)
    return lambda task: StatusUpdate(task_id=task, context_id="c", status=status)


def chunk(*, last: bool) -> Callable[[str], TaskUpdate]:
    artifact = Artifact(artifact_id="a", parts=(TextPart(text="token"),))
    return lambda task: ArtifactUpdate(
        task_id=task, context_id="c", artifact=artifact, last_chunk=last
    )


UPDATES = (
    said(TaskState.WORKING),
    said(TaskState.WORKING),
    said(TaskState.WORKING, "half way"),
    said(TaskState.INPUT_REQUIRED),
    chunk(last=False),
    chunk(last=True),
    said(TaskState.COMPLETED),
    said(TaskState.FAILED),
)
FILTERS = (
    Filter(),
    Filter(),
    Filter(last_chunk_only=True),
    Filter(states=frozenset({TaskState.COMPLETED})),
    Filter(states=frozenset({TaskState.WORKING})),
)


async def subscribe(sender: PushSender, chance: random.Random) -> None:
    """Subscribe the same owners to the tasks of both sides."""
    for task in range(3):
        for owner in range(chance.randrange(4)):
            wanted, paused = chance.choice(FILTERS), chance.random() < 0.2
            version = "0.3" if chance.random() < 0.05 else "1.0"
            for side in SIDES:
                task_id, named = f"{side} {task}", f"{side} {owner}"
                await sender.subscribe(task_id, HOOK, version=version, filter=wanted, owner=named)
                if paused:
                    await sender.pause(task_id, owner=named)


def steps(chance: random.Random) -> list[Step]:
    found: list[Step] = []
    for _ in range(30):
        repeated = [step for step in found if step.key is not None]
        if repeated and chance.random() < 0.2:
            found.append(chance.choice(repeated))
            continue
        update = chance.choice(UPDATES)
        key = f"key {len(found)}" if chance.random() < 0.3 else None
        found.append(Step(chance.randrange(3), update, key))
    return found


def summary_of(stored: object) -> Summary:
    assert isinstance(stored, NotifyResult)
    return len(stored.deliveries), tuple(sorted(each.code for each in stored.refused))


async def store(sender: PushSender, notices: Sequence[Notice]) -> list[Summary | type]:
    """Store updates by one script, or each alone if that fails; return their summaries."""
    enqueue = sender._enqueuer.enqueue
    await count_backlogs(sender)
    try:
        found = await run_group(sender._database, enqueue, notices)
        return [
            type(each) if isinstance(each, PushkitError) else summary_of(each) for each in found
        ]
    except PushkitError as exc:
        if len(notices) == 1:
            return [type(exc)]
        return [each for notice in notices for each in await store(sender, [notice])]


async def check_due(sender: PushSender) -> None:
    """Check that each queue with a pending delivery is due, and no other; none is leased here."""
    rows = await read(
        sender,
        "SELECT s.due_at, s.paused, (SELECT COUNT(*) FROM pushkit_deliveries d"
        " WHERE d.subscription_id = s.id AND d.state = 'pending') AS pending"
        " FROM pushkit_subscriptions s",
    )
    for row in rows:
        assert (row["due_at"] is not None) == (row["pending"] > 0 and not row["paused"])


@pytest.mark.parametrize("seed", range(examples(10)))
@pytest.mark.slow
async def test_storing_in_one_group_has_the_result_of_storing_one_by_one(
    senders: Senders, seed: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    # Backlogs are counted once a second: a count between the two sides would make them differ.
    monkeypatch.setattr("pushkit.storage.quota._MIN_COUNT_AGE", 86_400.0)
    chance = random.Random(seed)  # noqa: S311  # a history, no secret
    sender = await senders.open(
        max_backlog_per_subscription=chance.choice((2, 4, 1000)),
        max_backlog_per_owner=chance.choice((5, 1000)),
        coalesce=chance.random() < 0.5,
    )
    await subscribe(sender, chance)
    rest, results = steps(chance), {side: list[Any]() for side in SIDES}
    while rest:
        size = chance.randrange(1, 8)
        group, rest = rest[:size], rest[size:]
        for step in group:
            results["one by one"] += await store(sender, [step.notice(sender, "one by one")])
        notices = [step.notice(sender, "together") for step in group]
        results["together"] += await store(sender, notices)
    assert results["together"] == results["one by one"]
    assert await everything_of(sender, "together") == await everything_of(sender, "one by one")
    await check_due(sender)


# --- concurrent callers ------------------------------------------------------------------------


async def test_a_refused_update_does_not_make_the_others_run_again(senders: Senders) -> None:
    sender = await senders.open(max_backlog_per_subscription=2)
    for n in range(4):
        await sender.subscribe(f"task-{n}", HOOK, version="0.3" if n == 3 else "1.0")
    await sender.notify(status("working", task_id="task-0"), idempotency_key="key")
    notices = [
        notice_of(sender, status(task_id="task-1")),
        notice_of(sender, status("failed", task_id="task-0"), "key"),
        notice_of(sender, status(task_id="task-2")),
        notice_of(sender, chunk(last=True)("task-3")),
        notice_of(sender, status(task_id="task-2")),
        notice_of(sender, status(task_id="task-2")),
        notice_of(sender, status(task_id="task-1")),
    ]
    enqueue = sender._enqueuer.enqueue
    await count_backlogs(sender)
    found = await run_group(sender._database, enqueue, notices)
    assert [
        type(each) if isinstance(each, PushkitError) else summary_of(each) for each in found
    ] == [
        STORED,
        IdempotencyConflictError,
        STORED,
        (0, ("snapshot_required",)),
        STORED,
        (0, ("backlog_full",)),
        STORED,
    ]
    assert [len(await sender.deliveries(f"task-{n}")) for n in range(4)] == [1, 2, 2, 0]
    await check_due(sender)


async def test_two_ends_of_a_task_in_a_group_share_one_reserved_place(senders: Senders) -> None:
    sender = await senders.open(max_backlog_per_subscription=1)
    await sender.subscribe("task-1", HOOK, version="1.0")
    states = ["working", "working", "completed", "failed"]
    full: Summary = (0, ("backlog_full",))
    assert await store(sender, [notice_of(sender, status(state)) for state in states]) == [
        STORED,
        full,
        STORED,
        full,
    ]


async def test_an_update_that_needs_a_snapshot_does_not_delay_the_others(
    sender: PushSender,
) -> None:
    for n in range(4):
        await sender.subscribe(f"task-{n}", HOOK, version="0.3" if n % 2 else "1.0")
    task_of: dict[int, asyncio.Future[Task]] = {
        n: asyncio.get_running_loop().create_future() for n in range(4)
    }
    asked: list[int] = []

    def notify(n: int) -> Coroutine[Any, Any, NotifyResult]:
        async def snapshot(_: str) -> Task:
            asked.append(n)
            return await task_of[n]

        return sender.notify(chunk(last=True)(f"task-{n}"), snapshot=snapshot)

    first = asyncio.create_task(notify(1))
    others = [asyncio.create_task(notify(n)) for n in (0, 2, 3)]
    assert len((await others[0]).ids) == len((await others[1]).ids) == 1
    for n in (3, 1):
        status = TaskStatus(state=TaskState.WORKING)
        task_of[n].set_result(Task(id=f"task-{n}", context_id="c", status=status))
        assert len((await (first if n == 1 else others[2])).ids) == 1
    assert sorted(asked) == [1, 3]
    await check_due(sender)


async def test_dropped_deliveries_free_their_owners_capacity(senders: Senders) -> None:
    sender = await senders.open(max_backlog_per_owner=3, coalesce=True)
    await sender.subscribe("task-1", HOOK, version="1.0", owner="alice")
    updates = [status() for _ in range(4)] + [chunk(last=True)("task-1")] * 2
    results = await store(sender, [notice_of(sender, update) for update in updates])
    assert results == [STORED] * 6
    await check_due(sender)
    found = [(each.seq, each.state.value) for each in await sender.deliveries("task-1")]
    assert found == [
        *((seq, "cancelled") for seq in (1, 2, 3)),
        *((seq, "pending") for seq in (4, 5, 6)),
    ]


async def test_large_bodies_are_inserted_in_bounded_statements(sender: PushSender) -> None:
    for n in range(5):
        await sender.subscribe("task-1", HOOK, version="1.0", owner=f"owner-{n}")
    large = said(TaskState.WORKING, "x" * 300_000)("task-1")
    inserted: list[int] = []

    def watched(script: Script[Any]) -> Script[Any]:
        rows: Any = None
        while True:
            try:
                statement = script.send(rows)
            except StopIteration as stop:
                return stop.value
            if statement.sql.startswith("INSERT"):
                inserted.append(sum(len(v) for v in statement.parameters if isinstance(v, bytes)))
            rows = yield statement

    notices = [notice_of(sender, large) for _ in range(8)]
    await count_backlogs(sender)
    await sender._database.write(watched(sender._enqueuer.enqueue(notices)))
    assert sum(inserted) > 40 * 300_000
    assert max(inserted) < 2 * 2**20
    deliveries = await sender.deliveries("task-1")
    assert sorted(each.seq for each in deliveries) == sorted(list(range(1, 9)) * 5)
    await check_due(sender)
