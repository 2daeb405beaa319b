"""Heads at which claims look, as scripts; and those that are parked, at which they do not.

A claim looks at the first few heads that are due. Where there are more, it looks at the first heads
of other destinations too, however many come before them in time. Where there are more destinations
than it looks at, it looks at heads of other owners besides, however many destinations come before
theirs, and parks what it finds of those that wait: 100,000 webhooks that are down are
passed by once each, and stand in nobody's way until their wait is over. What is parked has 2 in
`head` in place of 1; whatever changes the head takes it out.

A destination with parked heads has a row in `pushkit_parked`, which says when to look at it again.
On PostgreSQL, whoever reads or writes that table holds `PARKING` (`Database.exclusively`).
"""

from __future__ import annotations

import itertools
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

from pushkit.outbox.destinations import DestinationKey
from pushkit.outbox.shares import Head, InFlight, Owner, Places
from pushkit.storage.script import Row, Script, Statement, among, rows_of_places, slices

PARKING = "pushkit_parked"

_STATE = "COALESCE(h.until, 0) AS until, COALESCE(h.failures, 0) AS failures"
_HEAD = f"d.id, d.tenant, d.owner, d.origin, d.not_before, {_STATE}"
_ITS_DESTINATION = "h.tenant = d.tenant AND h.owner = d.owner AND h.origin = d.origin"
_HELD = " FOR UPDATE OF d SKIP LOCKED"
_OF_DESTINATION = "tenant = $1 AND owner = $2 AND origin = $3 AND head = 2 AND state = 'pending'"


@dataclass(slots=True)
class Turns:
    """What destinations with parked heads offer."""

    heads: list[Head] = field(default_factory=list)  # their first ones
    # When to look at each of them again.
    again_at: dict[DestinationKey, int] = field(default_factory=dict)
    # Those that offered all that they have.
    to_the_last: list[DestinationKey] = field(default_factory=list)


def due_heads(now: int, limit: int, *, hold: bool = True) -> Script[list[Head]]:
    """Return the first heads that are due and not parked, their rows held if they are to be."""
    rows = yield Statement(
        f"SELECT {_HEAD} FROM pushkit_deliveries d LEFT JOIN pushkit_destinations h"
        f" ON {_ITS_DESTINATION}"
        " WHERE d.head = 1 AND d.state = 'pending' AND d.not_before <= $1"
        f" ORDER BY d.not_before LIMIT CAST($2 AS BIGINT){_HELD if hold else ''}",
        (now, limit),
    )
    return list(map(_head, rows))


def first_heads(after: DestinationKey | Owner, limit: int) -> Script[list[Head]]:
    """Return the first head of each destination that has one not parked, due or not; or of owners.

    From one destination to the next by its index, however many heads each of them has; or from one
    owner to the next, however many destinations.

    Args:
        after: The destination, or the owner, behind which to begin.
        limit: At how many to look.
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
    """Return the id of the first head behind a destination, or behind an owner, in SQL.

    Three steps, one an index prefix: of one comparison of rows, SQLite uses the tenant alone. For
    `head = 1` PostgreSQL would read the index of all that is due, and sort it, at each step: for it
    such rows are few until its statistics say otherwise, and a backlog comes faster than those.
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

    The next claim looks at each destination once more: its wait may have been ended since it was
    read.
    """
    for clause, values in among([head.id for head in heads]):
        yield Statement(
            "UPDATE pushkit_deliveries SET head = 2 WHERE id IN (SELECT id FROM pushkit_deliveries"
            f" WHERE id {clause} AND head = 1 AND state = 'pending' FOR UPDATE SKIP LOCKED)",
            values,
        )
    yield from _note({head.destination: now for head in heads})


def take_turns(now: int, in_flight: InFlight, places: Places, *, most: int) -> Script[Turns]:
    """Look at the destinations with parked heads that were not looked at for longest."""
    rows = yield Statement(
        f"SELECT p.tenant, p.owner, p.origin, {_STATE}"
        " FROM pushkit_parked p LEFT JOIN pushkit_destinations h"
        " ON h.tenant = p.tenant AND h.owner = p.owner AND h.origin = p.origin"
        " WHERE p.again_at <= $1 ORDER BY p.again_at LIMIT CAST($2 AS BIGINT)",
        (now, most),
    )
    turns = Turns()
    for row in rows:
        destination, until, failures = _key(row), row["until"], row["failures"]
        turns.again_at[destination] = max(until, now)
        room = in_flight.room(destination, until=until, failures=failures, places=places, now=now)
        wanted = min(room, places.slots)
        if not wanted:
            continue
        found = yield Statement(
            f"SELECT id, not_before FROM pushkit_deliveries WHERE {_OF_DESTINATION}"
            " ORDER BY not_before LIMIT CAST($4 AS BIGINT) FOR UPDATE SKIP LOCKED",
            (*destination, wanted),
        )
        turns.heads += (
            Head(each["id"], destination, each["not_before"], until, failures) for each in found
        )
        if len(found) < wanted:
            turns.to_the_last.append(destination)
    return turns


def end_turns(turns: Turns) -> Script[None]:
    """Note when to look again, once heads were chosen; forget who has none left."""
    yield from _note(turns.again_at)
    for destination in turns.to_the_last:
        yield Statement(
            "DELETE FROM pushkit_parked WHERE tenant = $1 AND owner = $2 AND origin = $3"
            f" AND NOT EXISTS (SELECT 1 FROM pushkit_deliveries WHERE {_OF_DESTINATION})",
            destination,
        )


def _note(again_at: Mapping[DestinationKey, int]) -> Script[None]:
    for noted in slices(sorted(again_at.items())):
        yield Statement(
            "INSERT INTO pushkit_parked (tenant, owner, origin, again_at)"
            f" VALUES {rows_of_places(len(noted), 4)}"
            " ON CONFLICT (tenant, owner, origin) DO UPDATE SET again_at = excluded.again_at",
            tuple(itertools.chain.from_iterable((*key, moment) for key, moment in noted)),
        )


def _head(row: Row) -> Head:
    return Head(row["id"], _key(row), row["not_before"], row["until"], row["failures"])


def _key(row: Row) -> DestinationKey:
    return (row["tenant"], row["owner"], row["origin"])
