"""Several receivers on one state, in SQLite and in PostgreSQL: as if they were one."""

from __future__ import annotations

import asyncio
import contextlib
from collections import Counter
from collections.abc import Callable
from dataclasses import replace
from datetime import UTC, datetime, timedelta
from typing import TYPE_CHECKING

import asyncpg
import pytest

from pushkit.a2a import TaskState
from receiver import InboxStatus, Limits, Notification, RateLimit, Receiver, TaskPolicy
from receiver.callbacks import dispatcher, waiting
from tests.eventually import DEADLINE, eventually

if TYPE_CHECKING:
    from tests.unit.receiver.conftest import World, WorldFactory

FAST = RateLimit(per_second=100_000, burst=100_000)
COPIES = 200


def record_calls(receiver: Receiver, called: list[str]) -> None:
    @receiver.on_update(name="record")
    async def record(notification: Notification) -> None:
        called.append(notification.delivery_id)


@pytest.fixture
def make_shared(make_world: WorldFactory, location: str) -> Callable[..., World]:
    """Make a world whose receivers keep their state there."""

    def make(**sender: object) -> World:
        limits = Limits(sender_rate=FAST, peer_rate=FAST)
        world = make_world({"limits": limits}, **sender)
        world.database = location
        world.clock.now = datetime.now(UTC)  # what PostgreSQL's clock says
        return world

    return make


@pytest.fixture
def shared(make_shared: Callable[..., World]) -> World:
    return make_shared()


async def until_all_is_done(receiver: Receiver, count: int) -> None:
    async def done() -> bool:
        statuses = (await receiver.inbox.stats()).statuses
        return statuses[InboxStatus.DONE] == sum(statuses.values()) == count

    await eventually(done)


@pytest.mark.slow
async def test_many_copies_at_two_receivers_are_one_callback(shared: World) -> None:
    called: list[str] = []
    receivers = [shared.receiver, shared.another_receiver()]
    for receiver in receivers:
        record_calls(receiver, called)
    request = shared.draft().request()

    async with receivers[0], receivers[1]:
        verdicts = Counter(
            verdict.status
            for verdict in await asyncio.gather(
                *(receivers[n % 2].receive(request) for n in range(COPIES))
            )
        )
        after = await receivers[1].receive(request)
        await until_all_is_done(receivers[0], 1)

    assert verdicts[202] == 1
    assert set(verdicts) <= {202, 200, 503}
    assert after.code == "duplicate"
    assert called == ["delivery-task-1-1"]


async def test_copies_with_two_bodies_at_two_receivers_have_one_winner(shared: World) -> None:
    receivers = [shared.receiver, shared.another_receiver()]
    requests = [shared.draft(state=state).request() for state in ("working", "failed")] * 50

    async with receivers[0], receivers[1]:
        verdicts = Counter(
            verdict.status
            for verdict in await asyncio.gather(
                *(receivers[n // 2 % 2].receive(request) for n, request in enumerate(requests))
            )
        )
        after = Counter([(await receivers[0].receive(each)).status for each in requests[:2]])

    assert verdicts[202] == 1
    assert set(verdicts) <= {202, 200, 409, 503}
    assert after == {200: 1, 409: 1}


async def test_ids_refused_by_step_8_are_not_remembered(make_shared: Callable[..., World]) -> None:
    world = make_shared(tasks=TaskPolicy.REGISTERED, token_required=False)
    draft = world.draft()
    async with world.receiver as receiver:
        refused = await receiver.receive(draft.request())
        expectation = await receiver.expect(task_id="task-1")
        assert expectation.config.token is not None
        token = expectation.config.token
        draft = replace(draft, token=token)
        accepted = await receiver.receive(draft.request())

    assert (refused.status, accepted.status) == (404, 202)


@pytest.mark.parametrize("static", ["static", None], ids=["static", "own"])
async def test_one_of_several_tasks_that_race_for_a_token_wins(
    make_shared: Callable[..., World], static: str | None
) -> None:
    world = make_shared(tasks=TaskPolicy.BIND, tokens=["static"])
    receivers = [world.receiver, world.another_receiver()]
    async with receivers[0], receivers[1]:
        token = static or (await receivers[0].expect()).config.token or ""
        verdicts = await asyncio.gather(
            *(
                receivers[n % 2].receive(world.draft(task_id=f"task-{n}", token=token).request())
                for n in range(20)
            )
        )

    assert Counter(verdict.status for verdict in verdicts) == {202: 1, 404: 19}


@pytest.mark.usefixtures("looks_often")
async def test_updates_come_from_every_receiver_in_order(shared: World) -> None:
    seen: list[int | None] = []
    states = ("working", "working", "working", "completed")
    async with shared.receiver as one, shared.another_receiver() as two:

        async def follow() -> None:
            seen.extend([update.seq async for update in two.updates("task-1")])

        following = asyncio.create_task(follow())
        for number, state in enumerate(states, start=1):
            receiver = (one, two)[number % 2]
            await receiver.receive(shared.draft(number, state=state).request())
        async with asyncio.timeout(DEADLINE):
            await following

    assert seen == [1, 2, 3, 4]


async def test_postgresql_wakes_waiters_and_callbacks_of_other_processes_without_polling(
    make_world: WorldFactory, postgres_dsn: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(waiting, "_POLL_SECONDS", 3600)
    monkeypatch.setattr(dispatcher, "POLL_INTERVAL", timedelta(hours=1))
    world = make_world()
    world.database = postgres_dsn
    world.clock.now = datetime.now(UTC)
    called: list[str] = []
    idle = world.another_receiver()
    record_calls(idle, called)
    async with idle:
        task = asyncio.create_task(idle.wait("task-1", timeout=DEADLINE))
        with contextlib.suppress(TimeoutError):
            await idle.wait("task-1", timeout=0.5)
        await world.receiver.open()
        await world.receiver.receive(world.draft(state="completed").request())
        found = await task
        await until_all_is_done(idle, 1)
        await world.receiver.close()

    assert found.state is TaskState.COMPLETED
    assert called == ["delivery-task-1-1"]


async def test_a_process_that_calls_back_at_once_announces_news_and_wakes_no_other(
    make_world: WorldFactory, postgres_dsn: str
) -> None:
    world = make_world()
    world.database = postgres_dsn
    world.clock.now = datetime.now(UTC)
    heard: asyncio.Queue[str] = asyncio.Queue()
    listener = await asyncpg.connect(postgres_dsn)
    await listener.add_listener("pushkit_work", lambda *said: heard.put_nowait(said[-1]))
    await world.receiver.open()
    assert (await world.receiver.receive(world.draft(1).request())).status == 202
    assert await asyncio.wait_for(heard.get(), DEADLINE) == ""  # it waits for who claims it

    async with world.receiver:
        await until_all_is_done(world.receiver, 1)
        assert (await world.receiver.receive(world.draft(2).request())).status == 202
        assert await asyncio.wait_for(heard.get(), DEADLINE) == "news"
    await listener.close()


async def test_gaps_follow_the_order_of_acceptance_of_concurrent_requests(
    shared: World,
) -> None:
    receivers = [shared.receiver, shared.another_receiver()]
    async with receivers[0], receivers[1]:
        await asyncio.gather(
            *(
                receivers[n % 2].receive(shared.draft(seq).request())
                for n, seq in enumerate([3, 1, 9, 7, 8, 2, 12, 11, 5, 20])
            )
        )
        found = await receivers[0].inbox.find()

    assert len(found) == 10
    last = 0
    for summary in found:
        assert summary.seq is not None
        assert summary.late == (summary.seq < last)
        assert summary.missing == max(summary.seq - last - 1, 0)
        last = max(last, summary.seq)
