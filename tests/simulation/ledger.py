"""What was promised, and what was asked for: the accounts that promises are held against."""

from __future__ import annotations

import contextlib
from collections import defaultdict
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from typing import Any

from tests.simulation.loop import Process

__all__ = ["Call", "Notice", "Wishes"]

_SILENCING = frozenset({"pause", "disable", "unsubscribe"})
_CANCELLING = frozenset({"disable", "unsubscribe"})


@dataclass(slots=True)
class Notice:
    """An update that an agent was given.

    Attributes:
        marker: What tells it from all others.
        at: When.
        task: Its task.
        shape: What it looks like.
        ids: Its deliveries, once that was acknowledged.
        acknowledged_at: When that was.
        not_stored: The agent was told that nothing was stored.
    """

    marker: str
    at: float
    task: str = ""
    shape: str = ""
    ids: list[str] = field(default_factory=list)
    acknowledged_at: float | None = None
    not_stored: bool = False


@dataclass(slots=True)
class Call:
    """A callback that ran.

    Attributes:
        process: Where.
        begun: When it began.
        sender: By which of the receiver's senders it came.
        ended: When it ended well, if it did.
        failed: It raised, or was cut off.
    """

    process: Process
    begun: float
    sender: str
    ended: float | None = None
    failed: bool = False


class Wishes:
    """What owners and operators have asked for.

    Attributes:
        brought_back: Deliveries that somebody wanted again.
        may_be_cancelled: Deliveries that an operator cancelled, or tried to.
        cancelling: Whose deliveries, by task and owner, may be cancelled.
        erased: Tasks of which nothing need be left.
        is_purged: Whether what is finished may be gone.
        sent_by_other: What was sent by another sender, who is trusted, too.
    """

    def __init__(self, now: Callable[[], float]) -> None:
        self._now = now
        self.brought_back: set[str] = set()
        self.may_be_cancelled: set[str] = set()
        self.cancelling: set[tuple[str, str]] = set()
        self.erased: set[str] = set()
        self.is_purged = False
        self.sent_by_other: set[str] = set()
        self._open: dict[tuple[str, str], set[int]] = defaultdict(set)
        self._silent: dict[tuple[str, str], float] = {}
        self._spoken = 0

    @contextlib.contextmanager
    def speaking_of(self, task: str, owner: str, verb: str = "") -> Iterator[list[Any]]:
        """Be asked for something of an owner's subscriptions to a task; ends when it was answered.

        The answer goes into what it yields. Whoever dies meanwhile never ends it: then nobody knows
        what holds.
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
        """Return since when an owner is to hear nothing of a task; None if that is not sure."""
        return self._silent.get((task, owner))

    def bring_back(self, deliveries: list[str]) -> None:
        """Want some deliveries again."""
        self.brought_back |= set(deliveries)
        self._spoken += 1
        self._silent.clear()

    def erase(self, task: str) -> None:
        """Want nothing of a task to be left."""
        self.erased.add(task)
