"""Transitions of `pushkit.outbox.states`, and leases: what `test_outbox_machine` does not visit."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta

import pytest

from pushkit.errors import IdempotencyConflictError
from pushkit.outbox import destinations
from pushkit.outbox import store as outbox
from pushkit.outbox.destinations import destination_of
from pushkit.outbox.inspection import DELIVERIES, DeliveryFilter
from pushkit.outbox.model import Delivery, TaskKey, find_enqueued, new_delivery_id
from pushkit.outbox.states import DeliveryState, Outcome
from pushkit.storage.paging import WINDOW
from pushkit.storage.script import to_micros
from pushkit.subscriptions.model import OUTBOX
from tests.unit.pushkit.deliveries import copy_delivery
from tests.unit.pushkit.outbox.conftest import Ledger

ELSEWHERE = "https://elsewhere.example.com:443"


def test_after_the_clock_was_set_back_new_deliveries_are_due_and_a_retry_waits(
    ledger: Ledger,
) -> None:
    tried = ledger.claimed()
    ledger.settle(tried, Outcome.RETRY, retry_in=5)
    other = ledger.subscribe(task_id="task-2")
    ids = [ledger.enqueue(other) for _ in range(2)]
    ledger.advance(-3600)
    assert ledger.claim() == []

    now = to_micros(ledger.now)
    ledger.run(OUTBOX.after_setback(now, now))

    assert [each.id for each in ledger.claim()] == ids
    assert ledger.next_due() == ledger.now + timedelta(seconds=5)


# --- order -------------------------------------------------------------------------------------


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


def test_a_worker_does_not_take_its_own_live_leases(ledger: Ledger) -> None:
    subscription, _ = ledger.queue_of(1)
    [mine] = ledger.claim("worker-1")
    ledger.advance(10**6)  # the clock was set forward
    assert ledger.claim("worker-1", held=[subscription.id]) == []
    assert ledger.settle(mine)


def test_a_delivery_with_which_workers_die_goes_alone_and_uses_up_its_attempts(
    ledger: Ledger,
) -> None:
    _, ids = ledger.queue_of(3)
    claims = []
    for _ in range(4):
        claims.append([each.attempts for each in ledger.claim()])
        ledger.advance(30)
    assert claims == [[0, 0, 0], [0], [1], [2]]
    [last] = ledger.claim()
    ledger.settle(last, Outcome.DEAD)
    assert [job.delivery.id for job in ledger.memory(last).waiting] == ids[1:]


@pytest.mark.parametrize("dies_paused", [True, False])
def test_a_pause_does_not_hide_with_which_delivery_workers_die(
    ledger: Ledger, *, dies_paused: bool
) -> None:
    subscription, _ = ledger.queue_of(3)
    claims = []
    for _ in range(3):
        claims.append([each.attempts for each in ledger.claim()])
        if dies_paused:
            ledger.pause(subscription)
        ledger.advance(30)
        assert ledger.claim(limit=0) == []
        ledger.pause(subscription)
        ledger.pause(subscription, paused=False)

    assert claims == [[0, 0, 0], [0], [1]]


def test_deaths_of_workers_are_forgotten_with_the_last_delivery_of_a_queue(ledger: Ledger) -> None:
    subscription = ledger.subscribe()
    delivery_id = ledger.enqueue(subscription)
    ledger.claim()
    ledger.advance(30)
    assert ledger.claim(limit=0) == []
    ledger.pause(subscription)

    assert ledger.cancel_one(subscription.id, delivery_id)
    ledger.pause(subscription, paused=False)
    ids = {ledger.enqueue(subscription) for _ in range(2)}

    assert {each.id for each in ledger.claim()} == ids


def test_an_answer_does_not_settle_a_delivery_that_was_redriven_under_the_same_lease(
    ledger: Ledger,
) -> None:
    ledger.queue_of(2)
    dead, _ = ledger.claim()
    ledger.settle(dead, Outcome.DEAD)
    ledger.redrive(dead)
    assert ledger.find(dead.id).state is DeliveryState.PENDING
    assert not ledger.settle(dead)
    assert [job.seq for job in ledger.memory(dead).waiting] == [1, 2]
    assert ledger.find(dead.id).state is DeliveryState.IN_FLIGHT


@pytest.mark.parametrize("outcome", [Outcome.LOCAL_FAULT, Outcome.RETRY])
def test_only_a_request_counts_as_an_attempt(ledger: Ledger, outcome: Outcome) -> None:
    ledger.enqueue(ledger.subscribe())
    for _ in range(3):
        [claimed] = ledger.claim()
        ledger.settle(claimed, outcome, retry_in=0)
    found = ledger.find(claimed.id)
    assert (found.attempts, found.faults) == ((0, 3) if outcome is Outcome.LOCAL_FAULT else (3, 0))


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


def test_a_destination_gets_no_more_than_its_share(ledger: Ledger) -> None:
    # It keeps room for others while a dead webhook has more tasks waiting than a claim reads.
    ledger.leasing.read_little(16, 32)
    for number in range(60):
        ledger.enqueue(ledger.subscribe("dead", task_id=f"task-{number}", owner=str(number % 3)))
    ledger.advance(1)
    alive = ledger.enqueue(ledger.subscribe("alive", origin=ELSEWHERE))
    claimed = ledger.claim(limit=8, per_origin=3)
    assert len(claimed) == 4
    assert alive in {delivery.id for delivery in claimed}


def test_unfinished_deliveries_move_with_their_subscription(ledger: Ledger) -> None:
    claimed = ledger.claimed()
    ledger.settle(claimed, Outcome.RETRY, retry_in=1, wait=3600)
    ledger.advance(1)
    moved = ledger.subscribe(origin=ELSEWHERE)
    ledger.run(outbox.move(moved.id, ELSEWHERE))
    assert [delivery.origin for delivery in ledger.claim()] == [ELSEWHERE]


# --- idempotency -------------------------------------------------------------------------------


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


# --- pages ---------------------------------------------------------------------------------------


def test_a_failed_delivery_is_found_by_its_error_however_many_were_stored_since(
    ledger: Ledger,
) -> None:
    failed = ledger.enqueue(ledger.subscribe())
    ledger.query("UPDATE pushkit_deliveries SET state = 'dead', last_error = 'gone'")
    ledger.run(copy_delivery(WINDOW, state="delivered"))

    page = ledger.run(DELIVERIES.browse(DeliveryFilter(error="gone"), before=None, limit=50))

    assert [each.id for each in page.items] == [failed]
    assert (page.before, page.is_cut) == (None, False)


def test_a_page_that_is_not_full_says_where_the_next_one_begins(ledger: Ledger) -> None:
    first = ledger.enqueue(ledger.subscribe())
    ledger.run(copy_delivery(WINDOW, owner="bob", state="delivered"))
    wanted = DeliveryFilter(owner="alice")

    page = ledger.run(DELIVERIES.browse(wanted, before=None, limit=50))
    assert (page.items, page.is_cut) == ((), True)

    older = ledger.run(DELIVERIES.browse(wanted, before=page.before, limit=50))
    assert [each.id for each in older.items] == [first]


@pytest.mark.parametrize("by", ["subscription", "task"])
def test_the_next_page_begins_behind_a_delivery_that_was_purged_since(
    ledger: Ledger, by: str
) -> None:
    subscription, [oldest, purged, newest] = ledger.queue_of(3)
    key = subscription.key
    wanted = DeliveryFilter(task_id=key.task_id, tenant=key.tenant)
    if by == "subscription":
        wanted = DeliveryFilter(subscription_id=subscription.id)

    page = ledger.run(DELIVERIES.browse(wanted, before=None, limit=2))
    assert [each.id for each in page.items] == [newest, purged]
    ledger.query(f"DELETE FROM pushkit_deliveries WHERE id = '{purged}'")  # noqa: S608  # ours

    older = ledger.run(DELIVERIES.browse(wanted, before=page.before, limit=2))
    assert [each.id for each in older.items] == [oldest]


@pytest.mark.parametrize("before", ["dlv_1", "x:dlv_1", f"{10**18}:dlv_1"])
def test_nothing_is_behind_the_place_of_another_order(ledger: Ledger, before: str) -> None:
    subscription, _ = ledger.queue_of(1)
    wanted = DeliveryFilter(subscription_id=subscription.id)
    page = ledger.run(DELIVERIES.browse(wanted, before=before, limit=2))
    assert (page.items, page.before) == ((), None)


# --- destinations --------------------------------------------------------------------------------


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
