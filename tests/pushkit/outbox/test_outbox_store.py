"""The table of transitions in `pushkit.outbox.states`, row by row."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta
from typing import TYPE_CHECKING

import pytest

from pushkit.errors import IdempotencyConflictError
from pushkit.outbox.heads import clear_head
from pushkit.outbox.idempotency import TaskKey, find_enqueued
from pushkit.outbox.model import Result, new_delivery_id
from pushkit.outbox.settling import settle
from pushkit.outbox.states import DeliveryState, Outcome

if TYPE_CHECKING:
    from tests.pushkit.outbox.conftest import Ledger

ELSEWHERE = "https://elsewhere.example.com:443"


def test_a_delivery_begins_pending_and_due(ledger: Ledger) -> None:
    delivery = ledger.find(ledger.enqueue(ledger.subscribe(), b"body"))
    assert (delivery.state, delivery.attempts, delivery.seq) == (DeliveryState.PENDING, 0, 1)
    assert delivery.notified_at == delivery.not_before == ledger.now
    assert delivery.body == b"body"
    assert ledger.next_due() == ledger.now


def test_a_claim_puts_a_delivery_in_flight_and_counts_no_attempt(ledger: Ledger) -> None:
    delivery_id = ledger.enqueue(ledger.subscribe())
    [claimed] = ledger.claim()
    assert (claimed.id, claimed.state) == (delivery_id, DeliveryState.IN_FLIGHT)
    assert (claimed.claims, claimed.attempts) == (1, 0)
    assert ledger.claim() == []


@pytest.mark.parametrize(
    ("outcome", "state"),
    [
        (Outcome.DELIVERED, DeliveryState.DELIVERED),
        (Outcome.RETRY, DeliveryState.PENDING),
        (Outcome.LOCAL_FAULT, DeliveryState.PENDING),
        (Outcome.DEAD, DeliveryState.DEAD),
        (Outcome.GONE, DeliveryState.DEAD),
    ],
)
def test_settling_moves_a_delivery_to_the_state_of_its_outcome(
    ledger: Ledger, outcome: Outcome, state: DeliveryState
) -> None:
    ledger.enqueue(ledger.subscribe())
    [claimed] = ledger.claim()
    assert ledger.settle(claimed, outcome)
    assert ledger.find(claimed.id).state is state


def test_several_deliveries_are_settled_together_with_their_own_results(ledger: Ledger) -> None:
    for n in range(6):
        ledger.enqueue(ledger.subscribe(f"config-{n}"))
    claimed = ledger.claim()
    ledger.settle(claimed[0])
    settled = [
        (each, Result(outcome=Outcome.DEAD if n % 2 else Outcome.DELIVERED))
        for n, each in enumerate(claimed)
    ]
    passed = ledger.run(settle(settled, "worker-1", ledger.now))
    assert passed.are_ours == [False, *[True] * 5]
    states = [ledger.find(each.id).state for each in claimed]
    assert states == [DeliveryState.DELIVERED, DeliveryState.DEAD] * 3


@pytest.mark.parametrize("outcome", [Outcome.DELIVERED, Outcome.DEAD])
def test_a_finished_delivery_stays_finished(ledger: Ledger, outcome: Outcome) -> None:
    ledger.enqueue(ledger.subscribe())
    [claimed] = ledger.claim()
    ledger.settle(claimed, outcome)
    before = ledger.find(claimed.id)
    assert not ledger.settle(claimed, Outcome.RETRY)
    ledger.advance(10**6)
    assert ledger.claim() == []
    assert ledger.find(claimed.id) == before
    assert ledger.next_due() is None


def test_a_retry_waits_until_its_time(ledger: Ledger) -> None:
    ledger.enqueue(ledger.subscribe())
    [first] = ledger.claim()
    ledger.settle(first, Outcome.RETRY, retry_in=5)
    assert ledger.next_due() == ledger.now + timedelta(seconds=5)
    ledger.advance(4.999)
    assert ledger.claim() == []
    ledger.advance(0.001)
    [second] = ledger.claim()
    assert (second.id, second.body, second.attempts) == (first.id, first.body, 1)


def test_after_the_clock_was_set_back_new_deliveries_are_due_and_a_retry_waits(
    ledger: Ledger,
) -> None:
    ledger.enqueue(ledger.subscribe())
    [tried] = ledger.claim()
    ledger.settle(tried, Outcome.RETRY, retry_in=5)
    other = ledger.subscribe(task_id="task-2")
    ids = [ledger.enqueue(other) for _ in range(2)]
    ledger.advance(-3600)
    assert ledger.claim() == []

    ledger.run(ledger.leases.after_setback(ledger.now))

    [claimed] = ledger.claim()
    assert claimed.id == ids[0]
    assert ledger.find(ids[1]).not_before == ledger.now
    assert ledger.find(tried.id).not_before > ledger.now


@pytest.mark.parametrize("in_flight", [False, True])
def test_a_cancellation_ends_unfinished_deliveries(ledger: Ledger, *, in_flight: bool) -> None:
    subscription = ledger.subscribe()
    ids = [ledger.enqueue(subscription) for _ in range(3)]
    claimed = ledger.claim() if in_flight else []
    assert ledger.cancel(subscription) == 3
    assert {ledger.find(each).state for each in ids} == {DeliveryState.CANCELLED}
    assert len(claimed) == in_flight
    assert not any(ledger.settle(delivery) for delivery in claimed)
    assert ledger.claim() == []
    assert ledger.heads() == {}
    assert ledger.next_due() is None


def test_a_cancellation_leaves_finished_deliveries(ledger: Ledger) -> None:
    subscription = ledger.subscribe()
    ledger.enqueue(subscription)
    [claimed] = ledger.claim()
    ledger.settle(claimed)
    assert ledger.cancel(subscription) == 0
    assert ledger.find(claimed.id).state is DeliveryState.DELIVERED


# --- order -------------------------------------------------------------------------------------


def test_only_the_oldest_unfinished_delivery_of_a_subscription_is_claimed(ledger: Ledger) -> None:
    subscription = ledger.subscribe()
    ids = [ledger.enqueue(subscription) for _ in range(3)]
    for expected in ids:
        [claimed] = ledger.claim()
        assert claimed.id == expected
        assert ledger.claim() == []
        ledger.settle(claimed)


def test_a_retry_stays_the_head_of_its_queue(ledger: Ledger) -> None:
    subscription = ledger.subscribe()
    first, _ = ledger.enqueue(subscription), ledger.enqueue(subscription)
    [claimed] = ledger.claim()
    ledger.settle(claimed, Outcome.RETRY, retry_in=3600)
    ledger.advance(3599)
    assert ledger.claim() == []
    ledger.advance(1)
    assert [delivery.id for delivery in ledger.claim()] == [first]


def test_a_dead_letter_does_not_block_its_queue(ledger: Ledger) -> None:
    subscription = ledger.subscribe()
    _, second = ledger.enqueue(subscription), ledger.enqueue(subscription)
    [claimed] = ledger.claim()
    ledger.settle(claimed, Outcome.DEAD)
    assert [delivery.id for delivery in ledger.claim()] == [second]


def test_subscriptions_do_not_wait_for_each_other(ledger: Ledger) -> None:
    one, other = ledger.subscribe("one"), ledger.subscribe("other")
    ids = {ledger.enqueue(one), ledger.enqueue(other)}
    assert {delivery.id for delivery in ledger.claim()} == ids


def test_the_longest_due_goes_first(ledger: Ledger) -> None:
    ids = []
    for number in range(5):
        ids.append(ledger.enqueue(ledger.subscribe(f"config-{number}")))
        ledger.advance(1)
    assert [delivery.id for delivery in ledger.claim(limit=3)] == ids[:3]
    assert [delivery.id for delivery in ledger.claim(limit=3)] == ids[3:]


# --- leases ------------------------------------------------------------------------------------


def test_an_expired_lease_counts_as_pending(ledger: Ledger) -> None:
    ledger.enqueue(ledger.subscribe())
    [lost] = ledger.claim("worker-1")
    assert ledger.next_due() == ledger.now + timedelta(seconds=30)
    ledger.advance(29.999)
    assert ledger.claim("worker-2") == []
    ledger.advance(0.001)
    [found] = ledger.claim("worker-2")
    assert (found.id, found.attempts, found.last_error) == (lost.id, 0, "lease_expired")


@pytest.mark.parametrize("outcome", list(Outcome))
@pytest.mark.parametrize("other", ["worker-2", "worker-1"], ids=["another worker", "the same"])
def test_an_attempt_that_lost_its_lease_changes_nothing(
    ledger: Ledger, outcome: Outcome, other: str
) -> None:
    subscription = ledger.subscribe()
    ledger.enqueue(subscription)
    ledger.enqueue(subscription)
    [lost] = ledger.claim("worker-1")
    ledger.advance(30)
    [found] = ledger.claim(other)
    assert not ledger.settle(lost, outcome, worker="worker-1", wait=3600)
    assert ledger.find(lost.id) == found
    assert ledger.heads() == {subscription.id: [1]}
    assert ledger.settle(found, worker=other)
    assert len(ledger.claim()) == 1  # no destination waits


def test_a_result_counts_after_the_lease_ended_if_nobody_claimed_the_row(ledger: Ledger) -> None:
    ledger.enqueue(ledger.subscribe())
    [claimed] = ledger.claim()
    ledger.advance(31)
    assert ledger.settle(claimed)
    assert ledger.claim() == []


# --- claims that come to nothing ---------------------------------------------------------------


def test_a_late_answer_does_not_settle_a_delivery_that_was_redriven_and_claimed_again(
    ledger: Ledger,
) -> None:
    ledger.enqueue(ledger.subscribe())
    [late] = ledger.claim()
    ledger.advance(30)
    [dead] = ledger.claim()
    ledger.settle(dead, Outcome.DEAD)
    ledger.redrive(dead)
    [again] = ledger.claim()
    assert again.id == late.id
    assert not ledger.settle(late, Outcome.DELIVERED)
    assert ledger.find(late.id) == again
    assert ledger.settle(again, Outcome.RETRY)


def test_claims_without_a_request_use_up_no_attempt_and_wait_longer_each_time(
    ledger: Ledger,
) -> None:
    delivery_id = ledger.enqueue(ledger.subscribe())
    waits = []
    for _ in range(12):
        assert len(ledger.claim()) == 1
        ledger.advance(30)
        ledger.claim("another", limit=0)  # releases expired leases
        due = ledger.find(delivery_id).not_before
        waits.append(max((due - ledger.now).total_seconds(), 0))
        ledger.now = max(due, ledger.now)
    assert waits == [0, 1, 2, 4, 8, 16, 30, 30, 30, 30, 30, 30]
    found = ledger.find(delivery_id)
    assert (found.state, found.attempts, found.claims) == (DeliveryState.PENDING, 0, 12)


@pytest.mark.parametrize("outcome", [Outcome.LOCAL_FAULT, Outcome.RETRY])
def test_only_a_request_counts_as_an_attempt(ledger: Ledger, outcome: Outcome) -> None:
    ledger.enqueue(ledger.subscribe())
    for _ in range(3):
        [claimed] = ledger.claim()
        ledger.settle(claimed, outcome, retry_in=0)
    found = ledger.find(claimed.id)
    assert (found.attempts, found.claims) == ((0 if outcome is Outcome.LOCAL_FAULT else 3), 3)
    assert found.fruitless_claims == 3 - found.attempts


# --- waits and limits --------------------------------------------------------------------------


def test_a_wait_applies_to_one_owners_destination(ledger: Ledger) -> None:
    held = [ledger.subscribe("asked"), ledger.subscribe("beside", task_id="task-2")]
    free = [
        ledger.subscribe("owner", owner="bob"),
        ledger.subscribe("tenant", tenant="another"),
        ledger.subscribe("origin", origin=ELSEWHERE),
    ]
    ledger.enqueue(held[0])
    [claimed] = ledger.claim()
    ledger.settle(claimed, Outcome.RETRY, retry_in=1, wait=60)
    ledger.enqueue(held[1])
    expected = {ledger.enqueue(subscription) for subscription in free}

    ledger.advance(59)
    assert {delivery.id for delivery in ledger.claim()} == expected
    assert ledger.claim() == []
    ledger.advance(1)
    assert {d.subscription_id for d in ledger.claim()} >= {subscription.id for subscription in held}


def test_a_delivery_is_due_when_the_wait_of_its_destination_ends(ledger: Ledger) -> None:
    ledger.enqueue(ledger.subscribe())
    [claimed] = ledger.claim()
    ledger.settle(claimed, Outcome.RETRY, retry_in=1, wait=60)
    assert ledger.next_due() == ledger.now + timedelta(seconds=60)


@pytest.mark.parametrize("waits", [(60, 5), (5, 60)])
def test_the_longer_of_two_waits_counts(ledger: Ledger, waits: tuple[float, float]) -> None:
    for name in ("one", "other"):
        ledger.enqueue(ledger.subscribe(name))
    for delivery, wait in zip(ledger.claim(), waits, strict=True):
        ledger.settle(delivery, Outcome.RETRY, retry_in=1, wait=wait)
    ledger.advance(59)
    assert ledger.claim() == []
    ledger.advance(1)
    assert len(ledger.claim()) == 2


@pytest.mark.parametrize("tasks", [50, 500])
@pytest.mark.slow
def test_a_destination_gets_no_more_than_its_share(ledger: Ledger, tasks: int) -> None:
    # It keeps slots for others while a dead webhook has thousands of tasks waiting.
    for number in range(tasks):
        ledger.enqueue(ledger.subscribe("dead", task_id=f"task-{number}", owner=str(number % 3)))
    ledger.advance(1)
    alive = ledger.enqueue(ledger.subscribe("alive", origin=ELSEWHERE))
    claimed = ledger.claim(limit=8, per_origin=3) + ledger.claim("worker-2", limit=8, per_origin=3)
    assert len(claimed) == 4
    assert alive in {delivery.id for delivery in claimed}


def test_a_slot_that_becomes_free_is_used_again(ledger: Ledger) -> None:
    for number in range(5):
        ledger.enqueue(ledger.subscribe(f"config-{number}"))
    first, *_ = ledger.claim(per_origin=2)
    assert ledger.claim(per_origin=2) == []
    ledger.settle(first)
    assert len(ledger.claim(per_origin=2)) == 1


def test_unfinished_deliveries_move_with_their_subscription(ledger: Ledger) -> None:
    ledger.enqueue(ledger.subscribe())
    [claimed] = ledger.claim()
    ledger.settle(claimed, Outcome.RETRY, retry_in=1, wait=3600)
    ledger.advance(1)
    moved = ledger.subscribe(origin=ELSEWHERE)
    ledger.run(ledger.outbox.move(moved.id, ELSEWHERE))
    assert [delivery.origin for delivery in ledger.claim()] == [ELSEWHERE]


# --- idempotency -------------------------------------------------------------------------------


def test_the_same_key_and_payload_is_the_same_delivery(ledger: Ledger) -> None:
    subscription = ledger.subscribe()
    first = ledger.enqueue(subscription, b"1", "key")
    assert ledger.enqueue(subscription, b"1", "key") == first
    assert ledger.enqueue(subscription, b"1", "another key") != first
    assert [delivery.seq for delivery in ledger.deliveries()] == [1, 2]


def test_the_same_key_is_the_same_delivery_after_that_is_finished(ledger: Ledger) -> None:
    subscription = ledger.subscribe()
    first = ledger.enqueue(subscription, b"1", "key")
    [claimed] = ledger.claim()
    ledger.settle(claimed)
    assert ledger.enqueue(subscription, b"1", "key") == first
    assert ledger.claim() == []


def test_the_same_key_with_another_payload_is_a_conflict(ledger: Ledger) -> None:
    subscription = ledger.subscribe()
    ledger.enqueue(subscription, b"1", "key")
    with pytest.raises(IdempotencyConflictError):
        ledger.enqueue(subscription, b"2", "key")
    assert [delivery.body for delivery in ledger.deliveries()] == [b"1"]


def test_a_key_finds_only_the_deliveries_stored_with_it(ledger: Ledger) -> None:
    subscription = ledger.subscribe()
    made = ledger.enqueue(subscription, b"1", "key")
    ledger.enqueue(subscription, b"1", "another key")
    keys = [TaskKey("", "task-1", key) for key in ("key", "unused")]
    found = ledger.run(find_enqueued(keys))
    assert {key: [each.id for each in enqueued] for key, enqueued in found.items()} == {
        keys[0]: [made]
    }


def test_a_key_belongs_to_its_task(ledger: Ledger) -> None:
    one, other = ledger.subscribe("one"), ledger.subscribe("other")
    first = ledger.enqueue(one, b"1", "key")
    assert ledger.enqueue(other, b"1", "key") != first
    with pytest.raises(IdempotencyConflictError):
        ledger.enqueue(ledger.subscribe("third"), b"2", "key")
    ledger.enqueue(ledger.subscribe(task_id="task-2"), b"2", "key")


# --- ids ---------------------------------------------------------------------------------------


def test_ids_are_unique_sort_by_time_and_have_no_dot() -> None:
    start = datetime(2026, 1, 1, tzinfo=UTC)
    ids = [new_delivery_id(start + timedelta(milliseconds=number)) for number in range(200)]
    assert ids == sorted(set(ids))
    assert not any("." in each for each in ids)


def test_no_repr_shows_a_body(ledger: Ledger) -> None:
    assert "canary" not in repr(ledger.find(ledger.enqueue(ledger.subscribe(), b"canary")))


def test_a_following_delivery_does_not_overtake_a_leased_one(ledger: Ledger) -> None:
    subscription = ledger.subscribe()
    ids = [ledger.enqueue(subscription) for _ in range(6)]
    lease = timedelta(seconds=30)

    def taken_behind(worker: str) -> list[str]:
        [claimed] = ledger.claim(worker)
        settling = settle(
            [(claimed, Result(outcome=Outcome.DELIVERED))],
            worker,
            ledger.now,
            may_follow=lambda *_: True,
            until=ledger.now + lease,
        )
        return [each.id for each in ledger.run(settling).claimed]

    assert taken_behind("worker-1") == ids[1:]
    # As if it had been stored later than the others.
    ledger.query(
        "UPDATE pushkit_deliveries SET lease_until = lease_until + 9 WHERE seq = 5 RETURNING id"
    )
    ledger.advance(lease.total_seconds())
    assert taken_behind("worker-2") == ids[2:4]


def test_a_delivery_paused_in_flight_still_counts_at_its_origin(ledger: Ledger) -> None:
    first, second = ledger.subscribe("config-1"), ledger.subscribe("config-2")
    ledger.enqueue(first)
    [claimed] = ledger.claim("worker-1", per_origin=1)
    ledger.run(clear_head(first.id))
    ledger.enqueue(second)
    assert ledger.claim("worker-2", per_origin=1) == []
    ledger.settle(claimed, worker="worker-1")
    assert len(ledger.claim("worker-2", per_origin=1)) == 1
