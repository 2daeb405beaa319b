"""Heads that cannot be claimed now delay no others, and are not forgotten."""

from __future__ import annotations

from typing import TYPE_CHECKING

import asyncpg
import pytest

from pushkit.outbox.destinations import DestinationKey, destination_of
from pushkit.outbox.heads import clear_head, set_head
from pushkit.outbox.leases import Leases
from pushkit.outbox.model import Delivery
from pushkit.outbox.parking import first_heads
from pushkit.outbox.shares import Owner
from pushkit.outbox.states import DeliveryState, Outcome

if TYPE_CHECKING:
    from pushkit.storage.script import Script
    from tests.pushkit.outbox.conftest import Ledger

ELSEWHERE = "https://elsewhere.example.com:443"


@pytest.fixture(autouse=True)
def _narrow(ledger: Ledger) -> None:
    """Let claims read few heads, so that a dozen are a long backlog."""
    ledger.leases = Leases(window=2, destinations=8)


@pytest.fixture
def _one_destination(ledger: Ledger) -> None:
    """Let claims read the head of one more destination, so that two are many."""
    ledger.leases = Leases(window=2, destinations=1)


def wait(ledger: Ledger, seconds: float) -> None:
    """Let alice's destination wait."""
    ledger.enqueue(ledger.subscribe("first"))
    [claimed] = ledger.claim(limit=1)
    ledger.settle(claimed, Outcome.DELIVERED, wait=seconds)


def backlog(ledger: Ledger, number: int, *, owner: str = "alice") -> list[str]:
    """Add deliveries, each to a subscription of its own, one after another."""
    ids = []
    for n in range(number):
        ledger.advance(0.001)
        ids.append(ledger.enqueue(ledger.subscribe(f"config-{n}", owner=owner)))
    return ids


def drain(ledger: Ledger, *, limit: int = 3) -> list[str]:
    """Deliver what is due, until some claims find nothing; return it in order."""
    found: list[Delivery] = []
    in_vain = 0
    while in_vain < 5:
        claimed = ledger.claim(limit=limit)
        in_vain = 0 if claimed else in_vain + 1
        found += claimed
        for each in claimed:
            assert ledger.settle(each)
    return [each.id for each in found]


def parked(ledger: Ledger) -> int:
    [row] = ledger.query("SELECT COUNT(*) AS n FROM pushkit_deliveries WHERE head = 2")
    return int(row["n"])


@pytest.mark.usefixtures("_one_destination")
def test_a_long_backlog_of_a_waiting_destination_delays_nobody(ledger: Ledger) -> None:
    wait(ledger, 60)
    backlog(ledger, 40)
    other = ledger.enqueue(ledger.subscribe("other", owner="bob"))
    assert drain(ledger) == [other]
    assert parked(ledger) > 0
    assert ledger.next_due() is not None
    assert ledger.next_due() > ledger.now  # type: ignore[operator]


@pytest.mark.usefixtures("_one_destination")
def test_parked_deliveries_are_delivered_in_order_after_the_wait(ledger: Ledger) -> None:
    wait(ledger, 60)
    ids = backlog(ledger, 30)
    assert drain(ledger) == []
    ids += backlog(ledger, 35)[30:]  # the first 30 are the second ones of their queues
    ledger.now = ledger.next_due() or ledger.now
    ledger.advance(0.001)
    found = drain(ledger)
    assert sorted(found[:60]) == sorted(set(found[:60]))
    assert [each for each in found if each in ids[:30]] == ids[:30]
    assert ledger.query("SELECT * FROM pushkit_parked") == []
    assert ledger.next_due() is None


@pytest.mark.usefixtures("_one_destination")
def test_after_its_wait_a_failing_destination_gets_one_delivery(ledger: Ledger) -> None:
    wait(ledger, 60)
    backlog(ledger, 30)
    assert drain(ledger) == []
    [head] = ledger.query("SELECT id FROM pushkit_deliveries WHERE state = 'pending' LIMIT 1")
    delivery = ledger.find(head["id"])
    ledger.advance(61)
    for _ in range(5):
        ledger.run(ledger.destinations.failed(delivery, ledger.now))
    [probe] = claim(ledger)
    assert claim(ledger) == []
    ledger.run(ledger.destinations.answered(delivery))
    ledger.settle(probe)
    assert len(claim(ledger)) > 1


def claim(ledger: Ledger, *, limit: int = 10) -> list[Delivery]:
    return ledger.claim(limit=limit, probation_from=5)


@pytest.mark.usefixtures("_one_destination")
def test_an_operator_ends_the_wait_of_parked_deliveries_too(ledger: Ledger) -> None:
    wait(ledger, 3600)
    ids = backlog(ledger, 20)
    assert drain(ledger) == []
    key = destination_of(ledger.find(ids[0]))
    assert ledger.run(ledger.destinations.half_open([key], failures=5, now=ledger.now)) == 1
    assert sorted(drain(ledger)) == sorted(ids)


def test_one_owner_with_most_of_the_backlog_does_not_keep_the_others_waiting(
    ledger: Ledger,
) -> None:
    ids = backlog(ledger, 60)
    others = {
        ledger.enqueue(ledger.subscribe("one", owner=f"owner-{n}", origin=f"https://{n}.example"))
        for n in range(5)
    }
    first = {each.id for each in ledger.claim(limit=10)}
    assert others <= first
    assert len(first & set(ids)) == 4  # one slot is left for another owner


def test_at_one_origin_owners_take_turns(ledger: Ledger) -> None:
    backlog(ledger, 40)
    bobs = set(backlog(ledger, 3, owner="bob"))
    taken = ledger.claim(limit=8, per_origin=6)
    assert len(taken) == 6
    assert len({each.id for each in taken} & bobs) == 1
    # The owner that holds fewer gets the slots that become free.
    for each in [each for each in taken if each.owner == "alice"][:2]:
        ledger.settle(each)
        assert {found.id for found in ledger.claim(limit=8, per_origin=6)} <= bobs


def test_slow_webhooks_of_one_owner_leave_slots_to_later_owners(ledger: Ledger) -> None:
    for n in range(100):
        ledger.enqueue(ledger.subscribe("slow", task_id=f"t-{n}", origin=f"https://{n}.example"))
    held = ledger.claim(limit=32)
    assert len(held) == 24  # they hang
    for _ in range(3):
        assert ledger.claim(limit=32 - len(held)) == []
    late = [ledger.enqueue(ledger.subscribe("late", owner=f"owner-{n}")) for n in range(8)]
    found: list[Delivery] = []
    for _ in range(20):  # from one destination to the next
        found += ledger.claim(limit=max(8 - len(found), 1))
    assert {each.id for each in found} == set(late)


def test_each_worker_keeps_slots_for_the_others(ledger: Ledger) -> None:
    for n in range(100):
        ledger.enqueue(ledger.subscribe("slow", task_id=f"t-{n}", origin=f"https://{n}.example"))
    for worker in ("worker-1", "worker-2"):
        assert len(ledger.claim(worker, limit=16)) == 12
    late = ledger.enqueue(ledger.subscribe("late", owner="bob"))
    found = [each.id for _ in range(20) for each in ledger.claim("worker-2", limit=4)]
    assert found == [late]


@pytest.mark.usefixtures("_one_destination")
@pytest.mark.parametrize("change", ["moved", "paused", "cancelled", "redriven"])
def test_parked_deliveries_can_be_moved_paused_and_cancelled(ledger: Ledger, change: str) -> None:
    wait(ledger, 3600)
    ids = backlog(ledger, 20)
    assert drain(ledger) == []
    assert parked(ledger) > 0
    subscription = ledger.subscribe("config-7")
    if change == "moved":
        moved = ledger.subscribe("config-7", origin=ELSEWHERE)
        ledger.run(ledger.outbox.move(moved.id, ELSEWHERE))
        assert drain(ledger) == [ids[7]]
    elif change == "paused":
        ledger.run(ledger.subscriptions.set_paused(subscription.id, ledger.now, paused=True))
        ledger.run(clear_head(subscription.id))
        ledger.advance(3600)
        assert sorted(drain(ledger)) == sorted({*ids} - {ids[7]})
        ledger.run(ledger.subscriptions.set_paused(subscription.id, ledger.now, paused=False))
        ledger.run(set_head(subscription.id))
        assert drain(ledger) == [ids[7]]
    elif change == "cancelled":
        assert ledger.cancel(subscription) == 1
        ledger.advance(3600)
        assert sorted(drain(ledger)) == sorted({*ids} - {ids[7]})
    else:
        ledger.advance(3600)
        [claimed] = ledger.claim(limit=1)
        ledger.settle(claimed, Outcome.DEAD)
        assert ledger.redrive(claimed) == [claimed.id]
        assert sorted(drain(ledger)) == sorted(ids)
        assert ledger.find(claimed.id).state is DeliveryState.DELIVERED
    assert ledger.query("SELECT * FROM pushkit_parked") == [] or change == "moved"


@pytest.mark.usefixtures("_one_destination")
def test_a_wait_that_ended_while_a_claim_was_parking_delays_nothing(ledger: Ledger) -> None:
    wait(ledger, 3600)
    ids = backlog(ledger, 20)
    key = destination_of(ledger.find(ids[0]))

    def end_the_wait(*_: object, **_wait: bool) -> Script[None]:
        # Another transaction ends it while this one waits for the lock.
        yield from ledger.destinations.half_open([key], failures=5, now=ledger.now)

    ledger.leases = Leases(end_the_wait, window=2, destinations=1)
    assert ledger.claim(limit=1) == []
    assert parked(ledger) > 0
    assert sorted(drain(ledger)) == sorted(ids)


def test_one_owner_with_many_destinations_does_not_delay_others(ledger: Ledger) -> None:
    for n in range(60):
        ledger.enqueue(
            ledger.subscribe(f"config-{n}", origin=f"https://hook{n:02}.example.com:443")
        )
    ledger.advance(1)
    other = ledger.enqueue(ledger.subscribe("other", owner="bob"))
    assert other in [each.id for each in ledger.claim(limit=4)]


@pytest.mark.parametrize("after", [("", "", ""), ("", "")], ids=["destinations", "owners"])
async def test_postgresql_goes_by_the_index_of_destinations_before_it_has_statistics(
    postgres_dsn: str, after: DestinationKey | Owner
) -> None:
    connection = await asyncpg.connect(postgres_dsn)
    try:
        await connection.execute(
            "INSERT INTO pushkit_deliveries (id, subscription_id, tenant, owner, task_id,"
            " config_id, seq, origin, content_type, head, notified_at, not_before)"
            " SELECT 'dlv_' || n, 'sub_' || n, '', 'owner' || n % 100, 'task', 'config', 1,"
            " 'https://client.example.com:443', 'application/json', 1, n, n"
            " FROM generate_series(1, 40000) n"
        )
        walk = next(first_heads(after, 32))
        plan = await connection.fetch(f"EXPLAIN {walk.sql}", *walk.parameters)
    finally:
        await connection.close()
    steps = "\n".join(step for (step,) in plan)
    assert steps.count("using pushkit_deliveries_heads") == 2 * len(after)
    assert "pushkit_deliveries_due" not in steps
