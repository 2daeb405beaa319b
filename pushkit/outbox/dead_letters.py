"""Redriving deliveries, and cancelling them, for operators; as scripts.

The caller holds the subscription's row (`SubscriptionStore.lock`), like every script that adds or
finishes a delivery: these scripts may move the head of its queue.
"""

from __future__ import annotations

from collections.abc import Sequence
from datetime import datetime
from typing import NamedTuple

from pushkit.outbox.destinations import DestinationKey
from pushkit.outbox.heads import set_head
from pushkit.outbox.states import CANCELLED, REDRIVEN, CancelledBy, DeliveryState
from pushkit.storage.script import Row, Script, Statement, run_for_ids, to_micros


class Standing(NamedTuple):
    """The state of a delivery and its subscription: an operator's choices depend on it."""

    state: DeliveryState
    is_head: bool  # whether it is the head of its queue
    destination: DestinationKey
    # Whether its subscription is not disabled; None if it was removed.
    is_wanted: bool | None
    is_paused: bool  # whether its subscription is paused


class DeadLetters:
    """Scripts that bring finished deliveries back, or cancel waiting ones."""

    def subscriptions_of(self, ids: Sequence[str]) -> Script[dict[str, list[str]]]:
        """Return the ids of deliveries by subscription, both in order."""
        found: dict[str, list[str]] = {}
        rows = yield from run_for_ids(
            "SELECT id, subscription_id FROM pushkit_deliveries WHERE id IN ($ids)",
            sorted(set(ids)),
        )
        for row in rows:
            found.setdefault(row["subscription_id"], []).append(row["id"])
        return {
            subscription_id: sorted(found[subscription_id]) for subscription_id in sorted(found)
        }

    def standings(self, ids: Sequence[str]) -> Script[dict[str, Standing]]:
        """Return the standing of deliveries by id; unknown ids are left out."""
        rows = yield from run_for_ids(
            "SELECT d.id, d.state, d.head, d.tenant, d.owner, d.origin, s.active, s.paused"
            " FROM pushkit_deliveries d"
            " LEFT JOIN pushkit_subscriptions s ON s.id = d.subscription_id"
            " WHERE d.id IN ($ids)",
            sorted(set(ids)),
        )
        return {row["id"]: _standing(row) for row in rows}

    def make_due(self, ids: Sequence[str], now: datetime) -> Script[list[str]]:
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
        self,
        subscription_id: str,
        ids: Sequence[str],
        *,
        states: Sequence[DeliveryState],
        origin: str,
        now: datetime,
    ) -> Script[list[str]]:
        """Make deliveries of one subscription pending again; return those that were in `states`.

        Id and `seq` stay, attempts and age begin anew, and they go to the subscription's current
        URL. A delivery in flight continues; pending ones wait behind a lower `seq`.
        """
        # Two parameters, the last state repeated: one statement for every choice.
        first, second = (*states, states[-1])[:2]
        redriven = yield from run_for_ids(
            REDRIVEN.where(
                "subscription_id = $1 AND state IN ($4, $5) AND id IN ($ids) RETURNING id"
            ),
            ids,
            *(subscription_id, to_micros(now), origin, first.value, second.value),
        )
        if redriven:
            yield from set_head(subscription_id)
        return sorted(row["id"] for row in redriven)

    def cancelled_with(self, subscription_id: str, since: datetime) -> Script[list[str]]:
        """Return the deliveries that were cancelled when a subscription was disabled, by `seq`."""
        rows = yield Statement(
            "SELECT id FROM pushkit_deliveries WHERE subscription_id = $1 AND state = 'cancelled'"
            f" AND cancelled_by = '{CancelledBy.DISABLED}' AND finished_at >= $2 ORDER BY seq",
            (subscription_id, to_micros(since)),
        )
        return [str(row["id"]) for row in rows]

    def cancel(self, subscription_id: str, ids: Sequence[str], now: datetime) -> Script[list[str]]:
        """Cancel pending deliveries of one subscription; return those that were pending."""
        cancelled = yield from run_for_ids(
            CANCELLED.where("subscription_id = $1 AND id IN ($ids) RETURNING id"),
            ids,
            *(subscription_id, to_micros(now), CancelledBy.OPERATOR.value),
        )
        if cancelled:
            yield from set_head(subscription_id)
        return sorted(row["id"] for row in cancelled)


def _standing(row: Row) -> Standing:
    return Standing(
        state=DeliveryState(row["state"]),
        is_head=bool(row["head"]),
        destination=(row["tenant"], row["owner"], row["origin"]),
        is_wanted=None if row["active"] is None else bool(row["active"]),
        is_paused=bool(row["paused"]),
    )
