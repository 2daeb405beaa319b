"""The slots in which callbacks run: the shares of each sender, and of each callback."""

from __future__ import annotations

import asyncio
import threading
import time
from collections import Counter, defaultdict, deque
from collections.abc import Callable, Hashable, Iterable, Mapping, Sequence
from datetime import timedelta
from typing import Final, TypeAlias

from pushkit.scheduling.pump import Slots

# Multiples of the number of slots: how many notifications are held, and not settled yet.
_MOST_HELD: Final = 4
_MOST_UNSETTLED: Final = 4
_MOST_WAIT: Final = 0.1  # seconds
_SLOW: Final = 1.0  # seconds that a callback is taken to need until one was measured

# How long a call waits for a slot of a share that is used up.
_PATIENCE: Final = 1.0  # seconds
_LEAST_PAUSE: Final = timedelta(seconds=1)
_MOST_PAUSE: Final = timedelta(seconds=30)


class SharedSlots(Slots):
    """Shares slots among senders: first the one that holds least, then the one served longest ago.

    A notification is held while this process has its lease: it waits for a slot, or is in one. As
    long as callbacks are quick, more notifications are held than there are slots, so that none
    waits longer than a tenth of a second, in which another process might have called it back. While
    nothing waits for a claim, a notification is held from when it is stored, within its sender's
    share, and the next of its task from when the one before it is settled. Claims divide the rest
    among all senders with something due. Slots are taken and released in the event loop; all else
    may be called in any thread.
    """

    def __init__(
        self,
        slots: int,  # how many there are
        senders: Callable[[], int],  # returns how many are trusted
    ) -> None:
        super().__init__(_MOST_HELD * slots)
        self._slots = slots
        self._senders = senders
        self.unsettled = 0  # notifications that have had their callbacks
        self._held: Counter[str] = Counter()
        self._served: dict[str, int] = {}  # by sender, the number of its last turn
        self._turns = 0
        self._counting = threading.Lock()
        self._calling: Counter[str] = Counter()
        self.free_slots = slots
        self._least_share = share_of(slots, alone=False)
        self._waiting: dict[str, deque[asyncio.Future[None]]] = {}
        self._took = _SLOW  # seconds: a moving average
        self._freed_at = 0.0

    @property
    def free(self) -> int:
        """How many more notifications may be held."""
        return max(self._most_held() - _MOST_HELD * self._slots + self._free, 0)

    def usage(self) -> tuple[int, int]:
        """Return how many slots are in use, and how many there are."""
        return self._slots - self.free_slots, self._slots

    @property
    def some_wait(self) -> bool:
        """Whether something waits for the next claim."""
        return self._some_wait

    def take_for_claim(self) -> int:
        """Return how many a claim may hold; it looks for all that has waited until now."""
        self._some_wait = False
        return self.take(self.free)

    def reserve(self, senders: Iterable[str]) -> list[bool]:
        """Hold notifications that are being stored; False for one that has to wait for a claim.

        Once one waits for a claim, all that are stored after it wait, too.
        """
        reserved = []
        with self._counting:
            taken, most = self.take(self.free) if self.is_open else 0, self._most()
            for sender in senders:
                may = not self._some_wait and taken > 0 and self._held[sender] < most
                if may:
                    self._hold(sender)
                    taken -= 1
                elif self.is_open:
                    self._some_wait = True
                reserved.append(may)
            self.give_back(taken)
        return reserved

    def enter_now(self, sender: str) -> bool:
        """Take a slot if it is this sender's turn; return whether it is."""
        if sender in self._waiting or not self._may_enter(sender):
            return False
        self._let_in(sender)
        return True

    async def enter(self, sender: str) -> None:
        """Take a slot, as soon as it is this sender's turn."""
        if self.enter_now(sender):
            return
        entered = asyncio.get_running_loop().create_future()
        self._waiting.setdefault(sender, deque()).append(entered)
        try:
            await entered
        except asyncio.CancelledError:
            if not entered.cancelled():  # it got its slot at the same moment
                self.leave(sender)
            raise

    def leave(self, sender: str, took: float = _SLOW) -> None:
        """Free a slot that a notification took for so many seconds, and let the next one in."""
        self._calling[sender] -= 1
        self.free_slots += 1
        self._took += (took - self._took) / 8
        self._freed_at = time.monotonic()
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
        return self.free_slots > 0 and (
            calling < self._least_share
            or calling < share_of(self._slots, alone=self._senders() <= 1)
        )

    def _let_in(self, sender: str) -> None:
        self._calling[sender] += 1
        self.free_slots -= 1

    def _most_held(self) -> int:
        if self.unsettled >= _MOST_UNSETTLED * self._slots:
            return 0
        blocked = 0.0 if self.free_slots else time.monotonic() - self._freed_at
        quick = _MOST_WAIT / max(self._took, blocked, 1e-6)
        return self._slots + int(self._slots * min(quick, _MOST_HELD - 1))

    def divide(
        self, due: Sequence[str], free: int, taken: Mapping[str, int]
    ) -> list[tuple[str, int]]:
        """Return how many notifications a claim may take of each sender (`inbox.store.Divide`)."""
        most = self._most()
        given: Counter[str] = Counter()
        with self._counting:
            held = {sender: self._held[sender] + taken.get(sender, 0) for sender in due}
        for _ in range(free):
            wanting = [sender for sender in due if held[sender] + given[sender] < most]
            if not wanting:
                break
            given[min(wanting, key=lambda s: (held[s] + given[s], self._served.get(s, -1), s))] += 1
        if not given:  # something is due, and has to wait
            self._some_wait = True
        return list(given.items())

    def hold(self, senders: Iterable[str]) -> None:
        """Count notifications of these senders as held."""
        with self._counting:
            for sender in senders:
                self._hold(sender)

    def _hold(self, sender: str) -> None:
        self._held[sender] += 1
        self._turns += 1
        self._served[sender] = self._turns

    def release(self, sender: str) -> bool:
        """Count a notification as held no longer; return whether something waits for a claim."""
        with self._counting:
            self._held[sender] -= 1
        return self._some_wait

    def cancel(self, senders: Iterable[str]) -> None:
        """Release notifications that were reserved or claimed in a transaction that failed."""
        for sender in senders:
            self.release(sender)
            self.give_back(1)

    def full(self) -> set[str]:
        """Return the senders whose share is used up."""
        most = self._most()
        with self._counting:
            return {sender for sender, number in self._held.items() if number >= most}

    def _most(self) -> int:
        return share_of(self._most_held(), alone=self._senders() <= 1)


def share_of(slots: int, *, alone: bool) -> int:
    """Return how many of the slots one holder may have: three quarters, or all if it is alone."""
    return slots if alone or slots == 1 else slots - max(slots // 4, 1)


# --- shares of callbacks -------------------------------------------------------------------------


class CrowdedError(Exception):
    """A share is used up, and none of its slots was taken or released for a second."""

    def __init__(self, pause: timedelta) -> None:
        super().__init__(f"to be tried again in {pause.total_seconds():g} s")
        self.pause = pause


class _Share:
    def __init__(self) -> None:
        self.used = 0
        self.changed_at: float = time.monotonic()
        self.waiting: list[asyncio.Future[None]] = []


Shares: TypeAlias = "defaultdict[Hashable, _Share]"
"""The shares, by their holders."""


def new_shares() -> Shares:
    """Return shares of which no slot is taken."""
    return defaultdict(_Share)


class Slot:
    """One slot of each of some shares, from when it is taken until it is released.

    A call waits at a full share as long as slots of that are released.
    """

    __slots__ = ("_shares", "_taken", "_wanted")

    def __init__(self, shares: Shares, *wanted: tuple[Hashable, int]) -> None:
        self._shares = shares
        self._wanted = wanted  # the shares' holders, and their numbers of slots
        self._taken: list[_Share] = []

    def take_now(self) -> bool:
        """Take the slots in order; return False at a share that is full."""
        for holder, most in self._wanted[len(self._taken) :]:
            share = self._shares[holder]
            if share.used >= most:
                return False
            self._taken.append(share)
            share.used += 1
            share.changed_at = time.monotonic()
        return True

    async def take(self) -> None:
        """Take the slots, and wait where a share is full.

        Raises:
            CrowdedError: A share is used up, and none of its slots is being released.
        """
        try:
            while not self.take_now():
                await _wait_for_slot(self._shares[self._wanted[len(self._taken)][0]])
        except BaseException:
            self.release()
            raise

    def release(self) -> None:
        """Release the slots, each to the next call that waits; do nothing the second time."""
        while self._taken:
            share = self._taken.pop()
            share.used -= 1
            share.changed_at = time.monotonic()
            for waiting in share.waiting:
                if not waiting.done():
                    waiting.set_result(None)
                    break


async def _wait_for_slot(share: _Share) -> None:
    blocked = time.monotonic() - share.changed_at
    if blocked >= _PATIENCE:
        raise CrowdedError(min(max(timedelta(seconds=blocked / 4), _LEAST_PAUSE), _MOST_PAUSE))
    released = asyncio.get_running_loop().create_future()
    share.waiting.append(released)
    try:
        await asyncio.wait([released], timeout=_PATIENCE - blocked)
    finally:
        share.waiting.remove(released)
