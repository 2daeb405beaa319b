"""The queues of a table, and how many jobs they have, for operators, as scripts."""

from __future__ import annotations

from collections.abc import Callable
from datetime import datetime
from typing import Final, TypeVar

from pushkit.queue.tables import QueueTables
from pushkit.record import record
from pushkit.storage.paging import AtMost, count_at_most
from pushkit.storage.script import Row, Script, SqlValue, Statement

T = TypeVar("T")

_MOST_WAITING: Final = 1000  # jobs that are counted of a queue


@record(frozen=True, slots=True, kw_only=True)
class ListedQueue:
    """A queue that a worker leases, or that is due, now or later."""

    id: str
    worker: str | None  # which worker leases it; None if none does
    leased_at: datetime | None  # since when
    lease_until: datetime | None  # until when, unless the worker renews it
    epoch: int  # how many leases began or ended
    abandoned: int  # how many workers died with it in a row
    due_at: datetime | None  # when to look for jobs that no worker has in memory
    waiting: AtMost  # how many jobs are unfinished


def list_queues(
    of: QueueTables,
    read: Callable[[Row, AtMost], T],
    columns: str,
    *values: SqlValue,
    after: str | None,
    limit: int,
) -> Script[list[T]]:
    """Return a page of queues, by id.

    Args:
        of: Their tables.
        read: Returns a queue from its row and the number of its unfinished jobs.
        columns: What it reads besides the members of `ListedQueue`, of `of.joined`.
        *values: The parameters of these columns, from `$3` on.
        after: The last id of the previous page.
        limit: How many at most.
    """
    rows = yield Statement(
        "SELECT q.id, q.lease_worker AS worker, q.leased_at, q.lease_until, q.epoch, q.abandoned,"
        f" q.due_at, (SELECT COUNT(*) FROM (SELECT 1 FROM {of.jobs} j"
        f" WHERE j.{of.queue_id} = q.id AND j.state = 'pending' LIMIT {_MOST_WAITING + 1}) w)"
        f" AS unfinished, {columns} FROM {of.joined} WHERE q.id IN"
        # Not in the order of the primary key, which has many queues that are idle.
        f" (SELECT id FROM (SELECT id FROM {of.queues} WHERE lease_worker IS NOT NULL UNION ALL"
        f" SELECT id FROM {of.queues} WHERE due_at IS NOT NULL AND lease_worker IS NULL) b"
        " WHERE id || '' > $1 ORDER BY id || '' LIMIT CAST($2 AS BIGINT)) ORDER BY q.id",
        (after or "", limit, *values),
    )
    return [read(row, AtMost.of(row["unfinished"], _MOST_WAITING)) for row in rows]


def in_flight(of: QueueTables) -> str:
    """Return the jobs `j` in flight, after FROM: from leased queues, however many jobs wait."""
    return (
        f"{of.queues} q CROSS JOIN {of.jobs} j WHERE q.lease_worker IS NOT NULL"
        f" AND j.{of.queue_id} = q.id AND j.state = 'pending' AND j.{of.place} <= q.sending_to"
        " AND j.waits = 0"
    )


def count_jobs(
    of: QueueTables, waiting: str, running: str, at_most: int
) -> Script[dict[str, AtMost]]:
    """Return how many jobs wait, are in flight (by these names) and are dead.

    They are counted from partial indexes alone.
    """
    in_use = yield from count_at_most(at_most, in_flight(of))
    unfinished = yield from count_at_most(at_most, f"{of.jobs} WHERE state = 'pending'")
    dead = yield from count_at_most(at_most, f"{of.jobs} WHERE state = 'dead'")
    left = AtMost(max(unfinished.number - in_use.number, 0), unfinished.more)
    return {waiting: left, running: in_use, "dead": dead}
