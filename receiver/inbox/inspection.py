"""Scripts for operators: reading the inbox, and redriving dead letters."""

from __future__ import annotations

import functools
from collections import defaultdict
from collections.abc import Sequence
from datetime import datetime, timedelta
from typing import TYPE_CHECKING, Final

from pushkit.a2a import WireVersion
from pushkit.queue.leases import reschedule
from pushkit.queue.tables import UNFINISHED, ListedQueue
from pushkit.record import field, record
from pushkit.storage.paging import (
    MOST_COUNTED,
    AtMost,
    Index,
    Listing,
    count_at_most,
    read_record,
)
from pushkit.storage.script import (
    Row,
    Script,
    Statement,
    from_micros,
    moment_or_none,
    run_for_ids,
    to_micros,
)
from receiver.inbox.model import CallbackState, InboxStatus
from receiver.inbox.store import INBOX, STATUS, task_of

if TYPE_CHECKING:
    from pushkit.telemetry.metrics import Gauges


@record(frozen=True, slots=True, kw_only=True)
class InboxFilter:
    """Which notifications to return; None stands for any."""

    status: InboxStatus | None = None
    sender: str | None = None  # the name of the trusted sender
    task_id: str | None = None
    unmatched: bool = False  # only those that are done because no callback wanted them


@record(frozen=True, slots=True, kw_only=True)
class NotificationSummary:
    """A notification without its body; the names are those of `Notification`.

    `attempts` counts the attempts that ended since it was accepted, or redriven.
    """

    id: int
    sender: str
    delivery_id: str
    task_id: str | None
    config_id: str | None
    seq: int | None
    missing: int
    late: bool
    generation_before: int | None
    version: WireVersion  # that the body was read in
    kid: str
    body_bytes: int
    status: InboxStatus
    attempts: int
    issued_at: datetime
    received_at: datetime
    redriven_at: datetime | None
    not_before: datetime
    finished_at: datetime | None
    last_error: str | None
    unmatched: bool


@record(frozen=True, slots=True, kw_only=True)
class NotificationReport:
    """One notification with its body and its calls."""

    notification: NotificationSummary
    body: bytes = field(repr=False)
    callbacks: tuple[CallbackState, ...]


@record(frozen=True, slots=True, kw_only=True)
class SenderStats:
    """Counts of one sender's notifications, among those that the inbox still has."""

    sender: str
    unfinished: int  # received or in progress
    dead: int
    missing: int  # how many updates never arrived, by the gaps in `seq`
    late: int  # how many arrived after one with a higher `seq`
    unmatched: int  # how many no callback wanted


@record(frozen=True, slots=True)
class InboxGap:
    """Updates of a sender that are not in the inbox."""

    task_id: str
    config_id: str
    from_seq: int
    to_seq: int | None  # None for all after `from_seq`: the sender knows whether there are any


@record(frozen=True, slots=True, kw_only=True)
class InboxStats:
    """The inbox in numbers, each counted up to a bound: whether notifications are called back."""

    now: datetime
    received: AtMost  # waiting for their callbacks
    in_progress: AtMost
    done: AtMost
    dead: AtMost
    unmatched: AtMost  # that no callback wanted
    incomplete: AtMost  # that arrived late, or after a gap
    # When the oldest of so many unfinished ones was accepted; None if there is none.
    oldest_unfinished_at: datetime | None
    # Since when the oldest one that is due waits for a claim; None if nothing is due.
    due_since: datetime | None
    senders: tuple[SenderStats, ...]  # by name; a sender whose counts are all zero is left out
    # When recent ones were accepted, and when every callback had had them; newest first.
    arrivals: tuple[tuple[datetime, datetime | None], ...]
    arrivals_since: datetime  # the moment after which `arrivals` has all that were accepted

    @property
    def statuses(self) -> dict[InboxStatus, int]:
        """How many notifications have each status."""
        return {status: getattr(self, status.value).number for status in InboxStatus}


@record(frozen=True, slots=True, kw_only=True)
class CallbackTrouble:
    """A callback that failed in one way."""

    callback: str
    error: str  # the type of what it raised, or `timed_out`
    waiting: int  # how many notifications it will be called with again
    dead: int  # how many notifications are dead letters because of it
    last_at: datetime | None  # when it last failed
    newest: int  # the newest of these notifications


@record(frozen=True, slots=True, kw_only=True)
class InboxQueue(ListedQueue):
    """A queue of notifications; its id is sender and task, or a delivery id without a task."""

    sender: str
    task_id: str | None


_SUMMARY = (
    "id, sender, delivery_id, task_id, config_id, seq, missing, late, generation_before, version,"
    f" kid, body_bytes, {STATUS} AS status, attempts, issued_at, received_at, redriven_at,"
    " not_before, finished_at, last_error, unmatched"
)
_WHERE_STATUS = {
    InboxStatus.RECEIVED: f"({UNFINISHED} AND NOT {INBOX.is_in_flight})",
    InboxStatus.IN_PROGRESS: INBOX.is_in_flight,
    InboxStatus.DONE: "state = 'done'",
    InboxStatus.DEAD: "state = 'dead'",
}
_REDRIVABLE = "(state = 'dead' OR unmatched = 1)"
_MOST_ARRIVALS: Final = 2000
_MOST_ROWS: Final = 250
_UNMATCHED: Final = "unmatched = 1"

NOTIFICATIONS: Final = Listing(
    by=InboxFilter,
    table="pushkit_inbox",
    select=f"SELECT {_SUMMARY} FROM pushkit_inbox",
    read=functools.partial(read_record, NotificationSummary),
    columns="id, sender, task_id, state, waits, queue_id, place, unmatched",
    conditions={"status": _WHERE_STATUS, "unmatched": {True: _UNMATCHED}},
    indexes=(
        Index(("task_id",)),
        Index((_UNMATCHED,)),
        Index((_WHERE_STATUS[InboxStatus.DEAD],)),
        Index((_WHERE_STATUS[InboxStatus.RECEIVED],), among=UNFINISHED),
        Index((_WHERE_STATUS[InboxStatus.IN_PROGRESS],), among=UNFINISHED),
    ),
)


def show(notification_id: int) -> Script[NotificationReport | None]:
    """Return one notification with its calls; None if there is no such notification."""
    rows = yield Statement(
        f"SELECT {_SUMMARY}, body FROM pushkit_inbox WHERE id = $1", (notification_id,)
    )
    if not rows:
        return None
    callbacks = yield Statement(
        "SELECT * FROM pushkit_callbacks WHERE notification_id = $1 ORDER BY callback",
        (notification_id,),
    )
    return NotificationReport(
        notification=read_record(NotificationSummary, rows[0]),
        body=bytes(rows[0]["body"]),
        callbacks=tuple(read_record(CallbackState, row) for row in callbacks),
    )


def redrive(ids: Sequence[int], now: datetime) -> Script[list[int]]:
    """Redrive dead letters, and notifications that no callback wanted; return their ids.

    Attempts and age begin anew, and newer ones of the same task wait. A callback that had the
    notification does not get it again.
    """
    rows = yield from run_for_ids(
        f"SELECT id, queue_id FROM pushkit_inbox WHERE {_REDRIVABLE} AND id IN ($ids)", sorted(ids)
    )
    queues = yield from INBOX.lock({row["queue_id"] for row in rows})
    redriven = yield from run_for_ids(
        f"UPDATE pushkit_inbox SET state = 'pending', waits = {INBOX.is_leased},"
        " redrives = redrives + 1, attempts = 0, not_before = $1, scheduled_at = $1,"
        " redriven_at = $1, finished_at = NULL, last_error = NULL, unmatched = 0"
        f" WHERE {_REDRIVABLE} AND id IN ($ids) RETURNING id",
        [row["id"] for row in rows],
        to_micros(now),
    )
    yield from reschedule(INBOX, [*queues.values()], to_micros(now))
    return sorted(int(row["id"]) for row in redriven)


def queues(*, after: str | None, limit: int) -> Script[list[InboxQueue]]:
    """Return a page of queues that are leased or due, now or later, by id."""

    def read(row: Row, waiting: AtMost) -> InboxQueue:
        return read_record(InboxQueue, row, task_id=task_of(row["id"]), waiting=waiting)

    return INBOX.listed(read, "q.owner AS sender", after=after, limit=limit)


def gaps(sender: str, task_id: str | None) -> Script[list[InboxGap]]:
    """Return what a sender's inbox lacks, by the numbers that did arrive, of a task or of all."""
    rows = yield Statement(
        "SELECT task_id, COALESCE(config_id, '') AS config_id, seq - missing AS first,"
        " seq - 1 AS last FROM pushkit_inbox i WHERE sender = $1 AND missing > 0"
        " AND task_id = COALESCE($2, task_id) AND missing > (SELECT COUNT(*) FROM pushkit_inbox o"
        " WHERE o.task_id = i.task_id AND o.sender = i.sender"
        " AND COALESCE(o.config_id, '') = COALESCE(i.config_id, '')"
        " AND o.seq BETWEEN i.seq - i.missing AND i.seq - 1)"
        " UNION ALL SELECT task_id, config_id, last_seq + 1, NULL FROM pushkit_sequences"
        " WHERE sender = $1 AND task_id = COALESCE($2, task_id) ORDER BY 1, 2, 3",
        (sender, task_id),
    )
    return [InboxGap(row["task_id"], row["config_id"], row["first"], row["last"]) for row in rows]


def gauges(now: datetime) -> Script[Gauges]:
    """Return the inbox's metrics."""
    counts = yield from INBOX.count_jobs("received", "in_progress", MOST_COUNTED)
    since = yield from _oldest(MOST_COUNTED)
    age = 0.0 if since is None else max((now - since).total_seconds(), 0.0)
    numbers: dict[tuple[str, ...], float]
    numbers = {(name,): float(each.number) for name, each in counts.items()}
    return {"receiver_inbox": numbers, "receiver_oldest_unfinished_seconds": {(): age}}


def stats(now: datetime, *, within: timedelta, at_most: int) -> Script[InboxStats]:
    """Return the inbox in numbers, and what was accepted within a time before this moment.

    Args:
        now: The current time.
        within: How recently notifications were accepted, to be among `arrivals`.
        at_most: Up to how many notifications each number counts.
    """
    counts = yield from INBOX.count_jobs("received", "in_progress", at_most)
    done = yield from count_at_most(at_most, "pushkit_inbox WHERE state = 'done'")
    unmatched = yield from count_at_most(at_most, "pushkit_inbox WHERE unmatched = 1")
    incomplete = yield from count_at_most(at_most, "pushkit_inbox WHERE missing > 0 OR late = 1")
    due = yield Statement(
        "SELECT MIN(due_at) AS moment FROM pushkit_inbox_queues"
        " WHERE due_at IS NOT NULL AND lease_worker IS NULL AND due_at <= $1",
        (to_micros(now),),
    )
    newest = yield Statement(
        "SELECT received_at, CASE WHEN state = 'done' AND unmatched = 0 THEN finished_at END"
        f" AS done_at FROM pushkit_inbox ORDER BY id DESC LIMIT {_MOST_ARRIVALS}"
    )
    found = [(from_micros(row["received_at"]), moment_or_none(row["done_at"])) for row in newest]
    since = now - within
    is_all = len(found) < _MOST_ARRIVALS or found[-1][0] < since
    return InboxStats(
        now=now,
        **counts,
        done=done,
        unmatched=unmatched,
        incomplete=incomplete,
        oldest_unfinished_at=(yield from _oldest(at_most)),
        due_since=moment_or_none(due[0]["moment"]),
        senders=(yield from _senders(at_most)),
        arrivals=tuple(each for each in found if each[0] >= since),
        arrivals_since=since if is_all else found[-1][0],
    )


def _oldest(at_most: int) -> Script[datetime | None]:
    """Return when the oldest of so many unfinished notifications was accepted."""
    rows = yield Statement(
        "SELECT received_at AS moment FROM pushkit_inbox WHERE id = (SELECT MIN(id) FROM"
        f" (SELECT id FROM pushkit_inbox WHERE {UNFINISHED} LIMIT {at_most}) u)"
    )
    return moment_or_none(rows[0]["moment"]) if rows else None


def _senders(at_most: int) -> Script[tuple[SenderStats, ...]]:
    names = ("unfinished", "dead", "missing", "late", "unmatched")
    counts: dict[str, dict[str, int]] = defaultdict(lambda: dict.fromkeys(names, 0))
    for name, number, condition in (
        # Every sender has a name: that makes SQLite use the index by sender.
        ("unfinished", "1", f"{UNFINISHED} AND sender > ''"),
        ("dead", "1", "state = 'dead'"),
        ("missing", _COUNTED, "missing > 0 OR late = 1"),
        ("late", "late", "missing > 0 OR late = 1"),
        ("unmatched", "1", "unmatched = 1"),
    ):
        # Not by the column itself: SQLite would read every row, in the order of an index by
        # sender, rather than those of the condition's index.
        rows = yield Statement(
            f"SELECT sender || '' AS sender, CAST(SUM(number) AS BIGINT) AS found FROM"
            f" (SELECT sender, {number} AS number FROM pushkit_inbox WHERE {condition}"
            f" LIMIT {at_most}) counted GROUP BY 1"
        )
        for row in rows:
            counts[row["sender"]][name] = row["found"]
    return tuple(SenderStats(sender=sender, **counts[sender]) for sender in sorted(counts))


def callback_troubles() -> Script[list[CallbackTrouble]]:
    """Return the callbacks that fail, by error: for the newest dead letters, and for retries."""
    rows = yield Statement(
        "SELECT c.callback, c.last_error AS error, MAX(c.last_at) AS last_at,"
        " MAX(n.id) AS newest, SUM(n.dead) AS dead, COUNT(*) - SUM(n.dead) AS waiting FROM ("
        f"SELECT id, 1 AS dead FROM (SELECT id FROM pushkit_inbox WHERE state = 'dead'"
        f" ORDER BY finished_at DESC LIMIT {_MOST_ROWS}) d"
        " UNION ALL SELECT id, 0 AS dead FROM (SELECT i.id, i.attempts FROM pushkit_inbox_queues q"
        " JOIN pushkit_inbox i ON i.queue_id = q.id AND i.state = 'pending'"
        " AND i.place = (SELECT MIN(place) FROM pushkit_inbox WHERE queue_id = q.id"
        f" AND state = 'pending') WHERE q.due_at IS NOT NULL AND q.lease_worker IS NULL"
        f" LIMIT {_MOST_ROWS}) w"
        " WHERE attempts > 0"
        ") n JOIN pushkit_callbacks c ON c.notification_id = n.id"
        " WHERE c.done = 0 AND c.last_error IS NOT NULL"
        " GROUP BY c.callback, c.last_error ORDER BY COUNT(*) DESC, c.callback, c.last_error"
        " LIMIT 200"
    )
    return [read_record(CallbackTrouble, row) for row in rows]


# A `seq` has 63 bits: a sender that skips most of them must not make the sum overflow.
_COUNTED: Final = "CASE WHEN missing < 1000000000 THEN missing ELSE 1000000000 END"
