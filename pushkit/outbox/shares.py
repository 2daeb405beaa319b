"""Fair shares: which due heads get the free slots of a worker, as a pure rule.

A slot is the right to make one attempt. Slots go round robin by owner: the owner that holds the
fewest comes first; of owners that hold equally many, the one that used least in the last seconds
(`RecentUse`); of its heads, the one that has been due longest. One owner's slow webhooks therefore
cannot take all slots. However many owners have a backlog, one that used little gets the next slot:

- an owner that holds three times as many slots as are free gets no more of them, so that a quarter
  is left for the next owner (a second such owner gets a share of that, and so on);
- the last eighth goes to owners that hold none, one slot each, so that several owners with a large
  backlog leave it to the others;
- an origin has a few attempts at once, over all owners and workers;
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

Owner: TypeAlias = tuple[str, str]  # tenant and owner

_TIMES_AS_MANY = 3
_MOST_REMEMBERED: Final = 10_000
_HALF_LIFE: Final = 2.0  # seconds; a longer time in a slot counts as this
_LEAST: Final = 1e-6  # seconds


class Head(NamedTuple):
    """A delivery that is due, and the state of its destination; times are in microseconds."""

    id: str
    destination: DestinationKey
    not_before: int
    until: int
    failures: int


class SlotLimits(NamedTuple):
    """How many attempts may begin."""

    slots: int  # how many slots of the worker are free
    reserved: int  # how many of them only owners get that hold none
    # How many attempts may be in flight at one origin, over all owners and workers: a slow webhook
    # of many tasks would otherwise take every slot.
    per_origin: int
    probation_from: int  # from so many failures in a row on, a destination has one at a time


@dataclass(slots=True)
class InFlight:
    """How many attempts are in flight, the chosen heads included."""

    by_destination: Counter[DestinationKey] = field(default_factory=Counter)  # over all workers
    by_origin: Counter[str] = field(default_factory=Counter)  # over all workers and owners
    by_owner: Counter[Owner] = field(default_factory=Counter)  # of the claiming worker alone

    def add(self, destination: DestinationKey, number: int = 1, *, is_mine: bool = True) -> None:
        """Count attempts in flight."""
        tenant, owner, origin = destination
        self.by_destination[destination] += number
        self.by_origin[origin] += number
        if is_mine:
            self.by_owner[tenant, owner] += number

    def slots_left(
        self,
        destination: DestinationKey,
        *,
        until: int,
        failures: int,
        limits: SlotLimits,
        now: int,
    ) -> int:
        """Return how many more attempts a destination may get."""
        if until > now:
            return 0
        if failures >= limits.probation_from:
            return 0 if self.by_destination[destination] else 1
        return max(limits.per_origin - self.by_origin[destination[2]], 0)


def reserved_slots(slots: int) -> int:
    """Return how many of a worker's slots only owners get that hold none."""
    return slots // 8


def owner_may_take(held: int, *, free: int, reserved: int) -> bool:
    """Return whether an owner that holds so many slots may get one of those that are free."""
    return held < _TIMES_AS_MANY * free and (held == 0 or free > reserved)


class RecentUse:
    """How long each owner held slots of one worker recently: half of it counts after two seconds.

    Each worker has its own record, in memory: it shares its slots out among all owners, so that an
    owner that used little comes first at the first worker with a free slot. An owner that is not
    known, or was forgotten, used nothing: after a worker's start all are served by age, once.

    Args:
        most: How many owners to remember. The one that has held no slot for longest is forgotten.
    """

    def __init__(self, most: int = _MOST_REMEMBERED) -> None:
        self._most = most
        # The binary logarithm of the weighted seconds. Instead of old time losing weight, later
        # time weighs more: the numbers can be compared at any time without an update.
        self._used: OrderedDict[Owner, float] = OrderedDict()

    def note(self, owner: Owner, seconds: float, *, now: float) -> None:
        """Note that an owner held a slot for so long, until now.

        Args:
            now: In seconds, by a monotonic clock.
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
        """Return a number that is greater the more an owner used slots."""
        return self._used.get(owner, -math.inf)


def share_out(
    heads: Sequence[Head],
    in_flight: InFlight,
    limits: SlotLimits,
    now: int,
    *,
    used: Callable[[Owner], float] = lambda _: 0,
) -> list[Head]:
    """Return the heads that get a slot, in order.

    Args:
        in_flight: The attempts in flight; the chosen heads are added.
        used: How much each owner used the slots recently (see `RecentUse.of`).
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
    while turns and len(chosen) < limits.slots:
        held, use, _, owner = heapq.heappop(turns)
        free = limits.slots - len(chosen)
        if not owner_may_take(held, free=free, reserved=limits.reserved):
            break  # the owners left hold as many, or more
        theirs = waiting[owner]
        while theirs:
            head = theirs.popleft()
            if in_flight.slots_left(
                head.destination, until=head.until, failures=head.failures, limits=limits, now=now
            ):
                in_flight.add(head.destination)
                chosen.append(head)
                break
        if theirs:
            held = in_flight.by_owner[owner]
            heapq.heappush(turns, (held, use, theirs[0].not_before, owner))
    return chosen


def what_blocks(
    heads: Collection[Head], in_flight: InFlight, limits: SlotLimits, now: int
) -> tuple[frozenset[Owner], frozenset[str]]:
    """Return what the heads that got no slot wait for.

    Returns:
        The owners (with their tenants) of the heads that wait for a slot alone; and the origins
        where heads wait for an attempt to end. A head whose destination waits is in neither.
    """
    owners, origins = set[Owner](), set[str]()
    for head in heads:
        if in_flight.slots_left(
            head.destination, until=head.until, failures=head.failures, limits=limits, now=now
        ):
            owners.add(head.destination[:2])
        elif head.until <= now:
            origins.add(head.destination[2])
    return frozenset(owners), frozenset(origins)
