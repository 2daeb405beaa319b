"""Which queue gets the next permit: fair by owner, then by queue; bounded in all and per origin.

A permit is the right to work off jobs of one queue, one after another. The owner that holds the
fewest permits comes first; of owners that hold equally many, the one that used least in the last
seconds. Its queues take turns. However many owners have a backlog, one that used little gets the
next permit:

- an owner that holds three times as many permits as are free gets no more of them, so that a
  quarter is left for the next owner (a second such owner gets a share of that, and so on);
- the last eighth, or the last one of a few, goes to owners that hold none, one permit each;
- an origin has a few permits at once, over all owners; one whose rate is used up has none for a
  while, and what waits for it holds none.

Choosing takes a logarithm of the number of owners, however many queues and origins wait.
"""

from __future__ import annotations

import heapq
import itertools
import math
from collections import Counter, OrderedDict, deque
from collections.abc import Callable, Iterator
from typing import Final, Generic, Protocol, TypeAlias, TypeVar

from pushkit.queue.rules import GroupKey

Owner: TypeAlias = tuple[str, str]  # tenant and owner

_TIMES_AS_MANY: Final = 3
_MOST_REMEMBERED: Final = 10_000
_HALF_LIFE: Final = 2.0  # seconds; a longer time with a permit counts as this
_LEAST: Final = 1e-6  # seconds
_MOST_OUTDATED: Final = 64  # entries of owners in the order, besides those that count


class Line(Protocol):
    """A queue that waits for a permit."""

    @property
    def group(self) -> GroupKey:
        """Tenant, owner and origin."""


Q = TypeVar("Q", bound=Line)
_Key = TypeVar("_Key")
_Entry: TypeAlias = tuple[int, float, int, Owner]  # permits held, recent use, order, owner


def owner_may_take(held: int, *, free: int, reserved: int) -> bool:
    """Return whether an owner that holds so many permits may get one of those that are free."""
    return held < _TIMES_AS_MANY * free and (held == 0 or free > reserved)


class Scheduler(Generic[Q]):
    """The permits of one worker, and the queues that wait for one.

    Args:
        permits: How many queues are worked off at once.
        per_origin: How many of them at one origin.
        is_alone: Returns whether there is only one owner, which then may have all permits.
        take_turn: Takes an origin's next turn and returns 0, or returns how many seconds away
            it is.
        needs_turn: Returns whether a queue may send something: what only ends takes no turn.
    """

    def __init__(
        self,
        permits: int,
        *,
        per_origin: int,
        is_alone: Callable[[], bool] = lambda: False,
        take_turn: Callable[[str], float] = lambda _: 0,
        needs_turn: Callable[[Q], bool] = lambda _: True,
    ) -> None:
        self.permits = permits
        self.free = permits
        self._reserved = max(permits // 8, min(permits - 1, 1))
        self._per_origin = per_origin
        self._is_alone = is_alone
        self._take_turn = take_turn
        self._needs_turn = needs_turn
        self._use = RecentUse()
        self._held: Counter[Owner] = Counter()
        self._at_origin: Counter[str] = Counter()
        # The lines of each owner whose origins have a permit left, by origin, in turn.
        self._lines: dict[Owner, OrderedDict[str, deque[Q]]] = {}
        # Those whose origins have none: the owners in order, and their lines.
        self._full: dict[str, list[_Entry]] = {}
        self._behind: dict[tuple[Owner, str], deque[Q]] = {}
        self._owners: list[_Entry] = []  # a heap; outdated entries are corrected when they come up
        self._order = itertools.count()
        self.waits: dict[str, float] = {}  # origins whose rate is used up, and for how long

    def add(self, queue: Q) -> None:
        """Let a queue wait for a permit, at the end of its line."""
        tenant, name, origin = queue.group
        owner = (tenant, name)
        behind = self._behind.get((owner, origin))
        if behind is not None:
            behind.append(queue)
            return
        lines = self._lines.setdefault(owner, OrderedDict())
        if origin in lines:
            lines[origin].append(queue)
            return
        lines[origin] = deque([queue])
        self._push(owner)

    def next(self) -> Q | None:
        """Take a permit for the queue whose turn it is; None if none may have one now."""
        while self.free and self._owners:
            held, use, _, owner = self._owners[0]
            lines = self._lines.get(owner)
            if not lines:
                heapq.heappop(self._owners)
                self._lines.pop(owner, None)
                continue
            if held < self._held[owner]:
                heapq.heapreplace(self._owners, self._entry(owner))
                continue
            may = owner_may_take(self._held[owner], free=self.free, reserved=self._reserved)
            if not may and not self._is_alone():
                return None  # the others hold as many, or more
            origin, line = next(iter(lines.items()))
            if self._is_full(origin, line[0]):
                del lines[origin]
                self._behind[owner, origin] = line
                heapq.heappush(
                    self._full.setdefault(origin, []), (held, use, next(self._order), owner)
                )
                continue
            queue = line.popleft()
            self.free -= 1
            self._held[owner] += 1
            self._at_origin[origin] += 1
            if line:
                lines.move_to_end(origin)
            else:
                del lines[origin]
            heapq.heapreplace(self._owners, self._entry(owner))
            return queue
        return None

    def done(self, queue: Q, seconds: float, now: float) -> None:
        """Give a queue's permit back, which it held for so many seconds until now."""
        tenant, name, origin = queue.group
        owner = (tenant, name)
        self.free += 1
        self._use.note(owner, seconds, now=now)
        count_down(self._held, owner)
        count_down(self._at_origin, origin)
        if self._lines.get(owner):
            self._push(owner)
        self._offer(origin)

    def comes_before(self, queue: Q) -> bool:
        """Return whether an owner that holds fewer permits waits for one of this queue's."""
        tenant, name, origin = queue.group
        mine = self._held[tenant, name]
        for waiting in (self._owners, self._full.get(origin)):
            if waiting and self._held[waiting[0][-1]] < mine and self.has_waiting:
                return True
        return False

    def end_wait(self, origin: str) -> None:
        """Note that an origin may be sent to again, as far as its rate is concerned."""
        self.waits.pop(origin, None)
        for _ in range(self._per_origin - self._at_origin[origin]):
            self._offer(origin)

    @property
    def has_waiting(self) -> bool:
        """Whether a queue waits for a permit."""
        return bool(self._behind) or any(self._lines.values())

    def waiting(self, most: int) -> Iterator[Q]:
        """Yield some of the queues that wait, roughly in the order of their turns."""
        of_owners = itertools.chain.from_iterable(each.values() for each in self._lines.values())
        lines = itertools.chain(of_owners, self._behind.values())
        for line in lines:
            for queue in itertools.islice(line, most):
                yield queue
                most -= 1
            if most <= 0:
                return

    def _is_full(self, origin: str, queue: Q) -> bool:
        if self._at_origin[origin] >= self._per_origin or origin in self.waits:
            return True
        wait = self._take_turn(origin) if self._needs_turn(queue) else 0
        if wait > 0:
            self.waits[origin] = wait
        return wait > 0

    def _offer(self, origin: str) -> None:
        """Let the next owner of those that wait for an origin have it, if it has a permit left."""
        full = self._full.get(origin)
        if not full or origin in self.waits:
            return
        while full[0][0] < self._held[full[0][-1]]:
            heapq.heapreplace(full, self._entry(full[0][-1]))
        *_, owner = heapq.heappop(full)
        if not full:
            del self._full[origin]
        lines = self._lines.setdefault(owner, OrderedDict())
        lines[origin] = self._behind.pop((owner, origin))
        lines.move_to_end(origin, last=False)
        self._push(owner)

    def _entry(self, owner: Owner) -> _Entry:
        return (self._held[owner], self._use.of(owner), next(self._order), owner)

    def _push(self, owner: Owner) -> None:
        heapq.heappush(self._owners, self._entry(owner))
        if len(self._owners) > 2 * len(self._lines) + _MOST_OUTDATED:
            self._lines = {each: lines for each, lines in self._lines.items() if lines}
            self._owners = [*map(self._entry, self._lines)]
            heapq.heapify(self._owners)


def count_down(counter: Counter[_Key], key: _Key) -> None:
    """Count one less; forget what is zero."""
    counter[key] -= 1
    if not counter[key]:
        del counter[key]


class RecentUse:
    """How long each owner held permits of one worker recently: half of it counts after two seconds.

    Each worker has its own record, in memory: it shares its permits out among all owners, so that
    an owner that used little comes first at the first worker with a free one. An owner that is not
    known, or was forgotten, used nothing: after a worker's start all are served by age, once.

    Args:
        most: How many owners to remember. The one that has held none for longest is forgotten.
    """

    def __init__(self, most: int = _MOST_REMEMBERED) -> None:
        self._most = most
        # The binary logarithm of the weighted seconds. Instead of old time losing weight, later
        # time weighs more: the numbers can be compared at any time without an update.
        self._used: OrderedDict[Owner, float] = OrderedDict()

    def note(self, owner: Owner, seconds: float, *, now: float) -> None:
        """Note that an owner held a permit for so long, until now.

        Args:
            owner: The owner.
            seconds: How long.
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
        """Return a number that is greater the more an owner used permits."""
        return self._used.get(owner, -math.inf)
