"""Destinations that wait, and that are tried by one delivery at a time, on both databases."""

from __future__ import annotations

from datetime import timedelta
from typing import TYPE_CHECKING

from pushkit.outbox import destinations
from pushkit.outbox.destinations import destination_of
from pushkit.outbox.model import Delivery

if TYPE_CHECKING:
    from tests.unit.pushkit.outbox.conftest import Ledger

THRESHOLD = 2


def claim(ledger: Ledger, worker: str = "worker-1") -> list[Delivery]:
    ledger.leasing.probation_from = THRESHOLD
    return ledger.claim(worker, limit=10, per_origin=10)


def enqueue(ledger: Ledger, *, owner: str = "alice", tasks: int = 3) -> None:
    for number in range(tasks):
        ledger.enqueue(ledger.subscribe(task_id=f"{owner}-{number}", owner=owner))


def fail(ledger: Ledger, delivery: Delivery, times: int = 1) -> list[int | None]:
    return [ledger.run(destinations.failed(delivery, ledger.now)) for _ in range(times)]


def failing(ledger: Ledger) -> Delivery:
    """Return a delivery of alice's, whose destination has failed too often."""
    enqueue(ledger, tasks=1)
    [delivery] = claim(ledger)
    fail(ledger, delivery, THRESHOLD)
    ledger.settle(delivery)
    return delivery


def test_failures_are_counted_until_an_answer(ledger: Ledger) -> None:
    enqueue(ledger, tasks=1)
    [delivery] = claim(ledger)
    assert fail(ledger, delivery, 3) == [1, 2, 3]
    assert ledger.run(destinations.failing([delivery] * 2)) == {destination_of(delivery): 3}
    ledger.run(destinations.answered(delivery))
    assert ledger.run(destinations.failing([delivery])) == {}
    assert fail(ledger, delivery) == [1]


def test_a_failure_while_it_waits_already_does_not_count(ledger: Ledger) -> None:
    enqueue(ledger, tasks=1)
    [delivery] = claim(ledger)
    fail(ledger, delivery)
    until = ledger.now + timedelta(seconds=30)
    ledger.run(destinations.postpone(delivery, until, ledger.now))
    assert fail(ledger, delivery, 2) == [None, None]
    ledger.advance(30)
    assert fail(ledger, delivery) == [2]


def test_a_failing_destination_gets_one_delivery(ledger: Ledger) -> None:
    failing(ledger)
    enqueue(ledger)
    [probe] = claim(ledger)
    assert claim(ledger, "worker-2") == []
    ledger.settle(probe)
    assert len(claim(ledger)) == 1


def test_after_an_answer_all_of_its_deliveries_are_claimed(ledger: Ledger) -> None:
    delivery = failing(ledger)
    enqueue(ledger)
    ledger.run(destinations.answered(delivery))
    assert len(claim(ledger)) == 3


def test_a_probe_whose_worker_died_is_claimed_again(ledger: Ledger) -> None:
    failing(ledger)
    enqueue(ledger, tasks=1)
    [probe] = claim(ledger)
    ledger.advance(30)
    [again] = claim(ledger, "worker-2")
    assert again.id == probe.id


def test_a_failing_destination_takes_no_slot_from_another_owner(ledger: Ledger) -> None:
    failing(ledger)
    enqueue(ledger, tasks=5)
    enqueue(ledger, owner="bob", tasks=5)
    owners = sorted(delivery.owner for delivery in claim(ledger))
    assert owners == ["alice"] + ["bob"] * 5


def test_the_next_moment_is_the_end_of_the_wait(ledger: Ledger) -> None:
    delivery = failing(ledger)
    enqueue(ledger, tasks=1)
    until = ledger.now + timedelta(seconds=45)
    ledger.run(destinations.postpone(delivery, until, ledger.now))
    assert claim(ledger) == []
    assert ledger.next_due() == until
