"""A claimed delivery, without an outbox."""

from __future__ import annotations

import time
from datetime import UTC, datetime

from pushkit.delivery.slots import Claimed
from pushkit.outbox.model import Delivery

__all__ = ["claimed_delivery"]


def claimed_delivery(
    seq: int = 1, *, owner: str = "alice", origin: str = "https://a.example.com"
) -> Claimed:
    now = datetime.now(UTC)
    delivery = Delivery(
        id=f"dlv_{seq}",
        subscription_id="sub_1",
        tenant="",
        owner=owner,
        task_id="task-1",
        config_id="1",
        seq=seq,
        origin=origin,
        content_type="application/json",
        body=b"{}",
        notified_at=now,
        not_before=now,
    )
    return Claimed(delivery, None, time.perf_counter())
