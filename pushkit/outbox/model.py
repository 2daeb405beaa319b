"""A delivery, new and as it is stored, its idempotency key, and the result of an attempt.

The caller chooses the key, unique within a task: the same key stores nothing twice. It is
remembered as long as the deliveries that were stored with it, also those of subscriptions that have
ended since.
"""

from __future__ import annotations

import base64
import hashlib
import itertools
import json
import os
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import fields, is_dataclass
from datetime import UTC, datetime, timedelta
from enum import StrEnum
from typing import Final, NamedTuple, Self

from pushkit.a2a import TaskUpdate, WireVersion
from pushkit.clock import Timing
from pushkit.errors import IdempotencyConflictError, InvalidUpdateError
from pushkit.outbox.states import DeliveryState, Outcome
from pushkit.record import field, record
from pushkit.storage.script import Row, Script, from_micros, moment_or_none, run_for_rows

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


# --- idempotency keys ----------------------------------------------------------------------------

_KIND: Final = "json-1:"  # older digests have no prefix: they are of `repr()`, in its key order


def update_digest(update: TaskUpdate) -> str:
    """Return a digest that is the same for equal updates, whatever the order of their members.

    It is of the update, not of a body: a 0.3 body is the task at that time, and differs when the
    same update is repeated.

    Raises:
        InvalidUpdateError: The update holds a value that JSON cannot represent.
    """
    try:
        text = json.dumps(update, default=_plain, sort_keys=True, separators=(",", ":"))
    except (TypeError, ValueError, OverflowError, RecursionError) as exc:
        raise InvalidUpdateError("the update holds a value that JSON cannot represent") from exc
    return _KIND + hashlib.sha256(text.encode("ascii")).hexdigest()


def _plain(value: object) -> object:
    """Return a value that JSON cannot represent as one that it can."""
    if isinstance(value, datetime):
        return value.astimezone(UTC).isoformat()
    if isinstance(value, bytes):
        return base64.b64encode(value).decode("ascii")
    if isinstance(value, Mapping):
        return dict(value)
    if is_dataclass(value):
        return {each.name: getattr(value, each.name) for each in fields(value) if each.compare}
    raise TypeError(type(value).__name__)


@record(frozen=True, slots=True, kw_only=True)
class IdempotencyKey:
    """A key, and the update that it stands for."""

    key: str
    update_sha256: str  # see `update_digest`
    # Whether nothing can have been stored with it yet, so that no query is needed.
    is_new: bool = False

    @classmethod
    def of(cls, key: str, update: TaskUpdate) -> Self:
        """Return a key for an update. Raises as `update_digest`."""
        return cls(key=key, update_sha256=update_digest(update))

    def check(self, enqueued: Iterable[StoredDelivery]) -> None:
        """Check that the deliveries stored with the key are of this update.

        Raises:
            IdempotencyConflictError: The key was used with another update.
        """
        stored = (each.update_sha256 or "" for each in enqueued)
        # Digests of another kind cannot be compared: then the key alone counts.
        if any(each.startswith(_KIND) and each != self.update_sha256 for each in stored):
            raise IdempotencyConflictError(
                f"idempotency key {self.key!r} was used before with another payload:"
                " use a new key for a new update"
            )


class TaskKey(NamedTuple):
    """An idempotency key with its task, within which it is unique."""

    tenant: str
    task_id: str
    key: str


class StoredDelivery(NamedTuple):
    """A delivery that was stored with a key."""

    id: str  # the delivery id
    subscription_id: str
    owner: str
    config_id: str
    update_sha256: str | None  # the digest of its update; None if an old version stored it


def find_enqueued(keys: Sequence[TaskKey]) -> Script[dict[TaskKey, list[StoredDelivery]]]:
    """Return the deliveries that were stored with some keys; keys without any are left out."""
    found: dict[TaskKey, list[StoredDelivery]] = {}
    if not keys:
        return found
    rows = yield from run_for_rows(
        "SELECT DISTINCT d.tenant, d.task_id, d.idempotency_key, d.id, d.subscription_id,"
        " d.owner, d.config_id, d.update_sha256 FROM (VALUES $rows)"
        " v CROSS JOIN pushkit_deliveries d WHERE d.tenant = v.column1"
        " AND d.task_id = v.column2 AND d.idempotency_key = v.column3",
        keys,
    )
    for tenant, task_id, key, *enqueued in rows:
        found.setdefault(TaskKey(tenant, task_id, key), []).append(StoredDelivery(*enqueued))
    return found
