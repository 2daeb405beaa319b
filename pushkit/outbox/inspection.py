"""Reading the outbox for operators, as scripts: lists, one delivery with its attempts, counts."""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Sequence
from dataclasses import replace
from datetime import datetime
from typing import Final

from pushkit.a2a import WireVersion
from pushkit.errors import SealedSecretError
from pushkit.outbox import attempts
from pushkit.outbox.attempts import LoggedAttempt
from pushkit.outbox.states import (
    IS_IN_FLIGHT,
    IS_NEXT,
    SHOWN_STATE,
    UNFINISHED,
    CancelledBy,
    DeliveryState,
)
from pushkit.record import field, record
from pushkit.secrets.sealing import SEALED, SEALING_OVERHEAD, is_sealed
from pushkit.secrets.vault import Vault
from pushkit.storage.paging import WINDOW, AtMost, conditions, read_record, rows_after
from pushkit.storage.script import Row, Script, Statement, moment_or_none, to_micros
from pushkit.subscriptions.model import OUTBOX

_FILTERED = ("tenant", "owner", "task_id", "subscription_id", "origin", "cancelled_by")


@record(frozen=True, slots=True, kw_only=True)
class DeliveryFilter:
    """A filter of deliveries; None is any."""

    state: DeliveryState | None = None  # the state
    tenant: str | None = None  # the tenant; empty is the one without a name
    owner: str | None = None  # the owner; empty likewise
    task_id: str | None = None  # the task
    subscription_id: str | None = None  # the subscription
    origin: str | None = None  # the destination, as `https://host:port`
    error: str | None = None  # the short code of the last error
    cancelled_by: CancelledBy | None = None  # who or what cancelled it
    # Only the next delivery of each subscription: none before it is unfinished, and the
    # subscription is not paused.
    next_only: bool = False

    def where(self, *, after: int = 0) -> tuple[str, tuple[str, ...]]:
        """Return the conditions in SQL, and their parameters, numbered after `after` others."""
        wanted = {column: getattr(self, column) for column in _FILTERED}
        more = [IS_NEXT] if self.next_only else []
        if self.state is not None:
            more.append(WHERE_STATE[self.state])
        return conditions({**wanted, "last_error": self.error}, *more, after=after)


@record(frozen=True, slots=True, kw_only=True)
class DeliverySummary:
    """A delivery without its body; the names are those of `Delivery`."""

    id: str
    subscription_id: str
    tenant: str
    owner: str
    task_id: str
    config_id: str
    seq: int
    origin: str
    version: WireVersion
    content_type: str
    body_bytes: int
    state: DeliveryState
    attempts: int
    notified_at: datetime
    redriven_at: datetime | None
    not_before: datetime
    finished_at: datetime | None
    last_status: int | None
    last_error: str | None
    cancelled_by: CancelledBy | None


@record(frozen=True, slots=True, kw_only=True)
class DeliveryReport:
    """One delivery with its body and attempts."""

    delivery: DeliverySummary
    # Its body; None if it is sealed with a key that this process does not have.
    body: bytes | None = field(repr=False)
    attempts: tuple[LoggedAttempt, ...]  # its attempts, first to last


@record(frozen=True, slots=True, kw_only=True)
class OriginStats:
    """How many deliveries to one origin are unfinished or dead."""

    origin: str
    pending: int
    in_flight: int
    dead: int


@record(frozen=True, slots=True, kw_only=True)
class OutboxStats:
    """Counts over the whole outbox."""

    states: dict[DeliveryState, int]  # how many deliveries there are in each state
    # Since when the oldest pending delivery waits; None if none does.
    oldest_pending_at: datetime | None
    origins: tuple[OriginStats, ...]  # by origin, the most pending first
    # How many deliveries are pending or dead after an error, by its code.
    errors: dict[str, int]
    # How many pending deliveries wait because of a fault of the sender, by its code: a key, a
    # secret or a database out of reach, a worker that died.
    local_faults: dict[str, int]


@record(frozen=True, slots=True, kw_only=True)
class QueueStanding:
    """The queue of a subscription that a worker leases, or that has deliveries to be sent."""

    id: str  # of the subscription
    tenant: str
    owner: str
    task_id: str
    origin: str
    worker: str | None  # which worker leases it; None if none does
    leased_at: datetime | None  # since when
    lease_until: datetime | None  # until when, unless the worker renews it
    epoch: int  # how many leases began or ended
    waiting: AtMost  # how many deliveries are pending or in flight
    due_at: datetime | None  # when to look for deliveries that no worker has in memory
    failing_since: datetime | None  # since when every attempt of the subscription failed
    waits_until: datetime | None  # until when its destination waits
    failures: int  # of its destination, in a row


WHERE_STATE: Final = {
    **{state: f"state = '{state}'" for state in DeliveryState},
    DeliveryState.PENDING: f"{UNFINISHED} AND NOT {IS_IN_FLIGHT}",
    DeliveryState.IN_FLIGHT: IS_IN_FLIGHT,
}
"""The condition of each state, in SQL."""
_MOST_WAITING: Final = 1000
_OF_ORIGIN: Final = ("pending", "in_flight", "dead")
_BUSY: Final = "SELECT id FROM pushkit_subscriptions WHERE lease_worker IS NOT NULL"
_DUE: Final = (
    "SELECT id FROM pushkit_subscriptions WHERE due_at IS NOT NULL AND lease_worker IS NULL"
)
AGE_FROM: Final = "COALESCE(redriven_at, notified_at) AS age_from"  # as `Delivery.age_from`
_SUMMARY: Final = (
    "id, subscription_id, tenant, owner, task_id, config_id, seq, origin, version,"
    f" body_bytes, SUBSTR(body, 1, {len(SEALED)}) AS body_head,"
    f" {SHOWN_STATE} AS state, attempts, notified_at, redriven_at, not_before,"
    " finished_at, last_status, last_error, cancelled_by"
)
_WITH_BODIES: Final = (
    "pushkit_deliveries JOIN (SELECT id AS body_of, body FROM pushkit_bodies) bodies"
    " ON body_of = id"
)
SUMMARIES: Final = f"SELECT {_SUMMARY} FROM {_WITH_BODIES}"


def find(wanted: DeliveryFilter, *, after: str | None, limit: int) -> Script[list[DeliverySummary]]:
    """Return a page of deliveries, by id: oldest first."""
    rows = yield from rows_after(SUMMARIES, wanted, after or "", limit=limit)
    return [*map(summary_of, rows)]


def show(delivery_id: str, vault: Vault) -> Script[DeliveryReport | None]:
    """Return one delivery with its attempts; None if there is no such delivery."""
    rows = yield Statement(
        f"SELECT {_SUMMARY}, body FROM {_WITH_BODIES} WHERE id = $1", (delivery_id,)
    )
    if not rows:
        return None
    attempts = yield from attempts_of([delivery_id], vault)
    return DeliveryReport(
        delivery=summary_of(rows[0]),
        body=_opened(vault, delivery_id, rows[0]["body"]),
        attempts=tuple(attempts[delivery_id]),
    )


def attempts_of(ids: Sequence[str], vault: Vault) -> Script[dict[str, list[LoggedAttempt]]]:
    """Return the attempts of each of some deliveries, first to last, their answers opened."""
    found = yield from attempts.of_deliveries(ids)
    return {of: [_with_answer(vault, of, each) for each in log] for of, log in found.items()}


def _with_answer(vault: Vault, delivery_id: str, attempt: LoggedAttempt) -> LoggedAttempt:
    if attempt.answer is None:
        return attempt
    try:
        opened = vault.open_answer(delivery_id, attempt.number, attempt.answer)
    except SealedSecretError:
        return replace(attempt, answer=None, is_sealed=True)
    return replace(attempt, answer=opened)


def states_of(subscription_id: str) -> Script[dict[DeliveryState, int]]:
    """Count the newest deliveries of a subscription by state."""
    rows = yield Statement(
        f"SELECT state, COUNT(*) AS found FROM (SELECT {SHOWN_STATE} AS state"
        " FROM pushkit_deliveries"
        f" WHERE subscription_id = $1 ORDER BY seq DESC LIMIT {WINDOW}) n GROUP BY state",
        (subscription_id,),
    )
    found = {row["state"]: row["found"] for row in rows}
    return {state: found.get(state, 0) for state in DeliveryState}


def _opened(vault: Vault, delivery_id: str, body: bytes) -> bytes | None:
    try:
        return vault.open_body(delivery_id, bytes(body))
    except SealedSecretError:
        return None


def queues(now: datetime, *, after: str | None, limit: int) -> Script[list[QueueStanding]]:
    """Return a page of queues that are leased or due, now or later, by id."""
    rows = yield Statement(
        "SELECT q.id, q.tenant, q.owner, q.task_id, q.origin, q.lease_worker AS worker,"
        " q.leased_at, q.lease_until, q.epoch, q.due_at, q.failing_since,"
        " CASE WHEN g.until > $1 THEN g.until END AS waits_until,"
        " COALESCE(g.failures, 0) AS failures, (SELECT COUNT(*) FROM (SELECT 1"
        f" FROM pushkit_deliveries d WHERE d.subscription_id = q.id AND d.{UNFINISHED}"
        f" LIMIT {_MOST_WAITING + 1}) w) AS waiting FROM {OUTBOX.joined} WHERE q.id IN"
        # Not in the order of the primary key, which has many subscriptions that are idle.
        f" (SELECT id FROM ({_BUSY} UNION ALL {_DUE}) b WHERE id || '' > $2"
        " ORDER BY id || '' LIMIT CAST($3 AS BIGINT)) ORDER BY q.id",
        (to_micros(now), after or "", limit),
    )
    return [
        read_record(
            QueueStanding,
            row,
            waiting=AtMost(min(row["waiting"], _MOST_WAITING), more=row["waiting"] > _MOST_WAITING),
        )
        for row in rows
    ]


def stats() -> Script[OutboxStats]:
    """Return counts over the whole outbox."""
    rows = yield Statement(
        "SELECT state, origin, error, is_local, COUNT(*) AS found, MIN(age_from) AS oldest FROM"
        f" (SELECT {SHOWN_STATE} AS state, {AGE_FROM},"
        # Of what is finished, only the number counts.
        " CASE WHEN state IN ('pending', 'dead') THEN origin END AS origin,"
        " CASE WHEN state IN ('pending', 'dead') THEN last_error END AS error,"
        " CASE WHEN state = 'pending' AND faults > 0 THEN 1 ELSE 0 END AS is_local"
        " FROM pushkit_deliveries) d GROUP BY state, origin, error, is_local"
    )
    states, errors, local = Counter[str](), Counter[str](), Counter[str]()
    of_origin: dict[str, Counter[str]] = defaultdict(Counter)
    for row in rows:
        states[row["state"]] += row["found"]
        if row["origin"] is not None:
            of_origin[row["origin"]][row["state"]] += row["found"]
        if row["error"] is not None:
            errors[row["error"]] += row["found"]
            local[row["error"]] += row["found"] * row["is_local"]
    origins = [
        OriginStats(origin=origin, **{name: found[name] for name in _OF_ORIGIN})
        for origin, found in of_origin.items()
    ]
    oldest = (row["oldest"] for row in rows if row["state"] == DeliveryState.PENDING)
    return OutboxStats(
        states={state: states[state] for state in DeliveryState},
        oldest_pending_at=moment_or_none(min(oldest, default=None)),
        origins=tuple(sorted(origins, key=lambda each: (-each.pending, -each.dead, each.origin))),
        errors=dict(sorted(errors.items())),
        local_faults=dict(sorted((+local).items())),
    )


def summary_of(row: Row) -> DeliverySummary:
    """Return the delivery in a row of `SUMMARIES`."""
    overhead = SEALING_OVERHEAD if is_sealed(row["body_head"]) else 0
    return read_record(
        DeliverySummary,
        row,
        body_bytes=row["body_bytes"] - overhead,
        content_type=WireVersion(row["version"]).content_type,
    )
