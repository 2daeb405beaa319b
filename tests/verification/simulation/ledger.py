"""The records that promises are checked against: updates, callbacks, and instructions."""

from __future__ import annotations

import contextlib
from collections import defaultdict
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from typing import Any

from tests.verification.simulation.loop import Process

__all__ = ["Call", "Instructions", "Notice"]

_SILENCING = frozenset({"pause", "disable", "unsubscribe"})
_CANCELLING = frozenset({"disable", "unsubscribe"})


@dataclass(slots=True)
class Notice:
    """An update that an agent notifies."""

    marker: str  # a text in it that no other update has
    at: float  # when it was notified
    task: str = ""
    shape: str = ""  # its kind and size (see `clients._update`)
    ids: list[str] = field(default_factory=list)  # its deliveries, once it was acknowledged
    acknowledged_at: float | None = None  # when it was acknowledged
    not_stored: bool = False  # whether `notify()` reported that nothing was stored


@dataclass(slots=True)
class Call:
    """A callback that ran."""

    process: Process  # the receiver's process
    begun: float  # when it began
    sender: str  # the trusted sender of the notification
    ended: float | None = None  # when it returned, if it did
    failed: bool = False  # whether it raised an error, or was cancelled by its time-out
    is_forgotten: bool = False  # whether its receiver has lost all record of it


class Instructions:
    """What owners and operators have asked for.

    Attributes:
        brought_back: Deliveries that were redriven or resent, or may have been.
        may_be_cancelled: Deliveries that an operator cancelled, or tried to.
        cancelling: Tasks and owners whose deliveries may be cancelled.
        gathering: For how many seconds deliveries may be gathered, at most, by task and owner.
        erased: Tasks whose rows may be deleted.
        is_purged: Whether finished deliveries may be deleted.
        sent_by_other: Ids of notifications of another trusted sender.
    """

    def __init__(self, now: Callable[[], float]) -> None:
        self._now = now
        self.brought_back: set[str] = set()
        self.may_be_cancelled: set[str] = set()
        self.cancelling: set[tuple[str, str]] = set()
        self.gathering: dict[tuple[str, str], float] = {}
        self.erased: set[str] = set()
        self.is_purged = False
        self.sent_by_other: set[str] = set()
        self._open: dict[tuple[str, str], set[int]] = defaultdict(set)
        self._silent: dict[tuple[str, str], float] = {}
        self._spoken = 0

    @contextlib.contextmanager
    def record(self, task: str, owner: str, verb: str = "") -> Iterator[list[Any]]:
        """Record an instruction about an owner's subscriptions to a task, around its call.

        The caller puts the result into the list that is yielded. If its process dies meanwhile, the
        context never ends, and the state of the subscriptions stays unknown.
        """
        whom, self._spoken = (task, owner), self._spoken + 1
        one, unanswered = self._spoken, self._open[task, owner]
        was_alone = not unanswered
        unanswered.add(one)
        self._silent.pop(whom, None)
        if verb in _CANCELLING:
            self.cancelling.add(whom)
        answer: list[Any] = []
        yield answer
        unanswered.discard(one)
        if (
            verb in _SILENCING
            and answer != [0]
            and was_alone
            and not unanswered
            and self._spoken == one
        ):
            self._silent[whom] = self._now()

    def silent_since(self, task: str, owner: str) -> float | None:
        """Return since when an owner must receive nothing of a task; None if it may."""
        return self._silent.get((task, owner))

    def bring_back(self, deliveries: list[str]) -> None:
        """Record that some deliveries are redriven or resent."""
        self.brought_back |= set(deliveries)
        self._spoken += 1
        self._silent.clear()

    def gather(self, task: str, owner: str, seconds: float) -> None:
        """Record that deliveries may be gathered for so many seconds."""
        whom = (task, owner)
        self.gathering[whom] = max(seconds, self.gathering.get(whom, 0.0))

    def erase(self, task: str) -> None:
        """Record that a task is erased."""
        self.erased.add(task)
