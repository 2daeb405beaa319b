"""Settling, as scripts: results are stored, the next deliveries claimed, or the head passed on.

For each queue that a worker settles, one of three things follows: the deliveries behind are in
flight already (a chain), and the first of them becomes the head; or the next ones are claimed in
the same transaction; or the next one becomes a head that waits for a claim.
"""

from __future__ import annotations

import functools
import itertools
from collections.abc import Callable, Mapping, Sequence
from datetime import datetime, timedelta
from typing import NamedTuple, TypeAlias

from pushkit.outbox.attempts import fold, is_folded
from pushkit.outbox.heads import pass_heads_on
from pushkit.outbox.model import DELIVERY, Claim, Delivery, Result, delivery_of
from pushkit.outbox.states import CHAINED, CLAIMED, SETTLED, SETTLING, UNFINISHED, DeliveryState
from pushkit.record import field, record
from pushkit.storage.script import (
    Row,
    Script,
    SqlValue,
    Statement,
    chunks,
    padded,
    run_for_ids,
    to_micros,
)

CHAINED_BYTES = 2**15
"""The longest body in a chain, whose bodies wait in memory: longer ones wait in the outbox."""
_AT_ONCE = 8  # of a queue
_LastOfEach: TypeAlias = "dict[str, tuple[Delivery, Result]]"  # by subscription
_RETRIED = {outcome for outcome, state in SETTLED.items() if state is DeliveryState.PENDING}


class SettleResult(NamedTuple):
    """The result of settling."""

    are_ours: Sequence[bool]  # for each settled delivery, whether this worker still had the lease
    claimed: Sequence[Delivery]  # the next deliveries, in flight already
    # The subscriptions whose next delivery, or the settled one again, waits for a claim.
    passed_on: frozenset[str]
    # Those whose chain must end: it is paused, its destination fails or waits, an older delivery
    # was redriven meanwhile, or this worker had lost the lease of one.
    stopped: frozenset[str]


def settle(
    settled: Sequence[tuple[Delivery, Result]],
    worker: str,
    now: datetime,
    *,
    may_follow: Callable[[Delivery, Result], bool] = lambda *_: False,
    until: datetime | None = None,
    ahead: timedelta = timedelta(0),
) -> Script[SettleResult]:
    """Store the results of attempts, then claim what is next in each queue, or pass its head on.

    A cancellation, or another claim after the lease ended, takes a row away from the worker. The
    worker's result is then dropped: the canceller or the other claim decides. The number of the
    claim, which is never reset, tells two claims of one worker apart.

    The caller holds the rows of the subscriptions, writes the attempts that are not folded into
    rows (`is_folded`), and then what the results mean for destinations.

    Args:
        settled: Deliveries as they were claimed, with their results; those of a queue in order.
        worker: The worker that claimed them.
        now: The time of the database's clock.
        may_follow: Whether this worker may claim the next delivery of the queue at once, if it is
            due and goes to the same destination, which neither fails nor waits.
        until: Until when the next deliveries are leased; None to claim none.
        ahead: How far the database's clock is ahead of the worker's, which timed the attempts.
    """
    moment = to_micros(now)
    lasts = {each[0].subscription_id: each for each in settled}
    found = yield from _store_results(settled, lasts, worker, moment, ahead)
    behind = _find_behind(settled, lasts, found)
    stopped = behind.lost | (yield from _move_heads_along(behind.chained, moment))
    wanted = [
        (next_id, lasts[subscription_id][0].origin)
        for subscription_id, next_id in behind.waiting.items()
        if until is not None and may_follow(*lasts[subscription_id])
    ]
    claimed: list[Delivery] = []
    if wanted and until is not None:
        claim = Claim(worker=worker, until=until)
        claimed = yield from _claim_by(_claiming_next, wanted, claim, now)
        claimed += yield from _chain_behind(claimed, claim, now)
    unclaimed = behind.left.union(behind.waiting)
    passed_on = sorted(unclaimed.difference(each.subscription_id for each in claimed))
    if passed_on:
        yield from pass_heads_on(passed_on)
    are_ours = [(delivery.id, delivery.claims) in found for delivery, _ in settled]
    return SettleResult(are_ours, claimed, frozenset(passed_on), frozenset(stopped))


# --- results ------------------------------------------------------------------------------------


def _store_results(
    settled: Sequence[tuple[Delivery, Result]],
    lasts: _LastOfEach,
    worker: str,
    now: int,
    ahead: timedelta,
) -> Script[dict[tuple[str, int], Row]]:
    """Store results; return the rows that were still this worker's, by id and claim.

    The last of each queue is stored after the others, and its row names the delivery behind it.
    """
    alike: dict[tuple[SqlValue, ...], list[tuple[SqlValue, SqlValue]]] = {}
    for delivery, result in settled:
        is_last = lasts[delivery.subscription_id][0] is delivery
        folds, state = is_folded(delivery, result), SETTLED[result.outcome]
        columns = (
            str(state),  # a subclass of str is slow to bind
            result.status,
            result.error,
            to_micros(result.retry_at) if result.retry_at else None,
            None if state is DeliveryState.PENDING else now,
            int(result.started_at is not None),
        )
        own: SqlValue = delivery.claims
        if folds:
            own = fold(result, ahead)
        alike.setdefault((is_last, folds, *columns), []).append((delivery.id, own))
    found: dict[tuple[str, int], Row] = {}
    for (last, folded, *shared), rows_of in sorted(alike.items(), key=lambda of: bool(of[0][0])):
        for some in chunks(rows_of):
            values = padded(some)
            rows = yield Statement(
                _settling(len(values), folds=bool(folded), is_last=bool(last)),
                (*shared, worker, now, *itertools.chain.from_iterable(values)),
            )
            found |= {(row["id"], row["claims"]): row for row in rows}
    return found


@functools.cache
def _settling(number: int, *, folds: bool, is_last: bool) -> str:
    """Return the statement that settles so many deliveries with the same columns.

    Parameters from `$9` on: the id of each delivery, and its claim, or, for first claims, the
    attempt that is folded into the row. The last of a queue also returns what is behind it.
    """
    firsts = range(9, 9 + 2 * number, 2)
    if folds:
        attempts = " ".join(f"WHEN ${n} THEN ${n + 1}" for n in firsts)
        folded = f", first_attempt = CASE id {attempts} END"
        which = f"claims = 1 AND id IN ({', '.join(f'${n}' for n in firsts)})"
    else:
        # Not `IN (VALUES …)`, whose numbers PostgreSQL would take for texts.
        folded = ""
        which = f"({' OR '.join(f'(id = ${n} AND claims = ${n + 1})' for n in firsts)})"
    return (
        f"{SETTLING}{folded} WHERE lease_worker = $7 AND state = 'in_flight'"
        f" AND {which} RETURNING id, claims{f', {_NEXT_ID}, {_CHAINED_ID}' if is_last else ''}"
    )


_NEXT_ID = (
    "(SELECT n.id FROM pushkit_deliveries n"
    " WHERE n.subscription_id = pushkit_deliveries.subscription_id"
    f" AND n.id <> pushkit_deliveries.id AND n.{UNFINISHED} ORDER BY n.seq LIMIT 1) AS next_id"
)
# The next delivery of the chain. It is not `next_id` if an older delivery was redriven meanwhile.
_CHAINED_ID = (
    "(SELECT CASE c.state WHEN 'in_flight' THEN c.id END FROM pushkit_deliveries c"
    " WHERE c.subscription_id = pushkit_deliveries.subscription_id"
    f" AND c.seq > pushkit_deliveries.seq AND c.{UNFINISHED} ORDER BY c.seq LIMIT 1) AS chained_id"
)


# --- what is behind -----------------------------------------------------------------------------


@record(frozen=False, slots=True)
class _Behind:
    """The deliveries behind the settled ones, by subscription."""

    lost: set[str]  # those with a settled delivery that was not this worker's any more
    left: set[str]  # those whose oldest delivery is another one, or the settled one again
    chained: dict[str, Row] = field(default_factory=dict)  # with `next_id` and `chained_id`
    waiting: dict[str, str] = field(default_factory=dict)  # the ids of the next, pending ones


def _find_behind(
    settled: Sequence[tuple[Delivery, Result]],
    lasts: _LastOfEach,
    found: Mapping[tuple[str, int], Row],
) -> _Behind:
    """Return what is behind; `found` has the rows of the settled ones, by id and claim."""
    held, lost, again = set[str](), set[str](), set[str]()
    for delivery, result in settled:
        is_ours = (delivery.id, delivery.claims) in found
        (held if is_ours else lost).add(delivery.subscription_id)
        # It is the oldest again, unless an older one was redriven meanwhile.
        if is_ours and result.outcome in _RETRIED:
            again.add(delivery.subscription_id)
    behind = _Behind(lost, held & (lost | again))
    for subscription_id, (delivery, _) in lasts.items():
        if subscription_id in behind.left or subscription_id not in held:
            continue
        row = found[delivery.id, delivery.claims]
        if row["chained_id"] is not None:
            behind.chained[subscription_id] = row
        elif row["next_id"] is not None:
            behind.waiting[subscription_id] = row["next_id"]
    return behind


_IS_PAUSED = (
    "EXISTS (SELECT 1 FROM pushkit_subscriptions s"
    " WHERE s.id = pushkit_deliveries.subscription_id AND s.paused = 1)"
)
_FAILS_OR_WAITS = (
    "EXISTS (SELECT 1 FROM pushkit_destinations h WHERE h.tenant = pushkit_deliveries.tenant"
    " AND h.owner = pushkit_deliveries.owner AND h.origin = pushkit_deliveries.origin"
    " AND (h.failures > 0 OR h.until > {now}))"
)


def _move_heads_along(chained: Mapping[str, Row], now: int) -> Script[set[str]]:
    """Make the next delivery of each chain the head; return the subscriptions that must stop."""
    stopped = {name for name, row in chained.items() if row["next_id"] != row["chained_id"]}
    rows = yield from run_for_ids(
        "UPDATE pushkit_deliveries SET head ="
        f" CASE WHEN {_IS_PAUSED} THEN 0 ELSE 1 END WHERE id IN ($ids) AND {UNFINISHED}"
        f" RETURNING subscription_id, head, {_FAILS_OR_WAITS.format(now='$1')} AS waits",
        [row["chained_id"] for row in chained.values()],
        now,
    )
    return stopped.union(row["subscription_id"] for row in rows if row["waits"] or not row["head"])


# --- claims without a search ----------------------------------------------------------------------


def _chain_behind(heads: Sequence[Delivery], claim: Claim, now: datetime) -> Script[list[Delivery]]:
    """Claim the deliveries behind heads that were just claimed, if they may follow at once."""
    # The bodies of a queue are of similar length.
    wanted = [
        (each.subscription_id, each.seq, each.origin)
        for each in heads
        if len(each.body) <= CHAINED_BYTES
    ]
    claimed = yield from _claim_by(_claiming_behind, wanted, claim, now)
    return sorted(claimed, key=lambda each: (each.subscription_id, each.seq))


def _claim_by(
    claiming: Callable[[int], str],  # returns the statement for so many rows of parameters
    wanted: Sequence[tuple[SqlValue, ...]],
    claim: Claim,
    now: datetime,
) -> Script[list[Delivery]]:
    claimed: list[Delivery] = []
    for some in chunks(wanted):
        filled = padded(some)
        values = (claim.worker, to_micros(claim.until), to_micros(now))
        rows = yield Statement(
            claiming(len(filled)), (*values, *itertools.chain.from_iterable(filled))
        )
        claimed += map(delivery_of, rows)
    return claimed


@functools.cache
def _claiming_next(number: int) -> str:
    """Return the statement for so many next deliveries: the id and the expected origin of each."""
    ids = range(4, 4 + 2 * number, 2)
    origins = " ".join(f"WHEN ${n} THEN ${n + 1}" for n in ids)
    return CLAIMED.where(
        f"id IN ({', '.join(f'${n}' for n in ids)}) AND origin = CASE id {origins} END"
        f" AND not_before <= $3 AND attempts = 0 AND NOT {_IS_PAUSED}"
        f" AND NOT {_FAILS_OR_WAITS.format(now='$3')} RETURNING {DELIVERY}"
    )


@functools.cache
def _claiming_behind(number: int) -> str:
    """Return the statement behind so many heads: subscription, `seq` and origin of each."""
    queues = " OR ".join(
        f"(subscription_id = ${n} AND seq > ${n + 1} AND seq < ${n + 1} + {_AT_ONCE}"
        f" AND NOT EXISTS (SELECT 1 FROM pushkit_deliveries b WHERE b.subscription_id = ${n}"
        f" AND b.seq > ${n + 1} AND b.seq <= pushkit_deliveries.seq AND b.{UNFINISHED}"
        f" AND (b.attempts > 0 OR b.not_before > $3 OR b.origin <> ${n + 2}"
        # A delivery that a dead worker still leases is not overtaken.
        " OR b.state = 'in_flight')))"
        for n in range(4, 4 + 3 * number, 3)
    )
    return CHAINED.where(f"({queues}) RETURNING {DELIVERY}")
