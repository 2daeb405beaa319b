"""An outbox of any size in numbers, as scripts; its destinations, and what finished lately.

Each script reads a bounded number of rows, however many there are.
"""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass
from datetime import datetime, timedelta
from typing import TYPE_CHECKING

from pushkit.outbox.destinations import DestinationKey
from pushkit.outbox.inspection import AGE_FROM
from pushkit.outbox.states import DeliveryState
from pushkit.queue.tables import UNFINISHED
from pushkit.storage.paging import MOST_COUNTED, AtMost, count_at_most, read_record
from pushkit.storage.script import Script, Statement, count, moment_or_none, to_micros
from pushkit.subscriptions.model import OUTBOX

if TYPE_CHECKING:
    from pushkit.telemetry.metrics import Gauges

_MOST_FINISHED = 2000
_MOST_ERRORS = 500
_MOST_FIRST = 1000
_MOST_DESTINATIONS = 20_000

# The first pending deliveries of queues that are due, now or later, and that nobody leases.
_FIRST = (
    f"SELECT d.*, {AGE_FROM} FROM (SELECT id FROM pushkit_subscriptions WHERE due_at IS NOT NULL"
    f" AND lease_worker IS NULL ORDER BY due_at LIMIT {_MOST_FIRST}) q CROSS JOIN"
    " pushkit_deliveries d WHERE d.id = (SELECT o.id FROM pushkit_deliveries o"
    f" WHERE o.subscription_id = q.id AND o.{UNFINISHED} ORDER BY o.seq LIMIT 1)"
)
# Destinations of the queues that are due first, and wait after a failed attempt. A webhook that
# answers 401 or 404 works, so that its failures are not counted for its breaker.
_REFUSING = (
    f"SELECT DISTINCT tenant, owner, origin FROM ({_FIRST} LIMIT {_MOST_ERRORS}) d"
    " WHERE last_error IS NOT NULL AND faults = 0"
)


@dataclass(frozen=True, slots=True, kw_only=True)
class Finished:
    """A finished delivery, for measures of speed."""

    id: str
    origin: str
    state: DeliveryState
    attempts: int
    age_from: datetime  # when it was redriven, or else notified
    finished_at: datetime


@dataclass(frozen=True, slots=True, kw_only=True)
class OriginStats:
    """How many deliveries to one origin are unfinished or dead."""

    origin: str
    pending: int
    in_flight: int
    dead: int


@dataclass(frozen=True, slots=True, kw_only=True)
class OutboxStats:
    """The outbox in numbers, each counted up to a bound: whether deliveries flow."""

    now: datetime  # the current time, by the clock that the workers share
    pending: AtMost
    in_flight: AtMost
    delivered: AtMost
    dead: AtMost
    cancelled: AtMost
    # Since when the oldest pending delivery waits, paused subscriptions left out; None if there is
    # none.
    oldest_pending_at: datetime | None
    # Since when the first queue is due whose destination does not wait; None if none is.
    due_since: datetime | None
    # Of the newest dead letters and some unfinished deliveries, the most pending first.
    origins: tuple[OriginStats, ...]
    # How many first deliveries of queues wait because of a fault of the sender, by its code: a
    # key, a secret or a database out of reach, a worker that died.
    local_faults: dict[str, int]
    # How many first deliveries of queues, and newest dead letters, have an error, by its code.
    errors: dict[str, int]
    retrying: int  # queues that wait after a failed attempt, of those that are due first
    failing: AtMost  # destinations that wait, or whose last attempt failed
    died: AtMost  # dead letters of the same time as `finished` asks for
    finished: tuple[Finished, ...]  # the last finished deliveries, newest first
    finished_since: datetime  # from when on `finished` is complete

    @property
    def states(self) -> dict[DeliveryState, int]:
        """How many deliveries there are in each state."""
        return {state: getattr(self, state.value).number for state in DeliveryState}


@dataclass(frozen=True, slots=True, kw_only=True)
class FailingDestination:
    """A destination that failed last, or asked to wait."""

    tenant: str
    owner: str
    origin: str
    failures: int  # in a row, of those that count for its breaker
    waits_until: datetime  # until when nothing is sent to it


def outbox_stats(now: datetime, *, within: timedelta, at_most: int) -> Script[OutboxStats]:
    """Return the outbox in numbers.

    Args:
        now: The current time.
        within: How recently a delivery finished, to be among `finished`.
        at_most: Up to how many deliveries each number counts. Errors and origins are of a
            twentieth as many dead letters and unfinished deliveries, whose rows are read.
    """
    rows_read = at_most // 20
    counts = yield from OUTBOX.count_jobs("pending", "in_flight", at_most)
    ended = yield Statement(
        "SELECT state, COUNT(*) AS found FROM (SELECT state FROM pushkit_deliveries"
        f" WHERE finished_at IS NOT NULL LIMIT {at_most + 1}) f GROUP BY state"
    )
    found = Counter[str]({row["state"]: row["found"] for row in ended})
    are_all = found.total() <= at_most
    failing = yield from count_at_most(
        at_most,
        "(SELECT tenant, owner, origin FROM"
        f" (SELECT * FROM pushkit_destinations LIMIT {_MOST_DESTINATIONS}) h"
        f" WHERE until > $1 OR failures > 0 UNION {_REFUSING}) f WHERE 1 = 1",
        to_micros(now),
    )
    due_since = yield from _due_since(now)
    since = now - within
    finished = yield from finished_since(since)
    is_all = len(finished) < _MOST_FINISHED
    # Of busy workers, `finished` covers seconds: dead letters are read by themselves, too.
    died = sum(each.state is DeliveryState.DEAD for each in finished)
    buried = yield Statement(
        "SELECT origin, last_error, COUNT(*) AS found,"
        " SUM(CASE WHEN finished_at >= $1 THEN 1 ELSE 0 END) AS lately FROM (SELECT origin,"
        " last_error, finished_at FROM pushkit_deliveries WHERE state = 'dead' ORDER BY id DESC"
        f" LIMIT {rows_read}) d GROUP BY origin, last_error",
        (to_micros(since),),
    )
    first = yield Statement(
        "SELECT last_error, faults > 0 AS is_local, COUNT(*) AS found, MIN(age_from) AS oldest"
        f" FROM ({_FIRST}) f GROUP BY last_error, faults > 0"
    )
    failed = [row for row in first if row["last_error"] is not None]
    errors, dead = Counter[str](), Counter[str]()
    for row in buried:
        dead[row["origin"]] += row["found"]
    for row in (*buried, *failed):
        if row["last_error"] is not None:
            errors[row["last_error"]] += row["found"]
    local = {row["last_error"]: row["found"] for row in failed if row["is_local"]}
    return OutboxStats(
        now=now,
        **counts,
        delivered=AtMost(found["delivered"], more=not are_all),
        cancelled=AtMost(found["cancelled"], more=not are_all),
        oldest_pending_at=moment_or_none(min((row["oldest"] for row in first), default=None)),
        due_since=due_since,
        origins=(yield from _origins(dead, rows_read)),
        local_faults=local,
        errors=dict(sorted(errors.items(), key=lambda pair: (-pair[1], pair[0]))),
        retrying=sum(row["found"] for row in failed if not row["is_local"]),
        failing=failing,
        died=AtMost(
            max(died, sum(row["lately"] for row in buried)),
            more=not is_all and counts["dead"].number > rows_read,
        ),
        finished=tuple(finished),
        finished_since=since if is_all else finished[-1].finished_at,
    )


def _origins(dead: Counter[str], limit: int) -> Script[tuple[OriginStats, ...]]:
    """Return the origins of dead letters, counted by origin, and of unfinished deliveries."""
    found: list[Counter[str]] = []
    for source in (f"pushkit_deliveries j WHERE {UNFINISHED}", OUTBOX.in_flight):
        rows = yield Statement(
            f"SELECT origin, COUNT(*) AS found FROM (SELECT j.origin FROM {source}"
            f" LIMIT {limit}) o GROUP BY origin"
        )
        found.append(Counter({row["origin"]: row["found"] for row in rows}))
    unfinished, running = found
    origins = [
        OriginStats(
            origin=each,
            pending=max(unfinished[each] - running[each], 0),
            in_flight=running[each],
            dead=dead[each],
        )
        for each in unfinished.keys() | dead.keys()
    ]
    return tuple(sorted(origins, key=lambda each: (-each.pending, -each.dead, each.origin)))


def _due_since(now: datetime) -> Script[datetime | None]:
    """Return since when a queue is due whose destination does not wait; None if none is."""
    rows = yield Statement(
        "SELECT MIN(q.due_at) AS moment FROM (SELECT * FROM pushkit_subscriptions"
        " WHERE due_at IS NOT NULL AND lease_worker IS NULL AND due_at <= $1"
        f" ORDER BY due_at LIMIT {_MOST_FIRST}) q LEFT JOIN pushkit_destinations g"
        " ON g.tenant = q.tenant AND g.owner = q.owner AND g.origin = q.origin"
        " WHERE COALESCE(g.until, 0) <= $1",
        (to_micros(now),),
    )
    return moment_or_none(rows[0]["moment"])


def outbox_gauges(now: datetime, *, breaker_opens_at: int) -> Script[Gauges]:
    """Return the outbox's metrics.

    Args:
        now: The time of the database's clock.
        breaker_opens_at: How many failures in a row of a destination open its breaker.
    """
    counts = yield from OUTBOX.count_jobs("pending", "in_flight", MOST_COUNTED)
    since = yield from _due_since(now)
    oldest = 0.0 if since is None else (now - since).total_seconds()
    failing = f"pushkit_destinations WHERE failures >= {breaker_opens_at}"
    waiting = yield from count(f"{failing} AND until > $1", to_micros(now))
    probed = yield from count(f"{failing} AND until <= $1", to_micros(now))
    rows = yield Statement(
        "SELECT active, paused, COUNT(*) AS found FROM pushkit_subscriptions"
        " WHERE removed_at IS NULL GROUP BY active, paused"
    )
    subscriptions = Counter(active=0, paused=0, disabled=0)
    for row in rows:
        state = "paused" if row["paused"] else "active"
        subscriptions[state if row["active"] else "disabled"] += row["found"]
    return {
        "pushkit_deliveries": _by_state({name: each.number for name, each in counts.items()}),
        "pushkit_oldest_due_seconds": {(): oldest},
        "pushkit_breakers": _by_state({"open": waiting, "half_open": probed}),
        "pushkit_subscriptions": _by_state(subscriptions),
    }


def _by_state(found: dict[str, int]) -> dict[tuple[str, ...], float]:
    return {(name,): float(number) for name, number in found.items()}


def browse_destinations(
    now: datetime, *, after: DestinationKey | None, limit: int
) -> Script[list[FailingDestination]]:
    """Return a page of destinations that wait or fail, by tenant, owner and origin."""
    rows = yield Statement(
        "SELECT tenant, owner, origin, MAX(failures) AS failures, MAX(until) AS waits_until FROM"
        " (SELECT * FROM (SELECT tenant, owner, origin, failures, until FROM pushkit_destinations"
        " WHERE (tenant, owner, origin) > ($1, $2, $3) AND (until > $5 OR failures > 0)"
        " ORDER BY tenant, owner, origin LIMIT CAST($4 AS BIGINT)) h"
        f" UNION ALL SELECT tenant, owner, origin, 0, 0 FROM ({_REFUSING}) r"
        " WHERE (tenant, owner, origin) > ($1, $2, $3)) f"
        " GROUP BY tenant, owner, origin ORDER BY tenant, owner, origin LIMIT CAST($4 AS BIGINT)",
        (*(after or ("", "", "")), limit, to_micros(now)),
    )
    return [read_record(FailingDestination, row) for row in rows]


def finished_since(since: datetime) -> Script[list[Finished]]:
    """Return the deliveries that finished since then, newest first, 2,000 at most."""
    rows = yield Statement(
        f"SELECT id, origin, state, attempts, {AGE_FROM}, finished_at FROM pushkit_deliveries"
        " WHERE finished_at IS NOT NULL AND finished_at >= $1 ORDER BY finished_at DESC"
        f" LIMIT {_MOST_FINISHED}",
        (to_micros(since),),
    )
    return [read_record(Finished, row) for row in rows]
