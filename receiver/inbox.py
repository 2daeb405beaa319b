"""The inbox: accepted notifications, until every callback has had them.

One script per arrow:

    RECEIVED ─claim→ IN_PROGRESS ─every callback done→ DONE
       ▲                 ├─retry→ RECEIVED (not_before)
       │                 └─give up→ DEAD
       └── an expired lease counts as RECEIVED again, in the claim itself
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from datetime import datetime
from enum import StrEnum

from pushkit.a2a import TaskState, TaskUpdate, UpdateKind, decode_update
from pushkit.errors import InboundError
from pushkit.storage import Migration, Row, Script, Statement, from_micros, to_micros

__all__ = ["MIGRATION", "ClaimedNotification", "Inbox", "InboxStatus", "Notification"]

MIGRATION = Migration(
    3,
    (
        """
        CREATE TABLE pushkit_inbox (
            id INTEGER PRIMARY KEY AUTOINCREMENT,
            sender TEXT NOT NULL,
            delivery_id TEXT NOT NULL,
            task_id TEXT,
            config_id TEXT,
            seq BIGINT,
            missing BIGINT NOT NULL,
            late INTEGER NOT NULL,
            kid TEXT NOT NULL,
            issued_at BIGINT NOT NULL,
            received_at BIGINT NOT NULL,
            body BYTEA NOT NULL,
            status TEXT NOT NULL DEFAULT 'received',
            attempts INTEGER NOT NULL DEFAULT 0,
            not_before BIGINT NOT NULL,
            lease_worker TEXT,
            lease_until BIGINT,
            finished_at BIGINT,
            last_error TEXT,
            UNIQUE (sender, delivery_id)
        )
        """,
        ("CREATE INDEX pushkit_inbox_due ON pushkit_inbox (not_before) WHERE status = 'received'"),
        (
            "CREATE INDEX pushkit_inbox_leased ON pushkit_inbox (lease_until)"
            " WHERE status = 'in_progress'"
        ),
        (
            "CREATE INDEX pushkit_inbox_unfinished ON pushkit_inbox (sender, task_id, id)"
            " WHERE status IN ('received', 'in_progress')"
        ),
        "CREATE INDEX pushkit_inbox_task ON pushkit_inbox (task_id, id)",
        ("CREATE INDEX pushkit_inbox_done ON pushkit_inbox (finished_at) WHERE status = 'done'"),
        """
        CREATE TABLE pushkit_callbacks_done (
            notification_id BIGINT NOT NULL,
            callback TEXT NOT NULL,
            PRIMARY KEY (notification_id, callback)
        )
        """,
        """
        CREATE TABLE pushkit_sequences (
            sender TEXT NOT NULL,
            task_id TEXT NOT NULL,
            config_id TEXT NOT NULL,
            last_seq BIGINT NOT NULL,
            PRIMARY KEY (sender, task_id, config_id)
        )
        """,
    ),
)


class InboxStatus(StrEnum):
    """Where a notification stands."""

    RECEIVED = "received"
    IN_PROGRESS = "in_progress"
    DONE = "done"
    DEAD = "dead"


@dataclass(frozen=True, slots=True, kw_only=True)
class Notification:
    """One accepted notification, as a callback gets it.

    Attributes:
        id: Its place in the inbox; grows.
        idempotency_key: The same whenever this notification is handed out: a process that dies
            inside a callback must run it again.
        sender: The name of the trusted sender.
        kid: The key that signed it; empty if its sender does not sign.
        delivery_id: The sender's id of it: `jti`, the same on every retry.
        update: What happened, version-free.
        task_id: The task, from the body or the signature.
        config_id: The subscription's config id, if the sender states one.
        seq: 1, 2, 3… per subscription and task, if the sender states one.
        missing: How many updates before this one never came (dead, cancelled or superseded).
        late: An update with a higher `seq` was accepted before this one.
        issued_at: When this attempt was signed; when it was accepted, if its sender does not sign.
        received_at: When it was accepted.
        body: The raw bytes that were signed.
    """

    id: int
    idempotency_key: str
    sender: str
    kid: str
    delivery_id: str
    update: TaskUpdate
    task_id: str | None
    config_id: str | None
    seq: int | None
    missing: int
    late: bool
    issued_at: datetime
    received_at: datetime
    body: bytes = field(repr=False)

    @property
    def kind(self) -> UpdateKind:
        """What kind of update it is."""
        return self.update.kind

    @property
    def state(self) -> TaskState | None:
        """The task's state, where the update has one."""
        return self.update.state


@dataclass(frozen=True, slots=True, kw_only=True)
class ClaimedNotification:
    """A notification under a lease, and what was done of it before."""

    notification: Notification
    attempts: int
    callbacks_done: frozenset[str]


class Inbox:
    """Scripts over `pushkit_inbox` and its side tables."""

    def store(
        self,
        *,
        sender: str,
        delivery_id: str,
        kid: str,
        issued_at: datetime,
        task_id: str | None,
        config_id: str | None,
        seq: int | None,
        body: bytes,
        now: datetime,
    ) -> Script[int | None]:
        """Store one notification and return its id; None if the inbox has the delivery already."""
        missing, late = yield from self._sequence(sender, task_id, config_id, seq)
        rows = yield Statement(
            "INSERT INTO pushkit_inbox (sender, delivery_id, task_id, config_id, seq, missing,"
            " late, kid, issued_at, received_at, not_before, body)"
            " VALUES ($1, $2, $3, $4, $5, $6, $7, $8, $9, $10, $10, $11)"
            " ON CONFLICT (sender, delivery_id) DO NOTHING RETURNING id",
            (
                sender,
                delivery_id,
                task_id,
                config_id,
                seq,
                missing,
                int(late),
                kid,
                to_micros(issued_at),
                to_micros(now),
                body,
            ),
        )
        return int(rows[0]["id"]) if rows else None

    def has(self, sender: str, delivery_id: str, body: bytes) -> Script[bool]:
        """Say whether the inbox has a delivery with exactly this body."""
        rows = yield Statement(
            "SELECT 1 FROM pushkit_inbox WHERE sender = $1 AND delivery_id = $2 AND body = $3",
            (sender, delivery_id, body),
        )
        return bool(rows)

    def claim(
        self,
        worker: str,
        *,
        limit: int,
        now: datetime,
        until: datetime,
        held: Sequence[int] = (),
    ) -> Script[list[ClaimedNotification]]:
        """Take up to `limit` notifications that are due; of each task only the oldest.

        Args:
            worker: Who takes them.
            limit: How many.
            now: Leases that ended before are void.
            until: When the new leases end.
            held: What this worker has in hand: a clock that leapt, or a machine that slept, must
                not have it take them a second time.
        """
        moment = to_micros(now)
        for notification_id in held:
            yield from self.keep_lease(notification_id, worker, until)
        yield Statement(
            "UPDATE pushkit_inbox SET status = 'received', lease_worker = NULL,"
            " last_error = 'lease expired' WHERE status = 'in_progress' AND lease_until <= $1",
            (moment,),
        )
        rows = yield Statement(
            "UPDATE pushkit_inbox SET status = 'in_progress', lease_worker = $2,"
            " lease_until = $3, attempts = attempts + 1 WHERE id IN (SELECT i.id"
            " FROM pushkit_inbox i WHERE i.status = 'received' AND i.not_before <= $1"
            " AND NOT EXISTS (SELECT 1 FROM pushkit_inbox e WHERE e.sender = i.sender"
            " AND e.task_id = i.task_id AND e.id < i.id"
            " AND e.status IN ('received', 'in_progress'))"
            " ORDER BY i.not_before, i.id LIMIT $4) RETURNING *",
            (moment, worker, to_micros(until), limit),
        )
        claimed = []
        for row in rows:
            try:
                notification = _notification(row)
            except InboundError as exc:
                # Accepted by other code than this: it must not stand in the way of the rest.
                yield from self.settle(
                    row["id"], worker, InboxStatus.DEAD, now=now, error=f"unreadable: {exc.code}"
                )
                continue
            done = yield from self._callbacks_done(row["id"])
            claimed.append(
                ClaimedNotification(
                    notification=notification, attempts=row["attempts"], callbacks_done=done
                )
            )
        return claimed

    def next_due(self) -> Script[datetime | None]:
        """Return when the next claim may find something; None if nothing is unfinished.

        A notification behind an unfinished one of its task is not due before that one is settled.
        """
        rows = yield Statement(
            "SELECT MIN(due) AS due FROM (SELECT i.not_before AS due FROM pushkit_inbox i"
            " WHERE i.status = 'received' AND NOT EXISTS (SELECT 1 FROM pushkit_inbox e"
            " WHERE e.sender = i.sender AND e.task_id = i.task_id AND e.id < i.id"
            " AND e.status IN ('received', 'in_progress'))"
            " UNION ALL SELECT lease_until FROM pushkit_inbox WHERE status = 'in_progress')"
        )
        due = rows[0]["due"]
        return None if due is None else from_micros(due)

    def keep_lease(self, notification_id: int, worker: str, until: datetime) -> Script[bool]:
        """Extend a lease; False if it is no longer this worker's."""
        rows = yield Statement(
            "UPDATE pushkit_inbox SET lease_until = $3 WHERE id = $1 AND lease_worker = $2"
            " AND status = 'in_progress' RETURNING id",
            (notification_id, worker, to_micros(until)),
        )
        return bool(rows)

    def mark_callback_done(self, notification_id: int, callback: str) -> Script[None]:
        """Remember that a callback had this notification: it does not get it again."""
        yield Statement(
            "INSERT INTO pushkit_callbacks_done (notification_id, callback) VALUES ($1, $2)"
            " ON CONFLICT DO NOTHING",
            (notification_id, callback),
        )

    def settle(
        self,
        notification_id: int,
        worker: str,
        status: InboxStatus,
        *,
        now: datetime,
        retry_at: datetime | None = None,
        error: str | None = None,
    ) -> Script[None]:
        """Write down what became of a notification, if it is still this worker's."""
        finished = status in (InboxStatus.DONE, InboxStatus.DEAD)
        yield Statement(
            "UPDATE pushkit_inbox SET status = $3, not_before = COALESCE($4, not_before),"
            " finished_at = $5, last_error = $6, lease_worker = NULL, lease_until = NULL"
            " WHERE id = $1 AND lease_worker = $2 AND status = 'in_progress'",
            (
                notification_id,
                worker,
                status.value,
                to_micros(retry_at) if retry_at else None,
                to_micros(now) if finished else None,
                error,
            ),
        )

    def of_task(
        self, task_id: str, *, after: int = 0, sender: str | None = None, limit: int = 100
    ) -> Script[list[Notification]]:
        """Return a task's notifications in the order of acceptance, those after an id."""
        rows = yield Statement(
            "SELECT * FROM pushkit_inbox WHERE task_id = $1 AND id > $2"
            " AND (sender = $3 OR $3 IS NULL) ORDER BY id LIMIT $4",
            (task_id, after, sender, limit),
        )
        return [_notification(row) for row in rows]

    def purge(self, *, done_before: datetime, limit: int = 1000) -> Script[int]:
        """Delete notifications that were done before a moment, a bounded number at a time.

        Returns:
            How many that was.
        """
        rows = yield Statement(
            "DELETE FROM pushkit_inbox WHERE id IN (SELECT id FROM pushkit_inbox"
            " WHERE status = 'done' AND finished_at < $1 ORDER BY finished_at LIMIT $2)"
            " RETURNING id",
            (to_micros(done_before), limit),
        )
        for row in rows:
            yield Statement(
                "DELETE FROM pushkit_callbacks_done WHERE notification_id = $1", (row["id"],)
            )
        return len(rows)

    def count(self) -> Script[dict[str, int]]:
        """Return how many notifications stand where."""
        rows = yield Statement("SELECT status, COUNT(*) AS n FROM pushkit_inbox GROUP BY status")
        return {row["status"]: row["n"] for row in rows}

    def _callbacks_done(self, notification_id: int) -> Script[frozenset[str]]:
        rows = yield Statement(
            "SELECT callback FROM pushkit_callbacks_done WHERE notification_id = $1",
            (notification_id,),
        )
        return frozenset(row["callback"] for row in rows)

    def _sequence(
        self, sender: str, task_id: str | None, config_id: str | None, seq: int | None
    ) -> Script[tuple[int, bool]]:
        """Compare a `seq` with the last one: how many are missing before it, and is it late."""
        if seq is None or task_id is None:
            return 0, False
        key = (sender, task_id, config_id or "")
        rows = yield Statement(
            "SELECT last_seq FROM pushkit_sequences"
            " WHERE sender = $1 AND task_id = $2 AND config_id = $3",
            key,
        )
        last = rows[0]["last_seq"] if rows else 0
        if seq <= last:
            return 0, True
        yield Statement(
            "INSERT INTO pushkit_sequences (sender, task_id, config_id, last_seq)"
            " VALUES ($1, $2, $3, $4) ON CONFLICT (sender, task_id, config_id)"
            " DO UPDATE SET last_seq = excluded.last_seq",
            (*key, seq),
        )
        return seq - last - 1, False


def _notification(row: Row) -> Notification:
    body = bytes(row["body"])
    return Notification(
        id=row["id"],
        idempotency_key=f"{row['sender']}:{row['delivery_id']}",
        sender=row["sender"],
        kid=row["kid"],
        delivery_id=row["delivery_id"],
        update=decode_update(body),
        task_id=row["task_id"],
        config_id=row["config_id"],
        seq=row["seq"],
        missing=row["missing"],
        late=bool(row["late"]),
        issued_at=from_micros(row["issued_at"]),
        received_at=from_micros(row["received_at"]),
        body=body,
    )
