"""Updates of one task that arrive faster than they are delivered share one slot, in order."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from datetime import UTC, datetime, timedelta

import asyncpg
import pytest
from aiohttp import web

from pushkit import PushSender, RetryPolicy, wait_schedule
from pushkit.delivery.chain import Chain
from pushkit.delivery.settle import Settled
from pushkit.delivery.slots import Claimed
from pushkit.outbox.model import Result
from pushkit.outbox.states import DeliveryState, Outcome
from pushkit.scheduling.deadlines import Deadlines
from tests.eventually import eventually
from tests.pushkit.delivery.claimed import claimed_delivery
from tests.pushkit.delivery.conftest import Senders, status
from tests.served import answering, served

DELIVERED = {DeliveryState.DELIVERED}
SOON = RetryPolicy(wait=wait_schedule((0.05,)))


@dataclass
class Gate:
    """A webhook that answers when the test lets it, with the statuses the test gives it."""

    url: str = ""
    ids: list[str] = field(default_factory=list)
    queries: list[str] = field(default_factory=list)
    statuses: list[int] = field(default_factory=list)
    is_open: bool = False
    held: list[asyncio.Event] = field(default_factory=list)

    async def answer(self, request: web.Request) -> web.Response:
        self.ids.append(request.headers["webhook-id"])
        self.queries.append(request.query_string)
        if not self.is_open:
            self.held.append(asyncio.Event())
            await self.held[-1].wait()
        return web.Response(status=self.statuses.pop(0) if self.statuses else 200)

    def open(self) -> None:
        """Answer all requests, those that wait and those to come."""
        self.is_open = True
        for each in self.held:
            each.set()

    def close(self) -> None:
        """Let requests wait from now on."""
        self.is_open = False

    async def answer_next(self) -> None:
        """Wait for a new request, and answer it."""

        await eventually(lambda: bool(self.held) and not self.held[-1].is_set())
        self.held[-1].set()


@pytest.fixture
async def gate() -> AsyncIterator[Gate]:
    gate = Gate()
    async with served(answering(gate.answer)) as gate.url:
        yield gate
        gate.open()


@pytest.fixture
async def sender(senders: Senders, gate: Gate) -> PushSender:
    return await start(senders, gate)


async def start(senders: Senders, gate: Gate) -> PushSender:
    """Return a started sender with a subscription of `task-1` to the gate."""
    senders.clock = lambda: datetime.now(UTC)  # type: ignore[assignment]
    sender = await senders.open(retry=SOON, poll_interval=timedelta(milliseconds=50))
    await sender.start()
    await sender.subscribe("task-1", {"id": "1", "url": gate.url}, version="1.0")

    async def is_ready() -> bool:  # a claim found that no delivery waits for a slot
        return sender.worker.slots.may_follow(("", "", ""))

    await eventually(is_ready)
    return sender


@asynccontextmanager
async def subscription_locked(dsn: str) -> AsyncIterator[asyncpg.Connection]:
    """Lock the subscription's row, so that nothing of its queue is stored or settled."""
    connection = await asyncpg.connect(dsn)
    try:
        async with connection.transaction():
            await connection.execute("SELECT id FROM pushkit_subscriptions FOR UPDATE")
            yield connection
    finally:
        await connection.close()


async def notify(sender: PushSender, gate: Gate, number: int) -> list[str]:
    """Notify of several updates, of all but one while the first is at the gate; return ids."""
    ids = [*(await sender.notify(status())).ids]

    await eventually(lambda: gate.ids)
    for _ in range(number - 1):
        ids += (await sender.notify(status())).ids
    return ids


async def states(sender: PushSender) -> list[DeliveryState]:
    return [each.state for each in await sender.deliveries("task-1")]


async def until_all_are_delivered(sender: PushSender) -> None:
    async def all_delivered() -> bool:
        return set(await states(sender)) == DELIVERED

    await eventually(all_delivered)


async def test_an_update_behind_a_running_attempt_is_stored_in_flight_and_waits_for_that_attempt(
    sender: PushSender, gate: Gate
) -> None:
    ids = await notify(sender, gate, 4)
    assert await states(sender) == [DeliveryState.IN_FLIGHT] * 4
    assert gate.ids == ids[:1]
    gate.open()
    await until_all_are_delivered(sender)
    assert gate.ids == ids
    report = [await sender.outbox.show(each) for each in ids]
    assert [len(each.attempts) for each in report if each is not None] == [1] * 4


async def test_deliveries_beyond_the_length_of_a_chain_follow_in_order(
    sender: PushSender, gate: Gate
) -> None:
    ids = await notify(sender, gate, 40)
    found = await states(sender)
    assert DeliveryState.PENDING in found
    gate.open()
    await until_all_are_delivered(sender)
    assert gate.ids == ids


async def test_a_failed_delivery_is_retried_before_those_behind_it(
    sender: PushSender, gate: Gate
) -> None:
    gate.statuses += [200, 503]
    ids = await notify(sender, gate, 5)
    gate.open()
    await until_all_are_delivered(sender)
    assert gate.ids == [*ids[:2], *ids[1:]]
    assert [each.attempts for each in await sender.deliveries("task-1")] == [1, 2, 1, 1, 1]


async def test_deliveries_behind_a_dead_letter_are_sent(sender: PushSender, gate: Gate) -> None:
    gate.statuses += [400]
    ids = await notify(sender, gate, 4)
    gate.open()

    async def all_over() -> bool:
        return await states(sender) == [DeliveryState.DEAD, *[DeliveryState.DELIVERED] * 3]

    await eventually(all_over)
    assert gate.ids == ids


async def test_a_410_cancels_the_deliveries_behind_it(sender: PushSender, gate: Gate) -> None:
    gate.statuses += [410]
    ids = await notify(sender, gate, 4)
    gate.open()

    async def all_over() -> bool:
        return await states(sender) == [DeliveryState.DEAD, *[DeliveryState.CANCELLED] * 3]

    await eventually(all_over)
    assert gate.ids == ids[:1]


async def test_a_pause_sends_only_deliveries_already_in_flight(
    sender: PushSender, gate: Gate
) -> None:
    ids = await notify(sender, gate, 30)
    in_flight = (await states(sender)).count(DeliveryState.IN_FLIGHT)
    assert await sender.pause("task-1") == 1
    gate.open()

    async def all_at_rest() -> bool:
        return DeliveryState.IN_FLIGHT not in await states(sender)

    await eventually(all_at_rest)
    assert gate.ids == ids[: len(gate.ids)]
    assert len(gate.ids) <= in_flight < 30
    await sender.resume("task-1")
    await until_all_are_delivered(sender)
    assert gate.ids == ids


@pytest.fixture
def always_reread(monkeypatch: pytest.MonkeyPatch) -> None:
    """Let a chain read its subscription again before every delivery."""
    monkeypatch.setattr("pushkit.delivery.chain._KNOWN_FOR", 0)


@pytest.mark.usefixtures("always_reread")
@pytest.mark.parametrize("end", ["unsubscribe", "disable"])
async def test_following_deliveries_are_cancelled_if_the_subscription_ends_during_an_attempt(
    sender: PushSender, gate: Gate, end: str
) -> None:
    ids = await notify(sender, gate, 6)
    await getattr(sender, end)("task-1")
    gate.open()

    await eventually(lambda: not sender.worker.slots.chains)
    assert gate.ids == ids[:1]
    assert set(await states(sender)) == {DeliveryState.CANCELLED}


@pytest.mark.usefixtures("always_reread")
async def test_following_deliveries_use_a_url_that_changed_during_an_attempt(
    sender: PushSender, gate: Gate
) -> None:
    ids = await notify(sender, gate, 6)
    await sender.subscribe("task-1", {"id": "1", "url": f"{gate.url}?new"}, version="1.0")
    gate.open()
    await until_all_are_delivered(sender)
    assert gate.ids == ids
    assert gate.queries == ["", *["new"] * 5]


@pytest.mark.usefixtures("always_reread")
async def test_a_redriven_delivery_is_sent_before_newer_ones_of_the_chain(
    sender: PushSender, gate: Gate
) -> None:
    gate.statuses += [400]
    gate.open()
    [dead] = (await sender.notify(status())).ids

    async def is_dead() -> bool:
        return await states(sender) == [DeliveryState.DEAD]

    await eventually(is_dead)
    gate.close()
    gate.ids.clear()
    ids = await notify(sender, gate, 6)
    await sender.outbox.redrive([dead])
    gate.open()
    await until_all_are_delivered(sender)
    assert gate.ids == [ids[0], dead, *ids[1:]]


async def test_closing_a_sender_gives_back_deliveries_it_has_not_begun(
    senders: Senders, sender: PushSender, gate: Gate
) -> None:
    ids = await notify(sender, gate, 4)
    slots = sender.worker.slots
    closing = asyncio.create_task(sender.close())

    await eventually(lambda: not slots.is_open)
    gate.open()
    await closing
    later = await senders.open()
    assert await states(later) == [DeliveryState.DELIVERED, *[DeliveryState.PENDING] * 3]
    for _ in range(3):
        await later.worker.run_once()
    await until_all_are_delivered(later)
    assert gate.ids == ids


async def test_a_chain_takes_one_slot_at_its_destination(
    senders: Senders, sender: PushSender, gate: Gate
) -> None:
    await notify(sender, gate, 8)
    other = await senders.open(concurrency_per_host=2)
    await other.subscribe("task-2", {"id": "1", "url": gate.url}, version="1.0")
    await other.notify(status(task_id="task-2"))
    running = asyncio.create_task(other.worker.run_once())

    await eventually(lambda: len(gate.ids) == 2)
    gate.open()
    await running


@pytest.mark.parametrize(
    ("number", "answered"),
    [
        pytest.param(6, 6, id="nothing follows"),
        pytest.param(9, 8, id="no more may be unsettled"),
    ],
)
async def test_one_settlement_of_a_queue_ends_before_another_begins(
    on_postgres: Senders,
    gate: Gate,
    *,
    postgres_dsn: str,
    caplog: pytest.LogCaptureFixture,
    monkeypatch: pytest.MonkeyPatch,
    number: int,
    answered: int,
) -> None:
    monkeypatch.setattr("pushkit.delivery.chain._KNOWN_FOR", 3600)
    sender = await start(on_postgres, gate)
    ids = await notify(sender, gate, number)
    [chain] = sender.worker.slots.chains.values()

    async def settlement_waits() -> bool:
        count = "SELECT COUNT(*) FROM pg_locks WHERE NOT granted"
        return bool(await connection.fetchval(count))

    async with subscription_locked(postgres_dsn) as connection:
        await gate.answer_next()
        await eventually(settlement_waits)
        for _ in range(1, answered):
            await gate.answer_next()
        await eventually(lambda: len(chain._answered) == answered)
        assert gate.ids == ids[:answered]
    gate.open()
    await until_all_are_delivered(sender)
    assert gate.ids == ids
    reports = [await sender.outbox.show(each) for each in ids]
    assert [len(each.attempts) for each in reports if each is not None] == [1] * number
    assert [each for each in caplog.records if each.levelno >= logging.ERROR] == []


async def test_a_following_delivery_is_sent_after_its_caller_continues() -> None:
    happened: list[str] = []
    first, second = map(claimed_delivery, (1, 2))

    class Attempts:
        async def make(self, claimed: Claimed) -> Result:
            happened.append(f"{claimed.delivery.seq} is sent")
            return Result(outcome=Outcome.DELIVERED)

    async def settle(attempted: Sequence[Claimed]) -> Settled:
        return Settled(datetime.now(UTC), [True for _ in attempted], may_continue=True)

    chain = Chain(
        first,
        attempt=Attempts(),  # type: ignore[arg-type]
        settle=settle,
        longest_wait=timedelta(minutes=1),
        may_continue=lambda: True,
        deadlines=Deadlines(),
    )
    assert chain.promise(2)
    sending = asyncio.create_task(chain.run())
    await asyncio.sleep(0)  # it waits for the promised delivery
    chain.join(second)
    asyncio.get_running_loop().call_soon(happened.append, "its caller continues")
    await sending
    assert happened == ["1 is sent", "its caller continues", "2 is sent"]
