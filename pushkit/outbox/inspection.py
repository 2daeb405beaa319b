"""Reading the outbox for operators, as scripts: deliveries, subscriptions and queues."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from datetime import datetime
from typing import Final, TypeVar

from pushkit.a2a import WireVersion
from pushkit.errors import SealedSecretError
from pushkit.outbox import attempts
from pushkit.outbox.attempts import LoggedAttempt
from pushkit.outbox.model import DeliveryColumns
from pushkit.outbox.states import (
    IS_IN_FLIGHT,
    IS_NEXT,
    SHOWN_STATE,
    CancelledBy,
    DeliveryState,
)
from pushkit.queue.tables import UNFINISHED, ListedQueue
from pushkit.record import field, record
from pushkit.secrets.sealing import SEALED, SEALING_OVERHEAD, is_sealed
from pushkit.secrets.vault import Vault
from pushkit.storage.paging import WINDOW, Index, Listing, read_record
from pushkit.storage.script import Row, Script, Statement, to_micros
from pushkit.subscriptions.model import OUTBOX, SubscriptionState
from pushkit.subscriptions.store import read_subscription

W = TypeVar("W", "DeliveryFilter", "SubscriptionFilter")


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


@record(frozen=True, slots=True, kw_only=True)
class DeliverySummary(DeliveryColumns):
    """A delivery without its body."""

    content_type: str  # the media type of the body
    body_bytes: int
    finished_at: datetime | None
    cancelled_by: CancelledBy | None


@record(frozen=True, slots=True, kw_only=True)
class DeliveryReport:
    """One delivery with its body and attempts."""

    delivery: DeliverySummary
    # Its body; None if it is sealed with a key that this process does not have.
    body: bytes | None = field(repr=False)
    attempts: tuple[LoggedAttempt, ...]  # its attempts, first to last


@record(frozen=True, slots=True, kw_only=True)
class SubscriptionFilter:
    """A filter of subscriptions; None is any."""

    state: SubscriptionState | None = None  # the state; None is any but withdrawn
    tenant: str | None = None  # the tenant; empty is the one without a name
    owner: str | None = None  # the owner; empty likewise
    task_id: str | None = None  # the task
    origin: str | None = None  # the destination, as `https://host:port`


@record(frozen=True, slots=True, kw_only=True)
class OutboxQueue(ListedQueue):
    """The queue of a subscription, whose id it has; its jobs are deliveries."""

    tenant: str
    owner: str
    task_id: str
    origin: str
    next_seq: int | None  # the `seq` of its first unfinished delivery
    paused: bool  # whether its deliveries wait until the subscription is resumed
    removed: bool  # whether the subscription was removed, or withdrawn at its task's end
    failing_since: datetime | None  # since when every attempt of the subscription failed
    waits_until: datetime | None  # until when its destination waits
    failures: int  # of its destination, in a row


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
_WHERE_STATE: Final = {
    **{state: f"state = '{state}'" for state in DeliveryState},
    DeliveryState.PENDING: f"{UNFINISHED} AND NOT {IS_IN_FLIGHT}",
    DeliveryState.IN_FLIGHT: IS_IN_FLIGHT,
}
_WHERE_STATE_OF_SUBSCRIPTION: Final = {
    None: "removed_at IS NULL",
    SubscriptionState.ACTIVE: "removed_at IS NULL AND active = 1 AND paused = 0",
    SubscriptionState.PAUSED: "removed_at IS NULL AND active = 1 AND paused = 1",
    SubscriptionState.DISABLED: "removed_at IS NULL AND active = 0",
    SubscriptionState.WITHDRAWN: "removed_at IS NOT NULL",
}


def of_unnamed_tenant(wanted: W) -> W:
    """Return a filter of which a task without a tenant is one of the tenant without a name."""
    is_unnamed = wanted.task_id is not None and wanted.tenant is None
    return replace(wanted, tenant="") if is_unnamed else wanted


def _summary_of(row: Row) -> DeliverySummary:
    overhead = SEALING_OVERHEAD if is_sealed(row["body_head"]) else 0
    return read_record(
        DeliverySummary,
        row,
        body_bytes=row["body_bytes"] - overhead,
        content_type=WireVersion(row["version"]).content_type,
    )


# Earlier versions stored only the error, not `cancelled_by`.
NOT_SUPERSEDED: Final = (
    f"COALESCE(cancelled_by, '') <> '{CancelledBy.SUPERSEDED}'"
    f" AND COALESCE(last_error, '') <> '{CancelledBy.SUPERSEDED}'"
)
_BY_SEQ: Final = "seq, id"  # several subscriptions of a task have the same numbers
DELIVERIES: Final = Listing(
    by=DeliveryFilter,
    table="pushkit_deliveries",
    select=f"SELECT {_SUMMARY} FROM {_WITH_BODIES}",
    read=_summary_of,
    columns=(
        "id, seq, tenant, owner, task_id, subscription_id, origin, state, waits, last_error,"
        " cancelled_by"
    ),
    conditions={"state": _WHERE_STATE, "error": "last_error", "next_only": {True: IS_NEXT}},
    indexes=(
        Index(("subscription_id",), _BY_SEQ),
        Index(("task_id", "tenant"), _BY_SEQ),
        Index(("last_error",)),
        Index((_WHERE_STATE[DeliveryState.DEAD],)),
        Index((_WHERE_STATE[DeliveryState.PENDING],), among=UNFINISHED),
        Index((_WHERE_STATE[DeliveryState.IN_FLIGHT],), among=UNFINISHED),
    ),
)
SUBSCRIPTIONS: Final = Listing(
    by=SubscriptionFilter,
    table="pushkit_subscriptions",
    select="SELECT * FROM pushkit_subscriptions",
    read=read_subscription,
    columns="*",
    conditions={"state": _WHERE_STATE_OF_SUBSCRIPTION},
    indexes=(Index(("tenant", "task_id")),),
)


def show(delivery_id: str, vault: Vault) -> Script[DeliveryReport | None]:
    """Return one delivery with its attempts; None if there is no such delivery."""
    rows = yield Statement(
        f"SELECT {_SUMMARY}, body FROM {_WITH_BODIES} WHERE id = $1", (delivery_id,)
    )
    if not rows:
        return None
    attempts = yield from attempts_of([delivery_id], vault)
    return DeliveryReport(
        delivery=_summary_of(rows[0]),
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


def queues(now: datetime, *, after: str | None, limit: int) -> Script[list[OutboxQueue]]:
    """Return a page of queues that are leased or due, now or later, by id."""
    return OUTBOX.listed(
        lambda row, waiting: read_record(OutboxQueue, row, waiting=waiting),
        "q.tenant, q.owner, q.task_id, q.origin, q.paused, q.failing_since,"
        f" (SELECT MIN(d.seq) FROM pushkit_deliveries d WHERE d.subscription_id = q.id"
        f" AND d.{UNFINISHED}) AS next_seq, q.removed_at IS NOT NULL AS removed,"
        " CASE WHEN g.until > $3 THEN g.until END AS waits_until,"
        " COALESCE(g.failures, 0) AS failures",
        to_micros(now),
        after=after,
        limit=limit,
    )
