"""Whose turn it is: senders share the places in which callbacks run."""

from __future__ import annotations

import threading
from collections import Counter
from collections.abc import Callable, Iterable, Mapping, Sequence

from pushkit.work.pump import Slots
from receiver.callbacks.shares import share_of


class Turns(Slots):
    """Divides free places among senders: who has least in hand comes first, and then who waited.

    Claims divide them among all that is due. Where nobody waits for a place, a notification takes
    one the moment it is stored, within its sender's share, and the next of its task follows the one
    before it: neither is looked for by a claim. Taken and freed in whatever thread.

    Args:
        places: How many there are.
        senders: Returns how many senders are trusted.
    """

    def __init__(self, places: int, senders: Callable[[], int]) -> None:
        super().__init__(places)
        self._places = places
        self._senders = senders
        self._in_hand: Counter[str] = Counter()
        self._served: dict[str, int] = {}  # by sender, the number of its last turn
        self._turns = 0
        self._counting = threading.Lock()

    def reserve(self, sender: str) -> bool:
        """Take a place for a notification that is being stored, if it may have one at once."""
        if not self.is_open or self._some_wait:
            return False
        with self._counting:
            if self._in_hand[sender] >= self._most() or not self.take(1):
                return False
            self._begin(sender)
        return True

    def may_follow(self) -> bool:
        """Say whether the next of a task may have the place of the one that is settled.

        Not where something else waits for that place: tasks take turns.
        """
        return self.is_open and not self._some_wait

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
        return share_of(self._places, alone=self._senders() <= 1)
