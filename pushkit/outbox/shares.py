"""Who gets the free slots of a worker: a pure rule over heads that are due.

A slot is a place for one attempt. Slots go round robin by owner: whoever holds the fewest is served
first, of those who hold as many the one who had slots for the shortest time of late (`RecentUse`),
with what has been due longest. One owner's slow webhooks therefore cannot take them all. However
many owners have a backlog, who used little gets the next slot that becomes free:

- an owner that holds three times as many slots as are free gets no more of them, so that a quarter
  is left for whoever comes next (a second such owner takes a share of that, and so on);
- the last eighth goes to owners that hold none, one slot each: several who take all that they can
  get leave it to the others;
- an origin has a few places at once, over all owners and workers;
- a destination that waits has none, and one that failed too often in a row has one.
"""

from __future__ import annotations

import heapq
import math
from collections import Counter, OrderedDict, defaultdict, deque
from collections.abc import Callable, Collection, Sequence
from dataclasses import dataclass, field
from typing import Final, NamedTuple, TypeAlias

from pushkit.outbox.destinations import DestinationKey

Owner: TypeAlias = tuple[str, str]  # with the tenant before it

_TIMES_AS_MANY = 3
_MOST_REMEMBERED: Final = 10_000
_HALF_LIFE: Final = 2.0  # seconds; a longer time in a slot counts as this
_LEAST: Final = 1e-6  # seconds


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
    # Of the worker that asks.
    by_owner: Counter[Owner] = field(default_factory=Counter)

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


class RecentUse:
    """For how long each owner had slots of one worker of late: half of it counts after two seconds.

    It is in memory, and each worker's own: each of them shares its slots out among all owners, so
    that whoever used little comes first at the first that has a slot free. Who is not known, or was
    forgotten, used nothing: behind a worker that begins anew all stand in line by age, once.

    Args:
        most: How many owners to remember. Forgotten first is who had no slot for longest.
    """

    def __init__(self, most: int = _MOST_REMEMBERED) -> None:
        self._most = most
        # The binary logarithm of the seconds that count, as if nothing became less with time, but
        # what is noted later were more: so it compares at any time.
        self._used: OrderedDict[Owner, float] = OrderedDict()

    def note(self, owner: Owner, seconds: float, *, now: float) -> None:
        """Note that an owner had a slot for so long, until now.

        Args:
            now: In seconds, by a clock that only goes forward.
        """
        more = math.log2(min(max(seconds, _LEAST), _HALF_LIFE)) + now / _HALF_LIFE
        high, low = more, self._used.get(owner, -math.inf)
        if low > high:
            high, low = low, high
        self._used[owner] = high + math.log2(1 + 2 ** (low - high))
        self._used.move_to_end(owner)
        if len(self._used) > self._most:
            self._used.popitem(last=False)

    def of(self, owner: Owner) -> float:
        """Return what tells who used more: the greater the number."""
        return self._used.get(owner, -math.inf)


def share_out(
    heads: Sequence[Head],
    in_flight: InFlight,
    places: Places,
    now: int,
    *,
    used: Callable[[Owner], float] = lambda _: 0,
) -> list[Head]:
    """Return the heads that get a slot, in the order in which they do.

    Args:
        in_flight: What is under way; the chosen are added.
        used: How much each owner had of the slots of late (see `RecentUse.of`).
    """
    waiting: dict[Owner, deque[Head]] = defaultdict(deque)
    for head in sorted(heads, key=lambda head: (head.not_before, head.id)):
        waiting[head.destination[:2]].append(head)
    turns = [
        (in_flight.by_owner[owner], used(owner), theirs[0].not_before, owner)
        for owner, theirs in waiting.items()
    ]
    heapq.heapify(turns)
    chosen: list[Head] = []
    while turns and len(chosen) < places.slots:
        held, much, _, owner = heapq.heappop(turns)
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
            held = in_flight.by_owner[owner]
            heapq.heappush(turns, (held, much, theirs[0].not_before, owner))
    return chosen


def left_behind(
    heads: Collection[Head], in_flight: InFlight, places: Places, now: int
) -> tuple[frozenset[Owner], frozenset[str]]:
    """Say what the heads that got no slot wait for.

    Returns:
        The owners (with their tenants) of those that wait for a slot alone; and the origins at
        which others wait for what is under way there. What waits for a moment is in neither.
    """
    owners, crowded = set[Owner](), set[str]()
    for head in heads:
        if in_flight.room(
            head.destination, until=head.until, failures=head.failures, places=places, now=now
        ):
            owners.add(head.destination[:2])
        elif head.until <= now:
            crowded.add(head.destination[2])
    return frozenset(owners), frozenset(crowded)
