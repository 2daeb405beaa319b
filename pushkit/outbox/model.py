"""A delivery, new and as it is stored, and the result of an attempt."""

from __future__ import annotations

import itertools
import os
from collections.abc import Iterator
from datetime import datetime, timedelta
from enum import StrEnum
from typing import Final

from pushkit.a2a import WireVersion
from pushkit.clock import Timing
from pushkit.outbox.states import DeliveryState, Outcome
from pushkit.record import field, record
from pushkit.storage.script import Row, from_micros, moment_or_none

_MOST_RANDOM: Final = 2**80


class StatusContent(StrEnum):
    """How much a delivery says about its task's status."""

    BARE = "bare"
    """That the task is working, and no more: a newer status replaces it."""
    FULL = "full"
    """Something that a receiver must not miss."""


@record(frozen=True, slots=True, kw_only=True)
class DeliveryColumns:
    """What is known of a delivery with or without its body."""

    id: str  # the delivery id: `jti` and `webhook-id`, the same on every attempt
    subscription_id: str  # its subscription; the ordering key, since a subscription has one task
    tenant: str
    owner: str
    task_id: str
    config_id: str
    seq: int  # 1, 2, 3… per subscription
    origin: str  # the destination when it was enqueued
    version: WireVersion  # of the body: what the subscription's was when it was enqueued
    state: DeliveryState = DeliveryState.PENDING
    # How many requests were made since the last redrive, if any: they use up the schedule.
    # Counted when the attempt is settled.
    attempts: int = 0
    notified_at: datetime  # when `notify()` accepted it: its age counts from here
    not_before: datetime  # the earliest time of the next attempt
    last_status: int | None = None  # the status of the last answer, if any
    last_error: str | None = None  # the short code of the last error, if any
    redriven_at: datetime | None = None  # the last redrive, if any: its age counts from here


@record(frozen=True, slots=True, kw_only=True)
class Delivery(DeliveryColumns):
    """One update for one subscription."""

    # The bytes to send, frozen; sealed if the sender seals them.
    body: bytes = field(repr=False)
    redrives: int = 0  # how often it was redriven: fences results of before off
    faults: int = 0  # how many faults of this side in a row, without a request
    traceparent: str | None = None  # the trace of the `notify()` call, if any

    @property
    def age_from(self) -> datetime:
        """When its age began: with the redrive, or with `notify()`."""
        return self.redriven_at or self.notified_at


# The columns that `delivery_of` reads, in its order, but for the expression of the state.
DELIVERY = (
    "id, subscription_id, tenant, owner, task_id, config_id, seq, origin, version,"
    " (SELECT b.body FROM pushkit_bodies b WHERE b.id = pushkit_deliveries.id) AS body,"
    " (SELECT b.traceparent FROM pushkit_bodies b WHERE b.id = pushkit_deliveries.id)"
    " AS traceparent,"
    " {state} AS state, redrives, faults, attempts, notified_at, not_before, last_status,"
    " last_error, redriven_at"
)
_STATES = {state.value: state for state in DeliveryState}
_VERSIONS = {version.value: version for version in WireVersion}


def delivery_of(row: Row) -> Delivery:
    """Return a delivery from a row of the columns `DELIVERY`."""
    *names, body, trace, state, redrives, faults, attempts, notified, due, status, error, again = (
        row
    )
    delivery_id, subscription_id, tenant, owner, task_id, config_id, seq, origin, version = names
    return Delivery(
        id=delivery_id,
        subscription_id=subscription_id,
        tenant=tenant,
        owner=owner,
        task_id=task_id,
        config_id=config_id,
        seq=seq,
        origin=origin,
        version=_VERSIONS[version],
        body=bytes(body),
        state=_STATES[state],
        redrives=redrives,
        faults=faults,
        attempts=attempts,
        notified_at=from_micros(notified),
        not_before=from_micros(due),
        last_status=status,
        last_error=error,
        redriven_at=moment_or_none(again),
        traceparent=trace,
    )


@record(frozen=True, slots=True, kw_only=True)
class NewDelivery(Delivery):
    """A delivery to be stored."""

    status: StatusContent | None = None  # what it says about the task's status, if anything
    idempotency_key: str | None = None  # the caller's key, if any
    update_sha256: str | None = None  # the digest of the update that the key stands for
    waits: bool = False  # it may be joined with a newer one until a worker has it


@record(frozen=False, slots=True, kw_only=True, eq=False)
class AttemptResult:
    """The result of one attempt, with which its delivery is settled."""

    outcome: Outcome  # what it means for the delivery
    status: int | None = None  # the status of the answer; None if there was none
    error: str | None = None  # a short code; None if delivered by a sound answer
    retry_at: datetime | None = None  # when to try again, for `RETRY`
    # Until when the whole destination of this owner waits (`Retry-After`).
    wait_until: datetime | None = None
    # When the attempt began, by the worker's clock; None if none was made, and none is counted.
    started_at: datetime | None = None
    duration: timedelta = timedelta(0)  # of the whole attempt, signing included
    # The phases of the request, and the address that was dialled; None if there was no request.
    timing: Timing | None = None
    # The first KiB of the answer's body, if the sender keeps it.
    answer: bytes | None = field(default=None, repr=False)


def new_delivery_ids(now: datetime) -> Iterator[str]:
    """Yield ids that sort by time and have no `.` (Standard Webhooks would misread one).

    The random part is drawn once: each draw releases the interpreter lock and waits for it again.
    """
    moment, random = int(now.timestamp() * 1000), int.from_bytes(os.urandom(10))
    for number in itertools.count(random):
        yield f"dlv_{moment:012x}{number % _MOST_RANDOM:020x}"


def new_delivery_id(now: datetime) -> str:
    """Return one id of `new_delivery_ids`."""
    return next(new_delivery_ids(now))
