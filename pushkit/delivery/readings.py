"""Metrics that are read at the time of a scrape: of the outbox, and of the keys."""

from __future__ import annotations

from collections import Counter
from datetime import datetime

from pushkit.keys.ring import KeyRing
from pushkit.outbox.browsing import IN_FLIGHT
from pushkit.outbox.states import UNFINISHED
from pushkit.storage.script import Script, Statement, count, from_micros, to_micros
from pushkit.telemetry.metrics import Readings
from pushkit.version import __version__


def outbox_readings(now: datetime, *, breaker_opens_at: int) -> Script[Readings]:
    """Return the outbox's metrics.

    Args:
        now: The time of the database's clock.
        breaker_opens_at: How many failures in a row of a destination open its breaker.
    """
    moment = to_micros(now)
    # The same conditions as the partial indexes have, so that no row is read.
    unfinished = yield from count(f"pushkit_deliveries WHERE {UNFINISHED}")
    in_flight = yield from count(IN_FLIGHT)
    dead = yield from count("pushkit_deliveries WHERE state = 'dead'")
    due = yield Statement(
        "SELECT q.due_at FROM pushkit_subscriptions q LEFT JOIN pushkit_destinations g"
        " ON g.tenant = q.tenant AND g.owner = q.owner AND g.origin = q.origin"
        " WHERE q.due_at IS NOT NULL AND q.lease_worker IS NULL AND q.due_at <= $1"
        " AND COALESCE(g.until, 0) <= $1 ORDER BY q.due_at LIMIT 1",
        (moment,),
    )
    oldest = (now - from_micros(due[0]["due_at"])).total_seconds() if due else 0.0
    failing = f"pushkit_destinations WHERE failures >= {breaker_opens_at}"
    waiting = yield from count(f"{failing} AND until > $1", moment)
    probed = yield from count(f"{failing} AND until <= $1", moment)
    subscriptions = yield Statement(
        "SELECT active, paused, COUNT(*) AS found FROM pushkit_subscriptions"
        " WHERE removed_at IS NULL GROUP BY active, paused"
    )
    found = Counter(active=0, paused=0, disabled=0)
    for row in subscriptions:
        state = "paused" if row["paused"] else "active"
        found[state if row["active"] else "disabled"] += row["found"]
    deliveries = {"pending": unfinished - in_flight, "in_flight": in_flight, "dead": dead}
    return {
        "pushkit_deliveries": _by_one(deliveries),
        "pushkit_oldest_due_seconds": {(): oldest},
        "pushkit_breakers": _by_one({"open": waiting, "half_open": probed}),
        "pushkit_subscriptions": _by_one(found),
    }


def key_readings(ring: KeyRing, now: datetime) -> Readings:
    """Return the ages of the published keys, and the time until the next one signs."""
    ages: dict[tuple[str, ...], float] = {}
    planned: dict[tuple[str, ...], float] = {}
    for key in ring.published(now):
        name = key.algorithm.value
        age = key.age(now)
        if age is not None:
            ages[name, key.kid, ring.state(key.kid, now).value] = age.total_seconds()
        if key.activates_at is not None and key.activates_at > now:
            until = (key.activates_at - now).total_seconds()
            planned[name,] = min(planned.get((name,), until), until)
    return {
        "pushkit_signing_key_age_seconds": ages,
        "pushkit_signing_key_rotation_seconds": planned,
        "pushkit_build_info": {(__version__,): 1.0},
    }


def _by_one(found: dict[str, int]) -> dict[tuple[str, ...], float]:
    return {(name,): float(number) for name, number in found.items()}
