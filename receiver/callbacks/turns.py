"""Who may have how many of the places in which callbacks run, and whose turn it is."""

from __future__ import annotations

import asyncio
import threading
import time
from collections import Counter, defaultdict, deque
from collections.abc import Callable, Hashable, Iterable, Mapping, Sequence
from datetime import timedelta
from typing import Final

from pushkit.scheduling.pump import Slots

# Times as many as there are places: in hand, and not settled yet.
_MOST_IN_HAND: Final = 4
_MOST_UNSETTLED: Final = 4
_MOST_WAIT: Final = 0.1  # seconds
_SLOW: Final = 1.0  # seconds: what is not known yet counts as slow

# Who has its share waits so long for one of its own to move.
_PATIENCE: Final = 1.0  # seconds
_LEAST_PAUSE: Final = timedelta(seconds=1)
_MOST_PAUSE: Final = timedelta(seconds=30)


class Turns(Slots):
    """Divides places among senders: who has least comes first, and then who waited.

    More may be in hand than there are places, as far as callbacks are quick: what waits here for a
    place does so for a moment, or else somebody else might have had it. Where nothing waits for a
    claim, a notification is in hand the moment it is stored, within its sender's share, and the
    next of its task when the one before it is settled. Claims divide what is left among all that is
    due. Taken and freed in whatever thread; places in the event loop.

    Args:
        places: How many there are.
        senders: Returns how many senders are trusted.

    Attributes:
        unsettled: Of how many the callbacks have ended, and that is not written down yet.
    """

    def __init__(self, places: int, senders: Callable[[], int]) -> None:
        super().__init__(_MOST_IN_HAND * places)
        self._places = places
        self._senders = senders
        self.unsettled = 0
        self._in_hand: Counter[str] = Counter()
        self._served: dict[str, int] = {}  # by sender, the number of its last turn
        self._turns = 0
        self._counting = threading.Lock()
        self._calling: Counter[str] = Counter()
        self._free_places = places
        self._least_share = share_of(places, alone=False)
        self._waiting: dict[str, deque[asyncio.Future[None]]] = {}
        self._took = _SLOW  # seconds, of late
        self._moved_at = 0.0

    @property
    def free(self) -> int:
        """How many more may be in hand."""
        return max(self._most_in_hand() - _MOST_IN_HAND * self._places + self._free, 0)

    @property
    def free_places(self) -> int:
        """How many places are free."""
        return self._free_places

    @property
    def some_wait(self) -> bool:
        """Whether something waits for the next claim."""
        return self._some_wait

    def take_for_claim(self) -> int:
        """Take what may be taken into hand, for a claim: it looks after all that wait until now."""
        self._some_wait = False
        return self.take(self.free)

    def reserve(self, senders: Iterable[str]) -> list[bool]:
        """Take notifications into hand that are being stored; False if one waits for a claim.

        Whatever waits for one comes before what comes later.
        """
        taken = []
        with self._counting:
            free, most = self.free if self.is_open else 0, self._most()
            for sender in senders:
                may = not self._some_wait and free > 0 and self._in_hand[sender] < most
                if may and self.take(1):
                    self._begin(sender)
                    free -= 1
                elif self.is_open:
                    self._some_wait = True
                    may = False
                taken.append(may)
        return taken

    async def enter(self, sender: str) -> None:
        """Take one of the places in which callbacks run, as soon as it is this sender's turn."""
        if sender not in self._waiting and self._may_enter(sender):
            self._let_in(sender)
            return
        entered = asyncio.get_running_loop().create_future()
        self._waiting.setdefault(sender, deque()).append(entered)
        try:
            await entered
        except asyncio.CancelledError:
            if not entered.cancelled():  # let in at the same moment
                self.leave(sender)
            raise

    def leave(self, sender: str, took: float = _SLOW) -> None:
        """Leave a place, and let the next in.

        Args:
            sender: Whose it was.
            took: For how long, in seconds.
        """
        self._calling[sender] -= 1
        self._free_places += 1
        self._took += (took - self._took) / 8
        self._moved_at = time.monotonic()
        while self._waiting and (able := [s for s in self._waiting if self._may_enter(s)]):
            first = min(able, key=self._calling.__getitem__)
            waiting = self._waiting.pop(first)
            entered = waiting.popleft()
            if waiting:
                self._waiting[first] = waiting  # behind the others
            if not entered.done():
                self._let_in(first)
                entered.set_result(None)

    def _may_enter(self, sender: str) -> bool:
        calling = self._calling[sender]
        return self._free_places > 0 and (
            calling < self._least_share
            or calling < share_of(self._places, alone=self._senders() <= 1)
        )

    def _let_in(self, sender: str) -> None:
        self._calling[sender] += 1
        self._free_places -= 1

    def _most_in_hand(self) -> int:
        if self.unsettled >= _MOST_UNSETTLED * self._places:
            return 0
        still = 0.0 if self._free_places else time.monotonic() - self._moved_at
        quick = _MOST_WAIT / max(self._took, still, 1e-6)
        return self._places + int(self._places * min(quick, _MOST_IN_HAND - 1))

    def divide(
        self, due: Sequence[str], free: int, taken: Mapping[str, int]
    ) -> list[tuple[str, int]]:
        """Return which sender may take how many.

        Args:
            due: The senders of whom something is due.
            free: How many places are free.
            taken: What each was given just now.
        """
        most = self._most()
        given: Counter[str] = Counter()
        with self._counting:
            held = {sender: self._in_hand[sender] + taken.get(sender, 0) for sender in due}
        for _ in range(free):
            wanting = [sender for sender in due if held[sender] + given[sender] < most]
            if not wanting:
                break
            given[min(wanting, key=lambda s: (held[s] + given[s], self._served.get(s, -1), s))] += 1
        if not given:  # something is due, and has to wait
            self._some_wait = True
        return list(given.items())

    def begin(self, senders: Iterable[str]) -> None:
        """Note whose notifications took places."""
        with self._counting:
            for sender in senders:
                self._begin(sender)

    def _begin(self, sender: str) -> None:
        self._in_hand[sender] += 1
        self._turns += 1
        self._served[sender] = self._turns

    def end(self, sender: str) -> bool:
        """Note that a place is free again; say whether somebody waits for one."""
        with self._counting:
            self._in_hand[sender] -= 1
        return self._some_wait

    def cancel(self, senders: Iterable[str]) -> None:
        """Free the places of what was not stored after all."""
        for sender in senders:
            self.end(sender)
            self.give_back(1)

    def full(self) -> set[str]:
        """Return the senders that have their share."""
        most = self._most()
        with self._counting:
            return {sender for sender, number in self._in_hand.items() if number >= most}

    def _most(self) -> int:
        return share_of(self._most_in_hand(), alone=self._senders() <= 1)


# --- of callbacks --------------------------------------------------------------------------------


def share_of(places: int, *, alone: bool) -> int:
    """Return how many of so many places one may have: three quarters, or all if it is alone."""
    return places if alone or places == 1 else places - max(places // 4, 1)


class CrowdedError(Exception):
    """Somebody's share is taken up, by what has not moved for a while."""

    def __init__(self, pause: timedelta) -> None:
        super().__init__(f"to be tried again in {pause.total_seconds():g} s")
        self.pause = pause


class _Share:
    def __init__(self) -> None:
        self.used = 0
        self.moved_at: float = time.monotonic()
        self.waiting: list[asyncio.Future[None]] = []


class Place:
    """One place of somebody's share, until it is left.

    Args:
        besides: A place of another share that goes with it.
    """

    def __init__(self, share: _Share, besides: Place | None) -> None:
        self._share: _Share | None = share
        self._besides = besides
        share.used += 1
        share.moved_at = time.monotonic()

    def leave(self) -> None:
        """Let the next one in; does nothing if it was left before."""
        share, self._share = self._share, None
        if share is None:
            return
        if self._besides is not None:
            self._besides.leave()
        share.used -= 1
        share.moved_at = time.monotonic()
        for waiting in share.waiting:
            if not waiting.done():
                waiting.set_result(None)
                return


class Shares:
    """Hands out places. Who has its share waits for a moment, if others of its own still move."""

    def __init__(self) -> None:
        self._shares: defaultdict[Hashable, _Share] = defaultdict(_Share)

    async def take(self, who: Hashable, most: int, *, besides: Place | None = None) -> Place:
        """Return a place of somebody who may have at most so many.

        Args:
            most: How many places it has.
            besides: Another place that goes with this one, also if this one is not to be had.

        Raises:
            CrowdedError: There is none, and nothing moves.
        """
        share = self._shares[who]
        if share.used >= most:
            try:
                await _until_there_is_room(share, most)
            except BaseException:
                if besides is not None:
                    besides.leave()
                raise
        return Place(share, besides)


async def _until_there_is_room(share: _Share, most: int) -> None:
    while share.used >= most:
        still = time.monotonic() - share.moved_at
        if still >= _PATIENCE:
            pause = timedelta(seconds=still / 4)
            raise CrowdedError(min(max(pause, _LEAST_PAUSE), _MOST_PAUSE))
        await _moved(share, within=_PATIENCE - still)


async def _moved(share: _Share, *, within: float) -> None:
    left = asyncio.get_running_loop().create_future()
    share.waiting.append(left)
    try:
        await asyncio.wait([left], timeout=within)
    finally:
        share.waiting.remove(left)
