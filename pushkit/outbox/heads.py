"""The mark of the oldest, as scripts: order is kept by `head`.

Of each subscription's unfinished deliveries only the oldest is the head, and only heads are
claimed. A claim therefore looks at an index of heads that are due, whatever the length of the
backlog behind them; settling a head passes the mark on. Of a paused subscription nothing is the
head. Claims write 2 in place of 1 for a head that is parked (see `pushkit.outbox.parking`).
"""

from __future__ import annotations

from collections.abc import Sequence

from pushkit.outbox.states import UNFINISHED
from pushkit.storage.script import Script, Statement, padded, rows_of_places


def hold_back(subscription_id: str) -> Script[None]:
    """Offer nothing of a subscription until `mark_oldest`; what is in flight goes on."""
    yield Statement(
        "UPDATE pushkit_deliveries SET head = 0"
        f" WHERE subscription_id = $1 AND head > 0 AND {UNFINISHED}",
        (subscription_id,),
    )


def pass_heads_on(ids: Sequence[str]) -> Script[None]:
    """Offer the oldest that is unfinished of each subscription, unless that is paused."""
    filled = padded(ids)
    yield Statement(
        "UPDATE pushkit_deliveries SET head = 1 WHERE id IN (SELECT"
        " (SELECT d.id FROM pushkit_deliveries d WHERE d.subscription_id = v.column1"
        f" AND d.{UNFINISHED} ORDER BY d.seq LIMIT 1)"
        f" FROM (VALUES {rows_of_places(len(filled), 1)}) v WHERE NOT EXISTS"
        " (SELECT 1 FROM pushkit_subscriptions WHERE id = v.column1 AND paused = 1))",
        filled,
    )


def mark_oldest(subscription_id: str) -> Script[None]:
    """Offer the oldest, after a change in the middle of what is unfinished.

    What is in flight keeps the mark, and passes it on when it settles: two of a subscription
    are never under way at once.
    """
    # Also of what is in flight: a head that is being claimed, or given back because its lease has
    # ended, is waited for here, and then stays what it is until this transaction ends.
    yield from hold_back(subscription_id)
    yield Statement(
        "UPDATE pushkit_deliveries SET head = 1 WHERE id = (SELECT id FROM pushkit_deliveries"
        f" WHERE subscription_id = $1 AND {UNFINISHED}"
        " ORDER BY CASE WHEN state = 'in_flight' THEN 0 ELSE 1 END, seq LIMIT 1)"
        " AND NOT EXISTS (SELECT 1 FROM pushkit_subscriptions WHERE id = $1 AND paused = 1)",
        (subscription_id,),
    )
