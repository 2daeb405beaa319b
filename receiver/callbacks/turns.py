"""Whose turn it is: senders share the places in which callbacks run."""

from __future__ import annotations

import asyncio
import threading
import time
from collections import Counter, deque
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Final

from pushkit.work.pump import Slots
from receiver.callbacks.shares import share_of

# Times as many as there are places: in hand, and not settled yet.
_MOST_IN_HAND: Final = 4
_MOST_UNSETTLED: Final = 4
_MOST_WAIT: Final = 0.1  # seconds
_SLOW: Final = 1.0  # seconds: what is not known yet counts as slow


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

    def clear(self) -> None:
        """Note that nothing is in hand any more."""
        with self._counting:
            self._in_hand.clear()

    def full(self) -> set[str]:
        """Return the senders that have their share."""
        most = self._most()
        with self._counting:
            return {sender for sender, number in self._in_hand.items() if number >= most}

    def _most(self) -> int:
        return share_of(self._most_in_hand(), alone=self._senders() <= 1)
