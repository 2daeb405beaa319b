"""The destinations table, as scripts: until when each one waits, and its failures in a row.

A destination is one origin for one owner. It has a row only after it failed or asked to wait, until
it is known to work, or nothing is sent to it any more. A transaction that settles runs these
scripts last: many transactions need the row of one destination.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from datetime import datetime
from operator import attrgetter
from typing import TypeAlias

from pushkit.outbox.model import Delivery
from pushkit.storage.script import Script, Statement, run_for_rows, to_micros

DestinationKey: TypeAlias = tuple[str, str, str]  # tenant, owner and origin

destination_of: Callable[[Delivery], DestinationKey] = attrgetter("tenant", "owner", "origin")


def postpone(delivery: Delivery, until: datetime, now: datetime) -> Script[None]:
    """Let the destination of a delivery wait until a time, from now on."""
    yield Statement(
        "INSERT INTO pushkit_destinations (tenant, owner, origin, until, set_at)"
        " VALUES ($1, $2, $3, $4, $5)"
        # The longer of two waits counts, whichever answer came last.
        " ON CONFLICT (tenant, owner, origin) DO UPDATE SET until = excluded.until,"
        " set_at = excluded.set_at WHERE excluded.until > pushkit_destinations.until",
        (*destination_of(delivery), to_micros(until), to_micros(now)),
    )


def failed(delivery: Delivery, now: datetime) -> Script[int | None]:
    """Count a failure, and return how many there are now in a row.

    Returns None, and counts nothing, while the destination waits already: attempts that were
    running when the wait began show nothing new, and each would double the wait.
    """
    rows = yield Statement(
        "INSERT INTO pushkit_destinations (tenant, owner, origin, failures)"
        " VALUES ($1, $2, $3, 1)"
        " ON CONFLICT (tenant, owner, origin) DO UPDATE"
        " SET failures = pushkit_destinations.failures + 1"
        " WHERE pushkit_destinations.until <= $4 RETURNING failures",
        (*destination_of(delivery), to_micros(now)),
    )
    return int(rows[0]["failures"]) if rows else None


def failing(deliveries: Sequence[Delivery]) -> Script[dict[DestinationKey, int]]:
    """Return the failures in a row of the destinations that have any, and hold their rows.

    They are held in order, so that of two transactions at once only one ends the failures.
    """
    rows = yield from run_for_rows(
        "SELECT h.tenant, h.owner, h.origin, h.failures FROM (VALUES $rows) v"
        " CROSS JOIN pushkit_destinations h WHERE h.tenant = v.column1"
        " AND h.owner = v.column2 AND h.origin = v.column3 AND h.failures > 0"
        " ORDER BY h.tenant, h.owner, h.origin FOR UPDATE OF h",
        sorted(set(map(destination_of, deliveries))),
    )
    return {(row["tenant"], row["owner"], row["origin"]): row["failures"] for row in rows}


def half_open(keys: Sequence[DestinationKey], *, failures: int, now: datetime) -> Script[int]:
    """End the wait of destinations, and put them on probation: one delivery at a time.

    The probation ends with the first answer that shows that the destination works.

    Args:
        failures: From how many failures in a row on a destination is on probation.

    Returns:
        How many of them waited.
    """
    waited = 0
    for tenant, owner, origin in sorted(set(keys)):
        rows = yield Statement(
            "UPDATE pushkit_destinations SET until = $4, set_at = $4, failures ="
            " CASE WHEN failures < CAST($5 AS INTEGER) THEN CAST($5 AS INTEGER)"
            " ELSE failures END"
            " WHERE tenant = $1 AND owner = $2 AND origin = $3 AND until > $4"
            " RETURNING origin",
            (tenant, owner, origin, to_micros(now), failures),
        )
        waited += len(rows)
    return waited


def answered(delivery: Delivery) -> Script[None]:
    """Reset the count of failures of a delivery's destination."""
    yield Statement(
        "UPDATE pushkit_destinations SET failures = 0"
        " WHERE tenant = $1 AND owner = $2 AND origin = $3",
        destination_of(delivery),
    )


def forgettable(now: datetime, *, limit: int) -> Script[list[DestinationKey]]:
    """Return destinations that do not wait, and that answered, or to which nothing is to be sent.

    No active subscription has them, nor one that has deliveries left, as after a redrive.
    """
    idle = "SELECT tenant, owner, origin FROM pushkit_destinations WHERE until <= $1"
    theirs = "SELECT tenant, owner, origin FROM pushkit_subscriptions WHERE"
    rows = yield Statement(
        f"{idle} EXCEPT {theirs} removed_at IS NULL AND active = 1"
        " AND owner IN (SELECT owner FROM pushkit_destinations)"
        f" EXCEPT {theirs} due_at IS NOT NULL AND lease_worker IS NULL"
        f" EXCEPT {theirs} lease_worker IS NOT NULL"
        f" UNION {idle} AND failures = 0 LIMIT CAST($2 AS BIGINT)",
        (to_micros(now), limit),
    )
    return [(row["tenant"], row["owner"], row["origin"]) for row in rows]


def forget(keys: Sequence[DestinationKey], now: datetime) -> Script[None]:
    """Delete destinations that do not wait; one that another transaction holds stays."""
    for key in keys:
        yield Statement(
            "DELETE FROM pushkit_destinations WHERE (tenant, owner, origin) IN"
            " (SELECT tenant, owner, origin FROM pushkit_destinations WHERE tenant = $1"
            " AND owner = $2 AND origin = $3 AND until <= $4 FOR UPDATE SKIP LOCKED)",
            (*key, to_micros(now)),
        )
