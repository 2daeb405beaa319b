"""The deliveries table, as scripts (see `pushkit.storage.script`): adding, cancelling, counting.

The condition of a partial index is repeated in the statements that use it: SQLite needs the same
text.
"""

from __future__ import annotations

from collections.abc import Sequence
from datetime import datetime
from typing import NamedTuple

from pushkit.outbox.model import DELIVERY, Delivery, NewDelivery, delivery_of
from pushkit.outbox.states import (
    CANCELLED,
    LOST,
    LOST_FOR_GOOD,
    SHOWN_STATE,
    SUPERSEDED,
    CancelledBy,
    DeliveryState,
)
from pushkit.queue.rules import Queue
from pushkit.queue.tables import UNFINISHED
from pushkit.storage.script import (
    Script,
    Statement,
    count,
    insert_rows,
    run_for_ids,
    slices,
    to_micros,
)


def add(deliveries: Sequence[NewDelivery]) -> Script[None]:
    """Store deliveries of subscriptions whose rows are held."""
    yield from insert_rows(
        "INSERT INTO pushkit_deliveries (id, subscription_id, tenant, owner, task_id,"
        " config_id, seq, origin, version, body_bytes, notified_at, not_before,"
        " scheduled_at, status, idempotency_key, update_sha256, waits) VALUES $rows",
        slices(list(map(_row_of, deliveries))),
    )
    yield from insert_rows(
        "INSERT INTO pushkit_bodies (id, body, traceparent) VALUES $rows",
        slices([(each.id, each.body, each.traceparent) for each in deliveries]),
    )


def move(subscription_id: str, origin: str) -> Script[None]:
    """Move the unfinished deliveries of a subscription to its new destination."""
    yield Statement(
        "UPDATE pushkit_deliveries SET origin = $2"
        f" WHERE subscription_id = $1 AND origin <> $2 AND {UNFINISHED}",
        (subscription_id, origin),
    )


def cancel_subscription(subscription_id: str, now: datetime, by: CancelledBy) -> Script[int]:
    """Cancel the unfinished deliveries of a subscription; return how many."""
    rows = yield Statement(
        CANCELLED.where("subscription_id = $1 RETURNING id"),
        (subscription_id, to_micros(now), by.value),
    )
    return len(rows)


def of_task(*, tenant: str, task_id: str) -> Script[list[Delivery]]:
    """Return every delivery of a task, by subscription and `seq`."""
    rows = yield Statement(
        f"SELECT {_DELIVERY} FROM pushkit_deliveries WHERE tenant = $1 AND task_id = $2"
        " ORDER BY subscription_id, seq",
        (tenant, task_id),
    )
    return [delivery_of(row) for row in rows]


def has_unfinished(subscription_id: str) -> Script[bool]:
    """Return whether a subscription has a delivery that is pending or in flight."""
    rows = yield Statement(
        f"SELECT 1 FROM pushkit_deliveries WHERE subscription_id = $1 AND {UNFINISHED} LIMIT 1",
        (subscription_id,),
    )
    return bool(rows)


def backlog(subscription_id: str, limit: int) -> Script[int]:
    """Return how many deliveries of a subscription are unfinished, at most `limit`."""
    rows = f"pushkit_deliveries WHERE subscription_id = $1 AND {UNFINISHED}"
    return count(rows, subscription_id, limit=limit)


def whole_backlog(limit: int) -> Script[int]:
    """Return how many deliveries are unfinished in all, at most `limit`."""
    return count(f"pushkit_deliveries WHERE {UNFINISHED}", limit=limit)


def supersede(queue: Queue, *, by_new_status: bool, now: datetime) -> Script[int]:
    """Cancel pending `working` statuses that a newer status replaces; return how many.

    Args:
        queue: Their queue, whose row is held: what is in flight stays.
        by_new_status: Whether a status that is newer than all of them is about to be stored.
    """
    rows = yield Statement(
        SUPERSEDED.where(
            f"subscription_id = $1 AND {UNFINISHED} AND status = 'bare'"
            " AND (seq > $5 OR waits = 1)"
            " AND (CAST($4 AS BIGINT) = 1 OR seq <"
            " (SELECT MAX(seq) FROM pushkit_deliveries WHERE subscription_id = $1"
            f" AND {UNFINISHED} AND status IS NOT NULL)) RETURNING id"
        ),
        (
            queue.id,
            to_micros(now),
            CancelledBy.SUPERSEDED.value,
            int(by_new_status),
            queue.sending_to,
        ),
    )
    return len(rows)


class Newest(NamedTuple):
    """The newest delivery of a queue."""

    id: str
    is_waiting: int  # 1 if it is pending, and never was in a worker's memory: nothing was sent
    not_before: int
    finished_at: int | None
    body: bytes | None  # as it is stored; None if it was finished before the given moment


_NEVER_BEGUN = f"{UNFINISHED} AND waits = 1 AND redrives = 0"


def newest(queue: Queue, *, since: int) -> Script[Newest | None]:
    """Return the newest delivery of a queue whose row is held; None if there is none any more."""
    rows = yield Statement(
        f"SELECT id, CASE WHEN {_NEVER_BEGUN} THEN 1 ELSE 0 END AS is_waiting, not_before,"
        f" finished_at, CASE WHEN {UNFINISHED} OR finished_at > $3 THEN"
        " (SELECT b.body FROM pushkit_bodies b WHERE b.id = pushkit_deliveries.id) END AS body"
        " FROM pushkit_deliveries WHERE subscription_id = $1 AND seq = $2",
        (queue.id, queue.last_seq, since),
    )
    return Newest._make(rows[0]) if rows else None


def supersede_one(delivery_id: str, now: int) -> Script[None]:
    """Cancel a delivery of a held queue for which a newer one stands, if it was never begun."""
    yield Statement(
        SUPERSEDED.where(f"id = $1 AND {_NEVER_BEGUN}"),
        (delivery_id, now, CancelledBy.SUPERSEDED.value),
    )


def hurry(queue: Queue, now: int) -> Script[bool]:
    """Let the newest delivery of a held queue be due, if it was never begun; return whether so."""
    rows = yield Statement(
        "UPDATE pushkit_deliveries SET not_before = $3, scheduled_at = $3"
        f" WHERE subscription_id = $1 AND seq = $2 AND {_NEVER_BEGUN} AND not_before > $3"
        " RETURNING id",
        (queue.id, queue.last_seq, now),
    )
    return bool(rows)


def fill(delivery_id: str, body: bytes, now: int) -> Script[bool]:
    """Replace the body of a delivery that is held, and make it due; the row of its queue is held.

    Returns:
        Whether nobody can have begun it: it is not due yet, nor was it ever attempted; or it needs
        no body, because it was cancelled or deleted.
    """
    rows = yield Statement(
        "UPDATE pushkit_deliveries SET not_before = $2, scheduled_at = $2, body_bytes = $3"
        f" WHERE id = $1 AND {UNFINISHED} AND not_before > $2 AND last_error IS NULL"
        " AND attempts = 0 AND redrives = 0 AND faults = 0 RETURNING id",
        (delivery_id, now, len(body)),
    )
    if rows:
        yield Statement("UPDATE pushkit_bodies SET body = $2 WHERE id = $1", (delivery_id, body))
        return True
    there = "SELECT 1 FROM pushkit_deliveries WHERE id = $1 AND state <> 'cancelled'"
    return not (yield Statement(there, (delivery_id,)))


def leased_deliveries(ids: Sequence[str]) -> Script[dict[str, Delivery]]:
    """Return deliveries with their bodies, by id, which the caller leased."""
    rows = yield from run_for_ids(
        f"SELECT {_LEASED} FROM pushkit_deliveries WHERE id IN ($ids)",
        ids,
    )
    return {row["id"]: delivery_of(row) for row in rows}


def lose(
    delivery_id: str, error: str, *, counts: bool, retry_at: int | None, now: int
) -> Script[None]:
    """Note the death of a worker with the delivery that it may have died of.

    Args:
        delivery_id: The first delivery of its queue, which is held.
        error: The code to store.
        counts: Whether it counts as an attempt.
        retry_at: When to try again; None to give it up.
        now: The time.
    """
    if retry_at is None:
        yield Statement(LOST_FOR_GOOD.where("id = $1"), (delivery_id, error, now))
    else:
        yield Statement(LOST.where("id = $1"), (delivery_id, error, retry_at, int(counts), now))


_DELIVERY = DELIVERY.format(state=SHOWN_STATE)
_LEASED = DELIVERY.format(state=f"'{DeliveryState.IN_FLIGHT}'")


def _row_of(new: NewDelivery) -> tuple[str | int | bytes | None, ...]:
    return (
        new.id,
        new.subscription_id,
        new.tenant,
        new.owner,
        new.task_id,
        new.config_id,
        new.seq,
        new.origin,
        str(new.version),
        len(new.body),
        to_micros(new.notified_at),
        to_micros(new.not_before),
        to_micros(new.notified_at),
        new.status and str(new.status),  # a subclass of str is slow to bind
        new.idempotency_key,
        new.update_sha256,
        int(new.waits),
    )
