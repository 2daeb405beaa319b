"""What metrics say of the outbox, as a script over what is not finished, however much is."""

from __future__ import annotations

from datetime import datetime, timedelta

from pushkit.record import record
from pushkit.storage.script import Script, Statement, from_micros, to_micros


@record(frozen=True, slots=True, kw_only=True)
class Backlog:
    """The outbox, as far as it is not finished."""

    states: dict[str, int]  # how many deliveries are pending, in flight and dead
    # How long the oldest delivery waits that could go now; zero if none does.
    oldest_due: timedelta
    breakers: dict[str, int]  # how many destinations are `open`, and how many `half_open`
    subscriptions: dict[str, int]  # how many are `active`, `paused` and `disabled`


def backlog(now: datetime, *, breaker_opens_at: int) -> Script[Backlog]:
    """Return what is not finished.

    Args:
        breaker_opens_at: From how many failures in a row on a destination waits.
    """
    # As the partial indexes have it, so that no row is looked at.
    unfinished = yield from _count("pushkit_deliveries WHERE state IN ('pending', 'in_flight')")
    in_flight = yield from _count("pushkit_deliveries WHERE state = 'in_flight'")
    dead = yield from _count("pushkit_deliveries WHERE state = 'dead'")
    moment = to_micros(now)
    due = yield Statement(
        "SELECT d.not_before FROM pushkit_deliveries d LEFT JOIN pushkit_destinations h"
        " ON h.tenant = d.tenant AND h.owner = d.owner AND h.origin = d.origin"
        " WHERE d.head = 1 AND d.state = 'pending' AND d.not_before <= $1"
        " AND COALESCE(h.until, 0) <= $1 ORDER BY d.not_before LIMIT 1",
        (moment,),
    )
    failing = f"pushkit_destinations WHERE failures >= {breaker_opens_at}"
    waiting = yield from _count(f"{failing} AND until > $1", moment)
    subscriptions = yield Statement(
        "SELECT active, paused, COUNT(*) AS found FROM pushkit_subscriptions"
        " WHERE removed_at IS NULL GROUP BY active, paused"
    )
    found = dict.fromkeys(("active", "paused", "disabled"), 0)
    for row in subscriptions:
        is_active = "paused" if row["paused"] else "active"
        found[is_active if row["active"] else "disabled"] += row["found"]
    return Backlog(
        states={"pending": unfinished - in_flight, "in_flight": in_flight, "dead": dead},
        oldest_due=now - from_micros(due[0]["not_before"]) if due else timedelta(0),
        breakers={
            "open": waiting,
            "half_open": (yield from _count(f"{failing} AND until <= $1", moment)),
        },
        subscriptions=found,
    )


def _count(of: str, *values: int) -> Script[int]:
    rows = yield Statement(f"SELECT COUNT(*) AS found FROM {of}", values)
    return int(rows[0]["found"])
