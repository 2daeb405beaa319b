"""Reading the outbox for operators, as scripts: lists, one delivery with its attempts, counts."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from datetime import datetime
from typing import Final

from pushkit.errors import SealedSecretError
from pushkit.outbox.attempts import AttemptLog, LoggedAttempt
from pushkit.outbox.states import CancelledBy, DeliveryState
from pushkit.record import field, record
from pushkit.secrets.sealing import SEALED, SEALING_OVERHEAD, is_sealed
from pushkit.secrets.vault import Vault
from pushkit.storage.paging import WINDOW, conditions, read_record, rows_after
from pushkit.storage.script import Row, Rows, Script, Statement, moment_or_none

_FILTERED = ("state", "tenant", "owner", "task_id", "subscription_id", "origin", "cancelled_by")


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
        more = ["head > 0"] if self.next_only else []
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


AGE_FROM: Final = "COALESCE(redriven_at, notified_at) AS age_from"  # as `Delivery.age_from`
_SUMMARY: Final = (
    "id, subscription_id, tenant, owner, task_id, config_id, seq, origin, content_type,"
    f" LENGTH(body) AS body_bytes, SUBSTR(body, 1, {len(SEALED)}) AS body_head,"
    " state, attempts, notified_at, redriven_at, not_before,"
    " finished_at, last_status, last_error, cancelled_by"
)
_WITH_BODIES: Final = (
    "pushkit_deliveries JOIN (SELECT id AS body_of, body FROM pushkit_bodies) bodies"
    " ON body_of = id"
)
SUMMARIES: Final = f"SELECT {_SUMMARY} FROM {_WITH_BODIES}"


class Inspection:
    """Scripts that only read."""

    def __init__(self, vault: Vault | None = None) -> None:
        self._vault = vault or Vault()

    def find(
        self, wanted: DeliveryFilter, *, after: str | None, limit: int
    ) -> Script[list[DeliverySummary]]:
        """Return a page of deliveries, by id: oldest first."""
        rows = yield from rows_after(SUMMARIES, wanted, after or "", limit=limit)
        return [*map(summary_of, rows)]

    def show(self, delivery_id: str) -> Script[DeliveryReport | None]:
        """Return one delivery with its attempts; None if there is no such delivery."""
        rows = yield Statement(
            f"SELECT {_SUMMARY}, body FROM {_WITH_BODIES} WHERE id = $1", (delivery_id,)
        )
        if not rows:
            return None
        attempts = yield from self.attempts_of([delivery_id])
        return DeliveryReport(
            delivery=summary_of(rows[0]),
            body=self._opened(delivery_id, rows[0]["body"]),
            attempts=tuple(attempts[delivery_id]),
        )

    def attempts_of(self, ids: Sequence[str]) -> Script[dict[str, list[LoggedAttempt]]]:
        """Return the attempts of each of some deliveries, first to last."""
        found = yield from AttemptLog().of_deliveries(ids)
        return {of: [self._with_answer(of, each) for each in log] for of, log in found.items()}

    def _with_answer(self, delivery_id: str, attempt: LoggedAttempt) -> LoggedAttempt:
        if attempt.answer is None:
            return attempt
        try:
            opened = self._vault.open_answer(delivery_id, attempt.number, attempt.answer)
        except SealedSecretError:
            return replace(attempt, answer=None, is_sealed=True)
        return replace(attempt, answer=opened)

    def states_of(self, subscription_id: str) -> Script[dict[DeliveryState, int]]:
        """Count the newest deliveries of a subscription by state."""
        rows = yield Statement(
            "SELECT state, COUNT(*) AS found FROM (SELECT state FROM pushkit_deliveries"
            f" WHERE subscription_id = $1 ORDER BY seq DESC LIMIT {WINDOW}) n GROUP BY state",
            (subscription_id,),
        )
        return _by_state(rows)

    def _opened(self, delivery_id: str, body: bytes) -> bytes | None:
        try:
            return self._vault.open_body(delivery_id, bytes(body))
        except SealedSecretError:
            return None

    def stats(self) -> Script[OutboxStats]:
        """Return counts over the whole outbox."""
        states = yield Statement(
            "SELECT state, COUNT(*) AS found FROM pushkit_deliveries GROUP BY state"
        )
        oldest = yield Statement(
            f"SELECT MIN(age_from) AS moment FROM (SELECT {AGE_FROM} FROM pushkit_deliveries"
            " WHERE state = 'pending') p"
        )
        origins = yield Statement(
            "SELECT origin, COUNT(*) FILTER (WHERE state = 'pending') AS pending,"
            " COUNT(*) FILTER (WHERE state = 'in_flight') AS in_flight,"
            " COUNT(*) FILTER (WHERE state = 'dead') AS dead FROM pushkit_deliveries"
            " WHERE state IN ('pending', 'in_flight', 'dead') GROUP BY origin"
        )
        by_origin = [read_record(OriginStats, row) for row in origins]
        by_origin.sort(key=lambda each: (-each.pending, -each.dead, each.origin))
        errors = yield Statement(
            "SELECT last_error AS error, COUNT(*) AS found,"
            " SUM(CASE WHEN state = 'pending' AND fruitless_claims > 0 THEN 1 ELSE 0 END) AS local"
            " FROM pushkit_deliveries WHERE state IN ('pending', 'dead')"
            " AND last_error IS NOT NULL GROUP BY last_error ORDER BY last_error"
        )
        return OutboxStats(
            states=_by_state(states),
            oldest_pending_at=moment_or_none(oldest[0]["moment"]),
            origins=tuple(by_origin),
            errors={row["error"]: row["found"] for row in errors},
            local_faults={row["error"]: row["local"] for row in errors if row["local"]},
        )


def _by_state(rows: Rows) -> dict[DeliveryState, int]:
    found = {row["state"]: row["found"] for row in rows}
    return {state: found.get(state, 0) for state in DeliveryState}


def summary_of(row: Row) -> DeliverySummary:
    """Return the delivery in a row of `SUMMARIES`."""
    overhead = SEALING_OVERHEAD if is_sealed(row["body_head"]) else 0
    return read_record(DeliverySummary, row, body_bytes=row["body_bytes"] - overhead)
