"""Redriving deliveries, and cancelling them, for operators; as scripts.

The caller holds the row of their queue (`OUTBOX.lock`), like every script that changes deliveries,
and writes the queue that these scripts return.
"""

from __future__ import annotations

from collections.abc import Sequence
from datetime import datetime
from typing import NamedTuple

from pushkit.outbox.destinations import DestinationKey
from pushkit.outbox.states import (
    CANCELLED,
    IS_NEXT,
    REDRIVEN,
    SHOWN_STATE,
    CancelledBy,
    DeliveryState,
)
from pushkit.queue.leases import reschedule
from pushkit.queue.rules import Queue
from pushkit.storage.script import Row, Script, Statement, run_for_ids, to_micros
from pushkit.subscriptions.model import OUTBOX


class Standing(NamedTuple):
    """The state of a delivery and its subscription: an operator's choices depend on it."""

    state: DeliveryState
    is_next: bool  # whether it is the first unfinished one of its queue, which is not paused
    destination: DestinationKey
    # Whether its subscription is not disabled; None if it was removed.
    is_wanted: bool | None
    is_paused: bool  # whether its subscription is paused


def subscriptions_of(ids: Sequence[str]) -> Script[dict[str, list[str]]]:
    """Return the ids of deliveries by subscription, both in order."""
    found: dict[str, list[str]] = {}
    rows = yield from run_for_ids(
        "SELECT id, subscription_id FROM pushkit_deliveries WHERE id IN ($ids)",
        sorted(set(ids)),
    )
    for row in rows:
        found.setdefault(row["subscription_id"], []).append(row["id"])
    return {subscription_id: sorted(found[subscription_id]) for subscription_id in sorted(found)}


def standings(ids: Sequence[str]) -> Script[dict[str, Standing]]:
    """Return the standing of deliveries by id; unknown ids are left out."""
    rows = yield from run_for_ids(
        "SELECT d.id, d.shown, d.is_next, d.tenant, d.owner, d.origin, s.active, s.paused"
        f" FROM (SELECT id, subscription_id, tenant, owner, origin, {SHOWN_STATE} AS shown,"
        f" CASE WHEN {IS_NEXT} THEN 1 ELSE 0 END AS is_next"
        " FROM pushkit_deliveries WHERE id IN ($ids)) d"
        " LEFT JOIN pushkit_subscriptions s ON s.id = d.subscription_id",
        sorted(set(ids)),
    )
    return {row["id"]: _standing(row) for row in rows}


def make_due(ids: Sequence[str], now: datetime) -> Script[list[str]]:
    """Make pending deliveries due now; return those that were pending."""
    rows = yield from run_for_ids(
        "UPDATE pushkit_deliveries"
        " SET not_before = CASE WHEN not_before > $1 THEN $1 ELSE not_before END,"
        " scheduled_at = $1"
        " WHERE state = 'pending' AND id IN ($ids) RETURNING id",
        sorted(set(ids)),
        to_micros(now),
    )
    return sorted(row["id"] for row in rows)


def redrive(
    queue: Queue,
    ids: Sequence[str],
    *,
    states: Sequence[DeliveryState],
    now: datetime,
) -> Script[list[str]]:
    """Make deliveries of one queue pending again; return those that were in `states`.

    Id and `seq` stay, attempts and age begin anew, and they go to the subscription's current
    URL. A delivery in flight continues; pending ones wait behind a lower `seq`.
    """
    # Two parameters, the last state repeated: one statement for every choice.
    first, second = (*states, states[-1])[:2]
    redriven = yield from run_for_ids(
        REDRIVEN.where("subscription_id = $1 AND state IN ($5, $6) AND id IN ($ids) RETURNING id"),
        ids,
        *(queue.id, to_micros(now), queue.origin, int(queue.lease_worker is not None)),
        *(first.value, second.value),
    )
    if redriven:
        yield from reschedule(OUTBOX, [queue], to_micros(now))
    return sorted(row["id"] for row in redriven)


def cancelled_with(subscription_id: str, since: datetime) -> Script[list[str]]:
    """Return the deliveries that were cancelled when a subscription was disabled, by `seq`."""
    rows = yield Statement(
        "SELECT id FROM pushkit_deliveries WHERE subscription_id = $1 AND state = 'cancelled'"
        f" AND cancelled_by = '{CancelledBy.DISABLED}' AND finished_at >= $2 ORDER BY seq",
        (subscription_id, to_micros(since)),
    )
    return [str(row["id"]) for row in rows]


def cancel(queue: Queue, ids: Sequence[str], now: datetime) -> Script[list[str]]:
    """Cancel pending deliveries of one queue that its holder does not have; return them."""
    held_to = queue.sending_to if queue.lease_worker is not None else 0
    cancelled = yield from run_for_ids(
        CANCELLED.where(
            "subscription_id = $1 AND (seq > $4 OR waits = 1) AND id IN ($ids) RETURNING id"
        ),
        ids,
        *(queue.id, to_micros(now), CancelledBy.OPERATOR.value, held_to),
    )
    if cancelled and queue.lease_worker is None:
        yield from reschedule(OUTBOX, [queue], to_micros(now))
    return sorted(row["id"] for row in cancelled)


def _standing(row: Row) -> Standing:
    return Standing(
        state=DeliveryState(row["shown"]),
        is_next=bool(row["is_next"]),
        destination=(row["tenant"], row["owner"], row["origin"]),
        is_wanted=None if row["active"] is None else bool(row["active"]),
        is_paused=bool(row["paused"]),
    )
