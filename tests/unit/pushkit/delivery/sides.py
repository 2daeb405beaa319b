"""Compare two ways of writing one outbox, each with tasks and owners of its own.

The names of a side's tasks and owners begin with the name of the side.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, Final, TypeVar

from pushkit import PushSender, TaskUpdate
from pushkit.delivery.enqueue import CountsMissing, Notice
from pushkit.errors import PushkitError
from pushkit.outbox.model import IdempotencyKey
from pushkit.storage.database import Database
from pushkit.storage.script import Deferred, Group, Refused, Row, alone
from tests.unit.pushkit.deliveries import rows_of

__all__ = ["SIDES", "count_backlogs", "everything_of", "notice_of", "read", "run_group", "write"]

Item = TypeVar("Item")
T = TypeVar("T")

SIDES: Final = ("one by one", "together")

_DELIVERIES = (
    "SELECT task_id, owner, seq, state, waits, status, attempts, last_status, last_error,"
    " idempotency_key, version, origin,"
    " (SELECT b.body FROM pushkit_bodies b WHERE b.id = pushkit_deliveries.id),"
    " finished_at IS NULL"
    " FROM pushkit_deliveries WHERE owner LIKE $1 ORDER BY task_id, owner, seq"
)
_SUBSCRIPTIONS = (
    "SELECT task_id, owner, last_seq, ended, active, paused, failing_since, removed_at IS NULL,"
    " due_at IS NULL, lease_worker IS NULL, epoch, sending_to, settled_to, abandoned"
    " FROM pushkit_subscriptions WHERE owner LIKE $1 ORDER BY task_id, owner"
)
_DESTINATIONS = (
    "SELECT owner, failures FROM pushkit_destinations WHERE owner LIKE $1 ORDER BY owner"
)
_ATTEMPTS = (
    "SELECT d.task_id, d.owner, d.seq, a.number, a.status, a.outcome,"
    " d.first_attempt IS NULL FROM pushkit_deliveries d"
    " LEFT JOIN pushkit_attempts a ON a.delivery_id = d.id WHERE d.owner LIKE $1"
    " ORDER BY d.task_id, d.owner, d.seq, a.number"
)


def notice_of(sender: PushSender, update: TaskUpdate, key: str | None = None) -> Notice:
    """Return an update as `notify` enqueues it."""
    bodies = sender._bodies.prepare(update, None, now=sender._clock())
    known = None if key is None else IdempotencyKey.of(key, update)
    return Notice(bodies=bodies, idempotency_key=known, is_counted=True)


async def read(sender: PushSender, sql: str, *parameters: Any) -> list[Row]:
    """Return the rows of one statement."""
    return await sender._database.read(rows_of(sql, *parameters))


async def write(sender: PushSender, sql: str, *parameters: Any) -> None:
    """Run one statement."""
    await sender._database.write(rows_of(sql, *parameters))


async def run_group(
    database: Database, group: Group[Item, T], items: Sequence[Item]
) -> list[T | PushkitError]:
    """Run one script over several items, then each deferred one alone; return their results."""
    found: list[T | PushkitError] = []
    results = await database.write(group(items, wait=False))
    for item, result in zip(items, results, strict=True):
        if isinstance(result, Refused):
            found.append(result.error)
        elif isinstance(result, Deferred):
            found.append(await database.write(alone(group, item)))
        else:
            found.append(result)
    return found


async def everything_of(sender: PushSender, side: str) -> list[list[list[Any]]]:
    """Return all rows of one side without ids, times and the name of the side."""

    def nameless(value: Any) -> Any:
        if isinstance(value, bytes):
            return value.replace(side.encode(), b"")
        return value.replace(side, "") if isinstance(value, str) else value

    found = []
    for sql in (_DELIVERIES, _SUBSCRIPTIONS, _DESTINATIONS, _ATTEMPTS):
        rows: list[Any] = await read(sender, sql, f"{side} %")
        found.append([[nameless(value) for value in tuple(row)] for row in rows])
    return found


async def count_backlogs(sender: PushSender) -> None:
    """Count the backlogs that were not yet: scripts that run in a group need to know them."""
    rows = await read(sender, "SELECT DISTINCT owner FROM pushkit_subscriptions")
    owners, enqueuer = {None, *(row["owner"] for row in rows)}, sender._enqueuer
    unknown = {each for each in owners if not enqueuer.backlog_of(each).is_known(each)}
    await enqueuer._count(CountsMissing(unknown))
