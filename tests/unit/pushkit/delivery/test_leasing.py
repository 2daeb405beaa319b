"""Leased queues through public doors: fair turns, few claims, what a lease ends with."""

from __future__ import annotations

import asyncio
import time
from collections import Counter
from collections.abc import Collection
from datetime import datetime, timedelta

import pytest
from aiohttp import web

from pushkit import PushSender
from pushkit.clock import utc_now
from pushkit.delivery.worker import Worker
from pushkit.queue.leases import ClaimResult
from pushkit.queue.rules import QUANTUM, Room
from tests.clock import Clock
from tests.unit.pushkit.delivery.conftest import Senders, Webhook, enqueue, status


class RealClock(Clock):
    """The time of the machine: which queue has waited longest is a matter of microseconds."""

    def __call__(self) -> datetime:
        return utc_now()


@pytest.fixture
def claims(monkeypatch: pytest.MonkeyPatch) -> list[int]:
    """How many queues each claim leased, of all workers."""
    counted: list[int] = []
    claim = Worker.claim

    async def counting(worker: Worker, room: Room, held: Collection[str]) -> ClaimResult:
        found = await claim(worker, room, held)
        counted.append(len(found.claimed))
        return found

    monkeypatch.setattr(Worker, "claim", counting)
    return counted


async def store(sender: PushSender, webhook: Webhook, task: str, number: int) -> None:
    await sender.subscribe(task, {"url": webhook.url(f"/{task}")}, version="1.0")
    for _ in range(number):
        await sender.notify(status(task_id=task))


@pytest.mark.slow
async def test_a_fresh_task_is_begun_before_an_older_queue_has_had_two_turns(
    senders: Senders, webhook: Webhook
) -> None:
    senders.clock = RealClock()
    sender = await senders.open(concurrency_per_host=2)
    for number in range(16):
        await store(sender, webhook, f"old-{number}", 3 * QUANTUM)
    await store(sender, webhook, "fresh", 1)
    await sender.start()
    await webhook.until_received(1, "/fresh")
    paths = [request.path for request in webhook.received]
    before = Counter(paths[: paths.index("/fresh")])
    assert before
    assert max(before.values()) <= 2 * QUANTUM


@pytest.mark.slow
async def test_queues_that_wait_for_a_busy_origin_are_not_claimed_again_and_again(
    senders: Senders, webhook: Webhook, claims: list[int]
) -> None:
    sender = await senders.open(
        concurrency_per_host=2, poll_interval=timedelta(seconds=60), drain=timedelta(0)
    )
    is_answered = asyncio.Event()

    async def wait() -> web.Response:
        await is_answered.wait()
        return web.Response()

    for number in range(12):
        webhook.replies_with(wait, path=f"/slow-{number}")
        await store(sender, webhook, f"slow-{number}", 1)
    await sender.start()
    await webhook.until(lambda: len(webhook.received) == 2)
    done = len(claims)
    for _ in range(20):  # rounds in which a loop that claims in vain would run
        await asyncio.sleep(0.01)
    assert len(claims) == done
    is_answered.set()
    await webhook.until(lambda: len(webhook.received) == 12)
    assert len(claims) <= done + 12


@pytest.mark.slow
async def test_of_many_workers_that_are_woken_by_an_update_one_claims_it(
    on_postgres: Senders, webhook: Webhook, claims: list[int]
) -> None:
    agent = await on_postgres.open()  # without a worker
    await agent.subscribe("task-1", {"url": webhook.url()}, version="1.0")
    for _ in range(6):
        worker = await on_postgres.open(poll_interval=timedelta(seconds=60))
        await worker.start()
    await agent.notify(status())
    await webhook.until_received(1)
    claims.clear()
    for number in range(2, 22):
        await agent.notify(status())
        await webhook.until_received(number)
    assert len(claims) <= 24


async def test_a_delivery_with_which_workers_die_again_and_again_is_due_again_soon(
    senders: Senders, webhook: Webhook
) -> None:
    sender = await senders.open()
    await store(sender, webhook, "task", 1)
    room = Room(queues=1, of_origin=lambda _: 1)
    waits: list[int] = []
    for _ in range(6):
        waits.append(0)
        while not (await sender.worker.claim(room, frozenset())).claimed:
            senders.clock.advance(1)
            waits[-1] += 1
        senders.clock.advance(60)  # the lease ends, and nothing was settled
    assert waits == [0, 0, 1, 2, 4, 8]
    [delivery] = await sender.deliveries("task")
    assert (delivery.attempts, delivery.last_error) == (4, "lease_expired")


class _Suspending(Clock):
    """A clock whose next reader is suspended for `sleeps` seconds."""

    sleeps = slept = 0.0

    def __call__(self) -> datetime:
        self.slept, self.sleeps = self.slept + self.sleeps, 0.0
        return self.now


async def test_a_worker_suspended_in_its_claim_sends_nothing_before_the_lease_expires(
    senders: Senders, webhook: Webhook, monkeypatch: pytest.MonkeyPatch
) -> None:
    clock = senders.clock = _Suspending()
    awake = time.clock_gettime
    monkeypatch.setattr(time, "clock_gettime", lambda which: awake(which) + clock.slept)
    sender = await senders.open()
    await enqueue(sender, webhook.url())
    clock.sleeps = 100
    await sender.worker.run_once()
    assert webhook.received == []
    clock.advance(100)
    await sender.worker.run_once()
    assert len(webhook.received) == 1
