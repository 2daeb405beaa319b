"""The heads that claims read, as scripts, and the parked ones, which they skip.

A claim reads the first few heads that are due. If there are more, it also reads the first heads of
other destinations, however many heads are due before them. If there are more destinations than it
reads, it also reads the heads of other owners, however many destinations come before theirs, and
parks the heads that it finds of destinations that wait: 100,000 webhooks that are down are read
once each, and do not delay others until their wait is over. A parked delivery has 2 in `head` in
place of 1; every change of the head ends the parking.

A destination with parked heads has a row in `pushkit_parked`, which says when to read it again.
On PostgreSQL, scripts that read or write that table hold its name (`hold_parking`).
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

from pushkit.outbox.destinations import DestinationKey
from pushkit.outbox.shares import Head, InFlight, Owner, SlotLimits
from pushkit.storage.database import Database
from pushkit.storage.script import Row, Script, Statement, insert_rows, run_for_ids, slices

_PARKING = "pushkit_parked"

_STATE = "COALESCE(h.until, 0) AS until, COALESCE(h.failures, 0) AS failures"
_HEAD = f"d.id, d.tenant, d.owner, d.origin, d.not_before, {_STATE}"
_ITS_DESTINATION = "h.tenant = d.tenant AND h.owner = d.owner AND h.origin = d.origin"
_LOCKED = " FOR UPDATE OF d SKIP LOCKED"
_OF_DESTINATION = "tenant = $1 AND owner = $2 AND origin = $3 AND head = 2 AND state = 'pending'"


def hold_parking(database: Database) -> Script[object]:
    """Wait for other transactions that park heads, or offer parked ones, and keep others out."""
    return database.hold([_PARKING], lambda name: [name], wait=True)


@dataclass(slots=True)
class ParkedHeads:
    """The parked heads that a claim may lease."""

    heads: list[Head] = field(default_factory=list)  # the first ones of each destination
    # When to read each destination again.
    again_at: dict[DestinationKey, int] = field(default_factory=dict)
    # The destinations all of whose parked heads are among `heads`.
    exhausted: list[DestinationKey] = field(default_factory=list)


def due_heads(now: int, limit: int, *, lock: bool = True) -> Script[list[Head]]:
    """Return the first heads that are due and not parked, and lock their rows if `lock`."""
    rows = yield Statement(
        f"SELECT {_HEAD} FROM pushkit_deliveries d LEFT JOIN pushkit_destinations h"
        f" ON {_ITS_DESTINATION}"
        " WHERE d.head = 1 AND d.state = 'pending' AND d.not_before <= $1"
        f" ORDER BY d.not_before LIMIT CAST($2 AS BIGINT){_LOCKED if lock else ''}",
        (now, limit),
    )
    return list(map(_head, rows))


def first_heads(after: DestinationKey | Owner, limit: int) -> Script[list[Head]]:
    """Return the first head, not parked, due or not, of each of several destinations or owners.

    The query steps from one destination to the next in an index, however many heads each has; or
    from one owner to the next, however many destinations each has.

    Args:
        after: The destination, or the owner, after which to begin.
        limit: How many to read.
    """
    given = [f"${number}" for number in range(2, len(after) + 2)]
    found = ["d.tenant", "d.owner", "d.origin"][: len(after)]
    rows = yield Statement(
        f"WITH RECURSIVE step(id, number) AS (SELECT {_following(*given)}, 1"
        f" UNION ALL SELECT {_following(*found)}, step.number + 1"
        " FROM step JOIN pushkit_deliveries d ON d.id = step.id"
        " WHERE step.number < CAST($1 AS BIGINT))"
        f" SELECT {_HEAD} FROM step CROSS JOIN pushkit_deliveries d"
        f" LEFT JOIN pushkit_destinations h ON {_ITS_DESTINATION}"
        f" WHERE d.id = step.id ORDER BY d.tenant, d.owner, d.origin",
        (limit, *after),
    )
    return list(map(_head, rows))


def _following(tenant: str, owner: str, origin: str | None = None) -> str:
    """Return, in SQL, the id of the first head after a destination, or after an owner.

    There are three steps, one for each prefix of the index: for one comparison of rows SQLite would
    use the tenant alone. With `head = 1` PostgreSQL would read and sort the index of due heads at
    each step: it takes such rows for few until its statistics are updated, and a backlog grows
    faster than that.
    """
    steps = [
        (f"n.tenant = {tenant} AND n.owner > {owner}", "n.owner, n.origin"),
        (f"n.tenant > {tenant}", "n.tenant, n.owner, n.origin"),
    ]
    if origin is not None:
        of_owner = f"n.tenant = {tenant} AND n.owner = {owner} AND n.origin > {origin}"
        steps.insert(0, (of_owner, "n.origin"))
    found = (
        "(SELECT n.id FROM pushkit_deliveries n"
        " WHERE n.head >= 1 AND n.head <= 1 AND n.state = 'pending'"
        f" AND {condition} ORDER BY {order}, n.not_before LIMIT 1)"
        for condition, order in steps
    )
    return f"COALESCE({', '.join(found)})"


def park(heads: Sequence[Head], now: int) -> Script[None]:
    """Park heads of destinations that wait.

    The next claim reads each destination once more: its wait may have been ended meanwhile.
    """
    yield from run_for_ids(
        "UPDATE pushkit_deliveries SET head = 2 WHERE id IN (SELECT id FROM pushkit_deliveries"
        " WHERE id IN ($ids) AND head = 1 AND state = 'pending' FOR UPDATE SKIP LOCKED)",
        [head.id for head in heads],
    )
    yield from _note({head.destination: now for head in heads})


def offer_parked_heads(
    now: int, in_flight: InFlight, limits: SlotLimits, *, most: int
) -> Script[ParkedHeads]:
    """Return parked heads of the destinations that are to be read again, the longest due first."""
    rows = yield Statement(
        f"SELECT p.tenant, p.owner, p.origin, {_STATE}"
        " FROM pushkit_parked p LEFT JOIN pushkit_destinations h"
        " ON h.tenant = p.tenant AND h.owner = p.owner AND h.origin = p.origin"
        " WHERE p.again_at <= $1 ORDER BY p.again_at LIMIT CAST($2 AS BIGINT)",
        (now, most),
    )
    parked = ParkedHeads()
    for row in rows:
        destination, until, failures = _key(row), row["until"], row["failures"]
        parked.again_at[destination] = max(until, now)
        left = in_flight.slots_left(
            destination, until=until, failures=failures, limits=limits, now=now
        )
        wanted = min(left, limits.slots)
        if not wanted:
            continue
        found = yield Statement(
            f"SELECT id, not_before FROM pushkit_deliveries WHERE {_OF_DESTINATION}"
            " ORDER BY not_before LIMIT CAST($4 AS BIGINT) FOR UPDATE SKIP LOCKED",
            (*destination, wanted),
        )
        parked.heads += (
            Head(each["id"], destination, each["not_before"], until, failures) for each in found
        )
        if len(found) < wanted:
            parked.exhausted.append(destination)
    return parked


def reschedule(parked: ParkedHeads) -> Script[None]:
    """Note when to read the destinations again; delete the rows of those with no parked head."""
    yield from _note(parked.again_at)
    for destination in parked.exhausted:
        yield Statement(
            "DELETE FROM pushkit_parked WHERE tenant = $1 AND owner = $2 AND origin = $3"
            f" AND NOT EXISTS (SELECT 1 FROM pushkit_deliveries WHERE {_OF_DESTINATION})",
            destination,
        )


def recall_parked(now: int) -> Script[None]:
    """Read destinations again as soon as their waits end, after the clock was set back."""
    yield Statement(
        "UPDATE pushkit_parked SET again_at = (SELECT CASE WHEN MAX(h.until) > $1 THEN MAX(h.until)"
        " ELSE $1 END FROM pushkit_destinations h WHERE h.tenant = pushkit_parked.tenant"
        " AND h.owner = pushkit_parked.owner AND h.origin = pushkit_parked.origin)"
        " WHERE again_at > $1",
        (now,),
    )


def _note(again_at: Mapping[DestinationKey, int]) -> Script[None]:
    yield from insert_rows(
        "INSERT INTO pushkit_parked (tenant, owner, origin, again_at) VALUES $rows"
        " ON CONFLICT (tenant, owner, origin) DO UPDATE SET again_at = excluded.again_at",
        slices([(*key, moment) for key, moment in sorted(again_at.items())]),
    )


def _head(row: Row) -> Head:
    return Head(row["id"], _key(row), row["not_before"], row["until"], row["failures"])


def _key(row: Row) -> DestinationKey:
    return (row["tenant"], row["owner"], row["origin"])
