"""Looking at an outbox of any size, newest first, as scripts: pages, figures, destinations.

Nothing here reads more than so many rows, however many there are: what is rare is found through the
index that it has, everything else in the newest rows before a place, and a page says how far it
looked.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from datetime import datetime, timedelta

from pushkit.outbox.destinations import DestinationKey
from pushkit.outbox.inspection import (
    SUMMARY_COLUMNS,
    WITH_BODIES,
    DeliveryFilter,
    DeliverySummary,
    summary_of,
)
from pushkit.outbox.states import UNFINISHED, DeliveryState
from pushkit.storage.paging import AtMost, Page, Search, count_at_most, find_rows, narrowed
from pushkit.storage.script import (
    Script,
    SqlValue,
    Statement,
    among,
    from_micros,
    moment_or_none,
    to_micros,
)

_MOST_FINISHED = 2000
_MOST_ERRORS = 500
_MOST_HEADS = 1000
_MOST_DESTINATIONS = 20_000
_FILTERED = (
    "id, seq, tenant, owner, task_id, subscription_id, origin, state, head, last_error,"
    " cancelled_by"
)


@dataclass(frozen=True, slots=True, kw_only=True)
class Finished:
    """A delivery that ended, as far as its speed is concerned."""

    id: str
    origin: str
    state: DeliveryState
    attempts: int
    notified_at: datetime
    finished_at: datetime


@dataclass(frozen=True, slots=True, kw_only=True)
class OutboxFigures:
    """What says whether deliveries flow."""

    now: datetime  # the present, by the clock that the workers share
    pending: AtMost  # what waits
    in_flight: AtMost  # what is being attempted
    dead: AtMost
    # When the oldest of what waits was notified, paused subscriptions left out; None if nothing
    # waits.
    oldest_pending_at: datetime | None
    # Since when the next delivery in turn could be attempted; None if none can.
    due_since: datetime | None
    # What waits because of something on this side, by its code, among the next in turn.
    local_faults: dict[str, int]
    # What the next in turn and the newest dead letters failed by last, by code.
    errors: dict[str, int]
    # Destinations that wait, or failed so often in a row that they are on probation.
    failing: AtMost
    finished: tuple[Finished, ...]  # what ended last, newest first
    finished_since: datetime  # the moment from which on `finished` is all


@dataclass(frozen=True, slots=True, kw_only=True)
class DestinationStanding:
    """One origin for one owner that has failed, or asked to wait."""

    tenant: str
    owner: str
    origin: str  # the destination
    failures: int  # its failures in a row
    waits_until: datetime  # until when nothing is sent to it


def browse_deliveries(
    wanted: DeliveryFilter, *, before: str | None, limit: int
) -> Script[Page[DeliverySummary]]:
    """Return a page of deliveries, newest first; those of one task or subscription by `seq`.

    Args:
        wanted: Which. A task without a tenant is one of the tenant without a name.
    """
    if wanted.task_id is not None and wanted.tenant is None:
        wanted = replace(wanted, tenant="")
    looked_at, values, rest = yield from _looked_at(wanted, before)
    conditions, given = rest.where(after=len(values))
    search = Search(
        looked_at=looked_at,
        named=values,
        columns=_FILTERED,
        conditions=conditions,
        given=given,
        order=_order(wanted),
        is_filtered=rest != DeliveryFilter(),
    )
    page = yield from find_rows(search, limit=limit)
    found: dict[str, DeliverySummary] = {}
    ids = [str(row["id"]) for row in page.items]
    for clause, chosen in among(ids) if ids else ():
        rows = yield Statement(
            f"SELECT {SUMMARY_COLUMNS} FROM {WITH_BODIES} WHERE id {clause}", chosen
        )
        found |= {row["id"]: summary_of(row) for row in rows}
    return page.showing(found[each] for each in ids)


def _order(wanted: DeliveryFilter) -> str:
    # Several subscriptions of a task have the same numbers.
    return "seq DESC, id DESC" if wanted.subscription_id or wanted.task_id else "id DESC"


def _looked_at(
    wanted: DeliveryFilter, before: str | None
) -> Script[tuple[str, tuple[SqlValue, ...], DeliveryFilter]]:
    """Return the rows that a page looks through in its order, and what is left to be filtered.

    Each begins with the index that has few others.
    """
    rows, order = "pushkit_deliveries", f"ORDER BY {_order(wanted)}"
    older, start = ("id < $1" if before else "$1 = ''"), before or ""
    if wanted.subscription_id is not None or wanted.task_id is not None:
        if before:
            older = "(seq, id) < (SELECT p.seq, p.id FROM pushkit_deliveries p WHERE p.id = $1)"
        of = "task_id = $2 AND tenant = $3"
        named: tuple[SqlValue, ...] = (start, wanted.task_id, wanted.tenant)
        rest = replace(wanted, task_id=None, tenant=None)
        if wanted.subscription_id is not None:
            of, named = "subscription_id = $2", (start, wanted.subscription_id)
            rest = replace(wanted, subscription_id=None)
        return f"FROM {rows} WHERE {of} AND {older} {order}", named, rest
    if wanted.error is not None:
        rest = replace(wanted, error=None)
        return (
            f"FROM {rows} WHERE last_error = $2 AND {older} {order}",
            (start, wanted.error),
            rest,
        )
    if wanted.state is DeliveryState.DEAD:
        rest = replace(wanted, state=None)
        return f"FROM {rows} WHERE state = 'dead' AND {older} {order}", (start,), rest
    if wanted.state in (DeliveryState.PENDING, DeliveryState.IN_FLIGHT):
        rows = yield from narrowed(rows, UNFINISHED, _FILTERED)
    return f"FROM {rows} WHERE {older} {order}", (start,), wanted


def outbox_figures(now: datetime, *, within: timedelta, failures: int) -> Script[OutboxFigures]:
    """Return what says whether deliveries flow.

    Args:
        within: How far back it looks at what ended.
        failures: From how many failures in a row on a destination is on probation.
    """
    in_flight = yield from count_at_most("pushkit_deliveries WHERE state = 'in_flight'")
    unfinished = yield from count_at_most(f"pushkit_deliveries WHERE {UNFINISHED}")
    dead = yield from count_at_most("pushkit_deliveries WHERE state = 'dead'")
    failing = yield from count_at_most(
        f"(SELECT * FROM pushkit_destinations LIMIT {_MOST_DESTINATIONS}) h"
        " WHERE until > $1 OR failures >= CAST($2 AS BIGINT)",
        (to_micros(now), failures),
    )
    heads = yield Statement(
        "SELECT MIN(notified_at) AS oldest FROM (SELECT notified_at FROM pushkit_deliveries"
        f" WHERE head = 1 AND state = 'pending' ORDER BY not_before LIMIT {_MOST_HEADS}) h"
    )
    due = yield Statement(
        "SELECT MIN(not_before) AS moment FROM pushkit_deliveries"
        " WHERE head = 1 AND state = 'pending' AND not_before <= $1",
        (to_micros(now),),
    )
    errors: dict[str, int] = {}
    local: dict[str, int] = {}
    for source in (
        "head = 1 AND state = 'pending' ORDER BY not_before",
        "state = 'dead' ORDER BY id DESC",
    ):
        rows = yield Statement(
            "SELECT last_error, state, fruitless_claims FROM pushkit_deliveries"
            f" WHERE {source} LIMIT {_MOST_ERRORS}"
        )
        for row in rows:
            if (code := row["last_error"]) is None:
                continue
            errors[code] = errors.get(code, 0) + 1
            if row["state"] == "pending" and row["fruitless_claims"]:
                local[code] = local.get(code, 0) + 1
    finished = yield from finished_since(now - within)
    is_all = len(finished) < _MOST_FINISHED
    return OutboxFigures(
        now=now,
        pending=AtMost(max(unfinished.number - in_flight.number, 0), unfinished.more),
        in_flight=in_flight,
        dead=dead,
        oldest_pending_at=moment_or_none(heads[0]["oldest"]),
        due_since=moment_or_none(due[0]["moment"]),
        local_faults=local,
        errors=dict(sorted(errors.items(), key=lambda pair: (-pair[1], pair[0]))),
        failing=failing,
        finished=tuple(finished),
        finished_since=now - within if is_all else finished[-1].finished_at,
    )


def browse_destinations(
    *, after: DestinationKey | None, limit: int
) -> Script[list[DestinationStanding]]:
    """Return a page of destinations that have failed, by tenant, owner and origin."""
    rows = yield Statement(
        "SELECT tenant, owner, origin, failures, until FROM pushkit_destinations"
        " WHERE (tenant, owner, origin) > ($1, $2, $3) ORDER BY tenant, owner, origin"
        " LIMIT CAST($4 AS BIGINT)",
        (*(after or ("", "", "")), limit),
    )
    return [
        DestinationStanding(
            tenant=row["tenant"],
            owner=row["owner"],
            origin=row["origin"],
            failures=row["failures"],
            waits_until=from_micros(row["until"]),
        )
        for row in rows
    ]


def finished_since(since: datetime) -> Script[list[Finished]]:
    """Return what ended since then, the newest first; the newest so many, if it is much."""
    rows = yield Statement(
        "SELECT id, origin, state, attempts, notified_at, finished_at FROM pushkit_deliveries"
        " WHERE finished_at IS NOT NULL AND finished_at >= $1 ORDER BY finished_at DESC"
        f" LIMIT {_MOST_FINISHED}",
        (to_micros(since),),
    )
    return [
        Finished(
            id=row["id"],
            origin=row["origin"],
            state=DeliveryState(row["state"]),
            attempts=row["attempts"],
            notified_at=from_micros(row["notified_at"]),
            finished_at=from_micros(row["finished_at"]),
        )
        for row in rows
    ]
