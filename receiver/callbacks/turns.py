"""Whose turn it is: senders share the places in which callbacks run."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterable, Mapping, Sequence

from receiver.callbacks.shares import share_of

__all__ = ["Turns"]


class Turns:
    """Divides free places among senders: who has least in hand comes first, and then who waited.

    Args:
        places: How many there are.
        senders: Returns how many senders are trusted.
    """

    def __init__(self, places: int, senders: Callable[[], int]) -> None:
        self._places = places
        self._senders = senders
        self._in_hand: Counter[str] = Counter()
        self._served: dict[str, int] = {}  # by sender, the number of its last turn
        self._turns = 0

    def divide(
        self, due: Sequence[str], free: int, taken: Mapping[str, int]
    ) -> list[tuple[str, int]]:
        """Return which sender may take how many.

        Args:
            due: The senders of whom something is due.
            free: How many places are free.
            taken: What each was given just now.
        """
        most = share_of(self._places, alone=self._senders() <= 1)
        given: Counter[str] = Counter()
        held = {sender: self._in_hand[sender] + taken.get(sender, 0) for sender in due}
        for _ in range(free):
            wanting = [sender for sender in due if held[sender] + given[sender] < most]
            if not wanting:
                break
            given[min(wanting, key=lambda s: (held[s] + given[s], self._served.get(s, -1), s))] += 1
        return list(given.items())

    def begin(self, senders: Iterable[str]) -> None:
        """Note whose notifications took places."""
        for sender in senders:
            self._in_hand[sender] += 1
            self._turns += 1
            self._served[sender] = self._turns

    def end(self, sender: str) -> None:
        """Note that a place is free again."""
        self._in_hand[sender] -= 1

    def clear(self) -> None:
        """Note that nothing is in hand any more."""
        self._in_hand.clear()

    def full(self) -> set[str]:
        """Return the senders that have their share."""
        most = share_of(self._places, alone=self._senders() <= 1)
        return {sender for sender, number in self._in_hand.items() if number >= most}
