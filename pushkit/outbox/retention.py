"""How long finished deliveries are kept, and the erasure of a task, as scripts.

Reads find the deliveries, and small transactions delete them, so that the writer of a SQLite file,
or locks of PostgreSQL, are never held for long. A delivery's body and attempts are deleted with it.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from datetime import datetime, timedelta
from typing import NamedTuple

from pushkit.options import Age, Number, check_options
from pushkit.outbox.states import DeliveryState
from pushkit.storage.script import Script, Statement, run_for_ids, to_micros


@dataclass(frozen=True, slots=True, kw_only=True)
class Retention:
    """How long a worker keeps finished deliveries; None is for ever.

    A deleted delivery cannot be shown or sent again, and its idempotency key is forgotten. A
    config that is removed and set again continues the `seq` of the deliveries that are left.

    Attributes:
        delivered: How long delivered and cancelled deliveries are kept.
        dead: How long dead letters are kept.
        per_task: How many finished deliveries of a task to keep, the newest.

    Raises:
        ConfigError: A value is negative, or an age longer than a hundred years.
    """

    delivered: Age | None = timedelta(days=7)
    dead: Age | None = timedelta(days=30)
    per_task: Number | None = None

    def __post_init__(self) -> None:
        check_options(self, of="retain: ")


class Excess(NamedTuple):
    """The finished deliveries of a task, up to and including one of them."""

    tenant: str
    task_id: str
    finished_at: int
    id: str


def finished_between(
    states: Sequence[DeliveryState], since: int, moment: datetime, *, limit: int
) -> Script[list[tuple[int, str]]]:
    """Return deliveries that finished since and before a moment: when, and their ids.

    They are in the order in which they finished. `since` is in microseconds.
    """
    # Three parameters, the last state repeated: one statement for every choice.
    first, second, third = (*states, *[states[-1]] * 2)[:3]
    rows = yield Statement(
        "SELECT finished_at, id FROM pushkit_deliveries"
        " WHERE finished_at >= $1 AND finished_at < $2 AND state IN ($3, $4, $5)"
        " ORDER BY finished_at LIMIT CAST($6 AS BIGINT)",
        (since, to_micros(moment), first.value, second.value, third.value, limit),
    )
    return [(row["finished_at"], row["id"]) for row in rows]


def crowded_tasks(
    per_task: int, *, after: tuple[str, str], limit: int
) -> Script[list[tuple[str, str]]]:
    """Return tasks with more finished deliveries than are kept, by tenant and id.

    They begin after the task `after`.
    """
    rows = yield Statement(
        "SELECT tenant, task_id FROM pushkit_deliveries"
        " WHERE finished_at IS NOT NULL AND (tenant, task_id) > ($1, $2)"
        " GROUP BY tenant, task_id HAVING COUNT(*) > $3"
        " ORDER BY tenant, task_id LIMIT CAST($4 AS BIGINT)",
        (*after, per_task, limit),
    )
    return [(row["tenant"], row["task_id"]) for row in rows]


def excess_of_task(tenant: str, task_id: str, *, keep: int) -> Script[Excess | None]:
    """Return a task's finished deliveries but the `keep` newest ones; None if that is all."""
    rows = yield Statement(
        "SELECT finished_at, id FROM pushkit_deliveries WHERE tenant = $1 AND task_id = $2"
        " AND finished_at IS NOT NULL ORDER BY finished_at DESC, id DESC"
        " LIMIT 1 OFFSET CAST($3 AS BIGINT)",
        (tenant, task_id, keep),
    )
    return Excess(tenant, task_id, rows[0]["finished_at"], rows[0]["id"]) if rows else None


def ids_of(excess: Excess, *, limit: int) -> Script[list[str]]:
    """Return ids of deliveries that are an excess, in any order."""
    rows = yield Statement(
        "SELECT id FROM pushkit_deliveries WHERE tenant = $1 AND task_id = $2"
        " AND (finished_at, id) <= ($3, $4) LIMIT CAST($5 AS BIGINT)",
        (*excess, limit),
    )
    return [str(row["id"]) for row in rows]


def delete(ids: Sequence[str]) -> Script[int]:
    """Delete deliveries, and return how many; one that was redriven meanwhile stays."""
    rows = yield from run_for_ids(
        "DELETE FROM pushkit_deliveries WHERE id IN (SELECT id FROM pushkit_deliveries"
        " WHERE id IN ($ids) AND finished_at IS NOT NULL FOR UPDATE SKIP LOCKED)"
        " RETURNING id",
        sorted(ids),
    )
    gone = [str(row["id"]) for row in rows]
    yield from run_for_ids("DELETE FROM pushkit_bodies WHERE id IN ($ids)", gone)
    yield from run_for_ids("DELETE FROM pushkit_attempts WHERE delivery_id IN ($ids)", gone)
    return len(gone)
