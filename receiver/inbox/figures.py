"""The figures of an overview of the inbox, as scripts that read a bounded number of rows."""

from __future__ import annotations

from datetime import datetime, timedelta
from typing import Final

from pushkit.record import record
from pushkit.storage.paging import AtMost, count_at_most, read_record
from pushkit.storage.script import Script, Statement, from_micros, moment_or_none, to_micros
from receiver.inbox.schema import UNFINISHED

_MOST_ARRIVALS: Final = 2000
_MOST_READ: Final = 10_000  # from an index alone
_MOST_ROWS: Final = 250


@record(frozen=True, slots=True, kw_only=True)
class InboxFigures:
    """The inbox at one moment; the numbers count notifications."""

    now: datetime
    received: AtMost  # waiting for their callbacks
    in_progress: AtMost
    dead: AtMost
    unmatched: AtMost  # that no callback wanted
    incomplete: AtMost  # that arrived late, or after a gap
    oldest_unfinished_at: datetime | None  # when the oldest of the first 10,000 was accepted
    # Since when the oldest one that is due waits for a claim; None if nothing is due.
    due_since: datetime | None
    # When recent ones were accepted, and when they were finished; newest first.
    arrivals: tuple[tuple[datetime, datetime | None], ...]
    arrivals_since: datetime  # the moment after which `arrivals` has all that were accepted


@record(frozen=True, slots=True, kw_only=True)
class CallbackTrouble:
    """A callback that failed in one way."""

    callback: str
    error: str  # the type of what it raised, or `timed_out`
    waiting: int  # how many notifications it will be called with again
    dead: int  # how many notifications are dead letters because of it
    last_at: datetime | None  # when it last failed
    newest: int  # the newest of these notifications


def inbox_figures(now: datetime, *, within: timedelta) -> Script[InboxFigures]:
    """Return the inbox at this moment, and what was accepted within a time before it."""
    unfinished = yield from count_at_most(f"pushkit_inbox WHERE {UNFINISHED}")
    in_progress = yield from count_at_most("pushkit_inbox WHERE status = 'in_progress'")
    dead = yield from count_at_most("pushkit_inbox WHERE status = 'dead'")
    unmatched = yield from count_at_most("pushkit_inbox WHERE unmatched = 1")
    incomplete = yield from count_at_most("pushkit_inbox WHERE missing > 0 OR late = 1")
    oldest = yield Statement(
        "SELECT received_at AS moment FROM pushkit_inbox WHERE id = (SELECT MIN(id) FROM"
        f" (SELECT id FROM pushkit_inbox WHERE {UNFINISHED} LIMIT {_MOST_READ}) u)"
    )
    due = yield Statement(
        "SELECT MIN(not_before) AS moment FROM (SELECT not_before FROM pushkit_inbox"
        f" WHERE head = 1 AND status = 'received' LIMIT {_MOST_READ}) h WHERE not_before <= $1",
        (to_micros(now),),
    )
    newest = yield Statement(
        "SELECT received_at, finished_at FROM pushkit_inbox ORDER BY id DESC"
        f" LIMIT {_MOST_ARRIVALS}"
    )
    found = [
        (from_micros(row["received_at"]), moment_or_none(row["finished_at"])) for row in newest
    ]
    since = now - within
    is_all = len(found) < _MOST_ARRIVALS or found[-1][0] < since
    return InboxFigures(
        now=now,
        received=AtMost(max(unfinished.number - in_progress.number, 0), unfinished.more),
        in_progress=in_progress,
        dead=dead,
        unmatched=unmatched,
        incomplete=incomplete,
        oldest_unfinished_at=moment_or_none(oldest[0]["moment"]) if oldest else None,
        due_since=moment_or_none(due[0]["moment"]),
        arrivals=tuple(each for each in found if each[0] >= since),
        arrivals_since=since if is_all else found[-1][0],
    )


def callback_troubles() -> Script[list[CallbackTrouble]]:
    """Return the callbacks that fail, by error: for the newest dead letters, and for retries."""
    rows = yield Statement(
        "SELECT c.callback, c.last_error AS error, MAX(c.last_at) AS last_at,"
        " MAX(n.id) AS newest, SUM(n.dead) AS dead, COUNT(*) - SUM(n.dead) AS waiting FROM ("
        f"SELECT id, 1 AS dead FROM (SELECT id FROM pushkit_inbox WHERE status = 'dead'"
        f" ORDER BY finished_at DESC LIMIT {_MOST_ROWS}) d"
        " UNION ALL SELECT id, 0 AS dead FROM (SELECT id, attempts FROM pushkit_inbox"
        f" WHERE head = 1 AND status = 'received' LIMIT {_MOST_ROWS}) w WHERE attempts > 0"
        ") n JOIN pushkit_callbacks c ON c.notification_id = n.id"
        " WHERE c.done = 0 AND c.last_error IS NOT NULL"
        " GROUP BY c.callback, c.last_error ORDER BY COUNT(*) DESC, c.callback, c.last_error"
        " LIMIT 200"
    )
    return [read_record(CallbackTrouble, row) for row in rows]
