"""The slots of a worker: who holds them, and who may have one the moment he is stored."""

from __future__ import annotations

import threading
import time
from collections import Counter
from collections.abc import Iterable, Sequence
from typing import TypeAlias, TypeVar

from pushkit.delivery.chain import Chain
from pushkit.delivery.route import Route
from pushkit.outbox.destinations import DestinationKey, destination_of
from pushkit.outbox.leases import ClaimResult
from pushkit.outbox.model import NOT_BEGUN, Delivery, Result
from pushkit.outbox.shares import Owner, RecentUse, owner_may_take, reserved_slots
from pushkit.record import record
from pushkit.scheduling.pump import Slots
from pushkit.storage.script import Script
from pushkit.subscriptions.secrets import StoredSubscription
from pushkit.subscriptions.store import SubscriptionStore

_Key = TypeVar("_Key")


@record(frozen=False, slots=True)
class Claimed:
    """A delivery in a slot, and what became of it there."""

    delivery: Delivery  # as it was claimed
    # Its subscription, or the route of that; None if there is none any more.
    to: StoredSubscription | Route | None
    since: float  # when it was taken, by `time.perf_counter`: before its lease began to run
    refusals: int = 0  # how often its destination was refused by our own policy
    chain: Chain | None = None  # the chain that it joins, if it has no slot of its own
    result: Result = NOT_BEGUN  # what its attempt came to, by this worker's clock

    @property
    def url(self) -> str | None:
        """Where it goes; None if there is no subscription any more."""
        return None if self.to is None else self.to.subscription.config.url


def find_subscriptions(claimed: Sequence[Claimed]) -> Script[None]:
    """Read the subscriptions of some deliveries, whose routes are not remembered."""
    ids = [each.delivery.subscription_id for each in claimed]
    found = yield from SubscriptionStore().by_ids(ids)
    for each in claimed:
        each.to = found.get(each.delivery.subscription_id)


Place: TypeAlias = Chain | DestinationKey
"""Where a delivery that is being stored may begin: behind a chain, or in a slot of its own."""


class DeliverySlots(Slots):
    """Slots, and what is under way in them.

    Claims share them out among all that is due (`pushkit.outbox.shares`). Where nobody waits for a
    slot, a delivery takes one the moment it is stored, by the same rules, and the next of a line
    follows the one before it: neither is looked for by a claim.

    Args:
        number: How many attempts at once.
        per_origin: How many of them at one origin, over all owners.

    Attributes:
        reserved: How many only owners get that hold none.
        chains: What is under way in them, by subscription.
        use: For how long owners had slots of late.
    """

    def __init__(self, number: int, *, per_origin: int) -> None:
        super().__init__(number)
        self.reserved: int = reserved_slots(number)
        self.chains: dict[str, Chain] = {}
        self._per_origin = per_origin
        self.use: RecentUse = RecentUse()
        self._by_owner: Counter[Owner] = Counter()
        self._by_origin: Counter[str] = Counter()
        self._by_destination: Counter[DestinationKey] = Counter()
        self._last = ClaimResult()
        self._counting = threading.Lock()

    def note(self, claimed: ClaimResult) -> None:
        """Note what a claim took, in slots that are taken already, and what it saw."""
        with self._counting:
            self._last = claimed
            self._some_wait |= claimed.some_wait
            for delivery in claimed.deliveries:
                self._begin(destination_of(delivery))

    def reserve(self, destination: DestinationKey) -> bool:
        """Take a slot for a delivery that is being stored, if it may have one at once."""
        if not self.is_open or self._some_wait:
            return False
        tenant, owner, origin = destination
        with self._counting:
            held = self._by_owner[tenant, owner]
            under_way = self._by_origin[origin] + self._last.others[origin]
            is_allowed = owner_may_take(held, free=self.free, reserved=self.reserved)
            if under_way >= self._per_origin or not is_allowed:
                return False  # others have theirs
            if not self.take(1):
                self._some_wait = True
                return False
            self._begin(destination)
        return True

    def _begin(self, destination: DestinationKey) -> None:
        tenant, owner, origin = destination
        self._by_owner[tenant, owner] += 1
        self._by_origin[origin] += 1
        self._by_destination[destination] += 1

    def held(self) -> dict[DestinationKey, int]:
        """Return how many slots each destination holds."""
        with self._counting:
            return dict(self._by_destination)

    def may_follow(self, destination: DestinationKey) -> bool:
        """Say whether the next of a line may have the slot of the one that is settled.

        Not where something else waits for that slot: lines take turns.
        """
        tenant, owner, origin = destination
        return (
            self.is_open
            and not self._some_wait
            and (tenant, owner) not in self._last.waiting_owners
            and origin not in self._last.full_origins
        )

    def end(self, destination: DestinationKey, since: float | None = None) -> bool:
        """Count something no longer; say whether it was in the way of something.

        Args:
            since: When its slot was taken, by `time.perf_counter`; None if it never began.
        """
        tenant, owner, origin = destination
        with self._counting:
            _count_down(self._by_owner, (tenant, owner))
            if since is not None:
                now = time.perf_counter()
                self.use.note((tenant, owner), now - since, now=now)
            _count_down(self._by_origin, origin)
            _count_down(self._by_destination, destination)
        return (
            self._some_wait or bool(self._last.waiting_owners) or origin in self._last.full_origins
        )

    def give_up(self, claimed: Iterable[Claimed]) -> None:
        """Free the places of what was not stored after all."""
        for each in claimed:
            if each.chain is None:
                self.cancel([destination_of(each.delivery)])
            else:
                each.chain.break_off()

    def cancel(self, destinations: Iterable[DestinationKey]) -> None:
        """Free the slots of what was not stored after all."""
        for destination in destinations:
            self.end(destination)
            self.give_back(1)


def _count_down(counter: Counter[_Key], key: _Key) -> None:
    counter[key] -= 1
    if not counter[key]:
        del counter[key]
