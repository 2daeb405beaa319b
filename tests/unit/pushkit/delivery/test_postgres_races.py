"""What transactions of PostgreSQL do to each other, on real connections: no deadlock, no lost job.

A transaction of `other` is stopped before its commit, with the rows that it holds.
"""

from __future__ import annotations

import asyncio

import asyncpg
import pytest

from pushkit import PushConfig, PushSender
from pushkit.delivery.registrar import change_subscriptions
from pushkit.events import SubscriptionChange
from pushkit.outbox.states import DeliveryState
from pushkit.queue.rules import Room
from pushkit.storage.postgres import run_script
from tests.eventually import eventually
from tests.unit.pushkit.delivery.conftest import Senders, Webhook, asks_to_wait, states, status

ROOM = Room(256, lambda _: 32)
TASK = "task-1"


@pytest.fixture
def outbox(postgres_dsn: str) -> str:
    return postgres_dsn


@pytest.fixture
async def sender(senders: Senders, webhook: Webhook) -> PushSender:
    sender = await senders.open()
    await sender.subscribe(TASK, PushConfig(url=webhook.url()), version="1.0")
    return sender


@pytest.fixture
async def other(connection: asyncpg.Connection) -> asyncpg.Connection:
    """Return a connection in a transaction."""
    await connection.execute("BEGIN")
    return connection


async def waits_for_a_row(dsn: str) -> bool:
    """Return whether a transaction on this server waits for another one's row."""
    connection = await asyncpg.connect(dsn)
    try:
        query = "SELECT count(*) FROM pg_locks WHERE NOT granted AND locktype <> 'advisory'"
        return bool(await connection.fetchval(query))
    finally:
        await connection.close()


async def stored(sender: PushSender) -> str:
    [delivery] = (await sender.notify(status())).deliveries
    return delivery.id


async def sent(sender: PushSender, webhook: Webhook) -> list[str]:
    """Return the ids that arrived, once all are delivered."""
    await eventually(lambda: delivered(sender))
    return [each.id for each in webhook.received]


async def delivered(sender: PushSender) -> bool:
    return set(await states(sender)) == {DeliveryState.DELIVERED}


async def test_a_renewal_passes_over_a_row_that_a_caller_holds_and_counts_on_nothing(
    sender: PushSender, other: asyncpg.Connection
) -> None:
    await stored(sender)
    [leased] = (await sender.worker.claim(ROOM, frozenset())).claimed
    held = {leased.id: leased.epoch}
    await sender.notify(status(), connection=other)
    renewed = await sender.worker.renew(held)
    assert set(renewed.held) == {leased.id}
    assert not set(renewed.extended)  # the lease may end as soon as the row is free
    await other.execute("COMMIT")
    assert set((await sender.worker.renew(held)).extended) == {leased.id}
    renewed = await sender.worker.renew({leased.id: leased.epoch - 1})
    assert not [*renewed.held, *renewed.extended]


async def test_a_claim_passes_over_a_row_that_a_caller_holds_and_is_woken(
    sender: PushSender, other: asyncpg.Connection, webhook: Webhook
) -> None:
    first = await stored(sender)
    [later] = (await sender.notify(status(), connection=other)).deliveries
    assert not (await sender.worker.claim(ROOM, frozenset())).claimed
    await sender.start()
    await other.execute("COMMIT")
    assert await sent(sender, webhook) == [first, later.id]


@pytest.mark.parametrize("end", ["COMMIT", "ROLLBACK"])
async def test_what_is_stored_beside_a_claim_is_delivered_after_what_was_claimed(
    senders: Senders, sender: PushSender, other: asyncpg.Connection, webhook: Webhook, end: str
) -> None:
    first = await stored(sender)
    claiming = await senders.open()
    await run_script(other, claiming.worker._claim(ROOM, frozenset()))
    await sender.start()
    storing = asyncio.ensure_future(stored(sender))
    await sender.subscribe("task-2", PushConfig(url=webhook.url("/2")), version="1.0")
    await sender.notify(status(task_id="task-2"))  # is not delayed by the row that is held
    await webhook.until_received(1, "/2")
    assert not storing.done()
    await other.execute(end)
    later = await storing
    if end == "COMMIT":  # the claim's worker died with it: its lease ends
        await other.execute("UPDATE pushkit_subscriptions SET lease_until = 0 WHERE epoch > 0")
        sender.worker.wake()
    await eventually(lambda: delivered(sender))
    assert [each.id for each in webhook.at("/hook")] == [first, later]


async def test_a_settlement_waits_for_a_caller_beside_others_and_repeats_nothing(
    sender: PushSender, other: asyncpg.Connection, webhook: Webhook
) -> None:
    await sender.subscribe("task-2", PushConfig(url=webhook.url("/2")), version="1.0")
    await sender.start()
    answer = webhook.replies_after()
    first = await stored(sender)
    await webhook.until_received(1)
    [later] = (await sender.notify(status(), connection=other)).deliveries
    answer.set()
    [beside] = (await sender.notify(status(task_id="task-2"))).deliveries
    await eventually(lambda: is_delivered(sender, beside.id))
    assert not await is_delivered(sender, first)
    await other.execute("COMMIT")
    assert await sent(sender, webhook) == [first, beside.id, later.id]


async def is_delivered(sender: PushSender, delivery_id: str) -> bool:
    return (await sender.outbox.states([delivery_id]))[delivery_id] is DeliveryState.DELIVERED


@pytest.mark.parametrize(
    ("end", "state"),
    [
        pytest.param("COMMIT", DeliveryState.IN_FLIGHT, id="claimed"),
        pytest.param("ROLLBACK", DeliveryState.CANCELLED, id="not claimed"),
    ],
)
async def test_an_operator_waits_for_a_claim_and_cancels_nothing_that_is_in_flight(
    sender: PushSender, other: asyncpg.Connection, postgres_dsn: str, end: str, state: DeliveryState
) -> None:
    first = await stored(sender)
    await run_script(other, sender.worker._claim(ROOM, frozenset()))
    cancelling = asyncio.ensure_future(sender.outbox.cancel([first]))
    await eventually(lambda: waits_for_a_row(postgres_dsn))
    await other.execute(end)
    assert await cancelling == ([] if state is DeliveryState.IN_FLIGHT else [first])
    assert await states(sender) == [state]


@pytest.mark.parametrize("change", ["paused", "disabled", "removed"])
async def test_a_claim_passes_over_what_an_operator_changes(
    sender: PushSender, other: asyncpg.Connection, change: str
) -> None:
    await stored(sender)
    [found] = await sender.subscriptions(TASK)
    script = change_subscriptions(sender._database, SubscriptionChange(change), [found.id])
    await run_script(other, script)
    assert not (await sender.worker.claim(ROOM, frozenset())).claimed
    await other.execute("COMMIT")
    assert not (await sender.worker.claim(ROOM, frozenset())).claimed


async def test_an_operator_who_ends_a_wait_and_a_caller_do_not_wait_for_each_other(
    sender: PushSender, other: asyncpg.Connection, webhook: Webhook, postgres_dsn: str
) -> None:
    webhook.replies_with(*[asks_to_wait()] * 2)
    await sender.subscribe(TASK, PushConfig(url=webhook.url(), id="2"), version="1.0")
    low, high = [each.id for each in await sender.subscriptions(TASK)]
    deliveries = (await sender.notify(status())).deliveries
    await sender.worker.run_once()
    [chosen] = [each.id for each in deliveries if each.subscription_id == high]
    hold = "SELECT 1 FROM pushkit_subscriptions WHERE id = $1 FOR UPDATE"
    await other.execute(hold, low)
    retrying = asyncio.ensure_future(sender.outbox.retry_now([chosen]))
    await eventually(lambda: waits_for_a_row(postgres_dsn))
    await other.execute(hold, high)
    await other.execute("COMMIT")
    assert (await retrying).ids == (chosen,)
