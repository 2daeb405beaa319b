"""Results of attempts, as scripts: one statement for all deliveries with the same result."""

from __future__ import annotations

import functools
import itertools
from collections.abc import Sequence
from datetime import timedelta

from pushkit.outbox.attempts import fold, is_folded
from pushkit.outbox.model import DELIVERY, Delivery, Result, delivery_of
from pushkit.outbox.states import LOST, LOST_FOR_GOOD, SETTLED, SETTLING, DeliveryState
from pushkit.storage.script import (
    Script,
    SqlValue,
    Statement,
    chunks,
    padded,
    run_for_ids,
    to_micros,
)


def store_results(
    settled: Sequence[tuple[Delivery, Result]], *, now: int, ahead: timedelta
) -> Script[set[str]]:
    """Store results; return the ids of the deliveries that were still those of this lease.

    A delivery that was cancelled or redriven meanwhile is left as it is: `redrives` tells the
    delivery before and after apart. The caller holds the rows of the queues, has compared their
    epochs, and records the attempts that are not folded into rows (`is_folded`).

    Args:
        settled: Deliveries as they were leased, with their results.
        now: The time, by the database's clock.
        ahead: How far that clock is ahead of the worker's, which timed the attempts.
    """
    alike: dict[tuple[SqlValue, ...], list[tuple[SqlValue, ...]]] = {}
    for delivery, result in settled:
        folds, state = is_folded(delivery, result), SETTLED[result.outcome]
        shared = (
            str(state),  # a subclass of str is slow to bind
            result.status,
            result.error,
            to_micros(result.retry_at) if result.retry_at else None,
            None if state is DeliveryState.PENDING else now,
            int(result.started_at is not None),
            delivery.redrives,
        )
        own: tuple[SqlValue, ...] = (delivery.id, fold(result, ahead)) if folds else (delivery.id,)
        alike.setdefault((folds, *shared), []).append(own)
    stored = set[str]()
    for (is_folded_in, *values_of_all), rows_of in alike.items():
        for some in chunks(rows_of):
            values = padded(some)
            rows = yield Statement(
                _settling(len(values), folds=bool(is_folded_in)),
                (*values_of_all, now, *itertools.chain.from_iterable(values)),
            )
            stored.update(row["id"] for row in rows)
    return stored


@functools.cache
def _settling(number: int, *, folds: bool) -> str:
    """Return the statement that settles so many deliveries with the same columns.

    Parameters from `$9` on: the id of each, and the first attempt if that is folded into the row.
    """
    places = range(9, 9 + (2 if folds else 1) * number, 2 if folds else 1)
    folded = ""
    if folds:
        attempts = " ".join(f"WHEN ${n} THEN ${n + 1}" for n in places)
        folded = f", first_attempt = CASE id {attempts} END"
    ids = ", ".join(f"${n}" for n in places)
    return (
        f"{SETTLING}{folded} WHERE state = 'pending' AND redrives = $7 AND id IN ({ids})"
        " RETURNING id"
    )


def leased_deliveries(ids: Sequence[str]) -> Script[dict[str, Delivery]]:
    """Return deliveries with their bodies, by id, which the caller leased."""
    rows = yield from run_for_ids(
        f"SELECT {DELIVERY.format(state=_IN_FLIGHT)} FROM pushkit_deliveries WHERE id IN ($ids)",
        ids,
    )
    return {row["id"]: delivery_of(row) for row in rows}


_IN_FLIGHT = f"'{DeliveryState.IN_FLIGHT}'"


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
