"""One owner with most of the backlog, all of it slow, does not delay other owners."""

from __future__ import annotations

import asyncio
import contextlib
import socket
from collections.abc import AsyncIterator, Iterator
from dataclasses import dataclass, field
from datetime import timedelta

import pytest
from aiohttp import web

from pushkit import BreakerPolicy, DeliveryState, PushSender
from pushkit.scheduling.retry import RetryPolicy, wait_schedule
from pushkit.webhook import Headers
from tests.clock import Clock
from tests.eventually import eventually
from tests.long_runs import LONG
from tests.unit.pushkit.delivery.conftest import Received, Senders, Webhook, enqueue, status

pytestmark = pytest.mark.usefixtures("location")  # every test runs on SQLite and PostgreSQL
SLOW_WEBHOOKS = 12
TASKS_OF_EACH = 150 if LONG else 12  # more in all than a claim reads
OTHERS = 99
# Long enough that no attempt times out and no lease expires on a busy machine.
PATIENT = {"timeout": timedelta(minutes=10), "lease_margin": timedelta(minutes=10)}


@dataclass
class Webhooks:
    """Webhooks that hang until they are released, each at its own port, and one quick webhook."""

    slow: list[str] = field(default_factory=list)
    quick: str = ""
    hanging: int = 0
    begun: list[str] = field(default_factory=list)  # paths of requests that end one by one
    one_ends: asyncio.Queue[None] = field(default_factory=asyncio.Queue)
    answered: list[Received] = field(default_factory=list)
    released: asyncio.Event = field(default_factory=asyncio.Event)

    async def answer(self, request: web.Request) -> web.Response:
        if request.path.startswith("/slow"):
            self.hanging += 1
            await self.released.wait()
        elif request.path.startswith("/one-by-one"):
            self.begun.append(request.path)
            await self.one_ends.get()
        else:
            headers = Headers(list(request.headers.items()))
            self.answered.append(Received(request.path, headers, await request.read()))
        return web.Response()


@pytest.fixture
async def webhooks() -> AsyncIterator[Webhooks]:
    webhooks = Webhooks()
    app = web.Application()
    app.router.add_post("/{path:.*}", webhooks.answer)
    runner = web.AppRunner(app, access_log=None, shutdown_timeout=0)
    await runner.setup()
    for _ in range(SLOW_WEBHOOKS + 1):
        await web.TCPSite(runner, "127.0.0.1", 0).start()
    *slow, quick = [f"http://127.0.0.1:{address[1]}" for address in runner.addresses]
    webhooks.slow, webhooks.quick = slow, quick
    yield webhooks
    webhooks.released.set()
    for _ in range(100):
        webhooks.one_ends.put_nowait(None)
    await runner.cleanup()


@pytest.mark.slow
async def test_ninety_nine_owners_are_served_while_the_hundredth_fills_its_slots(
    senders: Senders, webhooks: Webhooks
) -> None:
    sender = await senders.open(concurrency=16, concurrency_per_host=4, **PATIENT)

    async def queue(task_id: str, url: str) -> None:
        await enqueue(sender, f"{url}/slow", task_id, owner="mallory")

    async def notify_twice(number: int) -> None:
        url, owner = f"{webhooks.quick}/{number}", f"owner-{number}"
        await enqueue(sender, url, f"quick-{number}", owner=owner)
        await sender.notify(status(task_id=f"quick-{number}"))

    for number in range(TASKS_OF_EACH):  # all of them are due before the others'
        tasks = [f"slow-{number}-{at}" for at in range(SLOW_WEBHOOKS)]
        await asyncio.gather(*map(queue, tasks, webhooks.slow))
    running = asyncio.create_task(sender.worker.run())
    await eventually(lambda: webhooks.hanging == 12)  # three quarters of the slots
    await asyncio.gather(*map(notify_twice, range(OTHERS)))
    await eventually(lambda: len(webhooks.answered) == 2 * OTHERS)
    assert webhooks.hanging == 12
    order: dict[str, list[int | None]] = {f"/{number}": [] for number in range(OTHERS)}
    for request in webhooks.answered:
        order[request.path].append(request.claims(senders.public_keys()).seq)
    assert order == {path: [1, 2] for path in order}
    running.cancel()
    await asyncio.gather(running, return_exceptions=True)
    await sender.worker.runner.abandon()


async def test_every_owner_gets_a_first_slot_before_any_gets_a_second(
    senders: Senders, webhooks: Webhooks
) -> None:
    sender = await senders.open(concurrency=4, concurrency_per_host=4, timeout=timedelta(minutes=2))
    owners = [*(f"mallory{number}" for number in range(6)), "innocent"]
    for owner in owners:  # all updates of one owner are older than those of the next
        hook = {"url": f"{webhooks.quick}/one-by-one/{owner}"}
        await sender.subscribe(owner, hook, version="1.0", owner=owner)
        for _ in range(3):
            await sender.notify(status(task_id=owner))
    running = asyncio.create_task(sender.worker.run())

    for begun in range(4, len(owners) + 1):
        await eventually(lambda: len(webhooks.begun) == begun)  # noqa: B023
        webhooks.one_ends.put_nowait(None)

    assert sorted(webhooks.begun) == sorted(f"/one-by-one/{owner}" for owner in owners)
    running.cancel()
    await asyncio.gather(running, return_exceptions=True)
    await sender.worker.runner.abandon()


@pytest.mark.parametrize("way", ["pause", "unsubscribe", "disable"])
@pytest.mark.slow
async def test_ending_subscriptions_during_attempts_gives_an_owner_no_more_slots(
    senders: Senders, webhooks: Webhooks, way: str
) -> None:
    sender = await senders.open(concurrency=16, concurrency_per_host=4, **PATIENT)
    for turn in range(2):
        tasks = {f"task-{number}-{turn}": url for number, url in enumerate(webhooks.slow * 2)}
        for task, url in tasks.items():
            await enqueue(sender, f"{url}/slow", task, owner="mallory")
        await sender.worker.runner.fill()

        await eventually(lambda: webhooks.hanging == 12)
        for task in tasks:
            await getattr(sender, way)(task, owner="mallory")
        assert webhooks.hanging == 12
    await sender.worker.runner.abandon()


@contextlib.contextmanager
def silent_webhooks(number: int) -> Iterator[list[str]]:
    """Yield the URLs of webhooks that accept connections, and never answer."""
    listening = [socket.create_server(("127.0.0.1", 0)) for _ in range(number)]
    try:
        yield [f"http://127.0.0.1:{each.getsockname()[1]}/" for each in listening]
    finally:
        for each in listening:
            each.close()


async def is_begun_within_three_claims(sender: PushSender, task_id: str) -> bool:
    await sender.notify(status(task_id=task_id))
    for _ in range(3):
        await sender.worker.runner.fill()
    [delivery] = await sender.deliveries(task_id)
    await sender.close()
    return delivery.state is not DeliveryState.PENDING


async def test_each_claim_looks_at_other_owners_than_the_one_before(
    senders: Senders, webhooks: Webhooks, clock: Clock
) -> None:
    with silent_webhooks(200) as urls:
        sender = await senders.open(
            concurrency=16,
            concurrency_per_host=1,
            max_configs_per_task=len(urls),
            drain=timedelta(0),
        )
        # Many owners at one destination, and many destinations of one owner.
        wanted = [(f"a-{number:02}", "0", urls[0]) for number in range(20)]
        wanted += [("m", str(number), url) for number, url in enumerate(urls)]
        for owner, name, url in wanted:
            config = {"id": name, "url": url}
            await sender.subscribe("task-1", config, version="1.0", owner=owner)
        await sender.notify(status())
        clock.advance(1)
        await sender.subscribe("task-2", {"url": webhooks.quick}, version="1.0", owner="z")
        assert await is_begun_within_three_claims(sender, "task-2")


async def test_each_claim_looks_at_other_destinations_than_the_one_before(
    senders: Senders, webhooks: Webhooks, clock: Clock
) -> None:
    with silent_webhooks(40) as urls:
        sender = await senders.open(
            allow=("127.0.0.1:*", "localhost:*"),
            concurrency=64,
            concurrency_per_host=1,
            drain=timedelta(0),
        )
        for number in range(6):  # five of them wait behind the one that hangs
            for name, url in enumerate(urls):
                config = {"id": str(name), "url": url}
                await sender.subscribe(f"task-{number}", config, version="1.0")
            await sender.notify(status(task_id=f"task-{number}"))
        clock.advance(1)
        last = webhooks.quick.replace("127.0.0.1", "localhost")
        await sender.subscribe("last", {"url": last}, version="1.0")
        assert await is_begun_within_three_claims(sender, "last")


async def test_a_destination_behind_many_blocked_queues_is_not_claimed_one_queue_at_a_time(
    senders: Senders, webhook: Webhook, clock: Clock
) -> None:
    at_once = RetryPolicy(wait=wait_schedule([0], jitter=0))
    sender = await senders.open(
        breaker=BreakerPolicy(failures=1), allow=("127.0.0.1:*", "localhost:*"), retry=at_once
    )
    sender.worker._claims.window = 4
    for number in range(6):
        await enqueue(sender, webhook.url("/blocked"), f"blocked-{number}", owner="x")
    webhook.replies_with(*[500] * 9, path="/blocked")
    await sender.worker.run_once()
    clock.advance(60)
    is_answered = webhook.replies_after(path="/blocked")
    webhook.replies["/blocked"] = webhook.replies["/blocked"][-1:]
    await sender.worker.runner.fill()  # the probe; five others wait for it
    clock.advance(1)
    free = webhook.url("/free").replace("127.0.0.1", "localhost")
    for number in range(12):
        await enqueue(sender, free, f"free-{number}", owner="y")
    for _ in range(4):
        await sender.worker.runner.fill()
    await webhook.until(lambda: len(webhook.at("/free")) == 12)
    is_answered.set()
