"""How long notifications stay in the inbox, and the scripts that delete them.

Rows to delete are found by reading, and deleted in transactions that are small in rows and in
bytes: neither the writer of a SQLite file nor the locks of PostgreSQL are held for long.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from datetime import datetime, timedelta
from typing import TypeAlias

from pushkit.options import LastingAge, Number, check_options
from pushkit.storage.script import (
    Script,
    Statement,
    filled,
    insert_rows,
    run_for_ids,
    to_micros,
)
from receiver.inbox.mailboxes import forget
from receiver.inbox.model import InboxStatus
from receiver.inbox.store import INBOX

Position: TypeAlias = tuple[int, int]
"""When a notification was finished, in microseconds, and its id."""

# To free a long body, SQLite reads all of it.
_BYTES_AT_ONCE = 4 * 1024 * 1024
_SEQUENCES_AT_ONCE = 500
_IN_NO_MAILBOX = (
    "NOT EXISTS (SELECT 1 FROM pushkit_mailbox m WHERE m.notification_id = pushkit_inbox.id"
    " AND m.state <> 'done')"
)


@dataclass(frozen=True, slots=True, kw_only=True)
class InboxRetention:
    """How long a receiver keeps what is finished; None is for ever.

    A notification that was deleted cannot be shown, redriven or waited for any more.

    Attributes:
        done: How long notifications are kept whose callbacks have all succeeded.
        dead: How long dead letters are kept.
        max_done: How many done notifications to keep, the newest.
        ids: How long accepted ids are remembered. If this is shorter than the time of the sender's
            last retry (90 h for pushkit), an update may be called back twice.
        sequences: How long the last `seq` of a task is kept after its last notification; later, the
            next one seems to follow a gap.
        expected: How long a task is expected if `expect()` does not say. Expectations that have
            ended are deleted with the ids.
    """

    done: LastingAge | None = timedelta(days=7)
    dead: LastingAge | None = None
    max_done: Number | None = None
    ids: LastingAge = timedelta(hours=96)
    sequences: LastingAge = timedelta(days=30)
    expected: LastingAge | None = timedelta(days=90)

    def __post_init__(self) -> None:
        check_options(self, of="retention: ")


def finished_before(status: InboxStatus, end: Position, *, limit: int) -> Script[list[int]]:
    """Return a bounded batch of ids that were done or dead before a position, oldest first.

    What a mailbox still has, pending or dead, is kept.
    """
    rows = yield Statement(
        "SELECT id, body_bytes AS size FROM pushkit_inbox"
        f" WHERE state = '{status.value}' AND (finished_at, id) < ($1, $2) AND {_IN_NO_MAILBOX}"
        " ORDER BY finished_at LIMIT CAST($3 AS BIGINT)",
        (*end, limit),
    )
    ids: list[int] = []
    size = 0
    for row in rows:
        size += row["size"]
        if ids and size > _BYTES_AT_ONCE:
            break
        ids.append(int(row["id"]))
    return ids


def end_of_excess(max_done: int) -> Script[Position | None]:
    """Return the position before which all that are done are more than `max_done`, if any."""
    rows = yield Statement(
        "SELECT finished_at, id FROM pushkit_inbox WHERE state = 'done'"
        " ORDER BY finished_at DESC, id DESC LIMIT 1 OFFSET CAST($1 AS BIGINT)",
        (max_done,),
    )
    return (rows[0]["finished_at"], rows[0]["id"] + 1) if rows else None


def delete_finished(ids: Sequence[int], status: InboxStatus) -> Script[int]:
    """Delete those that still have this status, with their calls; return how many.

    Their ids stay remembered, and queues that are empty then are deleted, too. What is left for the
    next time: those of queues that another transaction holds, and of a leased queue the newest one,
    or nobody would delete its row.
    """
    asked = yield from run_for_ids(
        "SELECT id, queue_id FROM pushkit_inbox WHERE id IN ($ids)", sorted(ids)
    )
    queues = yield from INBOX.lock({row["queue_id"] for row in asked}, wait=False)
    rows = yield from run_for_ids(
        "DELETE FROM pushkit_inbox WHERE id IN (SELECT pushkit_inbox.id FROM pushkit_inbox"
        " JOIN pushkit_inbox_queues q ON q.id = queue_id WHERE pushkit_inbox.id IN ($ids)"
        f" AND state = '{status.value}' AND {_IN_NO_MAILBOX} AND (q.lease_worker IS NULL OR EXISTS"
        " (SELECT 1 FROM pushkit_inbox o WHERE o.task_id = pushkit_inbox.task_id"
        " AND o.queue_id = q.id AND o.id > pushkit_inbox.id))"
        " FOR UPDATE OF pushkit_inbox SKIP LOCKED)"
        " RETURNING id, queue_id, sender, delivery_id, body_sha256, received_at",
        [row["id"] for row in asked if row["queue_id"] in queues],
    )
    gone = [int(row["id"]) for row in rows]
    yield from run_for_ids("DELETE FROM pushkit_callbacks WHERE notification_id IN ($ids)", gone)
    yield from forget(gone)
    yield from insert_rows(
        "INSERT INTO pushkit_forgotten (sender, delivery_id, body_sha256, accepted_at)"
        " VALUES $rows ON CONFLICT (sender, delivery_id) DO NOTHING",
        filled(
            [
                (row["sender"], row["delivery_id"], row["body_sha256"], row["received_at"])
                for row in rows
            ]
        ),
    )
    yield from run_for_ids(
        "DELETE FROM pushkit_inbox_queues WHERE id IN ($ids) AND lease_worker IS NULL AND NOT"
        # By the index of tasks: the id of a queue ends with its task.
        " EXISTS (SELECT 1 FROM pushkit_inbox i WHERE i.queue_id = pushkit_inbox_queues.id"
        " AND i.task_id = SUBSTR(pushkit_inbox_queues.id, LENGTH(owner) + 2))",
        sorted({row["queue_id"] for row in rows}),
    )
    return len(gone)


def forget_ids(accepted_before: datetime, *, limit: int = 1000) -> Script[int]:
    """Forget ids of deleted notifications that were accepted before a moment; return how many."""
    rows = yield Statement(
        "DELETE FROM pushkit_forgotten WHERE (sender, delivery_id) IN"
        " (SELECT sender, delivery_id FROM pushkit_forgotten WHERE accepted_at < $1"
        " ORDER BY accepted_at LIMIT CAST($2 AS BIGINT) FOR UPDATE SKIP LOCKED)"
        " RETURNING sender",
        (to_micros(accepted_before), limit),
    )
    return len(rows)


def forget_sequences(before: datetime) -> Script[int]:
    """Delete a bounded batch of sequences that did not grow since a moment; return how many."""
    rows = yield Statement(
        "DELETE FROM pushkit_sequences WHERE (sender, task_id, config_id) IN"
        " (SELECT sender, task_id, config_id FROM pushkit_sequences WHERE updated_at < $1"
        " ORDER BY updated_at LIMIT CAST($2 AS BIGINT) FOR UPDATE SKIP LOCKED)"
        " RETURNING sender",
        (to_micros(before), _SEQUENCES_AT_ONCE),
    )
    return len(rows)
