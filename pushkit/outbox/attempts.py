"""Results of attempts, and their log, as scripts (see `pushkit.storage.script`).

An attempt is recorded in the transaction that settles its delivery, even if the delivery was
cancelled meanwhile: the request reached the webhook all the same. An attempt whose process died is
not recorded. Most deliveries arrive at the first attempt, which is folded into the delivery's own
row, and has no row in `pushkit_attempts`.
"""

from __future__ import annotations

import functools
import itertools
from collections.abc import Collection, Iterable, Sequence
from datetime import datetime, timedelta

from pushkit.clock import Timing
from pushkit.outbox.model import AttemptResult, Delivery
from pushkit.outbox.states import SETTLED, SETTLING, DeliveryState, Outcome
from pushkit.record import field, record
from pushkit.storage.paging import read_record
from pushkit.storage.script import (
    EPOCH,
    Row,
    Script,
    SqlValue,
    Statement,
    chunks,
    padded,
    run_for_ids,
    slices,
    to_micros,
)

_MICROSECOND = timedelta(microseconds=1)
_NO_TIMING = Timing()
# By how much two estimates of one time on the database's clock may differ.
_CLOCKS_APART = timedelta(seconds=10)


@record(frozen=True, slots=True, kw_only=True)
class LoggedAttempt:
    """One attempt of a delivery."""

    number: int  # 1, 2, 3… per delivery; a redrive continues the count
    started_at: datetime  # when it began, by the database's clock
    duration: timedelta  # of the whole attempt
    timing: Timing  # the phases, and the address that was dialled
    outcome: str  # delivered, retry, dead or gone
    status: int | None  # the status of the answer; None if there was none
    error: str | None  # a short code; None if delivered by a sound answer
    # The first KiB of the answer's body, masked, if the sender keeps it.
    answer: bytes | None = field(repr=False)
    # Whether it is sealed with a key that this process does not have; `answer` is then None.
    is_sealed: bool = False


def is_folded(delivery: Delivery, result: AttemptResult) -> bool:
    """Return whether an attempt is stored in its delivery's own row: the first one, delivered.

    Not if there is more to store: its answer, or what was wrong with that. A redriven delivery has
    had its first attempt.
    """
    return (
        delivery.attempts == delivery.redrives == 0
        and result.outcome is Outcome.DELIVERED
        and result.started_at is not None
        and result.answer is None
        and result.error is None
    )


def fold(result: AttemptResult, ahead: timedelta) -> str:
    """Return a first attempt, delivered, as the text in its delivery's row.

    Args:
        ahead: How far the database's clock is ahead of the worker's.
    """
    timing = result.timing or _NO_TIMING
    assert result.started_at is not None  # noqa: S101  # only attempts that were made are folded
    # Not `to_micros`, which caches: each attempt has a time of its own.
    started_at = (result.started_at - EPOCH + ahead) // _MICROSECOND
    written = f"{started_at} {result.status or ''}"
    for took in (result.duration, timing.resolve, timing.connect, timing.wait, timing.body):
        written += " " if took is None else f" {took // _MICROSECOND}"
    return f"{written} {timing.address or ''}"


def _began(result: AttemptResult) -> datetime:
    assert result.started_at is not None  # noqa: S101  # only attempts that were made are recorded
    return result.started_at


def _unfold(folded: str) -> LoggedAttempt:
    *numbers, address = folded.split(" ", 7)
    names = ("started_at", "status", "duration", "resolve", "connect", "wait", "body")
    row = {name: int(each) if each else None for name, each in zip(names, numbers, strict=True)}
    others = {"number": 1, "outcome": Outcome.DELIVERED.value, "error": None, "answer": None}
    return _logged_attempt({**row, **others, "address": address or None})


def store_results(
    settled: Sequence[tuple[Delivery, AttemptResult]], *, now: int, ahead: timedelta
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


def add(made: Sequence[tuple[str, AttemptResult]]) -> Script[None]:
    """Record attempts of deliveries, by id, whose rows are held."""
    for attempts in slices(made):
        yield Statement(
            f"INSERT INTO pushkit_attempts ({_COLUMNS}) VALUES {_rows(len(attempts))}",
            tuple(itertools.chain.from_iterable(_values(*each) for each in attempts)),
        )


def add_late(delivery: Delivery, result: AttemptResult) -> Script[None]:
    """Record an attempt of a delivery that is not this worker's any more, unless it was erased.

    It is recorded once, even if the worker repeats the call because the first commit's outcome
    is unknown.
    """
    # A statement of its own: the next one sees what was written while this one waited.
    held = yield Statement(
        "SELECT 1 FROM pushkit_deliveries WHERE id = $1 FOR UPDATE", (delivery.id,)
    )
    logged = yield from of_deliveries([delivery.id])
    is_there = any(
        (each.duration, each.outcome, each.status)
        == (result.duration, result.outcome.value, result.status)
        and abs(each.started_at - _began(result)) < _CLOCKS_APART
        for each in logged[delivery.id]
    )
    if held and not is_there:
        yield from add([(delivery.id, result)])


def count(deliveries: Iterable[Delivery], errors: Collection[str]) -> Script[dict[str, int]]:
    """Count the attempts of each delivery, since its age began, with one of these errors.

    Results that came too late are in the log, too: none has more than its delivery has attempts.
    """
    counted = {each.id: 0 for each in deliveries}
    tried = {each.id: each for each in deliveries if each.attempts}
    among = ", ".join(f"${number}" for number in range(1, len(errors) + 1))
    rows = yield from run_for_ids(
        "SELECT delivery_id, started_at FROM pushkit_attempts"
        f" WHERE delivery_id IN ($ids) AND error IN ({among})",
        list(tried),
        *errors,
    )
    for row in rows:
        delivery = tried[row["delivery_id"]]
        if row["started_at"] >= to_micros(delivery.age_from):
            counted[delivery.id] = min(counted[delivery.id] + 1, delivery.attempts)
    return counted


def of_deliveries(ids: Sequence[str]) -> Script[dict[str, list[LoggedAttempt]]]:
    """Return the attempts of each of some deliveries, first to last."""
    found: dict[str, list[LoggedAttempt]] = {each: [] for each in ids}
    folded = yield from run_for_ids(
        "SELECT id, first_attempt FROM pushkit_deliveries"
        " WHERE first_attempt IS NOT NULL AND id IN ($ids)",
        ids,
    )
    for row in folded:
        found[row["id"]].append(_unfold(row["first_attempt"]))
    rows = yield from run_for_ids(
        "SELECT * FROM pushkit_attempts WHERE delivery_id IN ($ids) ORDER BY number", ids
    )
    for row in rows:
        found[row["delivery_id"]].append(_logged_attempt(row))
    return found


_COLUMNS = (
    "delivery_id, number, started_at, duration, resolve, connect, wait, body, address, outcome,"
    " status, error, answer"
)
_WIDTH = 12  # all but the number, which is the next one


@functools.cache
def _rows(number: int) -> str:
    return ", ".join(_row(row * _WIDTH + 1) for row in range(number))


def _row(first: int) -> str:
    others = ", ".join(f"${place}" for place in range(first + 1, first + _WIDTH))
    next_number = (
        "(SELECT COALESCE(MAX(a.number), COUNT(d.first_attempt)) + 1 FROM pushkit_deliveries d"
        f" LEFT JOIN pushkit_attempts a ON a.delivery_id = d.id WHERE d.id = ${first})"
    )
    return f"(${first}, {next_number}, {others})"


def _values(delivery_id: str, result: AttemptResult) -> tuple[SqlValue, ...]:
    timing = result.timing or _NO_TIMING
    took = (result.duration, timing.resolve, timing.connect, timing.wait, timing.body)
    return (
        delivery_id,
        to_micros(_began(result)),
        *[None if each is None else each // _MICROSECOND for each in took],
        timing.address,
        result.outcome.value,
        result.status,
        result.error,
        result.answer,
    )


def _logged_attempt(row: Row) -> LoggedAttempt:
    return read_record(
        LoggedAttempt,
        row,
        duration=row["duration"] * _MICROSECOND,
        timing=Timing(
            resolve=_duration(row["resolve"]),
            connect=_duration(row["connect"]),
            wait=_duration(row["wait"]),
            body=_duration(row["body"]),
            address=row["address"],
        ),
        is_sealed=False,
    )


def _duration(micros: int | None) -> timedelta | None:
    return None if micros is None else micros * _MICROSECOND
