"""Who gets the free slots of a worker: a pure rule over heads that are due.

A slot is a place for one attempt. Slots go round robin by owner: whoever holds the fewest is served
first, with what has been due longest. One owner's slow webhooks therefore cannot take them all:

- an owner that holds three times as many slots as are free gets no more of them, so that a quarter
  is left for whoever comes next (a second such owner takes a share of that, and so on);
- the last eighth goes to owners that hold none, one slot each: several who take all that they can
  get leave it to the others;
- an origin has a few places at once, over all owners and workers;
- a destination that waits has none, and one that failed too often in a row has one.
"""

from __future__ import annotations

import heapq
from collections import Counter, defaultdict, deque
from collections.abc import Collection, Sequence
from dataclasses import dataclass, field
from typing import NamedTuple

from pushkit.outbox.destinations import DestinationKey

_TIMES_AS_MANY = 3


class Head(NamedTuple):
    """A delivery that is due, and its destination's state; moments in microseconds."""

    id: str
    destination: DestinationKey
    not_before: int
    until: int
    failures: int


class Places(NamedTuple):
    """How many places there are."""

    slots: int  # how many slots of the worker are free
    reserved: int  # how many of them only owners get that hold none
    per_origin: int  # how many attempts may be under way at one origin
    probes_from: int  # from so many failures in a row on a destination has one place


@dataclass(slots=True)
class InFlight:
    """What is under way; it counts what is chosen, too."""

    by_destination: Counter[DestinationKey] = field(default_factory=Counter)  # over all workers
    by_origin: Counter[str] = field(default_factory=Counter)  # over all workers and owners
    # Of the worker that asks: tenant and owner.
    by_owner: Counter[tuple[str, str]] = field(default_factory=Counter)

    def add(self, destination: DestinationKey, number: int = 1, *, is_mine: bool = True) -> None:
        """Count attempts that are under way."""
        tenant, owner, origin = destination
        self.by_destination[destination] += number
        self.by_origin[origin] += number
        if is_mine:
            self.by_owner[tenant, owner] += number

    def room(
        self, destination: DestinationKey, *, until: int, failures: int, places: Places, now: int
    ) -> int:
        """Return how many more attempts a destination may get."""
        if until > now:
            return 0
        if failures >= places.probes_from:
            return 0 if self.by_destination[destination] else 1
        return max(places.per_origin - self.by_origin[destination[2]], 0)


def reserved_of(slots: int) -> int:
    """Return how many of a worker's slots only owners get that hold none."""
    return slots // 8


def owner_may_take(held: int, *, free: int, reserved: int) -> bool:
    """Say whether an owner that holds so many slots may have another one of those that are free."""
    return held < _TIMES_AS_MANY * free and (held == 0 or free > reserved)


def share_out(heads: Sequence[Head], in_flight: InFlight, places: Places, now: int) -> list[Head]:
    """Return the heads that get a slot, in the order in which they do.

    Args:
        in_flight: What is under way; the chosen are added.
    """
    waiting: dict[tuple[str, str], deque[Head]] = defaultdict(deque)
    for head in sorted(heads, key=lambda head: (head.not_before, head.id)):
        waiting[head.destination[:2]].append(head)
    turns = [
        (in_flight.by_owner[owner], theirs[0].not_before, owner)
        for owner, theirs in waiting.items()
    ]
    heapq.heapify(turns)
    chosen: list[Head] = []
    while turns and len(chosen) < places.slots:
        held, _, owner = heapq.heappop(turns)
        free = places.slots - len(chosen)
        if not owner_may_take(held, free=free, reserved=places.reserved):
            break  # whoever else waits holds as many, or more
        theirs = waiting[owner]
        while theirs:
            head = theirs.popleft()
            if in_flight.room(
                head.destination, until=head.until, failures=head.failures, places=places, now=now
            ):
                in_flight.add(head.destination)
                chosen.append(head)
                break
        if theirs:
            heapq.heappush(turns, (in_flight.by_owner[owner], theirs[0].not_before, owner))
    return chosen


def left_behind(
    heads: Collection[Head], in_flight: InFlight, places: Places, now: int
) -> tuple[frozenset[tuple[str, str]], frozenset[str]]:
    """Say what the heads that got no slot wait for.

    Returns:
        The owners (with their tenants) of those that wait for a slot alone; and the origins at
        which others wait for what is under way there. What waits for a moment is in neither.
    """
    owners, crowded = set[tuple[str, str]](), set[str]()
    for head in heads:
        if in_flight.room(
            head.destination, until=head.until, failures=head.failures, places=places, now=now
        ):
            owners.add(head.destination[:2])
        elif head.until <= now:
            crowded.add(head.destination[2])
    return frozenset(owners), frozenset(crowded)
