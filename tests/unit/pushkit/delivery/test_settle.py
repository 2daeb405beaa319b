"""Settling several queues by one script has the result of settling one after another."""

from __future__ import annotations

import asyncio
import random
from collections.abc import Sequence
from dataclasses import replace
from datetime import timedelta
from typing import Any, TypeVar

import pytest

from pushkit import Filter, PushSender, TaskState
from pushkit.clock import Timing
from pushkit.delivery.route import DeliveryJob
from pushkit.delivery.settle import SettledDeliveries
from pushkit.events import DeliveryEvent, EventKind
from pushkit.outbox import attempts
from pushkit.outbox.model import AttemptResult
from pushkit.outbox.states import Outcome
from pushkit.queue.held import Ask
from pushkit.queue.rules import QUANTUM, Leased
from pushkit.storage.script import Script, Statement, alone
from tests.clock import Clock
from tests.long_runs import examples
from tests.unit.pushkit.delivery.conftest import (
    HOOK,
    ON_POSTGRES,
    Senders,
    claim,
    enqueue,
    report_of,
    status,
)
from tests.unit.pushkit.delivery.sides import SIDES, everything_of, run_group, write

pytestmark = pytest.mark.usefixtures("location")  # every test runs on SQLite and PostgreSQL

T = TypeVar("T")


async def fill(sender: PushSender, chance: random.Random) -> None:
    """Give both sides the same subscriptions and deliveries, and end the same tasks."""
    for task in range(4):
        for owner in range(chance.randrange(1, 4)):
            wanted = chance.choice((Filter(), Filter(states=frozenset({TaskState.WORKING}))))
            for side in SIDES:
                await sender.subscribe(
                    f"{side} {task}", HOOK, version="1.0", owner=f"{side} {owner}", filter=wanted
                )
        states = ["working"] * chance.randrange(1, 4)
        states += ["completed"] if chance.random() < 0.5 else []
        for state in states:
            for side in SIDES:
                await sender.notify(status(state, task_id=f"{side} {task}"))


async def add_failures(sender: PushSender, chance: random.Random) -> None:
    """Give the same destinations and subscriptions of both sides earlier failures."""
    for owner in range(3):
        failures = chance.choice((0, 1, 5, 6))
        for side in SIDES:
            await write(
                sender,
                "INSERT INTO pushkit_destinations (tenant, owner, origin, failures)"
                " VALUES ('', $1, 'https://client.example.com:443', $2)"
                " ON CONFLICT (tenant, owner, origin) DO UPDATE SET failures = excluded.failures",
                f"{side} {owner}",
                failures,
            )
    task = chance.randrange(4)
    for side in SIDES:
        sql = "UPDATE pushkit_subscriptions SET failing_since = 1 WHERE task_id = $1"
        await write(sender, sql, f"{side} {task}")


async def change_some(sender: PushSender, chance: random.Random) -> None:
    """Cancel, erase, pause or take away some leased deliveries, the same on both sides."""
    task, change = chance.randrange(4), chance.randrange(5)
    for side in SIDES:
        task_id = f"{side} {task}"
        if change == 0:
            await sender.unsubscribe(task_id, owner=f"{side} 0")
        elif change == 1:
            await sender.outbox.erase(task_id)
        elif change == 2:
            await sender.pause(task_id, owner=f"{side} 0")
        elif change == 3:
            sql = "UPDATE pushkit_subscriptions SET epoch = epoch + 1"
            await write(sender, f"{sql} WHERE task_id = $1 AND lease_worker IS NOT NULL", task_id)


async def attempt(sender: PushSender, chance: random.Random, clock: Clock) -> dict[str, list[Ask]]:
    """Lease queues, and return what settles those of each side, in the same order."""
    # An open breaker would let through one delivery, chosen by its id: ids differ by side.
    await write(sender, "UPDATE pushkit_destinations SET failures = 0")
    leased = await claim(sender)
    await add_failures(sender, chance)
    await change_some(sender, chance)
    seed, found = chance.random(), dict[str, list[Ask]]()
    for side in SIDES:
        same = random.Random(seed)  # noqa: S311  # a history, no secret
        ours = [each for each in leased if each.jobs[0].delivery.task_id.startswith(side)]
        ours.sort(key=lambda each: (each.jobs[0].delivery.task_id, each.jobs[0].delivery.owner))
        found[side] = [
            ask_of(
                each,
                *(delivered(job, clock) for job in each.jobs[: same.randrange(1, 4)]),
                releases=same.random() < 0.5,
            )
            for each in ours
        ]
    return found


def delivered(job: DeliveryJob, clock: Clock) -> AttemptResult:
    owner = job.delivery.owner.split()[-1]
    return AttemptResult(
        outcome=Outcome.DELIVERED,
        status=200 + int(owner),
        started_at=clock.now,
        duration=timedelta(milliseconds=job.seq),
        timing=Timing(wait=timedelta(milliseconds=1), address="192.0.2.1:443"),
    )


def ask_of(leased: Leased, *results: AttemptResult, releases: bool = False) -> Ask:
    """Return what settles the first deliveries of a leased queue with these results."""
    done, left = leased.jobs[: len(results)], leased.jobs[len(results) :]
    for job, result in zip(done, results, strict=True):
        job.result = result
    return Ask(
        id=leased.id,
        epoch=leased.epoch,
        version=leased.version,
        results=done,
        has=tuple(job.seq for job in left),
        tail=leased.upto,
        looks=False,
        releases=releases,
        gives_way=False,
        more=QUANTUM - len(left),
    )


def kinds_and_owners(events: Sequence[Any], side: str) -> list[tuple[EventKind, str]]:
    return sorted((each.kind, each.owner.replace(side, "")) for each in events)


@pytest.mark.parametrize("seed", range(examples(6)))
@pytest.mark.slow
async def test_settling_in_one_group_has_the_result_of_settling_one_by_one(
    senders: Senders, clock: Clock, seed: int
) -> None:
    chance = random.Random(seed)  # noqa: S311  # a history, no secret
    sender = await senders.open(concurrency=1000, concurrency_per_host=1000)
    await fill(sender, chance)
    settle, database = sender.worker._settling, sender._database
    for _ in range(3):
        attempted = await attempt(sender, chance, clock)
        one_by_one: list[DeliveryEvent] = []
        for each in attempted["one by one"]:
            settled = await database.write(alone(settle, each))
            one_by_one += settled.events
        found = await run_group(database, settle, attempted["together"])
        events = [
            event for each in found if isinstance(each, SettledDeliveries) for event in each.events
        ]
        assert kinds_and_owners(events, "together") == kinds_and_owners(one_by_one, "one by one")
        assert await everything_of(sender, "together") == await everything_of(sender, "one by one")


@pytest.mark.parametrize("newer_first", [True, False])
async def test_two_attempts_of_one_delivery_in_a_group_are_settled_by_the_newer(
    sender: PushSender, clock: Clock, *, newer_first: bool
) -> None:
    delivery_id = await enqueue(sender, owner="alice")
    [older] = await claim(sender)
    await write(sender, "UPDATE pushkit_subscriptions SET lease_until = 1")  # expired
    [newer] = await claim(sender)
    asks = [
        ask_of(
            each, AttemptResult(outcome=Outcome.DELIVERED, status=status_code, started_at=clock.now)
        )
        for each, status_code in ((newer, 204), (older, 200))
    ]
    if not newer_first:
        asks.reverse()
    await sender._database.write(sender.worker._settling(asks, wait=True))
    report = await report_of(sender, delivery_id)
    assert sorted(each.status or 0 for each in report.attempts) == [200, 204]
    [delivery] = await sender.deliveries("task-1")
    assert (delivery.state.value, delivery.last_status) == ("delivered", 204)


@pytest.mark.parametrize("outcome", [Outcome.DELIVERED, Outcome.RETRY, Outcome.DEAD])
async def test_an_attempt_settled_twice_is_logged_once(
    sender: PushSender, clock: Clock, outcome: Outcome
) -> None:
    delivery_id = await enqueue(sender, owner="alice")
    [leased] = await claim(sender)
    ask = ask_of(leased, AttemptResult(outcome=outcome, retry_at=clock.now, started_at=clock.now))
    for _ in range(2):  # as after a commit whose confirmation was lost
        await sender._database.write(alone(sender.worker._settling, ask))
    report = await report_of(sender, delivery_id)
    assert [each.number for each in report.attempts] == [1]


async def test_deliveries_of_a_removed_subscription_are_not_deferred(
    sender: PushSender, clock: Clock
) -> None:
    for n in range(2):
        await enqueue(sender, task_id=f"task-{n}")
    result = AttemptResult(outcome=Outcome.DELIVERED, status=200, started_at=clock.now)
    asks = [ask_of(each, result) for each in await claim(sender)]
    await sender.unsubscribe("task-0")
    found = await sender._database.write(sender.worker._settling(asks, wait=False))
    assert sorted(list(each.are_ours) for each in found if isinstance(each, SettledDeliveries)) == [
        [False],
        [True],
    ]


def holding_locks(script: Script[T]) -> Script[T]:
    """Keep the locks of a script until another transaction waits for one."""
    found = yield from script
    yield Statement(
        "DO $$ BEGIN FOR turn IN 1..400 LOOP"
        " EXIT WHEN EXISTS (SELECT 1 FROM pg_locks WHERE NOT granted);"
        " PERFORM pg_sleep(0.01); END LOOP; END $$"
    )
    return found


@ON_POSTGRES
async def test_one_of_two_concurrent_successes_emits_breaker_closed(sender: PushSender) -> None:
    for n in range(2):
        await enqueue(sender, task_id=f"task-{n}", owner="alice")
    leased = await claim(sender)
    await write(
        sender,
        "INSERT INTO pushkit_destinations (tenant, owner, origin, failures)"
        " VALUES ('', 'alice', 'https://client.example.com:443', 9)",
    )
    result = AttemptResult(outcome=Outcome.DELIVERED, status=200)
    settle, database = sender.worker._settling, sender._database
    first, second = (alone(settle, ask_of(each, result)) for each in leased)
    found = await asyncio.gather(database.write(holding_locks(first)), database.write(second))
    assert [event.kind for each in found for event in each.events] == [EventKind.BREAKER_CLOSED]


@ON_POSTGRES
async def test_concurrent_late_attempts_are_both_logged(sender: PushSender, clock: Clock) -> None:
    delivery_id = await enqueue(sender)
    [delivery] = await sender.deliveries("task-1")
    late = AttemptResult(outcome=Outcome.DELIVERED, status=200, started_at=clock.now)
    first, second = (
        attempts.add_late(delivery, replace(late, duration=timedelta(seconds=n))) for n in (1, 2)
    )
    await asyncio.gather(
        sender._database.write(holding_locks(first)), sender._database.write(second)
    )
    report = await report_of(sender, delivery_id)
    assert [each.number for each in report.attempts] == [1, 2]


async def test_a_late_attempt_recorded_twice_is_logged_once(
    sender: PushSender, clock: Clock
) -> None:
    delivery_id = await enqueue(sender)
    [delivery] = await sender.deliveries("task-1")
    for ahead in (0, 3):  # the script reads the clock of the database each time
        result = AttemptResult(
            outcome=Outcome.RETRY,
            error="timeout",
            started_at=clock.now + timedelta(milliseconds=ahead),
            duration=timedelta(seconds=10),
        )
        await sender._database.write(attempts.add_late(delivery, result))
    report = await report_of(sender, delivery_id)
    assert [each.number for each in report.attempts] == [1]
