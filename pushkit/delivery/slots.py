"""A worker's slots: which deliveries hold one, and which may take one as they are stored."""

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
    """A claimed delivery, and the result of its attempt."""

    delivery: Delivery  # as it was claimed
    # Its subscription, or the subscription's route; None if the subscription was removed.
    to: StoredSubscription | Route | None
    since: float  # when it was claimed, by `time.perf_counter`: before its lease began
    refusals: int = 0  # how often this sender's own policy refused its destination
    chain: Chain | None = None  # the chain that it joins, if it has no slot of its own
    result: Result = NOT_BEGUN  # the result of its attempt, by this worker's clock


def read_subscriptions(claimed: Sequence[Claimed]) -> Script[None]:
    """Read the subscriptions of deliveries whose routes are not remembered."""
    ids = [each.delivery.subscription_id for each in claimed]
    found = yield from SubscriptionStore().by_ids(ids)
    for each in claimed:
        each.to = found.get(each.delivery.subscription_id)


Reservation: TypeAlias = Chain | DestinationKey
"""What a delivery that is being stored reserved: a place in a chain, or a slot of its own."""


class DeliverySlots(Slots):
    """The slots of deliveries.

    Claims share them out among all due deliveries (`pushkit.outbox.shares`). While nothing waits
    for a slot, a delivery takes one as it is stored, by the same rules, and the next delivery of a
    queue takes over the slot of the one before it. Neither needs a claim.

    Args:
        number: How many attempts run at once.
        per_origin: How many of them to one origin, over all owners.
    """

    def __init__(self, number: int, *, per_origin: int) -> None:
        super().__init__(number)
        self.reserved: int = reserved_slots(number)  # left to owners that hold none
        self.chains: dict[str, Chain] = {}  # the chain in each slot, by subscription
        self._per_origin = per_origin
        self.use: RecentUse = RecentUse()  # how long each owner held slots
        self._by_owner: Counter[Owner] = Counter()
        self._by_origin: Counter[str] = Counter()
        self._by_destination: Counter[DestinationKey] = Counter()
        self._last = ClaimResult()
        self._counting = threading.Lock()

    def note(self, claimed: ClaimResult) -> None:
        """Count the slots of claimed deliveries, which are taken already, and keep the result."""
        with self._counting:
            self._last = claimed
            self._some_wait |= claimed.some_wait
            for delivery in claimed.deliveries:
                self._begin(destination_of(delivery))

    def reserve(self, destination: DestinationKey) -> bool:
        """Take a slot for a delivery that is being stored; return False if it must wait."""
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
        """Return whether the next delivery of a queue may take over the slot of the one before it.

        It may not if another queue waits for that slot: queues take turns.
        """
        tenant, owner, origin = destination
        return (
            self.is_open
            and not self._some_wait
            and (tenant, owner) not in self._last.waiting_owners
            and origin not in self._last.full_origins
        )

    def ended(self, destination: DestinationKey, since: float | None = None) -> bool:
        """Stop counting a delivery; return whether another one may have waited for its slot.

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

    def cancel(self, claimed: Iterable[Claimed]) -> None:
        """Free the slots, and the places in chains, of deliveries whose transaction failed."""
        for each in claimed:
            if each.chain is None:
                self.ended(destination_of(each.delivery))
                self.give_back(1)
            else:
                each.chain.break_off()


def _count_down(counter: Counter[_Key], key: _Key) -> None:
    counter[key] -= 1
    if not counter[key]:
        del counter[key]
