"""A delivery: as it comes in, as it is stored, and what an attempt of it came to."""

from __future__ import annotations

import os
from dataclasses import dataclass, field
from datetime import datetime, timedelta
from enum import StrEnum

from pushkit.net.timing import Timing
from pushkit.outbox.states import DeliveryState, Outcome


class StatusMark(StrEnum):
    """What a delivery says of its task's status."""

    BARE = "bare"
    """That it is working, and no more: a newer status says all that it says."""
    FULL = "full"
    """Something that a receiver must not miss."""


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
        body: The bytes to send, frozen; sealed, where the sender seals them.
        state: Where it stands.
        claims: How often a worker took it. It only grows: the fence that tells two claims apart.
        fruitless_claims: How many claims in a row made no request, this one included.
        attempts: How many requests were made, since it was redriven if it was: what uses up the
            schedule. Counted when the attempt is settled.
        notified_at: When `notify()` accepted it: its age counts from here.
        not_before: The earliest moment of the next attempt.
        last_status: The status of the last answer, if any.
        last_error: A short code of what went wrong last, if anything did.
        redriven_at: When somebody asked for it again, if anybody did: its age counts from there.
        traceparent: The trace that `notify()` was in, if it was in one.
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
    claims: int
    fruitless_claims: int
    attempts: int
    notified_at: datetime
    not_before: datetime
    last_status: int | None
    last_error: str | None
    redriven_at: datetime | None = None
    traceparent: str | None = None

    @property
    def age_from(self) -> datetime:
        """When its age began: with the redrive, or with `notify()`."""
        return self.redriven_at or self.notified_at


@dataclass(frozen=True, slots=True, kw_only=True)
class Claim:
    """Who holds the rows that are claimed, and until when."""

    worker: str
    until: datetime


@dataclass(slots=True, kw_only=True)  # one for each row: a frozen one takes twice as long to make
class NewDelivery:
    """A delivery that comes in; where a name is in `Delivery` too, it means the same.

    Attributes:
        id: See `new_delivery_id`.
        subscription_id: Whose it is.
        tenant: The tenant.
        owner: The owner.
        task_id: The task.
        config_id: The config id.
        seq: The next one of its subscription.
        origin: The destination.
        content_type: The media type of the body.
        body: As it is stored: sealed, where the sender seals them.
        notified_at: The present.
        head: Whether nothing of its subscription is unfinished, and that is not paused.
        status: What it says of the task's status, if anything.
        idempotency_key: The caller's key, if any.
        update_sha256: The update that the key stands for.
        claim: By whom it is in flight from the start; None if it waits for a claim.
        traceparent: The trace that `notify()` is in, if it is in one.
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
    notified_at: datetime
    head: bool
    status: StatusMark | None = None
    idempotency_key: str | None = None
    update_sha256: str | None = None
    claim: Claim | None = None
    traceparent: str | None = None

    def as_claimed(self) -> Delivery:
        """Return it as its first claim would have."""
        return Delivery(
            id=self.id,
            subscription_id=self.subscription_id,
            tenant=self.tenant,
            owner=self.owner,
            task_id=self.task_id,
            config_id=self.config_id,
            seq=self.seq,
            origin=self.origin,
            content_type=self.content_type,
            body=self.body,
            state=DeliveryState.IN_FLIGHT,
            claims=1,
            fruitless_claims=1,
            attempts=0,
            notified_at=self.notified_at,
            not_before=self.notified_at,
            last_status=None,
            last_error=None,
            traceparent=self.traceparent,
        )


@dataclass(frozen=True, slots=True, kw_only=True)
class Made:
    """An attempt that was made, as its worker saw it.

    Attributes:
        started_at: When it began.
        duration: How long all of it took, signing included.
        timing: The phases of its request, and the address that was dialled.
        answer: The first KiB of the answer's body, where the sender keeps that.
    """

    started_at: datetime
    duration: timedelta
    timing: Timing
    answer: bytes | None = field(default=None, repr=False)


@dataclass(frozen=True, slots=True, kw_only=True)
class Result:
    """What one attempt came to; the worker settles its delivery with it.

    Attributes:
        outcome: What happens to the delivery.
        status: The status of the answer; None if there was none.
        error: A short code; None if delivered.
        retry_at: When to try again, for `RETRY`.
        hold_until: Until when the whole destination of this owner waits (`Retry-After`).
        made: The attempt, for the log; None if none was made: then none is counted.
    """

    outcome: Outcome
    status: int | None = None
    error: str | None = None
    retry_at: datetime | None = None
    hold_until: datetime | None = None
    made: Made | None = None


def new_delivery_id(now: datetime) -> str:
    """Return an id that sorts by time and has no `.` (Standard Webhooks would misread one)."""
    return f"dlv_{int(now.timestamp() * 1000):012x}{os.urandom(10).hex()}"
