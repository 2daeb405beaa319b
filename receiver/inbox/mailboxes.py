"""The mailboxes: notifications that clients fetch and settle themselves, as jobs of queues.

A mailbox is a callback that somebody else runs. Its callback keeps each notification here; the
body stays in the inbox, which deletes none that a mailbox still has. A queue is a task of a
mailbox. It is leased to whoever fetches its first notification, and the epoch of that lease is in
the receipt: so any process may settle it, and none after the lease was given to somebody else.

| event | from | to | besides |
|---|---|---|---|
| kept | nothing | pending | the next place in its queue |
| handed out | pending | pending | its queue is leased; `epoch` |
| acked | pending | done | no lease |
| nacked, or the lease ended | pending | pending | one attempt more; waits as the schedule says |
| given up | pending | dead | one attempt more |
| redriven | dead | pending | attempts and age begin anew |
| dropped by an operator | pending, dead | done | no lease |
"""

from __future__ import annotations

import functools
from collections.abc import Sequence
from datetime import datetime, timedelta
from enum import Enum, StrEnum
from typing import Final, NamedTuple

from pushkit.errors import InboundError
from pushkit.queue.leases import Claims, reschedule
from pushkit.queue.rules import PendingJob, Queue, appended, released
from pushkit.queue.tables import QueueTables
from pushkit.record import record
from pushkit.scheduling.retry import RetryPolicy, next_attempt
from pushkit.storage.database import Database
from pushkit.storage.paging import read_record
from pushkit.storage.quota import Quota
from pushkit.storage.script import (
    DEFERRED,
    Deferred,
    Row,
    Script,
    Statement,
    count,
    filled,
    from_micros,
    insert_rows,
    run_for_ids,
    run_for_rows,
    to_micros,
)
from receiver.inbox.model import StoredNotification
from receiver.inbox.store import group_of, new_queue, stored_notification

MAILBOXES: Final = QueueTables(
    queues="pushkit_mailbox_queues", jobs="pushkit_mailbox", queue_id="queue_id", place="place"
)
_MOST_EXPIRED: Final = 64  # leases that one claim ends


class UnknownReceiptError(InboundError, code="unknown_receipt", status=404):
    """This mailbox never handed out such a receipt, or has forgotten it."""


class MailboxLeaseLostError(InboundError, code="lease_lost", status=409):
    """The lease of this receipt has ended: the notification is, or will be, handed out again."""


class Receipt(NamedTuple):
    """Proves that a notification was handed out, under which lease."""

    id: int  # of the row
    epoch: int  # of its queue's lease

    def __str__(self) -> str:
        """Return it as clients get it."""
        return f"{self.id}.{self.epoch}"


@record(frozen=True, slots=True, kw_only=True)
class HandedOutNotification:
    """A notification that was handed out to a client, until its lease ends."""

    receipt: Receipt
    queue_id: str
    attempt: int  # 1 for the first
    lease_until: datetime
    notification: StoredNotification


class Verb(StrEnum):
    """What a client says of a notification that it has."""

    ACK = "ack"
    NACK = "nack"
    RENEW = "renew"


class ReceiptResult(NamedTuple):
    """The result: the notification's state, and when it is due again, or its lease ends."""

    state: str
    until: datetime | None = None
    dead: StoredNotification | None = None  # if it is a dead letter now


@record(frozen=True, slots=True, kw_only=True)
class MailboxState:
    """How much is in a mailbox; `oldest` is when the oldest pending one was kept."""

    mailbox: str
    pending: int  # those that are handed out included
    handed_out: int
    dead: int
    oldest: datetime | None


class Deposit(NamedTuple):
    """A notification to keep in a mailbox."""

    mailbox: str
    quota: Quota[str]
    queue_id: str
    notification_id: int
    size: int


def queue_in(mailbox: str, queue_id: str) -> str:
    """Return the id of a mailbox's queue, for the inbox's queue of the same task."""
    return f"{mailbox}\n{queue_id}"


class MailboxQueues:
    """The scripts that keep, hand out and settle notifications."""

    def __init__(self, database: Database, retry: RetryPolicy) -> None:
        self._database = database
        self._retry = retry  # when one is handed out again that was not acked
        self._seen_at: dict[str, int] = {}  # the time of each mailbox's last claim
        # One object: a group commit collects the calls of the same function.
        self.keeping = self.keep

    # --- keeping -----------------------------------------------------------------------------

    def keep(
        self, deposits: Sequence[Deposit], /, *, wait: bool = True
    ) -> Script[list[bool | Deferred]]:
        """Keep notifications; return for each whether it is kept: it is not in a full mailbox.

        One that was kept before is kept once, whatever has become of it. One that the inbox does
        not have any more was kept by another process, while this one was suspended.
        """
        ours, now = yield from self._database.hold(
            deposits, lambda each: [f"mailbox {each.queue_id}"], wait=wait
        )
        queues, locked = yield from MAILBOXES.hold([each.queue_id for each in ours], wait=wait)
        there, moment = set(queues), to_micros(now)
        ours = [each for each in ours if each.queue_id not in locked]
        kept: dict[tuple[str, str], bool] = dict.fromkeys((yield from _kept(ours)), True)
        found = yield from run_for_ids(
            "SELECT id FROM pushkit_inbox WHERE id IN ($ids)",
            [each.notification_id for each in ours],
        )
        in_inbox = {row["id"] for row in found}
        rows: list[tuple[str | int, ...]] = []
        for each in ours:
            key = (str(each.notification_id), each.mailbox)
            if each.notification_id not in in_inbox:
                kept[key] = True
            if kept.get(key):
                continue
            kept[key] = (yield from each.quota.left(each.mailbox, now)) > 0
            if not kept[key]:
                continue
            each.quota.add(each.mailbox, 1)
            queue = queues.get(each.queue_id) or new_queue(each.queue_id, each.mailbox, moment)
            queue, _ = appended(queue, None, now=moment, until=0, probation_from=1)
            queues[each.queue_id] = queue
            job = (each.queue_id, queue.last_seq, each.mailbox, each.notification_id, each.size)
            rows.append((*job, moment, moment, moment))
        yield from insert_rows(
            "INSERT INTO pushkit_mailbox (queue_id, place, mailbox, notification_id, body_bytes,"
            " kept_at, not_before, scheduled_at) VALUES $rows"
            " ON CONFLICT (notification_id, mailbox) DO NOTHING",
            filled(rows),
        )
        yield from MAILBOXES.write([queues[each] for each in there])
        yield from MAILBOXES.add([queue for each, queue in queues.items() if each not in there])
        if rows:
            yield from self._database.announce()  # a client may wait at another process
        held = {id(each) for each in ours}
        return [
            kept[str(each.notification_id), each.mailbox] if id(each) in held else DEFERRED
            for each in deposits
        ]

    # --- handing out -------------------------------------------------------------------------

    def is_due(self, mailbox: str) -> Script[bool]:
        """Return whether a claim may find something."""
        now = to_micros((yield from self._database.now()))
        due = yield from MAILBOXES.due(now, 1, group=group_of(mailbox), lock=False)
        over = yield from MAILBOXES.leased_by(mailbox, until=now, limit=1)
        return bool(due or over or self._is_set_back(mailbox, now))

    def _is_set_back(self, mailbox: str, now: int) -> bool:
        return now < self._seen_at.get(mailbox, 0)

    def claim(
        self, mailbox: str, most: int, lease: timedelta
    ) -> Script[tuple[list[HandedOutNotification], list[StoredNotification]]]:
        """Lease queues that are due, and hand out the first notification of each.

        Also return the notifications that are dead letters now, because their last lease ended.
        """
        now = yield from self._database.now()
        moment, until = to_micros(now), to_micros(now + lease)
        if self._is_set_back(mailbox, moment):
            yield from MAILBOXES.after_setback(moment, until, worker=mailbox)
        self._seen_at[mailbox] = moment
        dead: list[int] = []
        claims = Claims(tables=MAILBOXES, lose=functools.partial(self._lose, dead))
        over = yield from MAILBOXES.leased_by(mailbox, until=moment, limit=_MOST_EXPIRED)
        yield from claims.expire(over, (), moment)
        claimed = yield from claims.claim_of(
            mailbox, group_of(mailbox), most, now=moment, until=until
        )
        rows = yield from run_for_ids(
            "UPDATE pushkit_mailbox SET first_at = COALESCE(first_at, $1), epoch = (SELECT q.epoch"
            " FROM pushkit_mailbox_queues q WHERE q.id = queue_id) WHERE id IN ($ids)"
            " RETURNING id, queue_id, notification_id, attempts, epoch",
            [job.id for each in claimed for job in each.jobs],
            moment,
        )
        of_rows = [row["notification_id"] for row in rows]
        notifications = yield from _notifications([*of_rows, *dead])
        handed_out = [
            HandedOutNotification(
                receipt=Receipt(row["id"], row["epoch"]),
                queue_id=row["queue_id"],
                attempt=row["attempts"] + 1,
                lease_until=from_micros(until),
                notification=notifications[row["notification_id"]],
            )
            for row in rows
        ]
        handed_out.sort(key=lambda each: each.receipt)
        return handed_out, [notifications[each] for each in dead]

    def still_held(self, receipts: dict[str, int]) -> Script[dict[str, int]]:
        """Return those leases, by queue and epoch, that have not ended."""
        now = to_micros((yield from self._database.now()))
        queues = yield from MAILBOXES.read(list(receipts))
        return {
            name: each.epoch
            for name, each in queues.items()
            # One whose time is over leaves room for the next claim, which ends it.
            if each.epoch == receipts[name] and (each.lease_until or 0) > now
        }

    def _lose(
        self, dead: list[int], lost: Sequence[tuple[PendingJob, str, int]], now: int
    ) -> Script[None]:
        """Count leases that ended as attempts."""
        rows = yield from run_for_ids(
            "SELECT * FROM pushkit_mailbox WHERE id IN ($ids)", [job.id for job, _, _ in lost]
        )
        for row in rows:
            due = yield from self._failed(row, "lease_expired", from_micros(now))
            dead += [row["notification_id"]] if due is None else []

    # --- settling ----------------------------------------------------------------------------

    def settle(
        self,
        mailbox: str,
        receipt: Receipt,
        verb: Verb,
        *,
        lease: timedelta,  # that a renewal begins anew
        pause: timedelta | None = None,  # before it comes again after a nack; None for the schedule
    ) -> Script[ReceiptResult]:
        """Do what a client says of a notification that it has; the same ack again changes nothing.

        Raises:
            UnknownReceiptError: There is no such receipt.
            MailboxLeaseLostError: Its lease has ended.
        """
        row, queue, now = yield from self._held(mailbox, receipt)
        if verb is Verb.ACK and row["state"] == "done" and row["epoch"] == receipt.epoch:
            return ReceiptResult("done")
        queue = _leased(row, queue, receipt)
        if verb is Verb.RENEW:
            until = now + lease
            yield from MAILBOXES.write([queue._replace(lease_until=to_micros(until))])
            return ReceiptResult("pending", until)
        settled = ReceiptResult("done")
        if verb is Verb.ACK:
            yield from _finish(row["id"], "done", None, to_micros(now))
        elif (due := (yield from self._failed(row, "nacked", now, pause))) is not None:
            settled = ReceiptResult("pending", due)
        else:
            found = yield from _notifications([row["notification_id"]])
            settled = ReceiptResult("dead", dead=found[row["notification_id"]])
        free = released(queue, None)._replace(abandoned=0)
        yield from reschedule(MAILBOXES, [free], to_micros(now))
        yield from self._database.announce()  # the next of its task may be due
        return settled

    def _held(self, mailbox: str, receipt: Receipt) -> Script[tuple[Row, Queue | None, datetime]]:
        """Return the row of a receipt and its queue, which is locked."""
        find = Statement(
            "SELECT * FROM pushkit_mailbox WHERE id = $1 AND mailbox = $2", (receipt.id, mailbox)
        )
        rows = yield find
        queues = yield from MAILBOXES.lock([row["queue_id"] for row in rows])
        rows = yield find  # again: now nobody else changes it
        if not rows:
            raise UnknownReceiptError(f"mailbox {mailbox!r} has handed out no such receipt")
        return rows[0], queues.get(rows[0]["queue_id"]), (yield from self._database.now())

    def _failed(
        self, row: Row, reason: str, now: datetime, pause: timedelta | None = None
    ) -> Script[datetime | None]:
        """Count an attempt; return when the next one is due, None for a dead letter."""
        due = next_attempt(
            self._retry,
            attempts=row["attempts"] + 1,
            since=from_micros(row["first_at"] or row["kept_at"]),
            now=now,
        )
        if due is None:
            yield from _finish(row["id"], "dead", reason, to_micros(now))
            return None
        due = due if pause is None else now + pause
        yield Statement(
            "UPDATE pushkit_mailbox SET attempts = attempts + 1, last_error = $2, not_before = $3,"
            " scheduled_at = $4 WHERE id = $1 AND state = 'pending'",
            (row["id"], reason, to_micros(due), to_micros(now)),
        )
        return due


# --- for operators -------------------------------------------------------------------------------

_AT_ONCE: Final = 100


class MailboxChange(Enum):
    """What an operator does to a mailbox: to which states, and what changes."""

    REDRIVE = (
        "state = 'dead'",
        (
            "state = 'pending', redrives = redrives + 1, attempts = 0, first_at = NULL,"
            " not_before = $1, scheduled_at = $1, finished_at = NULL, last_error = NULL,"
            f" waits = {MAILBOXES.is_leased}"
        ),
    )
    DROP_DEAD = ("state = 'dead'", "state = 'done', finished_at = $1, waits = 0")
    DROP_ALL = ("state IN ('pending', 'dead')", "state = 'done', finished_at = $1, waits = 0")


def change_mailbox(database: Database, mailbox: str, change: MailboxChange) -> Script[int]:
    """Change what is in a mailbox; return how many, at most a hundred."""
    now = to_micros((yield from database.now()))
    where, sets = change.value
    rows = yield Statement(
        f"SELECT id, queue_id FROM pushkit_mailbox WHERE mailbox = $1 AND {where}"
        f" ORDER BY id LIMIT {_AT_ONCE}",
        (mailbox,),
    )
    queues = yield from MAILBOXES.lock([row["queue_id"] for row in rows])
    changed = yield from run_for_ids(
        f"UPDATE pushkit_mailbox SET {sets} WHERE {where} AND id IN ($ids) RETURNING id",
        [row["id"] for row in rows],
        now,
    )
    changed_queues = [*queues.values()]
    if change is MailboxChange.DROP_ALL:  # what is handed out, too
        changed_queues = [released(each, None)._replace(abandoned=0) for each in changed_queues]
    yield from reschedule(MAILBOXES, changed_queues, now)
    yield from database.announce()
    return len(changed)


def mailbox_states() -> Script[list[MailboxState]]:
    """Return how much is in each mailbox that has anything."""
    rows = yield Statement(
        "SELECT mailbox, SUM(CASE WHEN state = 'pending' THEN 1 ELSE 0 END) AS pending,"
        " (SELECT COUNT(*) FROM pushkit_mailbox_queues q WHERE q.lease_worker = mailbox)"
        " AS handed_out, SUM(CASE WHEN state = 'dead' THEN 1 ELSE 0 END) AS dead,"
        " MIN(CASE WHEN state = 'pending' THEN kept_at END) AS oldest FROM pushkit_mailbox"
        " WHERE state IN ('pending', 'dead') GROUP BY mailbox ORDER BY mailbox"
    )
    return [read_record(MailboxState, row) for row in rows]


def count_pending(mailbox: str, limit: int) -> Script[int]:
    """Count what waits in a mailbox, at most `limit`: for its quota."""
    rows = "pushkit_mailbox WHERE mailbox = $1 AND state = 'pending'"
    return count(rows, mailbox, limit=limit)


def forget(notification_ids: Sequence[int]) -> Script[None]:
    """Delete what mailboxes remember of notifications that are deleted, and empty queues."""
    rows = yield from run_for_ids(
        "DELETE FROM pushkit_mailbox WHERE notification_id IN ($ids) RETURNING queue_id",
        notification_ids,
    )
    queues = yield from MAILBOXES.lock([row["queue_id"] for row in rows], wait=False)
    yield from run_for_ids(
        "DELETE FROM pushkit_mailbox_queues WHERE id IN ($ids) AND lease_worker IS NULL AND NOT"
        " EXISTS (SELECT 1 FROM pushkit_mailbox m WHERE m.queue_id = pushkit_mailbox_queues.id)",
        list(queues),
    )


def _notifications(ids: Sequence[int]) -> Script[dict[int, StoredNotification]]:
    """Return notifications of the inbox by id: it deletes none that a mailbox still has."""
    rows = yield from run_for_ids("SELECT * FROM pushkit_inbox WHERE id IN ($ids)", ids)
    return {row["id"]: stored_notification(row) for row in rows}


def _kept(deposits: Sequence[Deposit]) -> Script[list[tuple[str, str]]]:
    """Return which were kept before, by notification and mailbox."""
    rows = yield from run_for_rows(
        "WITH asked (id, mailbox) AS (VALUES $rows) SELECT asked.* FROM asked"
        " CROSS JOIN pushkit_mailbox m WHERE m.notification_id = CAST(asked.id AS BIGINT)"
        " AND m.mailbox = asked.mailbox",
        [(str(each.notification_id), each.mailbox) for each in deposits],
    )
    return [(row["id"], row["mailbox"]) for row in rows]


def _leased(row: Row, queue: Queue | None, receipt: Receipt) -> Queue:
    """Return the queue of a receipt whose lease has not ended.

    Raises:
        MailboxLeaseLostError: It has ended.
    """
    is_held = queue is not None and queue.lease_worker is not None
    if (
        queue is None
        or not is_held
        or row["state"] != "pending"
        or not queue.epoch == row["epoch"] == receipt.epoch
    ):
        raise MailboxLeaseLostError(
            f"the lease of receipt {receipt} has ended, expected an answer before: the notification"
            " is handed out again, or was settled"
        )
    return queue


def _finish(row_id: int, state: str, error: str | None, now: int) -> Script[None]:
    yield Statement(
        "UPDATE pushkit_mailbox SET state = $2, attempts = attempts + 1, last_error = $3,"
        " finished_at = $4 WHERE id = $1 AND state = 'pending'",
        (row_id, state, error, now),
    )
