"""A delivery and its states.

PENDING ─claim→ IN_FLIGHT ─2xx→ DELIVERED
   ▲               ├─retry→ PENDING (not_before)
   │               └─give up→ DEAD
   └── an expired lease counts as PENDING again, in the claim itself
PENDING | IN_FLIGHT ─subscription removed, 410→ CANCELLED
"""

from __future__ import annotations

import secrets
from dataclasses import dataclass, field
from datetime import datetime
from enum import StrEnum

__all__ = ["Claim", "Delivery", "DeliveryState", "Outcome", "Result", "new_delivery_id"]


class DeliveryState(StrEnum):
    """Where a delivery stands."""

    PENDING = "pending"
    IN_FLIGHT = "in_flight"
    DELIVERED = "delivered"
    DEAD = "dead"
    CANCELLED = "cancelled"


class Outcome(StrEnum):
    """What one attempt means for its delivery."""

    DELIVERED = "delivered"
    RETRY = "retry"
    DEAD = "dead"
    GONE = "gone"
    """Answered 410: dead for this subscription, pending deliveries and all."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Delivery:
    """One update for one subscription.

    Attributes:
        id: The delivery id: `jti` and `webhook-id`, the same on every attempt.
        subscription_id: Whose it is; the ordering key, since a subscription has one task.
        tenant: The tenant of the subscription.
        owner: The owner of the subscription.
        task_id: The task.
        config_id: The config id of the subscription.
        seq: 1, 2, 3… per subscription.
        origin: The destination when it was enqueued.
        content_type: The media type of the body.
        body: The bytes to send, frozen.
        state: Where it stands.
        attempts: How many attempts were begun.
        notified_at: When `notify()` accepted it: its age counts from here.
        not_before: The earliest moment of the next attempt.
        last_status: The status of the last answer, if any.
        last_error: A short code of what went wrong last, if anything did.
    """

    id: str
    subscription_id: str
    tenant: str
    owner: str
    task_id: str
    config_id: str
    seq: int
    origin: str
    content_type: str
    body: bytes = field(repr=False)
    state: DeliveryState
    attempts: int
    notified_at: datetime
    not_before: datetime
    last_status: int | None
    last_error: str | None


@dataclass(frozen=True, slots=True, kw_only=True)
class Claim:
    """Who holds the rows that are claimed, and until when."""

    worker: str
    until: datetime


@dataclass(frozen=True, slots=True, kw_only=True)
class Result:
    """What one attempt came to; the worker settles its delivery with it.

    Attributes:
        outcome: What happens to the delivery.
        status: The status of the answer; None if there was none.
        error: A short code; None if delivered.
        retry_at: When to try again, for `RETRY`.
        hold_until: Until when the whole destination of this owner waits (`Retry-After`).
    """

    outcome: Outcome
    status: int | None = None
    error: str | None = None
    retry_at: datetime | None = None
    hold_until: datetime | None = None


def new_delivery_id(now: datetime) -> str:
    """Return an id that sorts by time and has no `.` (Standard Webhooks would misread one)."""
    return f"dlv_{int(now.timestamp() * 1000):012x}{secrets.token_hex(10)}"
