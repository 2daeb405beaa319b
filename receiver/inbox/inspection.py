"""Looking at the inbox, and bringing dead letters back; as scripts."""

from __future__ import annotations

import functools
from collections import defaultdict
from collections.abc import Sequence
from dataclasses import replace
from datetime import datetime, timedelta
from typing import Final

from pushkit.record import field, record
from pushkit.storage.paging import (
    Page,
    Search,
    conditions,
    count,
    find_records,
    narrowed,
    read_record,
    rows_after,
)
from pushkit.storage.script import Script, SqlValue, Statement, among, moment_or_none, to_micros
from receiver.inbox.model import CallbackState, InboxStatus
from receiver.inbox.store import callback_state


@record(frozen=True, slots=True, kw_only=True)
class InboxFilter:
    """Which notifications; None is any."""

    status: InboxStatus | None = None  # where it stands
    sender: str | None = None  # the name of the trusted sender
    task_id: str | None = None  # the task
    unmatched: bool = False  # only what is done because no callback wanted it

    def where(self, *, after: int = 0) -> tuple[str, tuple[str, ...]]:
        """Return the conditions in SQL, and their parameters, numbered behind `after` others."""
        more = ["unmatched = 1"] if self.unmatched else []
        if self.status is not None:  # spelt out: the indexes are for one status each
            more.append(f"status = '{self.status}'")
        return conditions({"sender": self.sender, "task_id": self.task_id}, *more, after=after)


@record(frozen=True, slots=True, kw_only=True)
class NotificationSummary:
    """A notification without its body; the names are those of `Notification`.

    `attempts` counts how often it was handed out since it was accepted, or redriven.
    """

    id: int
    sender: str
    delivery_id: str
    task_id: str | None
    config_id: str | None
    seq: int | None
    missing: int
    late: bool
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
    """One notification with everything that is known of it."""

    notification: NotificationSummary
    body: bytes = field(repr=False)
    callbacks: tuple[CallbackState, ...]


@record(frozen=True, slots=True, kw_only=True)
class SenderStats:
    """One sender's notifications, of those that are in the inbox still."""

    sender: str
    unfinished: int  # received or in progress
    dead: int
    missing: int  # how many updates never came, by the gaps in `seq`
    late: int  # how many came after one with a higher `seq`
    unmatched: int  # how many no callback wanted


@record(frozen=True, slots=True, kw_only=True)
class InboxStats:
    """The inbox in numbers."""

    statuses: dict[InboxStatus, int]  # how many notifications stand where
    # Since when the oldest unfinished one waits; None if none does.
    oldest_unfinished_at: datetime | None
    senders: tuple[SenderStats, ...]  # by name, those of whom there is something to say


@record(frozen=True, slots=True, kw_only=True)
class Backlog:
    """The inbox, as far as it is not done."""

    statuses: dict[str, int]  # how many notifications are received, in progress and dead
    oldest: timedelta  # how long the oldest unfinished one waits; zero if none does


_SUMMARY = (
    "id, sender, delivery_id, task_id, config_id, seq, missing, late, kid,"
    " LENGTH(body) AS body_bytes, status, attempts, issued_at, received_at, redriven_at,"
    " not_before, finished_at, last_error, unmatched"
)
_SUMMARIES = f"SELECT {_SUMMARY} FROM pushkit_inbox"
_NOT_DONE = (InboxStatus.RECEIVED, InboxStatus.IN_PROGRESS, InboxStatus.DEAD)
_UNFINISHED = "status IN ('received', 'in_progress')"
_FILTERED = "id, sender, task_id, status, unmatched"
_REDRIVABLE = "(status = 'dead' OR unmatched = 1)"


class Inspection:
    """Scripts for operators."""

    def find(
        self, wanted: InboxFilter, *, after: int, limit: int
    ) -> Script[list[NotificationSummary]]:
        """Return a page of notifications, by id: oldest first."""
        rows = yield from rows_after(_SUMMARIES, wanted, after, limit=limit)
        return [read_record(NotificationSummary, row) for row in rows]

    def browse(
        self, wanted: InboxFilter, *, before: int | None, limit: int
    ) -> Script[Page[NotificationSummary]]:
        """Return a page of notifications, newest first, of any number in the same time."""
        search = yield from _search(wanted, before)
        read = functools.partial(read_record, NotificationSummary)
        return (yield from find_records(search, _SUMMARIES, read, limit=limit))

    def show(self, notification_id: int) -> Script[NotificationReport | None]:
        """Return one notification with its callbacks; None if there is no such notification."""
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
            callbacks=tuple(map(callback_state, callbacks)),
        )

    def redrivable_tasks(self, ids: Sequence[int]) -> Script[list[tuple[str, str]]]:
        """Return sender and id of the tasks to be held for `redrive`, in order."""
        found: set[tuple[str, str]] = set()
        for clause, values in among(sorted(ids)):
            rows = yield Statement(
                "SELECT DISTINCT sender, task_id FROM pushkit_inbox"
                f" WHERE {_REDRIVABLE} AND task_id IS NOT NULL AND id {clause}",
                values,
            )
            found.update((row["sender"], row["task_id"]) for row in rows)
        return sorted(found)

    def redrive(
        self, ids: Sequence[int], tasks: Sequence[tuple[str, str]], now: datetime
    ) -> Script[list[int]]:
        """Let dead letters, and what no callback wanted, be handed out again; return those.

        Attempts and age begin anew. A callback that had the notification does not get it again.
        Whoever runs this holds the tasks, which `redrivable_tasks` found.
        """
        redriven: list[int] = []
        for clause, values in among(sorted(ids), after=1):
            rows = yield Statement(
                "UPDATE pushkit_inbox SET status = 'received', attempts = 0, not_before = $1,"
                " redriven_at = $1, finished_at = NULL, last_error = NULL, unmatched = 0,"
                " head = CASE WHEN task_id IS NULL THEN 1 ELSE 0 END"
                f" WHERE {_REDRIVABLE} AND id {clause} RETURNING id",
                (to_micros(now), *values),
            )
            redriven += [int(row["id"]) for row in rows]
        for sender, task_id in tasks:
            yield from self._mark_oldest(sender, task_id)
        return sorted(redriven)

    def _mark_oldest(self, sender: str, task_id: str) -> Script[None]:
        """Offer the oldest of a task; what is in progress keeps the mark until it is settled."""
        # Also of what is in progress: a head that is being claimed, or given back because its lease
        # has ended, is waited for here, and then stays what it is until this transaction ends.
        yield Statement(
            "UPDATE pushkit_inbox SET head = 0 WHERE sender = $1 AND task_id = $2"
            f" AND {_UNFINISHED} AND head = 1",
            (sender, task_id),
        )
        yield Statement(
            "UPDATE pushkit_inbox SET head = 1 WHERE id = (SELECT id FROM pushkit_inbox"
            f" WHERE sender = $1 AND task_id = $2 AND {_UNFINISHED}"
            " ORDER BY CASE WHEN status = 'in_progress' THEN 0 ELSE 1 END, id LIMIT 1)",
            (sender, task_id),
        )

    def backlog(self, now: datetime) -> Script[Backlog]:
        """Return what is not done, by the indexes that are for it."""
        statuses, since = yield from self._standing(*_NOT_DONE)
        waits = timedelta(0) if since is None else max(now - since, timedelta(0))
        return Backlog(
            statuses={str(each): found for each, found in statuses.items()}, oldest=waits
        )

    def stats(self) -> Script[InboxStats]:
        """Return the inbox in numbers."""
        statuses, since = yield from self._standing(*InboxStatus)
        senders = yield from self._senders()
        return InboxStats(statuses=statuses, oldest_unfinished_at=since, senders=senders)

    def _standing(
        self, *statuses: InboxStatus
    ) -> Script[tuple[dict[InboxStatus, int], datetime | None]]:
        """Return how many stand where, and since when the oldest unfinished one waits."""
        found: dict[InboxStatus, int] = {}
        unfinished = yield from count(f"pushkit_inbox WHERE {_UNFINISHED}")
        for each in statuses:  # one by one: each has an index of its own, without the bodies
            found[each] = unfinished
            if each is not InboxStatus.RECEIVED:
                found[each] = yield from count(f"pushkit_inbox WHERE status = '{each}'")
        found[InboxStatus.RECEIVED] -= found[InboxStatus.IN_PROGRESS]
        oldest = yield Statement(
            f"SELECT MIN(received_at) AS moment FROM pushkit_inbox WHERE {_UNFINISHED}"
        )
        return found, moment_or_none(oldest[0]["moment"])

    def _senders(self) -> Script[tuple[SenderStats, ...]]:
        names = ("unfinished", "dead", "missing", "late", "unmatched")
        counts: dict[str, dict[str, int]] = defaultdict(lambda: dict.fromkeys(names, 0))
        for name, what, condition in (
            ("unfinished", "COUNT(*)", _UNFINISHED),
            ("dead", "COUNT(*)", "status = 'dead'"),
            ("missing", f"CAST(SUM({_COUNTED}) AS BIGINT)", "missing > 0 OR late = 1"),
            ("late", "CAST(SUM(late) AS BIGINT)", "missing > 0 OR late = 1"),
            ("unmatched", "COUNT(*)", "unmatched = 1"),
        ):
            rows = yield Statement(
                f"SELECT sender, {what} AS found FROM pushkit_inbox WHERE {condition}"
                " GROUP BY sender"
            )
            for row in rows:
                counts[row["sender"]][name] = row["found"]
        return tuple(SenderStats(sender=sender, **counts[sender]) for sender in sorted(counts))


def _search(wanted: InboxFilter, before: int | None) -> Script[Search]:
    """Return what a page looks through, newest first, and what is left to be filtered.

    Each begins with the index that has few others.
    """
    rows, where = "pushkit_inbox", "id < $1"
    named: tuple[SqlValue, ...] = (before or 2**62,)
    if wanted.task_id is not None:
        where, named = f"task_id = $2 AND {where}", (*named, wanted.task_id)
        wanted = replace(wanted, task_id=None)
    elif wanted.unmatched:
        where, wanted = f"unmatched = 1 AND {where}", replace(wanted, unmatched=False)
    elif wanted.status is InboxStatus.DEAD:
        where, wanted = f"status = 'dead' AND {where}", replace(wanted, status=None)
    elif wanted.status in (InboxStatus.RECEIVED, InboxStatus.IN_PROGRESS):
        rows = yield from narrowed(rows, _UNFINISHED, _FILTERED)
    looked_at = f"FROM {rows} WHERE {where}"
    return Search(looked_at=looked_at, named=named, columns=_FILTERED, wanted=wanted)


# A `seq` has 63 bits, and a sender that jumps about in them must not make the sum overflow.
_COUNTED: Final = "CASE WHEN missing < 1000000000 THEN missing ELSE 1000000000 END"
