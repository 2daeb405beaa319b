"""A delivery stored while a slot is free is attempted at once, within every limit."""

from __future__ import annotations

import asyncio
from collections import Counter
from collections.abc import AsyncIterator
from dataclasses import dataclass, field
from datetime import UTC, datetime, timedelta

import asyncpg
import pytest
from aiohttp import web

from pushkit import DeliveryState, PushSender, StatusUpdate
from pushkit.delivery.slots import DeliverySlots
from pushkit.outbox.leases import ClaimResult
from tests.eventually import eventually
from tests.pushkit.delivery.claimed import claimed_delivery
from tests.pushkit.delivery.conftest import Senders, Webhook, status
from tests.served import answering, served

HOOK = {"id": "1", "url": "https://client.example.com/hook"}


def destination(
    owner: str = "alice", origin: str = "https://a.example.com"
) -> tuple[str, str, str]:
    return ("", owner, origin)


def open_slots(number: int = 8, *, per_origin: int = 8) -> DeliverySlots:
    slots = DeliverySlots(number, per_origin=per_origin)
    slots.is_open = True
    slots.give_back(slots.take_for_claim())
    slots.note(ClaimResult(some_wait=False))
    return slots


class TestReserving:
    def test_no_slot_is_reserved_before_a_claim_found_nothing_waiting(self) -> None:
        slots = DeliverySlots(8, per_origin=8)
        slots.is_open = True
        assert not slots.reserve(destination())
        slots.give_back(slots.take_for_claim())
        slots.note(ClaimResult(some_wait=True))
        assert not slots.reserve(destination())
        slots.give_back(slots.take_for_claim())
        slots.note(ClaimResult(some_wait=False))
        assert slots.reserve(destination())

    def test_no_slot_is_reserved_without_a_running_worker(self) -> None:
        slots = open_slots()
        slots.is_open = False
        assert not slots.reserve(destination())

    def test_a_delivery_does_not_overtake_one_that_waits_for_a_claim(self) -> None:
        slots = open_slots()
        slots.note_waiting()
        assert not slots.reserve(destination())

    def test_the_slots_of_an_origin_are_shared_by_all_owners_and_workers(self) -> None:
        slots = open_slots(per_origin=3)
        slots.note(ClaimResult(some_wait=False, others=Counter({"https://a.example.com": 1})))
        assert slots.reserve(destination("alice"))
        assert slots.reserve(destination("bob"))
        assert not slots.reserve(destination("carol"))
        assert slots.reserve(destination("carol", "https://b.example.com"))

    def test_an_owner_leaves_a_quarter_of_the_slots_to_others(self) -> None:
        slots = open_slots(8)
        taken = [slots.reserve(destination()) for _ in range(8)]
        assert taken == [True] * 6 + [False] * 2
        assert slots.reserve(destination("bob"))

    def test_several_greedy_owners_leave_slots_to_others(self) -> None:
        slots = open_slots(64, per_origin=64)
        held = {
            owner: sum(slots.reserve(destination(owner)) for _ in range(64)) for owner in "abcde"
        }
        assert held == {"a": 48, "b": 8, "c": 1, "d": 1, "e": 1}
        assert slots.reserve(destination("innocent"))

    def test_a_cancelled_reservation_frees_its_slot(self) -> None:
        slots = open_slots(8, per_origin=1)
        assert slots.reserve(destination())
        slots.cancel([claimed_delivery()])
        assert slots.free == 8
        assert slots.reserve(destination())

    def test_a_claim_leaves_slots_for_deliveries_stored_meanwhile(self) -> None:
        slots = open_slots(8)
        assert slots.take_for_claim() == 6
        assert slots.reserve(destination())


class TestFollowing:
    def test_the_next_delivery_of_a_queue_keeps_the_slot_unless_others_wait_for_it(self) -> None:
        slots = open_slots()
        assert slots.may_follow(destination())
        slots.note(ClaimResult(some_wait=False, full_origins=frozenset({"https://a.example.com"})))
        assert not slots.may_follow(destination())
        assert slots.may_follow(destination(origin="https://b.example.com"))
        slots.note(ClaimResult(some_wait=False, waiting_owners=frozenset({("", "alice")})))
        assert not slots.may_follow(destination("alice"))
        assert slots.may_follow(destination("bob"))
        slots.note_waiting()
        assert not slots.may_follow(destination("bob"))

    def test_an_owner_that_used_its_share_does_not_block_other_owners(self) -> None:
        slots = open_slots(8, per_origin=7)
        assert [slots.reserve(destination()) for _ in range(7)] == [True] * 6 + [False]
        slots.note(ClaimResult(some_wait=False, waiting_owners=frozenset({("", "alice")})))
        assert slots.reserve(destination("bob", "https://b.example.com"))

    def test_the_end_of_an_attempt_wakes_the_worker_if_its_destination_or_others_wait(self) -> None:
        slots = open_slots()
        origins = [f"https://{name}.example.com" for name in "abc"]
        for origin in origins:
            assert slots.reserve(destination(origin=origin))
        slots.note(ClaimResult(some_wait=False, full_origins=frozenset({origins[0]})))
        assert slots.ended(destination(origin=origins[0]))
        assert not slots.ended(destination(origin=origins[1]))
        slots.note(ClaimResult(some_wait=False, waiting_owners=frozenset({("", "bob")})))
        assert slots.ended(destination(origin=origins[2]))


@dataclass
class Slow:
    """A webhook that records its concurrent requests and the order of the updates."""

    url: str = ""
    at_once: int = 0
    most: int = 0
    tasks: list[str] = field(default_factory=list)
    open: asyncio.Event = field(default_factory=asyncio.Event)
    seqs: dict[str, list[int]] = field(default_factory=dict)

    async def answer(self, request: web.Request) -> web.Response:
        self.at_once += 1
        self.most = max(self.most, self.at_once)
        body = await request.json()
        update = body["statusUpdate"]
        await self.open.wait()
        await asyncio.sleep(0.002)
        self.tasks.append(update["taskId"])
        self.seqs.setdefault(update["taskId"], []).append(int(update["metadata"]["number"]))
        self.at_once -= 1
        return web.Response()


@pytest.fixture
async def slow() -> AsyncIterator[Slow]:
    slow = Slow()
    slow.open.set()
    async with served(answering(slow.answer)) as slow.url:
        yield slow


@pytest.mark.parametrize("concurrency", [1, 3, 64])
@pytest.mark.slow
async def test_many_tasks_at_once_keep_the_limit_and_their_order(
    senders: Senders, slow: Slow, concurrency: int
) -> None:
    senders.clock = lambda: datetime.now(UTC)  # type: ignore[assignment]
    sender = await senders.open(concurrency=concurrency, concurrency_per_host=concurrency)
    await sender.start()
    tasks = [f"task-{n}" for n in range(20)]
    for task in tasks:
        await sender.subscribe(task, {"id": "1", "url": slow.url}, version="1.0", owner=task)

    async def notify_all(task: str) -> None:
        for number in range(10):
            update = status(task_id=task)
            await sender.notify(_numbered(update, number))

    await asyncio.gather(*map(notify_all, tasks))

    await eventually(lambda: sum(map(len, slow.seqs.values())) >= 200)
    assert slow.seqs == {task: list(range(10)) for task in tasks}
    assert slow.most <= concurrency


@pytest.mark.slow
async def test_long_queues_in_every_slot_do_not_starve_a_later_task(
    senders: Senders, slow: Slow
) -> None:
    senders.clock = lambda: datetime.now(UTC)  # type: ignore[assignment]
    sender = await senders.open(concurrency=2)
    await sender.start()
    slow.open.clear()
    for task in ("flood0", "flood1", "late"):
        hook = {"id": "1", "url": slow.url}
        await sender.subscribe(task, hook, version="1.0", owner=task.rstrip("01"))
    for number in range(40):
        for task in ("flood0", "flood1"):
            await sender.notify(_numbered(status(task_id=task), number))
    await sender.notify(_numbered(status(task_id="late"), 0))
    slow.open.set()

    await eventually(lambda: len(slow.tasks) >= 81)
    assert slow.tasks.index("late") < 40
    await all_free(sender)


async def test_an_update_stored_by_a_cancelled_caller_is_delivered(
    senders: Senders, webhook: Webhook
) -> None:
    sender = await senders.open(poll_interval=timedelta(minutes=1))
    await sender.start()
    await sender.subscribe("task-1", {"id": "1", "url": webhook.url()}, version="1.0")
    await sender.notify(status())
    await webhook.until(lambda: len(webhook.received) == 1)
    for _ in range(20):
        notifying = asyncio.create_task(sender.notify(status()))
        await asyncio.sleep(0)
        notifying.cancel()
        await asyncio.wait([notifying])
    stored = len(await sender.deliveries("task-1"))
    await webhook.until(lambda: len(webhook.received) == stored)

    async def all_delivered() -> bool:
        found = await sender.deliveries("task-1")
        return {each.state for each in found} == {DeliveryState.DELIVERED}

    await eventually(all_delivered)
    await all_free(sender)


async def test_refused_updates_free_their_slots(senders: Senders, webhook: Webhook) -> None:
    sender = await senders.open(concurrency=4)
    await sender.start()
    await sender.subscribe("task-1", {"id": "1", "url": webhook.url()}, version="1.0")
    for number in range(20):
        update = _numbered(status(), "\ud800" if number % 2 else "x")
        await asyncio.gather(sender.notify(update), return_exceptions=True)
    await webhook.until(lambda: len(webhook.received) == 10)
    await all_free(sender)


async def test_a_failed_commit_frees_the_slots_of_its_updates(
    on_postgres: Senders, postgres_dsn: str, webhook: Webhook
) -> None:
    sender = await on_postgres.open(concurrency=8)
    await sender.start()
    tasks = ["good-1", "bad", "good-2", "good-3"]
    for task in tasks:
        await sender.subscribe(task, {"id": "1", "url": webhook.url()}, version="1.0")
    await _refuse_in_the_commit(postgres_dsn, task="bad")

    for _ in range(10):
        calls = [sender.notify(status(task_id=task)) for task in tasks]
        await asyncio.gather(*calls, return_exceptions=True)

    await webhook.until(lambda: len(webhook.received) == 30)
    await all_free(sender)


async def _refuse_in_the_commit(dsn: str, *, task: str) -> None:
    """Make every commit fail that stores a delivery of the task."""
    connection = await asyncpg.connect(dsn)
    await connection.execute(
        "CREATE FUNCTION refuse() RETURNS trigger LANGUAGE plpgsql AS"
        " $$ BEGIN RAISE EXCEPTION 'refused'; END $$;"
        " CREATE CONSTRAINT TRIGGER refusing AFTER INSERT ON pushkit_deliveries"
        " DEFERRABLE INITIALLY DEFERRED FOR EACH ROW"
        f" WHEN (NEW.task_id = '{task}') EXECUTE FUNCTION refuse()"
    )
    await connection.close()


async def all_free(sender: PushSender) -> None:

    await eventually(lambda: sender.worker.slots.free == sender.options.concurrency)


def _numbered(update: StatusUpdate, number: int | str) -> StatusUpdate:
    return StatusUpdate(
        task_id=update.task_id,
        context_id=update.context_id,
        status=update.status,
        metadata={"number": number},
    )
