"""The queues of the outbox: a subscription's row is its queue, its deliveries are the jobs."""

from __future__ import annotations

from typing import Final

from pushkit.queue.tables import QueueTables

OUTBOX: Final = QueueTables(
    queues="pushkit_subscriptions",
    jobs="pushkit_deliveries",
    queue_id="subscription_id",
    groups="pushkit_destinations",
)
