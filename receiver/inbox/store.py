"""The inbox: accepted notifications, until every callback has had them.

| event | from | to | besides |
|---|---|---|---|
| accepted | nothing | pending | the next place in its queue, which may be leased |
| all callbacks had it, or none wants it | pending | done | one attempt more |
| a callback failed | pending | pending | one attempt more; waits as the schedule says |
| given up, or unreadable | pending | dead | one attempt more |
| put off: a share used up | pending | pending | no attempt; waits |
| its process died | pending | pending | one attempt more; it waits, if that came again |
| redriven | dead; done, unmatched | pending | attempts, age begin anew |

Nothing else writes `state`. A pending notification is in progress while its queue is leased and the
holder has it (`pushkit.queue.rules`). Whoever changes the state of one holds the row of its queue.

The notifications of a sender's task are a queue; one without a task is alone in its own. A queue is
made by its first notification, and deleted with its last (`receiver.inbox.retention`).
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable, Mapping, Sequence
from datetime import datetime
from typing import Any, Final, NamedTuple

from pushkit.queue.leases import LEFT_BEHIND
from pushkit.queue.rules import GroupKey, PendingJob, Queue
from pushkit.queue.tables import QueueTables
from pushkit.storage.paging import read_record
from pushkit.storage.script import (
    Group,
    Row,
    Script,
    Statement,
    filled,
    from_micros,
    insert_rows,
    run_for_ids,
    run_for_rows,
    slices,
    to_micros,
)
from receiver.inbox.model import (
    Call,
    CallbackState,
    NewNotification,
    NotificationJob,
    StoredNotification,
)

INBOX: Final = QueueTables(
    queues="pushkit_inbox_queues", jobs="pushkit_inbox", queue_id="queue_id", place="place"
)
STATUS: Final = (
    f"CASE WHEN {INBOX.is_in_flight} THEN 'in_progress'"
    " WHEN state = 'pending' THEN 'received' ELSE state END"
)
"""The `InboxStatus` of a row, as SQL."""
PUT_OFF: Final = "put_off"
"""What `last_error` says of a notification that was put off."""

_STORE = (
    f"INSERT INTO pushkit_inbox ({', '.join(NewNotification._fields)}) VALUES $rows"
    " ON CONFLICT (sender, delivery_id) DO NOTHING RETURNING id, sender, delivery_id"
)

# --- its queues ----------------------------------------------------------------------------------


def queue_id_of(sender: str, task_id: str | None, delivery_id: str) -> str:
    """Return the id of a notification's queue. No name of a sender has a line break."""
    return f"{sender}\r{delivery_id}" if task_id is None else f"{sender}\n{task_id}"


def task_of(queue_id: str) -> str | None:
    """Return the task of a queue; None for a notification without one."""
    sender, separator, task_id = queue_id.partition("\n")
    return task_id if separator and "\r" not in sender else None


def group_of(sender: str) -> GroupKey:
    """Return what the queues of a sender share: their turns, and their part of what is claimed."""
    return ("", sender, sender)


def new_queue(queue_id: str, sender: str, now: int) -> Queue:
    """Return the queue that a notification is the first of.

    Its epoch begins with the time in microseconds: a queue of this id may have been deleted, and
    no process may take the new one for that.
    """
    return Queue(
        id=queue_id,
        tenant="",
        owner=sender,
        origin=sender,
        last_seq=0,
        due_at=None,
        lease_worker=None,
        leased_at=None,
        lease_until=None,
        epoch=now,
        sending_to=0,
        settled_to=0,
        abandoned=0,
        paused=0,
    )


# --- accepting -----------------------------------------------------------------------------------


def accepted_before(ids: Sequence[tuple[str, str]]) -> Script[dict[tuple[str, str], str]]:
    """Return the hash of the body under which each id was accepted, by sender and delivery id.

    An id is that of a notification, until this is deleted; then it is remembered by itself.
    """
    asked = "WITH asked (sender, delivery_id) AS (VALUES $rows) SELECT a.*, r.body_sha256"
    same = "r.sender = a.sender AND r.delivery_id = a.delivery_id"
    rows = yield from run_for_rows(
        f"{asked} FROM asked a CROSS JOIN pushkit_inbox r WHERE {same} UNION ALL"
        f" SELECT a.*, r.body_sha256 FROM asked a CROSS JOIN pushkit_forgotten r WHERE {same}",
        ids,
    )
    return {(row["sender"], row["delivery_id"]): row["body_sha256"] for row in rows}


def store(notifications: Sequence[NewNotification]) -> Script[dict[tuple[str, str], int]]:
    """Store notifications; return their ids, by sender and delivery id.

    One whose id another transaction has stored meanwhile is left out.
    """
    rows = yield from insert_rows(_STORE, filled(notifications))
    return {(sender, delivery_id): found for found, sender, delivery_id in rows}


class GroupItem(NamedTuple):
    """An item of one of the groups that share a transaction."""

    group: Group[Any, Any]
    item: Any
    is_first: bool = False  # whether this group comes before the others


def together(items: Sequence[GroupItem], /, *, wait: bool) -> Script[list[Any]]:
    """Run the scripts of several groups one after another, each with all of its items.

    A process stores and settles notifications in one transaction: in transactions of their own,
    those of one task that are stored and those that are settled would wait for each other.
    """
    by_group: dict[Group[Any, Any], list[int]] = {}
    for number, each in enumerate(items):
        by_group.setdefault(each.group, []).append(number)
    results: list[Any] = [None] * len(items)
    for group, numbers in sorted(by_group.items(), key=lambda one: not items[one[1][0]].is_first):
        found = yield from group([items[number].item for number in numbers], wait=wait)
        for number, result in zip(numbers, found, strict=True):
            results[number] = result
    return results


class PlaceInSequence(NamedTuple):
    """How the numbers of a notification follow those before it; see `Notification`."""

    missing: int = 0
    late: bool = False
    generation_before: int | None = None


class Sequences:
    """The last `seq` and the last generation of each sender, task and config; 0 for none."""

    def __init__(self) -> None:
        self._last: dict[tuple[str, str, str], tuple[int, int]] = {}
        self._changed: set[tuple[str, str, str]] = set()

    def read(self, keys: Iterable[tuple[str, str, str]]) -> Script[None]:
        """Read them."""
        unknown = [key for key in dict.fromkeys(keys) if key not in self._last]
        self._last.update(dict.fromkeys(unknown, (0, 0)))
        rows = yield from run_for_rows(
            "WITH asked (sender, task_id, config_id) AS (VALUES $rows) SELECT s.sender, s.task_id,"
            " s.config_id, s.last_seq, s.last_generation FROM asked"
            " CROSS JOIN pushkit_sequences s WHERE s.sender = asked.sender"
            " AND s.task_id = asked.task_id AND s.config_id = asked.config_id",
            unknown,
        )
        for sender, task_id, config_id, last_seq, last_generation in rows:
            self._last[sender, task_id, config_id] = last_seq, last_generation

    def compare(
        self, key: tuple[str, str, str], seq: int | None, generation: int | None
    ) -> PlaceInSequence:
        """Return how the numbers of a notification follow those before it, and note them."""
        last_seq, last = self._last[key]
        missing, before = 0, None
        if seq is not None:
            if seq <= last_seq:
                return PlaceInSequence(late=True)
            missing, last_seq = seq - last_seq - 1, seq
        if generation is not None:
            if seq is None and 1 < generation < last:  # or it counts anew: that cannot be told
                return PlaceInSequence(late=True)
            # Several updates may tell of one change.
            before = last if last and generation - last not in (0, 1) else None
            last = generation
        self._last[key] = last_seq, last
        self._changed.add(key)
        return PlaceInSequence(missing=missing, generation_before=before)

    def write(self, now: datetime) -> Script[None]:
        """Write the numbers that changed."""
        yield from insert_rows(
            "INSERT INTO pushkit_sequences (sender, task_id, config_id, last_seq, last_generation,"
            " updated_at) VALUES $rows ON CONFLICT (sender, task_id, config_id)"
            " DO UPDATE SET last_seq = excluded.last_seq,"
            " last_generation = excluded.last_generation, updated_at = excluded.updated_at",
            slices([(*key, *self._last[key], to_micros(now)) for key in sorted(self._changed)]),
        )


# --- calling back --------------------------------------------------------------------------------


def jobs_of(
    leased: Sequence[tuple[Queue, Sequence[PendingJob]]],
) -> Script[dict[int, NotificationJob]]:
    """Read the notifications of leased queues, with their calls so far, by id."""
    epochs = {job.id: queue.epoch for queue, jobs in leased for job in jobs}
    rows = yield from run_for_ids("SELECT * FROM pushkit_inbox WHERE id IN ($ids)", list(epochs))
    # Of every one: a row says nothing of the calls of an attempt that was broken off.
    called = yield from run_for_ids(
        "SELECT * FROM pushkit_callbacks WHERE notification_id IN ($ids)", list(epochs)
    )
    callbacks: defaultdict[int, dict[str, CallbackState]] = defaultdict(dict)
    for row in called:
        callbacks[row["notification_id"]][row["callback"]] = read_record(CallbackState, row)
    return {
        row["id"]: NotificationJob(
            notification=stored_notification(row),
            queue_id=row["queue_id"],
            seq=row["place"],
            epoch=epochs[row["id"]],
            since=from_micros(row["redriven_at"] or row["received_at"]),
            attempts=row["attempts"],
            redrives=row["redrives"],
            broken_off=row["last_error"] in LEFT_BEHIND,
            callbacks=callbacks[row["id"]],
        )
        for row in rows
    }


def record_calls(calls: Sequence[Call], *, now: datetime) -> Script[None]:
    """Record calls, at most one for each notification and callback; a done callback stays done."""
    moment = to_micros(now)
    yield from insert_rows(
        "INSERT INTO pushkit_callbacks"
        " (notification_id, callback, done, attempts, last_error, last_at) VALUES $rows"
        " ON CONFLICT (notification_id, callback) DO UPDATE"
        " SET attempts = pushkit_callbacks.attempts + 1, done = excluded.done,"
        " last_error = excluded.last_error, last_at = excluded.last_at"
        " WHERE pushkit_callbacks.done = 0",
        slices([(id_, name, int(error is None), 1, error, moment) for id_, name, error in calls]),
    )


def record_late_calls(calls: Sequence[Call], *, now: datetime) -> Script[None]:
    """Record calls of notifications that may be settled already, unless they are deleted."""
    rows = yield from run_for_ids(
        "SELECT id FROM pushkit_inbox WHERE id IN ($ids) FOR UPDATE",
        [call.notification_id for call in calls],
    )
    there = {row["id"] for row in rows}
    yield from record_calls([call for call in calls if call.notification_id in there], now=now)


class Change(NamedTuple):
    """What a result changes in the row of its notification."""

    state: str  # the next one
    attempts: int  # how many more
    error: str | None = None
    not_before: int | None = None  # when it is due again
    is_unmatched: bool = False


def store_results(
    changes: Sequence[tuple[NotificationJob, Change]], *, now: datetime
) -> Script[set[int]]:
    """Store results; return the ids of the notifications that were still those of this lease.

    The caller holds the rows of their queues, and has compared the epochs.
    """
    alike: dict[tuple[Change, int], list[int]] = {}
    for job, change in changes:
        alike.setdefault((change, job.redrives), []).append(job.notification.id)
    moment, stored = to_micros(now), set[int]()
    for (change, redrives), ids in alike.items():
        rows = yield from run_for_ids(
            "UPDATE pushkit_inbox SET state = $1, attempts = attempts + CAST($2 AS INTEGER),"
            " last_error = $3, not_before = COALESCE($4, not_before), finished_at = $5,"
            " scheduled_at = CASE WHEN CAST($4 AS BIGINT) IS NULL THEN scheduled_at ELSE $6 END,"
            " unmatched = $7 WHERE state = 'pending' AND redrives = $8 AND id IN ($ids)"
            " RETURNING id",
            ids,
            *(change.state, change.attempts, change.error, change.not_before),
            None if change.state == "pending" else moment,
            *(moment, int(change.is_unmatched), redrives),
        )
        stored.update(row["id"] for row in rows)
    return stored


def note_death(notification_id: int, error: str, due: int | None, *, now: int) -> Script[None]:
    """Note that a process ended with a notification; it is due again at a time, or as it was."""
    yield Statement(
        "UPDATE pushkit_inbox SET last_error = $2, attempts = attempts + 1,"
        " not_before = COALESCE($3, not_before),"
        " scheduled_at = CASE WHEN CAST($3 AS BIGINT) IS NULL THEN scheduled_at ELSE $4 END"
        " WHERE id = $1 AND state = 'pending'",
        (notification_id, error, due, now),
    )


# --- waiting for a task --------------------------------------------------------------------------


def of_task(
    task_id: str, *, sender: str, after: int = 0, limit: int = 100
) -> Script[list[StoredNotification]]:
    """Return a task's notifications after an id, in the order of acceptance."""
    rows = yield Statement(
        "SELECT * FROM pushkit_inbox WHERE task_id = $1 AND id > $2 AND sender = $3"
        " ORDER BY id LIMIT CAST($4 AS BIGINT)",
        (task_id, after, sender, limit),
    )
    return [stored_notification(row) for row in rows]


def last_wanted(limit: int, *, max_bytes: int) -> Script[list[bytes]]:
    """Return the bodies, if not larger, of those that a callback had among the newest done."""
    rows = yield Statement(
        "SELECT body FROM (SELECT body, unmatched FROM pushkit_inbox WHERE state = 'done'"
        " ORDER BY finished_at DESC LIMIT CAST($1 AS BIGINT)) newest"
        " WHERE unmatched = 0 AND LENGTH(body) <= $2",
        (limit, max_bytes),
    )
    return [row["body"] for row in rows]


def with_news(seen: Mapping[tuple[str, str], int]) -> Script[list[tuple[str, str]]]:
    """Return the tasks, by sender and id, that have a notification after the id seen."""
    rows = yield from run_for_rows(
        "WITH seen (sender, task_id, after) AS (VALUES $rows)"
        " SELECT DISTINCT sender, task_id FROM seen WHERE EXISTS (SELECT 1"
        " FROM pushkit_inbox i WHERE i.task_id = seen.task_id"
        " AND i.id > CAST(seen.after AS BIGINT) AND i.sender = seen.sender)",
        [(*key, str(after)) for key, after in seen.items()],
    )
    return [(row["sender"], row["task_id"]) for row in rows]


def is_readable() -> Script[None]:
    """Read a row of the inbox, if there is one: a probe."""
    yield Statement("SELECT 1 FROM pushkit_inbox LIMIT 1")


def stored_notification(row: Row) -> StoredNotification:
    """Return a row of the inbox as a notification."""
    return StoredNotification(
        id=row["id"],
        sender=row["sender"],
        kid=row["kid"],
        delivery_id=row["delivery_id"],
        task_id=row["task_id"],
        config_id=row["config_id"],
        seq=row["seq"],
        missing=row["missing"],
        late=bool(row["late"]),
        version=row["version"],
        generation_before=row["generation_before"],
        issued_at=from_micros(row["issued_at"]),
        received_at=from_micros(row["received_at"]),
        body=bytes(row["body"]),
        traceparent=row["traceparent"],
    )
