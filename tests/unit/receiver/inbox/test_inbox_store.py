"""The inbox on both databases: storing, claiming, settling and giving back."""

from __future__ import annotations

import hashlib
from collections.abc import Sequence
from datetime import datetime, timedelta

import pytest

from pushkit.queue.leases import give_back
from pushkit.storage.script import DEFERRED, Deferred, Script, Statement, from_micros, to_micros
from receiver.inbox import inspection, retention
from receiver.inbox.model import CallbackState, InboxStatus
from receiver.inbox.store import (
    INBOX,
    PUT_OFF,
    Change,
    GroupItem,
    accepted_before,
    of_task,
    queue_id_of,
    store_results,
    task_of,
    together,
    with_news,
)
from tests.unit.receiver.inbox.conftest import BODY, LEASE, Shelf
from tests.unit.receiver.storing import claim


def next_due(shelf: Shelf) -> datetime | None:
    """Return when a claim may find something next."""
    moments = shelf.run(INBOX.moments(to_micros(shelf.now)))
    return from_micros(min(moments)) if moments else None


# --- storing --------------------------------------------------------------------------------------


def test_an_accepted_id_is_known_with_its_body_also_when_it_was_deleted(shelf: Shelf) -> None:
    gone = shelf.finish(1, task="gone")
    shelf.store(1)
    shelf.run(retention.delete_finished([gone], InboxStatus.DONE))
    names = ("task-1#1", "gone-1#1", "unknown")

    known = shelf.run(accepted_before([("agent", name) for name in names]))
    of_others = shelf.run(accepted_before([("other", name) for name in names]))

    digest = hashlib.sha256(BODY).hexdigest()
    assert known == {("agent", "task-1#1"): digest, ("agent", "gone-1#1"): digest}
    assert of_others == {}


@pytest.mark.parametrize("task_id", ["task-1", "a\nb", "a\rb", "\r", None])
def test_the_id_of_a_queue_says_its_task(task_id: str | None) -> None:
    assert task_of(queue_id_of("agent", task_id, "of\nan agent")) == task_id


def test_a_stored_notification_is_read_back_whole(shelf: Shelf) -> None:
    shelf.store(3)

    [claimed] = shelf.claim()
    notification = claimed.notification.decode()

    assert (notification.delivery_id, notification.seq, notification.missing) == ("task-1#3", 3, 2)
    assert notification.late is False
    assert (notification.issued_at, notification.received_at) == (shelf.now, shelf.now)
    assert notification.update.task_id == "task-1"


def test_generations_that_do_not_follow_are_reported(shelf: Shelf) -> None:
    large = 2**62
    for seq, generation in ((1, 1), (2, None), (3, 4), (5, large), (4, 2), (6, 1), (7, 2)):
        shelf.store(seq, generation=generation)

    rows = shelf.query(
        "SELECT seq, missing, late, generation_before FROM pushkit_inbox ORDER BY id"
    )

    assert [tuple(row) for row in rows] == [
        (1, 0, 0, None),
        (2, 0, 0, None),
        (3, 0, 0, 1),
        (5, 1, 0, 4),
        (4, 0, 1, None),
        (6, 0, 0, large),
        (7, 0, 0, None),
    ]


# --- order ----------------------------------------------------------------------------------------


def test_only_the_oldest_of_a_task_is_claimed(shelf: Shelf) -> None:
    for number in (1, 2):
        shelf.store(number, "task-1")
        shelf.store(number, "task-2")

    assert shelf.claimed_ids() == ["task-1#1", "task-2#1"]
    assert shelf.claimed_ids("two") == []


def test_tasks_of_two_senders_with_one_name_do_not_wait_for_each_other(shelf: Shelf) -> None:
    shelf.store(1, sender="agent")
    shelf.store(1, sender="other")

    assert len(shelf.claim()) == 2


def test_a_notification_without_a_task_waits_for_nothing(shelf: Shelf) -> None:
    shelf.store(1, None)
    shelf.store(2, None)

    assert len(shelf.claim()) == 2


def test_a_notification_without_a_task_is_retried_until_it_is_done(shelf: Shelf) -> None:
    shelf.store(1, None)
    [first] = shelf.claim()
    shelf.settle(first, InboxStatus.RECEIVED, retry_in=0)
    [second] = shelf.claim()
    shelf.settle(second)

    assert second.notification.id == first.notification.id
    assert shelf.claim() == []


def test_no_more_are_claimed_than_asked_for_and_the_longest_due_first(shelf: Shelf) -> None:
    for number in range(5):
        shelf.store(1, f"task-{number}")
        shelf.advance(1)

    assert shelf.claimed_ids(limit=2) == ["task-0#1", "task-1#1"]
    assert shelf.claimed_ids(limit=9) == ["task-2#1", "task-3#1", "task-4#1"]


# --- leases ---------------------------------------------------------------------------------------


def test_a_lease_that_ended_counts_as_broken_off(shelf: Shelf) -> None:
    first = shelf.claimed()
    shelf.advance(LEASE.total_seconds())
    [second] = shelf.claim("two")

    assert (first.attempts, first.broken_off) == (0, False)
    assert (second.attempts, second.broken_off) == (1, True)


def test_a_worker_does_not_claim_what_it_holds(shelf: Shelf) -> None:
    for number in range(150):
        shelf.store(1, f"task-{number}")
    held = [job.queue_id for _ in range(2) for job in shelf.claim(limit=100)]
    shelf.advance(3600)

    assert len(held) == 150
    assert shelf.claim(held=held) == []


def test_the_notifications_of_a_dead_worker_are_taken_over_at_once(shelf: Shelf) -> None:
    shelf.store(1, "task-1")
    shelf.store(1, "task-2")
    shelf.claim("gone", limit=1)
    working = shelf.run(INBOX.workers())
    claimed = shelf.run(
        claim("one", limit=9, now=shelf.now, until=shelf.now + LEASE, dead=lambda names: names)
    )

    assert [*working] == ["gone"]
    assert [(each.attempts, each.broken_off) for each in claimed] == [(1, True), (0, False)]


def test_putting_off_is_no_attempt_and_delays_the_task(shelf: Shelf) -> None:
    claimed = shelf.claimed(2)
    again = Change("pending", 0, PUT_OFF, to_micros(shelf.now + timedelta(seconds=10)))
    shelf.run(store_results([(claimed, again)], now=shelf.now))
    shelf.run(give_back(INBOX, "one", to_micros(shelf.now), but=()))
    meanwhile = shelf.claim()
    shelf.advance(10)
    [later] = shelf.claim()

    assert meanwhile == []
    assert later.notification.id == claimed.notification.id
    assert (later.attempts, later.broken_off) == (0, False)


# --- what is due ----------------------------------------------------------------------------------


def test_an_inbox_without_unfinished_notifications_is_never_due(shelf: Shelf) -> None:
    claimed = shelf.claimed()
    shelf.settle(claimed)

    assert next_due(shelf) is None


def test_a_notification_behind_another_is_not_due_before_it(shelf: Shelf) -> None:
    first = shelf.claimed(2)
    at_lease = next_due(shelf)
    shelf.settle(first, InboxStatus.RECEIVED, retry_in=10)
    at_retry = next_due(shelf)

    assert (at_lease, at_retry) == (shelf.now + LEASE, shelf.now + timedelta(seconds=10))


# --- callbacks ------------------------------------------------------------------------------------


def test_every_callback_has_its_own_state(shelf: Shelf) -> None:
    notification_id = shelf.stored(1)
    [first] = shelf.claim()
    shelf.record(notification_id, "good")
    shelf.record(notification_id, "bad", "ValueError")
    shelf.settle(first, InboxStatus.RECEIVED, retry_in=0)
    [second] = shelf.claim()
    shelf.record(notification_id, "bad", "TypeError")
    report = shelf.run(inspection.show(notification_id))

    assert (second.had_by("good"), second.had_by("bad"), second.had_by("new")) == (
        True,
        False,
        False,
    )
    assert report is not None
    assert report.callbacks == (
        CallbackState(
            callback="bad", done=False, attempts=2, last_error="TypeError", last_at=shelf.now
        ),
        CallbackState(callback="good", done=True, attempts=1, last_error=None, last_at=shelf.now),
    )


def test_calls_with_other_notifications_are_left_alone(shelf: Shelf) -> None:
    mine, other = shelf.stored(1, "task-1"), shelf.stored(1, "task-2")
    shelf.record(other, "good")
    [claimed, _] = shelf.claim()

    assert claimed.notification.id == mine
    assert not claimed.had_by("good")


# --- a task ---------------------------------------------------------------------------------------


def test_a_task_is_read_in_order_after_an_id(shelf: Shelf) -> None:
    ids = [shelf.stored(number) for number in range(1, 6)]
    shelf.store(1, "task-2")
    shelf.store(9, sender="other")

    page = shelf.run(of_task("task-1", after=ids[0], sender="agent", limit=3))

    assert [each.id for each in page] == ids[1:4]


# --- fairness among senders -----------------------------------------------------------------------


def test_a_claim_is_shared_among_senders_however_much_one_has(shelf: Shelf) -> None:
    for number in range(20):
        shelf.store(1, f"flood-{number}", sender="flood")
    shelf.advance(1)
    for sender in ("one", "two"):
        for number in range(3):
            shelf.store(1, f"{sender}-{number}", sender=sender)

    first = [each.notification.sender for each in shelf.claim(limit=6)]
    second = [each.notification.sender for each in shelf.claim(limit=6)]

    assert sorted(first) == ["flood", "flood", "one", "one", "two", "two"]
    assert sorted(second) == ["flood", "flood", "flood", "flood", "one", "two"]


def test_the_next_due_moment_is_the_earliest_of_any_sender(shelf: Shelf) -> None:
    for sender, seconds in (("one", 30), ("two", 10), ("three", 20)):
        shelf.store(1, sender, sender=sender)
        [claimed] = shelf.claim()
        shelf.settle(claimed, InboxStatus.RECEIVED, retry_in=seconds)

    assert next_due(shelf) == shelf.now + timedelta(seconds=10)


# --- news -----------------------------------------------------------------------------------------


def test_tasks_with_news_are_found_among_many(shelf: Shelf) -> None:
    old = shelf.stored(1, "old")
    new = shelf.stored(1, "new")
    shelf.store(1, "new", sender="other")
    seen = {("agent", f"none-{number}"): 0 for number in range(200)}
    seen |= {("agent", "old"): old, ("agent", "new"): new - 1, ("other", "old"): 0}

    assert shelf.run(with_news(seen)) == [("agent", "new")]
    assert shelf.run(with_news({})) == []


# --- one transaction ------------------------------------------------------------------------------


def accepting(names: Sequence[str], /, *, wait: bool) -> Script[list[str]]:
    yield Statement(f"accept, wait={wait}", tuple(names))
    return [f"{name} accepted" for name in names]


def settling(names: Sequence[str], /, *, wait: bool) -> Script[list[str | Deferred]]:
    yield Statement(f"settle, wait={wait}", tuple(names))
    return [DEFERRED if name == "held" else f"{name} settled" for name in names]


def test_settling_comes_first_in_a_shared_transaction() -> None:
    script = together(
        [
            GroupItem(accepting, "a"),
            GroupItem(settling, "b", is_first=True),
            GroupItem(accepting, "c"),
            GroupItem(settling, "held", is_first=True),
        ],
        wait=False,
    )

    assert next(script) == Statement("settle, wait=False", ("b", "held"))
    assert script.send([]) == Statement("accept, wait=False", ("a", "c"))
    with pytest.raises(StopIteration) as ended:
        script.send([])
    assert ended.value.value == ["a accepted", "b settled", "c accepted", DEFERRED]
