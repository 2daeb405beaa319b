"""What a receiver holds while it calls back: given back afterwards, and not before its result."""

from __future__ import annotations

import asyncio
import re
from collections import Counter
from typing import TYPE_CHECKING

from tenacity import stop_after_attempt

from pushkit.scheduling.retry import RetryPolicy, wait_schedule
from receiver import InboxFilter, InboxStatus, Notification
from tests.eventually import eventually

if TYPE_CHECKING:
    from tests.unit.receiver.conftest import World, WorldFactory

REFUSAL = (
    "CREATE TRIGGER refusal AFTER INSERT ON pushkit_inbox_queues"
    " BEGIN SELECT RAISE(ABORT, 'refusal'); END"
)
AFTER_TEN_SECONDS = RetryPolicy(wait=wait_schedule((10,), jitter=0), stop=stop_after_attempt(3))
IDS = re.compile(r"\d+(?:, ?\d+)*")


async def settled(world: World, number: int, status: InboxStatus = InboxStatus.DONE) -> None:
    async def look() -> bool:
        found = await world.receiver.inbox.find(InboxFilter(status=status), limit=1000)
        return len(found) == number

    await eventually(look)


async def test_slots_and_leases_come_back_however_many_notifications_are_called_back(
    traced: list[str], make_world: WorldFactory
) -> None:
    world = make_world({"concurrency": 2, "retry": AFTER_TEN_SECONDS})
    called, go_on = Counter[str | None](), asyncio.Event()

    @world.receiver.on_update
    async def count(notification: Notification) -> None:
        called[notification.task_id] += 1
        if notification.task_id == "slow":
            await go_on.wait()
        elif notification.task_id == "failed" and called["failed"] == 1:
            raise ValueError

    for number in range(1, 13):
        drafts = [world.draft(n, task_id=f"task-{number}-{n % 3}") for n in range(1, 7)]
        verdicts = [world.receive(draft) for draft in drafts]
        assert {each.code for each in await asyncio.gather(*verdicts)} == {"accepted"}
        await settled(world, number * len(drafts))
    assert set(called.values()) == {2}
    for task in ("failed", "slow"):
        await world.receive(world.draft(task_id=task))
    await settled(world, 1, InboxStatus.RECEIVED)
    traced.clear()
    world.clock.advance(90)  # longer than a lease: a claim leaves what is held
    await eventually(lambda: called["failed"] == 2)
    go_on.set()

    assert called["slow"] == 1
    assert max(len(ids.split(",")) for sql in traced for ids in IDS.findall(sql)) <= 8


async def test_a_notification_whose_commit_failed_is_not_called_back(
    make_world: WorldFactory,
) -> None:
    world, called = make_world(), list[int | None]()

    @world.receiver.on_update
    async def note(notification: Notification) -> None:
        called.append(notification.seq)

    await world.start()
    dispatcher = world.receiver.dispatcher
    await eventually(lambda: dispatcher.has_room("new", 1))
    world.execute(REFUSAL)
    refused = await world.receive(world.draft(1))
    world.execute("DROP TRIGGER refusal")

    assert refused.code == "storage"
    assert dispatcher.usage()[0] == 0
    assert (await world.receive(world.draft(2))).code == "accepted"
    assert (await world.receive(world.draft(1))).code == "accepted"
    await world.until_done(2)
    assert called == [2, 1]
