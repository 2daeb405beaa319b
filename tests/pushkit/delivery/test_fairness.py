"""One owner with most of the backlog, and all the slow webhooks, keeps nobody else waiting."""

from __future__ import annotations

import asyncio
from collections import Counter
from collections.abc import AsyncIterator, Callable
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

import pytest
from aiohttp import web

from pushkit import StatusUpdate
from tests.eventually import eventually

if TYPE_CHECKING:
    from tests.pushkit.delivery.conftest import Senders

MakeStatus = Callable[..., StatusUpdate]
SLOW_WEBHOOKS = 12
TASKS_OF_EACH = 75
OTHERS = 99


@dataclass
class Webhooks:
    """Webhooks that hang until they are released, at ports of their own; and one that is quick."""

    slow: list[str] = field(default_factory=list)
    quick: str = ""
    hanging: int = 0
    answered: list[str] = field(default_factory=list)
    released: asyncio.Event = field(default_factory=asyncio.Event)

    async def answer(self, request: web.Request) -> web.Response:
        if request.path.startswith("/slow"):
            self.hanging += 1
            await self.released.wait()
        else:
            self.answered.append(request.path)
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
    await runner.cleanup()


@pytest.fixture
def outbox(location: str) -> str:
    """Return where the outbox is: every test here runs on both databases."""
    return location


async def test_ninety_nine_owners_are_served_while_the_hundredth_holds_what_it_can(
    senders: Senders, webhooks: Webhooks, status: MakeStatus
) -> None:
    sender = await senders.open(concurrency=16, concurrency_per_host=4)
    for number in range(SLOW_WEBHOOKS * TASKS_OF_EACH):  # all of it is due before the others'
        url = f"{webhooks.slow[number % SLOW_WEBHOOKS]}/slow"
        await sender.subscribe(f"slow-{number}", {"url": url}, version="1.0", owner="mallory")
        await sender.notify(status(task_id=f"slow-{number}"))
    running = asyncio.create_task(sender.worker.run())

    async def holds_what_it_can() -> bool:
        return webhooks.hanging == 12  # three quarters of the slots

    await eventually(holds_what_it_can)
    for number in range(OTHERS):
        hook = {"url": f"{webhooks.quick}/{number}"}
        await sender.subscribe(f"quick-{number}", hook, version="1.0", owner=f"owner-{number}")
        for state in ("working", "working"):
            await sender.notify(status(state, task_id=f"quick-{number}"))

    async def are_served() -> bool:
        return len(webhooks.answered) == 2 * OTHERS

    await eventually(are_served)
    assert webhooks.hanging == 12
    assert set(Counter(webhooks.answered).values()) == {2}
    running.cancel()
    await asyncio.gather(running, return_exceptions=True)
    await sender.worker.pump.abandon()
