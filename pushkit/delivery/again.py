"""Sending again, and sending now, as scripts: what can be, what was, and why the rest was not."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, fields, replace
from enum import StrEnum
from typing import Self

from pushkit.outbox.dead_letters import DeadLetters, Standing
from pushkit.outbox.destinations import DestinationStore
from pushkit.outbox.parking import PARKING
from pushkit.outbox.states import DeliveryState
from pushkit.storage.database import Database
from pushkit.storage.script import Script
from pushkit.subscriptions.store import SubscriptionStore


class WhyNot(StrEnum):
    """Why nothing was done with a delivery."""

    UNKNOWN = "unknown"
    """There is none of this id."""
    PENDING = "pending"
    IN_FLIGHT = "in_flight"
    DELIVERED = "delivered"
    DEAD = "dead"
    CANCELLED = "cancelled"
    REMOVED = "subscription_removed"
    """Its subscription was removed: nobody wants it any more."""
    DISABLED = "subscription_disabled"
    """Its subscription is disabled: enable that first."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Redriven:
    """What became of a wish to send again."""

    ids: tuple[str, ...] = ()  # the deliveries that are pending again, or would be
    # Why others are not, and how many of them.
    reasons: Counter[WhyNot] = field(default_factory=Counter)

    @property
    def skipped(self) -> int:
        """How many are not."""
        return self.reasons.total()

    def __add__(self, other: Self) -> Self:
        names = [each.name for each in fields(self)]
        return replace(self, **{name: getattr(self, name) + getattr(other, name) for name in names})


@dataclass(frozen=True, slots=True, kw_only=True)
class Retried(Redriven):
    """What became of a wish to try now: `ids` wait for no time any more, or would not."""

    behind: int = 0  # how many of them still wait for an older one of their subscription
    paused: int = 0  # how many of them still wait because that is paused


def _why_not(standing: Standing | None, states: Sequence[DeliveryState]) -> WhyNot | None:
    """Return why a delivery cannot be sent from one of these states; None if it can."""
    if standing is None:
        return WhyNot.UNKNOWN
    if standing.state not in states:
        return WhyNot(standing.state.value)
    if standing.is_wanted is None:
        return WhyNot.REMOVED
    return None if standing.is_wanted else WhyNot.DISABLED


@dataclass(frozen=True, slots=True, kw_only=True)
class Again:
    """Scripts over deliveries that somebody named."""

    database: Database  # whose clock counts, and whose workers are woken
    # From how many failures in a row on a destination gets one delivery at a time.
    probes_from: int
    dead_letters: DeadLetters = field(default_factory=DeadLetters)
    destinations: DestinationStore = field(default_factory=DestinationStore)
    subscriptions: SubscriptionStore = field(default_factory=SubscriptionStore)

    def would_revive(self, ids: Sequence[str], states: Sequence[DeliveryState]) -> Script[Redriven]:
        """Say what `revive` would do."""
        standings = yield from self.dead_letters.standings(ids)
        found = {each: _why_not(standings.get(each), states) for each in ids}
        return Redriven(
            ids=tuple(each for each, why in found.items() if why is None),
            reasons=Counter(why for why in found.values() if why is not None),
        )

    def revive(self, ids: Sequence[str], states: Sequence[DeliveryState]) -> Script[Redriven]:
        """Let deliveries in one of these states be made again, if their subscriptions want them."""
        by_subscription = yield from self.dead_letters.subscriptions_of(ids)
        held = yield from self.subscriptions.lock_all(list(by_subscription))
        asked = yield from self.would_revive(ids, states)
        now = yield from self.database.now()
        wanted, revived = set(asked.ids), list[str]()
        for subscription_id, theirs in by_subscription.items():
            chosen = [each for each in theirs if each in wanted]
            if chosen:
                # Whoever redrives says that it works again: old failures prove nothing any more.
                yield from self.subscriptions.set_failing_since(subscription_id, None)
                revived += yield from self.dead_letters.revive(
                    subscription_id,
                    chosen,
                    states=states,
                    origin=held[subscription_id].origin,
                    now=now,
                )
        yield from self.database.wake()
        return Redriven(ids=tuple(revived), reasons=asked.reasons)

    def would_retry(self, ids: Sequence[str]) -> Script[Retried]:
        """Say what `retry` would do."""
        standings = yield from self.dead_letters.standings(ids)
        return _retried(ids, standings)

    def retry(self, ids: Sequence[str]) -> Script[Retried]:
        """Let pending deliveries, and the destinations of those that are next, wait no longer."""
        by_subscription = yield from self.dead_letters.subscriptions_of(ids)
        yield from self.subscriptions.lock_all(list(by_subscription))
        now = yield from self.database.now()
        due = yield from self.dead_letters.make_due(ids, now)
        # Only now: one that was being claimed is in flight by then.
        standings = yield from self.dead_letters.standings(ids)
        tried = [standings[each].destination for each in due if standings[each].is_head]
        # What is parked is noted with the wait that a claim saw: it must not see the one that ends.
        yield from self.database.exclusively(PARKING)
        yield from self.destinations.half_open(tried, failures=self.probes_from, now=now)
        yield from self.database.wake()
        return _retried(ids, standings)


def _retried(ids: Sequence[str], standings: Mapping[str, Standing]) -> Retried:
    states = {each: standings[each].state if each in standings else None for each in ids}
    pending = [each for each, state in states.items() if state is DeliveryState.PENDING]
    waiting = [standings[each] for each in pending if not standings[each].is_head]
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
