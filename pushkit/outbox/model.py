"""A delivery: as it comes in, as it is stored, and what an attempt of it came to."""

from __future__ import annotations

import itertools
import os
from collections.abc import Iterator
from datetime import datetime, timedelta
from enum import StrEnum
from typing import Final, NamedTuple

from pushkit.net.timing import Timing
from pushkit.outbox.states import DeliveryState, Outcome
from pushkit.record import field, record

_MOST_RANDOM: Final = 2**80


class StatusMark(StrEnum):
    """What a delivery says of its task's status."""

    BARE = "bare"
    """That it is working, and no more: a newer status says all that it says."""
    FULL = "full"
    """Something that a receiver must not miss."""


@record(frozen=True, slots=True, kw_only=True)
class Delivery:
    """One update for one subscription."""

    id: str  # the delivery id: `jti` and `webhook-id`, the same on every attempt
    subscription_id: str  # whose it is; the ordering key, since a subscription has one task
    tenant: str
    owner: str
    task_id: str
    config_id: str
    seq: int  # 1, 2, 3… per subscription
    origin: str  # the destination when it was enqueued
    content_type: str  # the media type of the body
    # The bytes to send, frozen; sealed, where the sender seals them.
    body: bytes = field(repr=False)
    state: DeliveryState = DeliveryState.PENDING  # where it stands
    # How often a worker took it. It only grows: the fence that tells two claims apart.
    claims: int = 0
    fruitless_claims: int = 0  # how many claims in a row made no request, this one included
    # How many requests were made, since it was redriven if it was: what uses up the schedule.
    # Counted when the attempt is settled.
    attempts: int = 0
    notified_at: datetime  # when `notify()` accepted it: its age counts from here
    not_before: datetime  # the earliest moment of the next attempt
    last_status: int | None = None  # the status of the last answer, if any
    last_error: str | None = None  # a short code of what went wrong last, if anything did
    # When somebody asked for it again, if anybody did: its age counts from there.
    redriven_at: datetime | None = None
    traceparent: str | None = None  # the trace that `notify()` was in, if it was in one

    @property
    def age_from(self) -> datetime:
        """When its age began: with the redrive, or with `notify()`."""
        return self.redriven_at or self.notified_at


class Claim(NamedTuple):
    """Who holds the rows that are claimed, and until when."""

    worker: str
    until: datetime


@record(frozen=True, slots=True, kw_only=True)
class NewDelivery(Delivery):
    """A delivery that comes in."""

    head: bool  # whether nothing of its subscription is unfinished, and that is not paused
    status: StatusMark | None = None  # what it says of the task's status, if anything
    idempotency_key: str | None = None  # the caller's key, if any
    update_sha256: str | None = None  # the update that the key stands for
    # By whom it is in flight from the start; None if it waits for a claim.
    claim: Claim | None = None


@record(frozen=False, slots=True, kw_only=True, eq=False)
class Result:
    """What one attempt came to; the worker settles its delivery with it."""

    outcome: Outcome  # what happens to the delivery
    status: int | None = None  # the status of the answer; None if there was none
    error: str | None = None  # a short code; None if delivered
    retry_at: datetime | None = None  # when to try again, for `RETRY`
    # Until when the whole destination of this owner waits (`Retry-After`).
    hold_until: datetime | None = None
    # When the attempt began, by the worker's clock; None if none was made: then none is counted.
    started_at: datetime | None = None
    duration: timedelta = timedelta(0)  # how long all of it took, signing included
    # The phases of its request, and the address that was dialled; None if it came to none.
    timing: Timing | None = None
    # The first KiB of the answer's body, where the sender keeps that.
    answer: bytes | None = field(default=None, repr=False)


NOT_BEGUN: Final = Result(outcome=Outcome.NOT_BEGUN)


def new_delivery_ids(now: datetime) -> Iterator[str]:
    """Yield ids that sort by time and have no `.` (Standard Webhooks would misread one).

    What is random is drawn once: each draw lets go of the interpreter, and waits for it again.
    """
    moment, random = int(now.timestamp() * 1000), int.from_bytes(os.urandom(10))
    for number in itertools.count(random):
        yield f"dlv_{moment:012x}{number % _MOST_RANDOM:020x}"


def new_delivery_id(now: datetime) -> str:
    """Return one such id."""
    return next(new_delivery_ids(now))
