"""Reading, redriving and purging the inbox, on both databases."""

from __future__ import annotations

from datetime import datetime, timedelta

import pytest

from pushkit.errors import ConfigError
from pushkit.storage.paging import WINDOW
from pushkit.storage.script import to_micros
from receiver.inbox import inspection, retention
from receiver.inbox.inspection import NOTIFICATIONS, InboxFilter, InboxStats
from receiver.inbox.model import InboxStatus
from receiver.inbox.retention import InboxRetention
from receiver.inbox.store import Change, store_results
from tests.unit.receiver.inbox.conftest import Shelf

MEGABYTE = b"x" * 1024 * 1024


# --- lists and numbers ----------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("wanted", "found"),
    [
        pytest.param(InboxFilter(), ["task-1#1", "task-2#1", "task-1#2"], id="all"),
        pytest.param(InboxFilter(sender="agent"), ["task-1#1", "task-1#2"], id="sender"),
        pytest.param(InboxFilter(task_id="task-2"), ["task-2#1"], id="task"),
        pytest.param(InboxFilter(status=InboxStatus.DEAD), ["task-1#1"], id="status"),
        pytest.param(
            InboxFilter(status=InboxStatus.DEAD, sender="other", task_id="task-1"),
            [],
            id="each",
        ),
    ],
)
def test_a_list_has_what_its_filter_wants(
    shelf: Shelf, wanted: InboxFilter, found: list[str]
) -> None:
    shelf.store(1, "task-1")
    [claimed] = shelf.claim()
    shelf.settle(claimed, InboxStatus.DEAD, error="callback: ValueError")
    shelf.store(1, "task-2", sender="other")
    shelf.store(2, "task-1")

    page = shelf.run(NOTIFICATIONS.find(wanted, after=0, limit=10))

    assert [summary.delivery_id for summary in page] == found


def test_a_status_that_is_a_text_is_read_as_one_and_never_becomes_sql(shelf: Shelf) -> None:
    shelf.store(1, "task-1")
    by_text = InboxFilter(status="received")  # type: ignore[arg-type]
    assert len(shelf.run(NOTIFICATIONS.find(by_text, after=0, limit=10))) == 1

    injected = InboxFilter(status="done' OR '1'='1")  # type: ignore[arg-type]
    with pytest.raises(ConfigError, match="expected one of received, in_progress"):
        shelf.run(NOTIFICATIONS.find(injected, after=0, limit=10))


def test_a_list_comes_in_pages(shelf: Shelf) -> None:
    ids = [shelf.stored(number) for number in range(1, 4)]

    page = shelf.run(NOTIFICATIONS.find(InboxFilter(), after=ids[0], limit=1))

    assert [summary.id for summary in page] == ids[1:2]


def test_a_summary_has_the_state(shelf: Shelf) -> None:
    shelf.store(3)
    [claimed] = shelf.claim()
    shelf.advance(1)
    shelf.settle(claimed, InboxStatus.DEAD, error="callback: ValueError")

    [summary] = shelf.run(NOTIFICATIONS.find(InboxFilter(), after=0, limit=10))

    assert (summary.seq, summary.missing, summary.late) == (3, 2, False)
    assert summary.body_bytes == len(claimed.notification.body)
    assert (summary.status, summary.attempts) == (InboxStatus.DEAD, 1)
    assert (summary.finished_at, summary.redriven_at) == (shelf.now, None)
    assert summary.last_error == "callback: ValueError"


def test_a_missing_notification_is_not_shown(shelf: Shelf) -> None:
    assert shelf.run(inspection.show(1)) is None


def _stats(shelf: Shelf) -> InboxStats:
    return shelf.run(inspection.stats(shelf.now, within=timedelta(hours=1), at_most=1000))


def test_the_stats_count_every_status_and_missing_updates(shelf: Shelf) -> None:
    shelf.finish(1)
    shelf.finish(2, InboxStatus.DEAD)
    shelf.advance(5)
    oldest = shelf.now
    for seq in (1, 4, 2):
        shelf.store(seq, "task-9", sender="other")
        shelf.advance(1)
    shelf.claim()
    shelf.store(1, "task-10")
    shelf.store(2, "task-10")

    stats = _stats(shelf)

    assert stats.statuses == {
        InboxStatus.RECEIVED: 2,
        InboxStatus.IN_PROGRESS: 3,
        InboxStatus.DONE: 1,
        InboxStatus.DEAD: 1,
    }
    assert stats.oldest_unfinished_at == oldest
    agent, other = stats.senders
    assert (agent.sender, agent.unfinished, agent.dead, agent.missing) == ("agent", 2, 1, 0)
    assert (other.sender, other.unfinished, other.missing, other.late) == ("other", 3, 2, 1)


def test_a_sender_that_skips_numbers_does_not_affect_the_counts_of_others(shelf: Shelf) -> None:
    for number in range(2):
        shelf.store(2**63 - 1, f"task-{number}", sender="leaper")
    shelf.store(3, "task-9", sender="other")

    leaper, other = _stats(shelf).senders

    assert leaper.missing >= 2_000_000_000
    assert other.missing == 2


def test_an_empty_inbox_has_stats(shelf: Shelf) -> None:
    stats = _stats(shelf)

    assert set(stats.statuses.values()) == {0}
    assert (stats.oldest_unfinished_at, stats.senders) == (None, ())


def status_of(shelf: Shelf, notification_id: int) -> InboxStatus:
    report = shelf.run(inspection.show(notification_id))
    assert report is not None
    return report.notification.status


def test_what_the_holder_of_a_queue_has_is_in_progress_until_its_lease_ends(shelf: Shelf) -> None:
    first, second = shelf.stored(1), shelf.stored(2)
    waiting = status_of(shelf, first)
    [claimed] = shelf.claim()
    third = shelf.stored(3)  # no memory has it yet
    leased = [status_of(shelf, each) for each in (first, second, third)]
    listed = {
        status: [each.id for each in shelf.run(NOTIFICATIONS.find(wanted, after=0, limit=9))]
        for status in InboxStatus
        for wanted in [InboxFilter(status=status)]
    }
    shelf.settle(claimed)

    assert waiting is InboxStatus.RECEIVED
    assert leased == [InboxStatus.IN_PROGRESS, InboxStatus.IN_PROGRESS, InboxStatus.RECEIVED]
    assert listed == {
        InboxStatus.RECEIVED: [third],
        InboxStatus.IN_PROGRESS: [first, second],
        InboxStatus.DONE: [],
        InboxStatus.DEAD: [],
    }
    assert [status_of(shelf, each) for each in (first, second)] == [
        InboxStatus.DONE,
        InboxStatus.RECEIVED,
    ]


def test_one_that_is_redriven_under_a_lease_is_not_in_progress_before_it_is_fetched(
    shelf: Shelf,
) -> None:
    dead, other = shelf.stored(1), shelf.stored(2)
    [first] = shelf.claim()
    shelf.settle(first, InboxStatus.DEAD)
    shelf.claim()
    shelf.redrive(dead)

    assert status_of(shelf, dead) is InboxStatus.RECEIVED
    assert status_of(shelf, other) is InboxStatus.IN_PROGRESS


def test_a_callback_that_fails_is_found_behind_a_task_with_many_notifications(
    shelf: Shelf,
) -> None:
    for number in range(1, 400):
        shelf.store(number, "busy")
    shelf.store(1, "other")
    for claimed in shelf.claim():
        of_task = claimed.notification.task_id
        shelf.record(claimed.notification.id, f"of-{of_task}", "ValueError")
        shelf.settle(claimed, InboxStatus.RECEIVED, retry_in=10, error="ValueError")

    troubles = shelf.run(inspection.callback_troubles())

    found = [(each.callback, each.error, each.waiting, each.dead) for each in troubles]
    assert found == [("of-busy", "ValueError", 1, 0), ("of-other", "ValueError", 1, 0)]


# --- redriving ------------------------------------------------------------------------------------


def test_a_redriven_notification_begins_anew_and_keeps_its_successful_calls(shelf: Shelf) -> None:
    notification_id = shelf.stored(1)
    [claimed] = shelf.claim()
    shelf.record(notification_id, "good")
    shelf.record(notification_id, "bad", "ValueError")
    shelf.settle(claimed, InboxStatus.DEAD, error="bad: ValueError")
    shelf.advance(3600)
    redriven = shelf.redrive(notification_id)
    [again] = shelf.claim()

    assert redriven == [notification_id]
    assert (again.attempts, again.since, again.broken_off) == (0, shelf.now, False)
    assert (again.had_by("good"), again.had_by("bad")) == (True, False)


def test_only_dead_letters_are_redriven(shelf: Shelf) -> None:
    done, received = shelf.finish(1), shelf.stored(1)

    assert shelf.redrive(done, received, 999) == []


def test_other_tasks_are_claimed_while_one_is_redriven(shelf: Shelf) -> None:
    dead = shelf.finish(1, InboxStatus.DEAD)
    shelf.store(1, "other")
    shelf.store(1, "t-1", sender="other")
    shelf.redrive(dead)

    assert sorted(shelf.claimed_ids()) == ["other#1", "t-1#1", "t-1#1"]


# --- purging --------------------------------------------------------------------------------------


def finished_before(
    shelf: Shelf, moment: datetime, status: InboxStatus = InboxStatus.DONE, *, limit: int = 10
) -> list[int]:
    return shelf.run(retention.finished_before(status, (to_micros(moment), 0), limit=limit))


def test_finished_notifications_are_found_oldest_first(shelf: Shelf) -> None:
    ids = []
    for number in range(3):
        ids.append(shelf.finish(number))
        shelf.advance(1)
    dead = shelf.finish(9, InboxStatus.DEAD)
    shelf.stored(1)
    shelf.advance(1)

    def finished(status: InboxStatus, *, limit: int = 10) -> list[int]:
        return finished_before(shelf, shelf.now, status, limit=limit)

    assert finished(InboxStatus.DONE) == ids
    assert finished(InboxStatus.DONE, limit=2) == ids[:2]
    assert finished(InboxStatus.DEAD) == [dead]
    assert finished_before(shelf, shelf.now - timedelta(seconds=3)) == ids[:1]


def test_the_excess_is_the_oldest_of_the_done(shelf: Shelf) -> None:
    ids = [shelf.finish(number) for number in range(4)]  # all at one moment
    shelf.finish(9, InboxStatus.DEAD)

    def excess(max_done: int) -> list[int]:
        end = shelf.run(retention.end_of_excess(max_done))
        assert end is not None
        return shelf.run(retention.finished_before(InboxStatus.DONE, end, limit=10))

    assert excess(3) == ids[:1]
    assert sorted(excess(0)) == ids
    assert shelf.run(retention.end_of_excess(4)) is None


def test_a_batch_is_bounded_in_bytes_and_never_empty(
    shelf: Shelf, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(retention, "_BYTES_AT_ONCE", 2 * len(MEGABYTE))
    ids = [shelf.stored(1, f"task-{number}", body=MEGABYTE) for number in range(3)]
    for claimed in shelf.claim():
        shelf.settle(claimed)
    shelf.advance(1)

    two = finished_before(shelf, shelf.now)
    monkeypatch.setattr(retention, "_BYTES_AT_ONCE", 1)
    one = finished_before(shelf, shelf.now)

    assert (two, one) == (ids[:2], ids[:1])


def queues(shelf: Shelf) -> list[str]:
    return [row["id"] for row in shelf.query("SELECT id FROM pushkit_inbox_queues")]


@pytest.mark.parametrize("task_id", ["task-1", None])
def test_the_last_notification_of_a_leased_queue_is_deleted_after_the_lease(
    shelf: Shelf, task_id: str | None
) -> None:
    notification_id = shelf.stored(1, task_id)
    [claimed] = shelf.claim()
    shelf.run(store_results([(claimed, Change("done", 1))], now=shelf.now))
    while_leased = shelf.run(retention.delete_finished([notification_id], InboxStatus.DONE))
    there = shelf.ids(), queues(shelf)
    shelf.query("UPDATE pushkit_inbox_queues SET lease_worker = NULL, lease_until = NULL")

    assert while_leased == 0
    assert there == ([notification_id], [claimed.queue_id])
    assert shelf.run(retention.delete_finished([notification_id], InboxStatus.DONE)) == 1
    assert (shelf.ids(), queues(shelf)) == ([], [])


def test_a_leased_queue_keeps_one_notification_of_several(shelf: Shelf) -> None:
    first, second = shelf.stored(1), shelf.stored(2)
    for _ in range(2):
        [claimed] = shelf.claim()
        shelf.settle(claimed)
    shelf.query("UPDATE pushkit_inbox_queues SET lease_worker = 'another', lease_until = 1")

    assert shelf.run(retention.delete_finished([first, second], InboxStatus.DONE)) == 1
    assert shelf.ids() == [second]


def test_a_notification_redriven_meanwhile_is_not_deleted(shelf: Shelf) -> None:
    dead = shelf.finish(1, InboxStatus.DEAD)
    shelf.redrive(dead)

    assert shelf.run(retention.delete_finished([dead], InboxStatus.DEAD)) == 0
    assert shelf.ids() == [dead]


def test_sequences_that_no_longer_grow_are_deleted(shelf: Shelf) -> None:
    shelf.store(1, "old")
    shelf.advance(10)
    shelf.store(1, "young")

    forgotten = shelf.run(retention.forget_sequences(shelf.now))

    rows = shelf.query("SELECT task_id FROM pushkit_sequences")
    assert (forgotten, [row["task_id"] for row in rows]) == (1, ["young"])


@pytest.mark.parametrize(
    "wrong",
    [
        pytest.param({"done": timedelta(0)}, id="done"),
        pytest.param({"ids": timedelta(hours=-1)}, id="ids"),
        pytest.param({"done": timedelta(days=1_000_000)}, id="before-the-calendar"),
        pytest.param({"max_done": -1}, id="max_done"),
    ],
)
def test_a_retention_that_makes_no_sense_is_refused(wrong: dict[str, timedelta]) -> None:
    with pytest.raises(ConfigError, match="retention: "):
        InboxRetention(**wrong)  # type: ignore[arg-type]  # a number among them


@pytest.mark.parametrize(
    ("wanted", "rare"),
    [
        pytest.param(InboxFilter(status=InboxStatus.DEAD), "state = 'dead'", id="dead"),
        pytest.param(InboxFilter(unmatched=True), "unmatched = 1", id="unmatched"),
    ],
)
def test_a_page_of_rare_notifications_is_full_in_a_large_inbox(
    shelf: Shelf, wanted: InboxFilter, rare: str
) -> None:
    shelf.finish(1)
    shelf.query(copies_of("t-1#1", count=WINDOW, named="old"))
    shelf.query(f"UPDATE pushkit_inbox SET {rare}")  # noqa: S608  # ours
    shelf.query(copies_of("t-1#1", count=WINDOW, named="new"))
    shelf.query(
        "UPDATE pushkit_inbox SET state = 'done', unmatched = 0 WHERE delivery_id LIKE 'new-%'"
    )

    page = shelf.run(NOTIFICATIONS.browse(wanted, before=None, limit=50))

    newest = [f"old-{number}" for number in range(WINDOW, WINDOW - 50, -1)]
    assert [each.delivery_id for each in page.items] == newest
    assert not page.is_cut


def copies_of(delivery_id: str, *, count: int, named: str) -> str:
    """Return the statement that stores a notification many times more, under other ids."""
    columns = (
        "queue_id, place, sender, missing, late, version, kid, issued_at, received_at, body,"
        " body_bytes, body_sha256, not_before, scheduled_at, state, unmatched"
    )
    return (
        f"INSERT INTO pushkit_inbox (delivery_id, {columns})"  # noqa: S608  # ours
        " WITH RECURSIVE n(number) AS"
        f" (SELECT 1 UNION ALL SELECT number + 1 FROM n WHERE number < {count})"
        f" SELECT '{named}-' || number, {columns} FROM pushkit_inbox, n"
        f" WHERE delivery_id = '{delivery_id}' ORDER BY number"
    )
