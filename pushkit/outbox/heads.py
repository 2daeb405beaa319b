"""The heads of queues, as scripts: the column `head` keeps deliveries in order.

The queue of a subscription has one head, its oldest unfinished delivery, and only heads are
claimed. A claim therefore reads an index of due heads, whatever the length of the backlog behind
them; settling a head passes the mark on. The queue of a paused subscription has no head. Claims
write 2 in place of 1 for a head that is parked (see `pushkit.outbox.parking`).
"""

from __future__ import annotations

from collections.abc import Sequence

from pushkit.outbox.states import UNFINISHED
from pushkit.storage.script import Script, Statement, run_for_rows


def clear_head(subscription_id: str) -> Script[None]:
    """Leave a queue without a head until `set_head`; a delivery in flight continues."""
    yield Statement(
        "UPDATE pushkit_deliveries SET head = 0"
        f" WHERE subscription_id = $1 AND head > 0 AND {UNFINISHED}",
        (subscription_id,),
    )


def pass_heads_on(ids: Sequence[str]) -> Script[None]:
    """Make the oldest unfinished delivery of each subscription the head, unless it is paused."""
    yield from run_for_rows(
        "UPDATE pushkit_deliveries SET head = 1 WHERE id IN (SELECT"
        " (SELECT d.id FROM pushkit_deliveries d WHERE d.subscription_id = v.column1"
        f" AND d.{UNFINISHED} ORDER BY d.seq LIMIT 1)"
        " FROM (VALUES $rows) v WHERE NOT EXISTS"
        " (SELECT 1 FROM pushkit_subscriptions WHERE id = v.column1 AND paused = 1))",
        [(each,) for each in ids],
    )


def set_head(subscription_id: str) -> Script[None]:
    """Set the head of a queue anew, after a change in its middle.

    A delivery in flight stays the head, and passes the mark on when it settles: two deliveries of
    a subscription are never attempted at once.
    """
    # This also writes a head in flight: it waits for a transaction that claims or releases the
    # head, whose state then stays the same until this transaction ends.
    yield from clear_head(subscription_id)
    yield Statement(
        "UPDATE pushkit_deliveries SET head = 1 WHERE id = (SELECT id FROM pushkit_deliveries"
        f" WHERE subscription_id = $1 AND {UNFINISHED}"
        " ORDER BY CASE WHEN state = 'in_flight' THEN 0 ELSE 1 END, seq LIMIT 1)"
        " AND NOT EXISTS (SELECT 1 FROM pushkit_subscriptions WHERE id = $1 AND paused = 1)",
        (subscription_id,),
    )
