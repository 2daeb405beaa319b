"""Deliveries of a subscription that are in flight behind one another, at one worker."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest

from pushkit.outbox.heads import clear_head, set_head
from pushkit.outbox.retention import Purge
from pushkit.outbox.settling import CHAINED_BYTES
from pushkit.outbox.states import DeliveryState, Outcome
from pushkit.storage.script import Script, Statement
from pushkit.subscriptions.model import Subscription

if TYPE_CHECKING:
    from pushkit.outbox.model import Delivery
    from tests.pushkit.outbox.conftest import Ledger

DELIVERED, NOT_BEGUN = Outcome.DELIVERED, Outcome.NOT_BEGUN


@pytest.fixture
def subscription(ledger: Ledger) -> Subscription:
    return ledger.subscribe()


@pytest.fixture
def chain(ledger: Ledger, subscription: Subscription) -> list[Delivery]:
    """Return three deliveries in flight at `worker-1`; the lease of the first ends first."""
    chain = []
    for _ in range(3):
        chain.append(ledger.enqueue_claimed(subscription))
        ledger.advance(1)
    return chain


def states(ledger: Ledger) -> list[DeliveryState]:
    return [each.state for each in ledger.deliveries()]


def attempts(ledger: Ledger) -> list[int]:
    return [each.attempts for each in ledger.deliveries()]


def deliver_by(ledger: Ledger, worker: str) -> list[int]:
    """Deliver as a worker, claim by claim, until nothing is due; return the `seq`s."""
    delivered = []
    while claimed := ledger.claim(worker):
        [delivery] = claimed
        assert ledger.settle(delivery, worker=worker)
        delivered.append(delivery.seq)
    return delivered


def change(sql: str, delivery: Delivery) -> Script[None]:
    yield Statement(sql, (delivery.id,))


def pause(ledger: Ledger, subscription: Subscription, *, paused: bool) -> None:
    ledger.run(ledger.subscriptions.set_paused(subscription.id, ledger.now, paused=paused))
    ledger.run(clear_head(subscription.id) if paused else set_head(subscription.id))


# --- settling ----------------------------------------------------------------------------------


def test_a_chain_counts_as_one_attempt(ledger: Ledger, chain: list[Delivery]) -> None:
    assert states(ledger) == [DeliveryState.IN_FLIGHT] * 3
    assert ledger.heads() == {chain[0].subscription_id: [1]}
    assert ledger.claim("worker-2") == []


def test_settling_passes_the_head_to_the_next_delivery_of_the_chain(
    ledger: Ledger, chain: list[Delivery]
) -> None:
    passed = ledger.settle_together((chain[0], DELIVERED), (chain[1], DELIVERED))
    assert (passed.are_ours, passed.stopped) == ([True, True], frozenset())
    assert ledger.heads() == {chain[0].subscription_id: [3]}
    assert attempts(ledger) == [1, 1, 0]


def test_deliveries_behind_a_failed_one_return_without_an_attempt(
    ledger: Ledger, subscription: Subscription, chain: list[Delivery]
) -> None:
    behind = [(each, NOT_BEGUN) for each in chain[1:]]
    passed = ledger.settle_together((chain[0], Outcome.RETRY), *behind)
    assert passed.passed_on == {subscription.id}
    assert states(ledger) == [DeliveryState.PENDING] * 3
    assert attempts(ledger) == [1, 0, 0]
    found = ledger.deliveries()
    assert [each.claims for each in found] == [1, 1, 1]
    assert [each.fruitless_claims for each in found] == [0, 0, 0]
    assert deliver_by(ledger, "worker-2") == [1, 2, 3]
    assert attempts(ledger) == [2, 1, 1]


def test_up_to_eight_waiting_deliveries_are_claimed_with_the_next_one(
    ledger: Ledger, subscription: Subscription
) -> None:
    first = ledger.enqueue_claimed(subscription)
    for _ in range(12):
        ledger.enqueue(subscription)
    passed = ledger.settle_together((first, DELIVERED), takes=True)
    assert [each.seq for each in passed.claimed] == list(range(2, 10))
    assert ledger.heads() == {subscription.id: [2]}
    # Deliveries behind the first may never be attempted: their claims are not fruitless.
    assert [each.fruitless_claims for each in passed.claimed] == [1, *[0] * 7]


def test_a_chain_ends_before_a_delivery_that_was_tried_before(
    ledger: Ledger, subscription: Subscription
) -> None:
    first = ledger.enqueue_claimed(subscription)
    for _ in range(4):
        ledger.enqueue(subscription)
    [*_, last] = sorted(ledger.deliveries(), key=lambda each: each.seq)
    ledger.run(change("UPDATE pushkit_deliveries SET attempts = 1 WHERE id = $1", last))
    passed = ledger.settle_together((first, DELIVERED), takes=True)
    assert [each.seq for each in passed.claimed] == [2, 3, 4]


def test_a_delivery_with_a_long_body_is_claimed_alone(
    ledger: Ledger, subscription: Subscription
) -> None:
    first = ledger.enqueue_claimed(subscription)
    ledger.enqueue(subscription, b"x" * (CHAINED_BYTES + 1))
    ledger.enqueue(subscription)
    passed = ledger.settle_together((first, DELIVERED), takes=True)
    assert [each.seq for each in passed.claimed] == [2]


# --- leases that end, workers that die ---------------------------------------------------------


@pytest.mark.parametrize("dies", [True, False], ids=["worker died", "leases ended"])
def test_unsettled_deliveries_come_back_in_order_and_count_as_no_attempt(
    ledger: Ledger, chain: list[Delivery], *, dies: bool
) -> None:
    if dies:
        ledger.run(ledger.leases.release_worker("worker-1", ledger.now))
    else:
        ledger.advance(30)
    assert attempts(ledger) == [0, 0, 0]
    assert deliver_by(ledger, "worker-2") == [1, 2, 3]
    assert attempts(ledger) == [1, 1, 1]
    assert [each.claims for each in ledger.deliveries()] == [2, 2, 2]
    assert not any(ledger.settle(each) for each in chain)


def test_when_one_lease_of_a_chain_ends_the_others_stay_in_flight(
    ledger: Ledger, chain: list[Delivery]
) -> None:
    ledger.advance(27)  # the lease of the first has ended
    [again] = ledger.claim("worker-2")
    assert (again.seq, again.claims) == (1, 2)
    assert states(ledger) == [DeliveryState.IN_FLIGHT] * 3
    assert ledger.heads() == {again.subscription_id: [1]}
    # The worker that had it is told that the chain must stop.
    passed = ledger.settle_together(*((each, DELIVERED) for each in chain[:2]))
    assert passed.are_ours == [False, True]
    assert passed.stopped == {again.subscription_id}
    assert ledger.heads() == {again.subscription_id: [1]}
    assert ledger.settle(again, worker="worker-2")
    assert ledger.claim("worker-2") == []
    ledger.advance(3)  # and that of the third
    assert deliver_by(ledger, "worker-2") == [3]
    assert attempts(ledger) == [1, 1, 1]


def test_after_the_middle_of_a_chain_was_lost_the_oldest_delivery_is_next(
    ledger: Ledger, chain: list[Delivery]
) -> None:
    ledger.run(change("UPDATE pushkit_deliveries SET lease_until = 1 WHERE id = $1", chain[1]))
    assert ledger.claim("worker-2") == []  # it comes back, behind the first
    assert states(ledger)[1] is DeliveryState.PENDING
    passed = ledger.settle_together(*((each, DELIVERED) for each in chain))
    assert passed.are_ours == [True, False, True]
    assert passed.stopped == {chain[0].subscription_id}
    assert ledger.heads() == {chain[0].subscription_id: [2]}
    assert deliver_by(ledger, "worker-2") == [2]
    assert attempts(ledger) == [1, 1, 1]


# --- operators, while a chain is in flight ----------------------------------------------------


def test_the_chain_of_a_paused_subscription_stops(
    ledger: Ledger, subscription: Subscription, chain: list[Delivery]
) -> None:
    pause(ledger, subscription, paused=True)
    assert ledger.settle_together((chain[0], DELIVERED)).stopped == {subscription.id}
    assert ledger.heads() == {}
    ledger.settle_together(*((each, NOT_BEGUN) for each in chain[1:]))
    assert (ledger.heads(), ledger.claim("worker-2")) == ({}, [])
    pause(ledger, subscription, paused=False)
    assert deliver_by(ledger, "worker-2") == [2, 3]


def test_a_subscription_resumed_in_flight_has_its_head_in_flight(
    ledger: Ledger, subscription: Subscription, chain: list[Delivery]
) -> None:
    pause(ledger, subscription, paused=True)
    ledger.settle_together((chain[0], DELIVERED))
    pause(ledger, subscription, paused=False)
    assert ledger.heads() == {subscription.id: [2]}
    assert ledger.claim("worker-2") == []
    ledger.settle_together(*((each, DELIVERED) for each in chain[1:]))
    assert ledger.heads() == {}


def test_the_chain_of_a_removed_subscription_is_settled_by_nobody(
    ledger: Ledger, subscription: Subscription, chain: list[Delivery]
) -> None:
    assert ledger.cancel(subscription) == 3
    passed = ledger.settle_together(*((each, DELIVERED) for each in chain))
    assert passed.are_ours == [False] * 3
    assert passed.stopped == {subscription.id}
    assert states(ledger) == [DeliveryState.CANCELLED] * 3
    assert (ledger.heads(), ledger.claim("worker-2")) == ({}, [])


def test_after_a_move_nothing_more_is_claimed_for_the_old_destination(
    ledger: Ledger, subscription: Subscription, chain: list[Delivery]
) -> None:
    ledger.enqueue(subscription)
    ledger.run(ledger.outbox.move(subscription.id, "https://elsewhere.example.com:443"))
    assert ledger.heads() == {subscription.id: [1]}
    passed = ledger.settle_together(*((each, DELIVERED) for each in chain), takes=True)
    assert passed.claimed == []
    assert passed.passed_on == {subscription.id}
    assert deliver_by(ledger, "worker-2") == [4]


def test_a_purge_deletes_nothing_that_is_in_a_chain(ledger: Ledger, chain: list[Delivery]) -> None:
    ids = [each.id for each in chain]
    assert ledger.run(Purge().delete(ids)) == 0
    ledger.settle_together((chain[0], DELIVERED))
    assert ledger.run(Purge().delete(ids)) == 1
    ledger.settle_together(*((each, DELIVERED) for each in chain[1:]))
    assert states(ledger) == [DeliveryState.DELIVERED] * 2


def test_a_redriven_delivery_waits_until_the_chain_has_ended(
    ledger: Ledger, subscription: Subscription
) -> None:
    dead = ledger.enqueue_claimed(subscription)
    ledger.settle(dead, Outcome.DEAD)
    chain = [ledger.enqueue_claimed(subscription) for _ in range(3)]
    assert ledger.redrive(dead) == [dead.id]
    assert ledger.heads() == {subscription.id: [2]}
    ledger.settle_together((chain[0], DELIVERED))
    assert ledger.heads() == {subscription.id: [3]}
    assert ledger.claim("worker-2") == []
    ledger.settle_together(*((each, DELIVERED) for each in chain[1:]))
    assert deliver_by(ledger, "worker-2") == [1]


def test_after_a_chain_failed_a_redriven_delivery_comes_first(
    ledger: Ledger, subscription: Subscription
) -> None:
    dead = ledger.enqueue_claimed(subscription)
    ledger.settle(dead, Outcome.DEAD)
    chain = [ledger.enqueue_claimed(subscription) for _ in range(2)]
    ledger.redrive(dead)
    ledger.settle_together((chain[0], Outcome.RETRY), (chain[1], NOT_BEGUN))
    assert deliver_by(ledger, "worker-2") == [1, 2, 3]
