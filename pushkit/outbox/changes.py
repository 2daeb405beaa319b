"""What operators do with deliveries, as scripts: send again, send now, cancel.

The scripts that change deliveries of one queue (`redrive`, `cancel`) expect its row to be held
(`OUTBOX.lock`). Those over deliveries of any queues lock the rows, and return which deliveries they
changed, and why not the others.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from datetime import datetime
from enum import StrEnum
from typing import NamedTuple

from pushkit.outbox import destinations
from pushkit.outbox import store as outbox
from pushkit.outbox.destinations import DestinationKey
from pushkit.outbox.states import (
    CANCELLED,
    IS_NEXT,
    REDRIVEN,
    SHOWN_STATE,
    CancelledBy,
    DeliveryState,
)
from pushkit.queue.leases import reschedule
from pushkit.queue.rules import Queue
from pushkit.storage.database import Database
from pushkit.storage.script import Script, Statement, run_for_ids, to_micros
from pushkit.subscriptions import store as subscriptions
from pushkit.subscriptions.model import OUTBOX


class WhyNot(StrEnum):
    """Why a delivery was not changed."""

    UNKNOWN = "unknown"
    """No delivery has this id."""
    PENDING = "pending"
    IN_FLIGHT = "in_flight"
    DELIVERED = "delivered"
    DEAD = "dead"
    CANCELLED = "cancelled"
    REMOVED = "subscription_removed"
    """Its subscription was removed."""
    DISABLED = "subscription_disabled"
    """Its subscription is disabled: enable that first."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Requeued:
    """The result of `redrive` or `resend`."""

    ids: tuple[str, ...] = ()  # the deliveries that are pending again, or would be
    # How many others were not changed, by reason.
    reasons: Counter[WhyNot] = field(default_factory=Counter)

    @property
    def skipped(self) -> int:
        """How many deliveries were not changed."""
        return self.reasons.total()


@dataclass(frozen=True, slots=True, kw_only=True)
class Retried(Requeued):
    """The result of `retry_now`: `ids` are due now, or would be."""

    behind: int = 0  # how many of them still wait for an older delivery of their subscription
    paused: int = 0  # how many of them still wait because their subscription is paused


class CurrentDelivery(NamedTuple):
    """The state of a delivery and its subscription: an operator's choices depend on it."""

    state: DeliveryState
    is_next: bool  # whether it is the first unfinished one of its queue, which is not paused
    destination: DestinationKey
    # Whether its subscription is not disabled; None if it was removed.
    is_wanted: bool | None
    is_paused: bool  # whether its subscription is paused


# --- deliveries of one queue ----------------------------------------------------------------------


def redrive(
    queue: Queue,
    ids: Sequence[str],
    *,
    states: Sequence[DeliveryState],
    now: datetime,
) -> Script[list[str]]:
    """Make deliveries of one queue pending again; return those that were in `states`.

    Id and `seq` stay, attempts and age begin anew, and they go to the subscription's current
    URL. A delivery in flight continues; pending ones wait behind a lower `seq`.
    """
    # Three parameters, the last state repeated: one statement for every choice.
    first, second, third = (*states, *[states[-1]] * 2)[:3]
    redriven = yield from run_for_ids(
        REDRIVEN.where(
            "subscription_id = $1 AND state IN ($5, $6, $7) AND id IN ($ids) RETURNING id"
        ),
        ids,
        *(queue.id, to_micros(now), queue.origin, int(queue.lease_worker is not None)),
        *(first.value, second.value, third.value),
    )
    if redriven:
        yield from reschedule(OUTBOX, [queue], to_micros(now))
    return sorted(row["id"] for row in redriven)


def send_once_more(ids: Sequence[str]) -> Script[None]:
    """Send deliveries in flight once more: the results of their attempts are not stored."""
    yield from run_for_ids(
        "UPDATE pushkit_deliveries SET redrives = redrives + 1"
        " WHERE state = 'pending' AND id IN ($ids)",
        ids,
    )


def cancelled_with(subscription_id: str, since: datetime) -> Script[list[str]]:
    """Return the deliveries that were cancelled when a subscription was disabled, by `seq`."""
    rows = yield Statement(
        "SELECT id FROM pushkit_deliveries WHERE subscription_id = $1 AND state = 'cancelled'"
        f" AND cancelled_by = '{CancelledBy.DISABLED}' AND finished_at >= $2 ORDER BY seq",
        (subscription_id, to_micros(since)),
    )
    return [str(row["id"]) for row in rows]


def cancel(queue: Queue, ids: Sequence[str], now: datetime) -> Script[list[str]]:
    """Cancel pending deliveries of one queue that its holder does not have; return them."""
    held_to = queue.sending_to if queue.lease_worker is not None else 0
    cancelled = yield from run_for_ids(
        CANCELLED.where(
            "subscription_id = $1 AND (seq > $4 OR waits = 1) AND id IN ($ids) RETURNING id"
        ),
        ids,
        *(queue.id, to_micros(now), CancelledBy.OPERATOR.value, held_to),
    )
    if cancelled and queue.lease_worker is None:
        yield from reschedule(OUTBOX, [queue], to_micros(now))
    return sorted(row["id"] for row in cancelled)


# --- deliveries of any queues ---------------------------------------------------------------------


def requeue(
    database: Database,
    ids: Sequence[str],
    states: Sequence[DeliveryState],
    *,
    dry_run: bool = False,
) -> Script[Requeued]:
    """Make deliveries in these states pending again, if their subscriptions are active."""
    by_subscription = {} if dry_run else (yield from _subscriptions_of(ids))
    queues = yield from OUTBOX.lock(list(by_subscription))
    found = yield from current_deliveries(ids)
    reasons = {each: _why_not(found.get(each), states) for each in ids}
    result = Requeued(
        ids=tuple(each for each, why in reasons.items() if why is None),
        reasons=Counter(why for why in reasons.values() if why is not None),
    )
    if dry_run:
        return result
    now = yield from database.now()
    redriven: list[str] = []
    for subscription_id, theirs in by_subscription.items():
        chosen = [each for each in theirs if reasons[each] is None]
        if chosen:
            # The operator assumes that the webhook works again: old failures no longer count.
            yield from subscriptions.set_failing_since(subscription_id, None)
            queue = queues[subscription_id]
            redriven += yield from redrive(queue, chosen, states=states, now=now)
    yield from database.wake()
    return replace(result, ids=tuple(redriven))


def send_now(
    database: Database, ids: Sequence[str], *, probes_from: int, dry_run: bool = False
) -> Script[Retried]:
    """End the wait of pending deliveries, and of the destinations of those that are next.

    Args:
        database: Supplies the time, and wakes its workers.
        ids: The deliveries.
        probes_from: How many failures in a row of a destination make it get one delivery at a time.
        dry_run: Change nothing.
    """
    found = yield from current_deliveries(ids)
    if not dry_run:
        by_subscription = yield from _subscriptions_of(ids)
        now = yield from database.now()
        moment = to_micros(now)
        tried = {each.destination for each in found.values() if each.is_next}
        # All at once, in id order: two transactions must not wait for each other.
        others = yield from OUTBOX.due_later(tried, moment)
        queues = yield from OUTBOX.lock([*by_subscription, *others])
        found = yield from current_deliveries(ids)
        waiting = [each for each, at in found.items() if at.state is DeliveryState.PENDING]
        due = yield from _make_due(waiting, now)
        tried.intersection_update(found[each].destination for each in due if found[each].is_next)
        theirs = [each for each in queues.values() if each.id in by_subscription]
        yield from reschedule(OUTBOX, theirs, moment)
        rest = [each for each in queues.values() if each not in theirs and each.group in tried]
        yield from OUTBOX.look_again(rest, moment)
        yield from destinations.half_open([*tried], failures=probes_from, now=now)
        yield from database.wake()
    pending = [each for each in ids if each in found and found[each].state is DeliveryState.PENDING]
    waiting_for = [found[each] for each in pending if not found[each].is_next]
    return Retried(
        ids=tuple(pending),
        behind=sum(not each.is_paused for each in waiting_for),
        paused=sum(each.is_paused for each in waiting_for),
        reasons=Counter(
            WhyNot(found[each].state.value) if each in found else WhyNot.UNKNOWN
            for each in ids
            if each not in pending
        ),
    )


def cancel_pending(database: Database, ids: Sequence[str]) -> Script[list[str]]:
    """Cancel pending deliveries, and return them; running attempts continue."""
    by_subscription = yield from _subscriptions_of(ids)
    locked = yield from subscriptions.lock_all(list(by_subscription))
    queues = yield from OUTBOX.lock(locked)
    now = yield from database.now()
    cancelled: list[str] = []
    for of, subscription in locked.items():
        cancelled += yield from cancel(queues[of], by_subscription[of], now)
        if subscription.ended and not (yield from outbox.has_unfinished(of)):
            yield from subscriptions.withdraw([of], now)
    yield from database.wake()
    return cancelled


def _subscriptions_of(ids: Sequence[str]) -> Script[dict[str, list[str]]]:
    """Return the ids of deliveries by subscription, both in order."""
    found: dict[str, list[str]] = {}
    rows = yield from run_for_ids(
        "SELECT id, subscription_id FROM pushkit_deliveries WHERE id IN ($ids)",
        sorted(set(ids)),
    )
    for row in rows:
        found.setdefault(row["subscription_id"], []).append(row["id"])
    return {subscription_id: sorted(found[subscription_id]) for subscription_id in sorted(found)}


def current_deliveries(ids: Sequence[str]) -> Script[dict[str, CurrentDelivery]]:
    """Return deliveries as they are now, by id; unknown ids are left out."""
    rows = yield from run_for_ids(
        "SELECT d.id, d.shown, d.is_next, d.tenant, d.owner, d.origin, s.active, s.paused"
        f" FROM (SELECT id, subscription_id, tenant, owner, origin, {SHOWN_STATE} AS shown,"
        f" CASE WHEN {IS_NEXT} THEN 1 ELSE 0 END AS is_next"
        " FROM pushkit_deliveries WHERE id IN ($ids)) d"
        " LEFT JOIN pushkit_subscriptions s ON s.id = d.subscription_id",
        sorted(set(ids)),
    )
    return {
        row["id"]: CurrentDelivery(
            state=DeliveryState(row["shown"]),
            is_next=bool(row["is_next"]),
            destination=(row["tenant"], row["owner"], row["origin"]),
            is_wanted=None if row["active"] is None else bool(row["active"]),
            is_paused=bool(row["paused"]),
        )
        for row in rows
    }


def _make_due(ids: Sequence[str], now: datetime) -> Script[list[str]]:
    """Make pending deliveries due now; return those that were pending."""
    rows = yield from run_for_ids(
        "UPDATE pushkit_deliveries"
        " SET not_before = CASE WHEN not_before > $1 THEN $1 ELSE not_before END,"
        " scheduled_at = $1"
        " WHERE state = 'pending' AND id IN ($ids) RETURNING id",
        sorted(set(ids)),
        to_micros(now),
    )
    return sorted(row["id"] for row in rows)


def _why_not(current: CurrentDelivery | None, states: Sequence[DeliveryState]) -> WhyNot | None:
    """Return why a delivery cannot be sent again from one of these states; None if it can."""
    if current is None:
        return WhyNot.UNKNOWN
    if current.state not in states:
        return WhyNot(current.state.value)
    if current.is_wanted is None:
        return WhyNot.REMOVED
    return None if current.is_wanted else WhyNot.DISABLED
