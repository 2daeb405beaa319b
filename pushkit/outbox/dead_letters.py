"""Sending again, and cancelling by hand, as scripts (see `pushkit.storage.script`).

Whoever runs them holds the subscription's row (`SubscriptionStore.lock`), as everybody does who
adds to its deliveries or finishes one: the mark of the oldest moves in here.
"""

from __future__ import annotations

from collections.abc import Sequence
from datetime import datetime

from pushkit.outbox.cancelling import CancelledBy
from pushkit.outbox.heads import mark_oldest
from pushkit.outbox.model import DeliveryState
from pushkit.storage import Script, Statement, among, to_micros

__all__ = ["DeadLetters"]


class DeadLetters:
    """Scripts that bring finished deliveries back, or end waiting ones."""

    def subscriptions_of(self, ids: Sequence[str]) -> Script[dict[str, list[str]]]:
        """Return which of these deliveries belong to which subscription, in order of both."""
        found: dict[str, list[str]] = {}
        for clause, values in among(sorted(set(ids))):
            rows = yield Statement(
                f"SELECT id, subscription_id FROM pushkit_deliveries WHERE id {clause}", values
            )
            for row in rows:
                found.setdefault(row["subscription_id"], []).append(row["id"])
        return {
            subscription_id: sorted(found[subscription_id]) for subscription_id in sorted(found)
        }

    def revive(
        self,
        subscription_id: str,
        ids: Sequence[str],
        *,
        state: DeliveryState,
        origin: str,
        now: datetime,
    ) -> Script[list[str]]:
        """Let deliveries of one subscription be made again; return those that were in `state`.

        Id and `seq` stay, attempts and age begin anew, and they go to where the subscription points
        now. What is in flight goes on; what is pending waits behind a lower `seq`.
        """
        revived: list[str] = []
        for clause, values in among(ids, after=4):
            rows = yield Statement(
                "UPDATE pushkit_deliveries SET state = 'pending', head = 0, attempts = 0,"
                " redriven_at = $3, not_before = $3, finished_at = NULL, cancelled_by = NULL,"
                " origin = $4, fruitless_claims = 0"
                f" WHERE subscription_id = $1 AND state = $2 AND id {clause} RETURNING id",
                (subscription_id, state.value, to_micros(now), origin, *values),
            )
            revived += [str(row["id"]) for row in rows]
        if revived:
            yield from mark_oldest(subscription_id)
        return sorted(revived)

    def cancelled_with(self, subscription_id: str, since: datetime) -> Script[list[str]]:
        """Return what was cancelled when a subscription was disabled at a moment, by `seq`."""
        rows = yield Statement(
            "SELECT id FROM pushkit_deliveries WHERE subscription_id = $1 AND state = 'cancelled'"
            f" AND cancelled_by = '{CancelledBy.DISABLED}' AND finished_at >= $2 ORDER BY seq",
            (subscription_id, to_micros(since)),
        )
        return [str(row["id"]) for row in rows]

    def cancel(self, subscription_id: str, ids: Sequence[str], now: datetime) -> Script[list[str]]:
        """Cancel pending deliveries of one subscription; return those that were pending."""
        cancelled: list[str] = []
        for clause, values in among(ids, after=2):
            rows = yield Statement(
                "UPDATE pushkit_deliveries SET state = 'cancelled', head = 0, finished_at = $2,"
                f" cancelled_by = '{CancelledBy.OPERATOR}'"
                f" WHERE subscription_id = $1 AND state = 'pending' AND id {clause} RETURNING id",
                (subscription_id, to_micros(now), *values),
            )
            cancelled += [str(row["id"]) for row in rows]
        if cancelled:
            yield from mark_oldest(subscription_id)
        return sorted(cancelled)
