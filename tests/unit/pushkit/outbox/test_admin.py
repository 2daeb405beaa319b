"""`OutboxAdmin` on both databases: dead letters, retention, erasure, counts."""

from __future__ import annotations

import asyncio
import re
from collections.abc import AsyncIterator, Collection
from dataclasses import dataclass, field
from datetime import UTC, datetime, timedelta
from typing import Any

import pytest

from pushkit.clock import Timing
from pushkit.delivery import admin
from pushkit.delivery.admin import OutboxAdmin
from pushkit.errors import ConfigError
from pushkit.outbox import attempts, destinations
from pushkit.outbox import store as outbox
from pushkit.outbox.inspection import DeliveryFilter
from pushkit.outbox.model import AttemptResult, Delivery
from pushkit.outbox.retention import Retention
from pushkit.outbox.schema import open_outbox
from pushkit.outbox.states import DeliveryState, Outcome
from pushkit.storage.database import Database
from pushkit.storage.script import Row
from pushkit.subscriptions import store as subscriptions
from pushkit.subscriptions.model import OUTBOX, DisabledBy, Subscription
from tests.eventually import DEADLINE
from tests.unit.pushkit.deliveries import (
    ORIGIN,
    add_delivery,
    add_subscription,
    copy_delivery,
    rows_of,
)
from tests.unit.pushkit.outbox.leasing import LEASE, Leasing

DEAD = DeliveryFilter(state=DeliveryState.DEAD)
ALL_DEAD = "UPDATE pushkit_deliveries SET state = 'dead', finished_at = 1"


# For tests that see its statements.
ON_SQLITE = pytest.mark.parametrize("location", ["sqlite"], indirect=True)


@dataclass
class Desk:
    """An outbox, with the calls of a worker and of an administrator."""

    database: Database
    now: datetime = field(default_factory=lambda: datetime.now(UTC))
    woken: int = 0
    leasing: Leasing = field(default_factory=Leasing)
    admin: OutboxAdmin = field(init=False)

    def __post_init__(self) -> None:
        self.admin = OutboxAdmin(self.database, wake=self._wake)

    def _wake(self, _: Collection[str]) -> None:
        self.woken += 1

    async def subscribe(self, task_id: str = "task-1", **columns: str) -> Subscription:
        script = add_subscription(now=self.now, task_id=task_id, token="a-token", **columns)
        return await self.database.write(script)

    async def enqueue(self, subscription: Subscription, count: int = 1) -> list[str]:
        ids = []
        for _ in range(count):
            self.now += timedelta(milliseconds=1)  # ids sort by the millisecond
            script = add_delivery(subscription, now=self.now, body=b'{"secret":"payload"}')
            ids.append((await self.database.write(script)).id)
        return ids

    async def claim(self) -> list[Delivery]:
        """Claim as a worker does a minute later: a redrive uses the database's clock."""
        return await self.database.write(self.leasing.claim("worker-1", now=self.later))

    @property
    def later(self) -> datetime:
        return self.now + timedelta(minutes=1)

    async def settle(
        self,
        delivery: Delivery,
        outcome: Outcome = Outcome.DELIVERED,
        *,
        error: str | None = None,
        ago: timedelta = timedelta(0),
    ) -> None:
        result = AttemptResult(
            outcome=outcome,
            status=200 if outcome is Outcome.DELIVERED else 500,
            error=error,
            retry_at=self.now if outcome is Outcome.RETRY else None,
            started_at=self.now,
            duration=timedelta(milliseconds=30),
            timing=Timing(wait=timedelta(milliseconds=20), address="192.0.2.1:443"),
            answer=b"\x00an answer",
        )
        settling = self.leasing.settle(
            [(delivery, result)], now=self.later, finished_at=self.now - ago
        )
        assert await self.database.write(settling) == [True]

    async def finish(
        self,
        subscription: Subscription,
        count: int = 1,
        outcome: Outcome = Outcome.DEAD,
        *,
        error: str | None = "status_500",
        ago: timedelta = timedelta(0),
    ) -> list[str]:
        """Enqueue deliveries and finish them, one after another."""
        ids = await self.enqueue(subscription, count)
        claimed = await self.claim()
        assert [each.id for each in claimed] == ids
        for each in claimed:
            await self.settle(each, outcome, error=error, ago=ago)
        return ids

    async def states(self) -> dict[str, DeliveryState]:
        return {found.id: found.state for found in await self.admin.find(limit=1000)}

    async def next(self) -> list[int]:
        """Return the `seq` of the first unfinished delivery of each queue."""
        return [each.seq for each in await self.admin.find(DeliveryFilter(next_only=True))]

    async def lease_of(self, subscription: Subscription) -> int:
        """Return the epoch of a queue that is leased."""
        [queue] = (await self.database.write(OUTBOX.lock([subscription.id]))).values()
        assert queue.lease_worker is not None
        return queue.epoch

    async def query(self, sql: str) -> list[Row]:
        return await self.database.write(rows_of(sql))


@pytest.fixture
async def desk(location: str) -> AsyncIterator[Desk]:
    database = open_outbox(location)
    await database.open()
    yield Desk(database)
    await database.close()


# --- looking ------------------------------------------------------------------------------------


async def test_a_filter_chooses_by_every_column(desk: Desk) -> None:
    mine = await desk.subscribe("task-1", owner="alice", tenant="t1")
    other = await desk.subscribe("task-2", owner="bob", origin="https://else.example.com:443")
    [dead] = await desk.finish(mine, error="status_500")
    [rejected] = await desk.finish(other, error="rejected")
    for wanted in (
        DeliveryFilter(tenant="t1"),
        DeliveryFilter(owner="alice"),
        DeliveryFilter(task_id="task-1"),
        DeliveryFilter(subscription_id=mine.id),
        DeliveryFilter(origin=ORIGIN),
        DeliveryFilter(error="status_500"),
        DeliveryFilter(state=DeliveryState.DEAD, owner="alice", error="status_500"),
    ):
        assert [found.id for found in await desk.admin.find(wanted)] == [dead]
    assert [found.id for found in await desk.admin.find(DeliveryFilter(tenant=""))] == [rejected]
    assert await desk.admin.find(DeliveryFilter(state=DeliveryState.PENDING)) == []


async def test_pages_follow_each_other_by_id(desk: Desk) -> None:
    ids = await desk.enqueue(await desk.subscribe(), 5)
    first = await desk.admin.find(limit=2)
    second = await desk.admin.find(after=first[-1].id, limit=3)
    assert [found.id for found in (*first, *second)] == ids


async def test_a_delivery_is_shown_with_every_attempt(desk: Desk) -> None:
    [delivery_id] = await desk.enqueue(await desk.subscribe())
    [claimed] = await desk.claim()
    await desk.settle(claimed, Outcome.RETRY, error="status_500")
    [claimed] = await desk.claim()
    await desk.settle(claimed)
    report = await desk.admin.show(delivery_id)
    assert report is not None
    assert report.delivery.state is DeliveryState.DELIVERED
    assert report.delivery.body_bytes == len(report.body or b"")
    assert [(each.number, each.outcome, each.status, each.error) for each in report.attempts] == [
        (1, "retry", 500, "status_500"),
        (2, "delivered", 200, None),
    ]
    first = report.attempts[0]
    assert first.duration == timedelta(milliseconds=30)
    assert first.timing == Timing(wait=timedelta(milliseconds=20), address="192.0.2.1:443")
    assert first.answer == b"\x00an answer"
    assert "payload" not in repr(report)
    assert "an answer" not in repr(report)


async def test_an_unknown_delivery_is_not_shown(desk: Desk) -> None:
    assert await desk.admin.show("dlv_unknown") is None


async def test_numbers_by_state_and_destination(desk: Desk) -> None:
    one, two = await desk.subscribe("task-1"), await desk.subscribe("task-2", origin="https://b:1")
    await desk.finish(one)
    await desk.finish(two, outcome=Outcome.DELIVERED)
    await desk.enqueue(two, 2)
    stats = await desk.admin.stats()
    assert stats.states == {
        DeliveryState.PENDING: 2,
        DeliveryState.IN_FLIGHT: 0,
        DeliveryState.DELIVERED: 1,
        DeliveryState.DEAD: 1,
        DeliveryState.CANCELLED: 0,
    }
    assert [(o.origin, o.pending, o.in_flight, o.dead) for o in stats.origins] == [
        ("https://b:1", 2, 0, 0),
        (ORIGIN, 0, 0, 1),
    ]
    assert stats.oldest_pending_at is not None


async def test_a_redriven_delivery_is_as_old_as_its_redrive(desk: Desk) -> None:
    one, two = await desk.subscribe("task-1"), await desk.subscribe("task-2")
    await desk.finish(one)
    [delivered] = await desk.finish(two, outcome=Outcome.DELIVERED)
    await desk.admin.resend([delivered])
    [claimed] = await desk.claim()
    await desk.settle(claimed)
    assert [each.age_from for each in await desk.admin.finished() if each.id == delivered] == [
        claimed.redriven_at
    ]

    await desk.admin.redrive(DEAD)
    [redriven] = await desk.admin.find(DeliveryFilter(state=DeliveryState.PENDING))
    stats = await desk.admin.stats()
    assert stats.oldest_pending_at == redriven.redriven_at


async def test_an_empty_outbox_has_numbers_too(desk: Desk) -> None:
    stats = await desk.admin.stats()
    assert set(stats.states.values()) == {0}
    assert (stats.oldest_pending_at, stats.origins) == (None, ())


async def test_queues_say_who_leases_them_since_when_and_how_many_deliveries_wait(
    desk: Desk,
) -> None:
    leased, due, idle = [await desk.subscribe(f"task-{n}") for n in range(3)]
    await desk.finish(idle)
    await desk.finish(due)
    await desk.enqueue(leased, 2)
    claimed_at = desk.later
    await desk.claim()
    await desk.enqueue(leased)
    await desk.enqueue(due)

    found = await desk.admin.queues()
    one, other = sorted(found, key=lambda each: each.task_id)

    assert (one.id, one.task_id, one.origin) == (leased.id, "task-0", ORIGIN)
    assert (one.worker, one.leased_at, one.lease_until, one.epoch) == (
        ("worker-1", claimed_at, claimed_at + LEASE, 1)
    )
    assert (other.id, other.worker, other.leased_at, other.epoch) == (due.id, None, None, 2)
    assert [str(each.waiting) for each in (one, other)] == ["3", "1"]
    assert [each.next_seq for each in (one, other)] == [1, 2]
    assert (one.paused, one.removed, one.abandoned) == (False, False, 0)
    assert other.due_at is not None
    assert await desk.admin.queues(after=found[0].id, limit=1) == found[1:]


async def test_queues_say_since_when_they_fail_and_until_when_their_destination_waits(
    desk: Desk,
) -> None:
    subscription = await desk.subscribe()
    await desk.enqueue(subscription)
    [queue] = await desk.admin.queues()
    assert (queue.failing_since, queue.failures, queue.waits_until) == (None, 0, None)

    [claimed] = await desk.claim()
    until = desk.now + timedelta(hours=1)
    await desk.database.write(subscriptions.set_failing_since(subscription.id, desk.now))
    await desk.database.write(destinations.failed(claimed, desk.now))
    await desk.database.write(destinations.postpone(claimed, until, desk.now))
    await desk.database.write(copy_delivery(1000))

    [queue] = await desk.admin.queues()
    assert (queue.failing_since, queue.failures, queue.waits_until) == (desk.now, 1, until)
    assert str(queue.waiting) == "1,000+"


# --- sending again ------------------------------------------------------------------------------


async def test_a_redrive_keeps_id_and_seq_and_begins_anew(desk: Desk) -> None:
    [dead] = await desk.finish(await desk.subscribe())
    redriven = await desk.admin.redrive([dead])
    assert (redriven.ids, redriven.skipped) == ((dead,), 0)
    assert desk.woken == 1
    [claimed] = await desk.claim()
    assert (claimed.id, claimed.seq, claimed.attempts) == (dead, 1, 0)
    assert claimed.redriven_at is not None
    assert claimed.age_from == claimed.redriven_at
    await desk.settle(claimed)
    report = await desk.admin.show(dead)
    assert report is not None
    assert [attempt.number for attempt in report.attempts] == [1, 2]


async def test_a_redriven_delivery_goes_ahead_of_what_is_pending(desk: Desk) -> None:
    subscription = await desk.subscribe()
    [dead] = await desk.finish(subscription)
    waiting = await desk.enqueue(subscription, 2)
    await desk.admin.redrive([dead])
    assert await desk.next() == [1]
    assert [each.id for each in await desk.claim()] == [dead, *waiting]


@pytest.mark.parametrize("outcome", [Outcome.DELIVERED, Outcome.RETRY, Outcome.DEAD])
async def test_after_a_delivery_in_flight_a_redriven_one_is_next(
    desk: Desk, outcome: Outcome
) -> None:
    subscription = await desk.subscribe()
    [dead] = await desk.finish(subscription)
    await desk.enqueue(subscription)
    [in_flight] = await desk.claim()
    await desk.admin.redrive([dead])
    assert await desk.claim() == []
    await desk.settle(in_flight, outcome)
    assert await desk.next() == [1]
    after = [job.delivery.id for job in desk.leasing.memory(in_flight).waiting]
    if outcome is Outcome.RETRY:
        after += [each.id for each in await desk.claim()]
    assert after[0] == dead


async def test_one_at_a_time_while_workers_and_redrives_race(desk: Desk) -> None:
    subscription = await desk.subscribe()
    ids = await desk.enqueue(subscription, 10)
    delivered: set[str] = set()

    async def work() -> None:
        while len(delivered) < len(ids):
            for claimed in await desk.claim():
                memory = desk.leasing.memory(claimed)
                while memory.waiting:
                    assert await desk.lease_of(subscription) == memory.epoch
                    first = memory.waiting[0].delivery
                    again = first.redriven_at is not None
                    await desk.settle(first, Outcome.DELIVERED if again else Outcome.DEAD)
                    if again:
                        delivered.add(first.id)

    async def redrive() -> None:
        while len(delivered) < len(ids):
            await desk.admin.redrive(DEAD)

    async with asyncio.timeout(DEADLINE):
        await asyncio.gather(work(), work(), work(), redrive())
    assert await desk.next() == []


async def test_a_redrive_by_filter_takes_dead_letters_alone(desk: Desk) -> None:
    one, two = await desk.subscribe("task-1"), await desk.subscribe("task-2")
    wanted = await desk.finish(one, 3)
    await desk.finish(one, error="rejected")
    await desk.finish(one, outcome=Outcome.DELIVERED, error="status_500")
    await desk.finish(two)
    redriven = await desk.admin.redrive(DeliveryFilter(task_id="task-1", error="status_500"))
    assert sorted(redriven.ids) == wanted
    assert redriven.skipped == 0
    assert await desk.next() == [1]


async def test_more_than_a_batch_is_redriven(desk: Desk, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(admin, "_BATCH", 2)
    ids = await desk.enqueue(await desk.subscribe(), 5)
    await desk.query(ALL_DEAD)
    redriven = await desk.admin.redrive(DeliveryFilter())
    assert sorted(redriven.ids) == ids
    assert await desk.next() == [1]


async def test_only_dead_letters_are_redriven(desk: Desk) -> None:
    [delivered] = await desk.finish(await desk.subscribe(), outcome=Outcome.DELIVERED)
    redriven = await desk.admin.redrive([delivered, "dlv_unknown", delivered])
    assert (redriven.ids, redriven.skipped) == ((), 2)
    assert (await desk.states())[delivered] is DeliveryState.DELIVERED


async def test_nothing_is_redriven_to_a_removed_or_disabled_subscription(desk: Desk) -> None:
    removed, disabled = await desk.subscribe("task-1"), await desk.subscribe("task-2")
    await desk.finish(removed)
    await desk.finish(disabled)
    await desk.database.write(subscriptions.remove(removed.key))
    await desk.database.write(subscriptions.disable(disabled.id, desk.now, DisabledBy.GONE))
    redriven = await desk.admin.redrive(DEAD)
    assert (redriven.ids, redriven.skipped) == ((), 2)


async def test_a_redrive_goes_to_the_current_url_of_the_subscription(desk: Desk) -> None:
    [dead] = await desk.finish(await desk.subscribe())
    await desk.subscribe(origin="https://new.example.com:443")
    await desk.admin.redrive([dead])
    [claimed] = await desk.claim()
    assert claimed.origin == "https://new.example.com:443"


async def test_delivered_updates_are_sent_again_from_a_seq_on(desk: Desk) -> None:
    subscription, other = await desk.subscribe("task-1"), await desk.subscribe("task-2")
    _, *wanted = await desk.finish(subscription, 3, Outcome.DELIVERED, error=None)
    await desk.finish(subscription)
    await desk.finish(other, 3, Outcome.DELIVERED, error=None)
    redriven = await desk.admin.resend(DeliveryFilter(task_id="task-1"), from_seq=2)
    assert list(redriven.ids) == wanted
    assert await desk.next() == [2]


async def test_after_a_cancelled_delivery_the_next_one_is_claimed(desk: Desk) -> None:
    first, second = await desk.enqueue(await desk.subscribe(), 2)
    assert await desk.admin.cancel([first]) == [first]
    assert (await desk.states())[first] is DeliveryState.CANCELLED
    [claimed] = await desk.claim()
    assert claimed.id == second


async def test_a_delivery_in_flight_is_not_cancelled(desk: Desk) -> None:
    subscription = await desk.subscribe()
    [first] = await desk.enqueue(subscription)
    [claimed] = await desk.claim()
    [second] = await desk.enqueue(subscription)
    assert await desk.admin.cancel([first, second]) == [second]
    await desk.settle(claimed)
    assert await desk.claim() == []


# --- cleaning up --------------------------------------------------------------------------------


async def test_a_purge_deletes_deliveries_that_finished_long_ago_and_their_attempts(
    desk: Desk,
) -> None:
    subscription = await desk.subscribe()
    old = await desk.finish(subscription, 3, Outcome.DELIVERED, ago=timedelta(days=8))
    dead = await desk.finish(subscription, ago=timedelta(days=8))
    new = await desk.finish(subscription, 2, Outcome.DELIVERED)
    pending = await desk.enqueue(subscription)
    assert await desk.admin.purge(older_than=timedelta(days=7)) == len(old)
    assert sorted(await desk.states()) == [*dead, *new, *pending]
    rows = await desk.query("SELECT DISTINCT delivery_id AS id FROM pushkit_attempts")
    assert sorted(row["id"] for row in rows) == [*dead, *new]


async def test_a_purge_leaves_the_newest_of_each_task(desk: Desk) -> None:
    one, two = await desk.subscribe("task-1"), await desk.subscribe("task-2")
    ids = await desk.finish(one, 5, Outcome.DELIVERED)
    others = await desk.finish(two, 2, Outcome.DELIVERED)
    pending = await desk.enqueue(one)
    assert await desk.admin.purge(per_task=2) == 3
    assert sorted(await desk.states()) == [*ids[3:], *others, *pending]


async def test_a_purge_ends_although_more_is_finished_all_the_time(desk: Desk) -> None:
    subscription = await desk.subscribe()
    await desk.finish(subscription, 5, Outcome.DELIVERED)
    async with asyncio.timeout(DEADLINE):
        purging = asyncio.create_task(desk.admin.purge(per_task=2))
        while not purging.done():
            await desk.finish(subscription, outcome=Outcome.DELIVERED)
    assert await purging >= 3


async def test_per_task_the_deliveries_that_finished_last_are_kept(desk: Desk) -> None:
    subscription = await desk.subscribe()
    ids = [
        (await desk.finish(subscription, outcome=Outcome.DELIVERED, ago=timedelta(days=days)))[0]
        for days in (1, 3, 2)
    ]
    assert await desk.admin.purge(per_task=1) == 2
    assert list(await desk.states()) == [ids[0]]


@ON_SQLITE
async def test_dead_letters_that_stay_are_read_once_however_many_batches_are_deleted(
    traced: list[str], desk: Desk, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(admin, "_BATCH", 2)
    subscription = await desk.subscribe()
    dead = await desk.finish(subscription, 3, ago=timedelta(days=9))
    await desk.finish(subscription, 6, Outcome.DELIVERED, ago=timedelta(days=8))
    traced.clear()
    assert await desk.admin.purge(older_than=timedelta(days=7)) == 6
    assert list(await desk.states()) == dead
    [row] = await desk.query("SELECT MAX(finished_at) AS last FROM pushkit_deliveries")
    found = re.findall(r"finished_at >= (\d+)", " ".join(traced))
    assert [int(since) > row["last"] for since in found] == [False, True, True, True]


@ON_SQLITE
async def test_a_task_is_sorted_once_however_many_batches_are_deleted(
    traced: list[str], desk: Desk, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(admin, "_BATCH", 2)
    ids = await desk.enqueue(await desk.subscribe(), 8)
    await desk.query(ALL_DEAD)
    traced.clear()
    assert await desk.admin.purge(per_task=3) == 5
    assert list(await desk.states()) == ids[5:]
    assert sum("ORDER BY finished_at DESC" in each for each in traced) == 1
    assert await desk.admin.erase("task-1") == (1, 3)
    assert await desk.states() == {}
    assert sum("ORDER BY finished_at DESC" in each for each in traced) == 2


@ON_SQLITE
@pytest.mark.parametrize(("batch", "transactions"), [(200, 1), (2, 3)])
async def test_the_excess_of_several_tasks_is_deleted_together_up_to_a_batch(
    traced: list[str], desk: Desk, monkeypatch: pytest.MonkeyPatch, batch: int, transactions: int
) -> None:
    monkeypatch.setattr(admin, "_BATCH", batch)
    kept = []
    for number in range(5):
        subscription = await desk.subscribe(f"task-{number}")
        kept += (await desk.finish(subscription, 3, Outcome.DELIVERED))[1:]
    traced.clear()
    assert await desk.admin.purge(per_task=2) == 5
    assert sorted(await desk.states()) == sorted(kept)
    deleted = [each for each in traced if each.startswith("DELETE FROM pushkit_deliveries")]
    assert len(deleted) == transactions


async def test_a_purge_of_many_goes_batch_by_batch(
    desk: Desk, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(admin, "_BATCH", 2)
    await desk.enqueue(await desk.subscribe(), 5)
    await desk.query(ALL_DEAD)
    assert await desk.admin.purge(older_than=timedelta(0), states=[DeliveryState.DEAD]) == 5
    assert await desk.states() == {}


async def test_a_retention_knows_dead_letters_from_delivered_ones(desk: Desk) -> None:
    subscription = await desk.subscribe()
    await desk.finish(subscription, outcome=Outcome.DELIVERED, ago=timedelta(days=8))
    kept = await desk.finish(subscription, ago=timedelta(days=8))
    await desk.finish(subscription, ago=timedelta(days=31))
    assert await desk.admin.retain(Retention()) == 2
    assert list(await desk.states()) == kept


async def test_a_retention_may_keep_everything(desk: Desk) -> None:
    subscription = await desk.subscribe()
    await desk.finish(subscription, outcome=Outcome.DELIVERED, ago=timedelta(days=999))
    await desk.finish(subscription, ago=timedelta(days=999))
    assert await desk.admin.retain(Retention(delivered=None, dead=None)) == 0


async def test_a_withdrawn_subscription_goes_with_its_last_delivery(desk: Desk) -> None:
    subscription = await desk.subscribe()
    await desk.finish(subscription)
    await desk.database.write(subscriptions.withdraw([subscription.id], desk.now))
    await desk.admin.retain(Retention())
    assert len(await desk.query("SELECT id FROM pushkit_subscriptions")) == 1
    await desk.admin.retain(Retention(dead=timedelta(0)))
    assert await desk.query("SELECT id FROM pushkit_subscriptions") == []


@pytest.mark.parametrize(
    ("ago", "keep_dead", "is_kept"),
    [
        pytest.param(timedelta(days=31), timedelta(days=30), False, id="long ago"),
        pytest.param(timedelta(days=29), timedelta(days=30), True, id="lately"),
        pytest.param(timedelta(days=999), None, True, id="dead letters are kept for ever"),
    ],
)
async def test_a_disabled_subscription_without_deliveries_goes_after_a_while(
    desk: Desk, ago: timedelta, keep_dead: timedelta | None, is_kept: bool
) -> None:
    gone, with_delivery, active = [await desk.subscribe(f"task-{n}") for n in range(3)]
    await desk.finish(with_delivery)
    for each in (gone, with_delivery):
        script = subscriptions.disable(each.id, desk.now - ago, DisabledBy.GONE)
        await desk.database.write(script)
    await desk.admin.retain(Retention(dead=keep_dead))
    left = {row["id"] for row in await desk.query("SELECT id FROM pushkit_subscriptions")}
    assert left == {with_delivery.id, active.id} | ({gone.id} if is_kept else set())


async def test_a_destination_is_forgotten_once_it_works_or_nothing_goes_there(desk: Desk) -> None:
    owners = ("left", "works", "fails", "redriven", "waits")
    theirs = {owner: await desk.subscribe(owner=owner) for owner in owners}
    dead = {owner: (await desk.finish(each))[0] for owner, each in theirs.items()}
    found = await desk.database.read(outbox.leased_deliveries(list(dead.values())))
    for each in found.values():
        await desk.database.write(destinations.failed(each, desk.now))
    until = desk.now + timedelta(hours=1)
    await desk.database.write(destinations.postpone(found[dead["waits"]], until, desk.now))
    await desk.database.write(destinations.answered(found[dead["works"]]))
    ended = [theirs[owner].id for owner in ("left", "redriven", "waits")]
    await desk.database.write(subscriptions.withdraw(ended, desk.now))
    await desk.admin.redrive([dead["redriven"]])

    await desk.admin.retain(Retention(dead=None))

    kept = await desk.query("SELECT owner FROM pushkit_destinations")
    assert {row["owner"] for row in kept} == {"fails", "redriven", "waits"}
    assert (await desk.admin.stats()).failing.number == 3


async def test_an_erasure_leaves_nothing_of_the_task(desk: Desk) -> None:
    alice, bob = await desk.subscribe(owner="alice"), await desk.subscribe(owner="bob")
    await desk.finish(alice, 2, Outcome.DELIVERED)
    await desk.finish(bob)
    other_tenant = await desk.finish(await desk.subscribe(tenant="t2"))
    other_task = await desk.finish(await desk.subscribe("task-2"))
    await desk.enqueue(bob, 2)
    in_flight, _ = await desk.claim()
    assert await desk.admin.erase("task-1") == (2, 5)
    assert await desk.admin.erase("task-1") == (0, 0)
    assert sorted(await desk.states()) == [*other_tenant, *other_task]
    for table in ("pushkit_subscriptions", "pushkit_bodies", "pushkit_attempts"):
        rows = await desk.query(f"SELECT * FROM {table}")  # noqa: S608  # one of these names
        assert len(rows) == 2
    late = AttemptResult(outcome=Outcome.DELIVERED, status=200, started_at=desk.now)
    await desk.database.write(attempts.add_late(in_flight, late))
    assert len(await desk.query("SELECT * FROM pushkit_attempts")) == 2


async def test_a_purge_or_resend_without_a_choice_is_refused(desk: Desk) -> None:
    await desk.finish(await desk.subscribe(), outcome=Outcome.DELIVERED)
    with pytest.raises(ConfigError, match=r"purge: expected .* found neither"):
        await desk.admin.purge()
    with pytest.raises(TypeError, match="wanted"):
        await desk.admin.resend()  # type: ignore[call-arg]  # that is the mistake
    with pytest.raises(ConfigError, match="resend: found state dead, expected"):
        await desk.admin.resend(DEAD)
    assert set((await desk.states()).values()) == {DeliveryState.DELIVERED}


@pytest.mark.parametrize(
    "given",
    [
        pytest.param({"delivered": timedelta(days=-1)}, id="a negative age"),
        pytest.param({"dead": timedelta(days=-1)}, id="a negative age of dead letters"),
        pytest.param({"delivered": timedelta.max}, id="an age beyond the calendar"),
        pytest.param({"per_task": -1}, id="a negative number"),
    ],
)
def test_a_retention_that_keeps_less_than_nothing_is_refused(given: dict[str, Any]) -> None:
    with pytest.raises(ConfigError, match=f"^retain: {next(iter(given))}: found "):
        Retention(**given)


async def test_a_purge_until_a_time_in_the_future_is_refused(desk: Desk) -> None:
    with pytest.raises(ConfigError, match=r"^older_than: found "):
        await desk.admin.purge(older_than=timedelta(days=-1))
    with pytest.raises(ConfigError, match=r"^per_task: found -1"):
        await desk.admin.purge(per_task=-1)
