"""Scripts that send deliveries again or now; each returns which it changed, and why not others."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, fields, replace
from enum import StrEnum
from typing import Self

from pushkit.outbox import dead_letters, destinations
from pushkit.outbox.dead_letters import Standing
from pushkit.outbox.states import DeliveryState
from pushkit.queue.leases import reschedule
from pushkit.storage.database import Database
from pushkit.storage.script import Script, to_micros
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
class Redriven:
    """The result of `redrive` or `resend`."""

    ids: tuple[str, ...] = ()  # the deliveries that are pending again, or would be
    # How many others were not changed, by reason.
    reasons: Counter[WhyNot] = field(default_factory=Counter)

    @property
    def skipped(self) -> int:
        """How many deliveries were not changed."""
        return self.reasons.total()

    def __add__(self, other: Self) -> Self:
        names = [each.name for each in fields(self)]
        return replace(self, **{name: getattr(self, name) + getattr(other, name) for name in names})


@dataclass(frozen=True, slots=True, kw_only=True)
class Retried(Redriven):
    """The result of `retry_now`: `ids` are due now, or would be."""

    behind: int = 0  # how many of them still wait for an older delivery of their subscription
    paused: int = 0  # how many of them still wait because their subscription is paused


def _why_not(standing: Standing | None, states: Sequence[DeliveryState]) -> WhyNot | None:
    """Return why a delivery cannot be sent again from one of these states; None if it can."""
    if standing is None:
        return WhyNot.UNKNOWN
    if standing.state not in states:
        return WhyNot(standing.state.value)
    if standing.is_wanted is None:
        return WhyNot.REMOVED
    return None if standing.is_wanted else WhyNot.DISABLED


@dataclass(frozen=True, slots=True, kw_only=True)
class Again:
    """Scripts over given deliveries."""

    database: Database  # supplies the time, and wakes its workers
    # How many failures in a row of a destination make it get one delivery at a time.
    probes_from: int

    def would_redrive(
        self, ids: Sequence[str], states: Sequence[DeliveryState]
    ) -> Script[Redriven]:
        """Return the result that `redrive` would have."""
        standings = yield from dead_letters.standings(ids)
        found = {each: _why_not(standings.get(each), states) for each in ids}
        return Redriven(
            ids=tuple(each for each, why in found.items() if why is None),
            reasons=Counter(why for why in found.values() if why is not None),
        )

    def redrive(self, ids: Sequence[str], states: Sequence[DeliveryState]) -> Script[Redriven]:
        """Make deliveries in these states pending again, if their subscriptions are active."""
        by_subscription = yield from dead_letters.subscriptions_of(ids)
        queues = yield from OUTBOX.lock(list(by_subscription))
        asked = yield from self.would_redrive(ids, states)
        now = yield from self.database.now()
        wanted, redriven = set(asked.ids), list[str]()
        for subscription_id, theirs in by_subscription.items():
            chosen = [each for each in theirs if each in wanted]
            if chosen:
                # The operator assumes that the webhook works again: old failures no longer count.
                yield from subscriptions.set_failing_since(subscription_id, None)
                redriven += yield from dead_letters.redrive(
                    queues[subscription_id], chosen, states=states, now=now
                )
        yield from self.database.wake()
        return Redriven(ids=tuple(redriven), reasons=asked.reasons)

    def would_retry(self, ids: Sequence[str]) -> Script[Retried]:
        """Return the result that `retry` would have."""
        standings = yield from dead_letters.standings(ids)
        return _retried(ids, standings)

    def retry(self, ids: Sequence[str]) -> Script[Retried]:
        """End the wait of pending deliveries, and of the destinations of those that are next."""
        by_subscription = yield from dead_letters.subscriptions_of(ids)
        now = yield from self.database.now()
        standings = yield from dead_letters.standings(ids)
        tried = {each.destination for each in standings.values() if each.is_next}
        # All at once, in id order: two transactions must not wait for each other.
        others = yield from OUTBOX.due_later(tried, to_micros(now))
        queues = yield from OUTBOX.lock([*by_subscription, *others])
        standings = yield from dead_letters.standings(ids)
        waiting = [each for each, at in standings.items() if at.state is DeliveryState.PENDING]
        due = yield from dead_letters.make_due(waiting, now)
        tried.intersection_update(
            standings[each].destination for each in due if standings[each].is_next
        )
        theirs = [each for each in queues.values() if each.id in by_subscription]
        yield from reschedule(OUTBOX, theirs, to_micros(now))
        yield from OUTBOX.look_again(
            [each for each in queues.values() if each not in theirs and each.group in tried],
            to_micros(now),
        )
        yield from destinations.half_open([*tried], failures=self.probes_from, now=now)
        yield from self.database.wake()
        return _retried(ids, standings)


def _retried(ids: Sequence[str], standings: Mapping[str, Standing]) -> Retried:
    states = {each: standings[each].state if each in standings else None for each in ids}
    pending = [each for each, state in states.items() if state is DeliveryState.PENDING]
    waiting = [standings[each] for each in pending if not standings[each].is_next]
    return Retried(
        ids=tuple(pending),
        behind=sum(not each.is_paused for each in waiting),
        paused=sum(each.is_paused for each in waiting),
        reasons=Counter(
            WhyNot.UNKNOWN if state is None else WhyNot(state.value)
            for state in states.values()
            if state is not DeliveryState.PENDING
        ),
    )
