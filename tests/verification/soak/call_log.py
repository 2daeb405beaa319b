"""The log of receiver processes about their calls, checked against the promises; without I/O."""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Collection, Mapping
from dataclasses import dataclass, field
from itertools import pairwise

__all__ = ["Call", "CallLog"]

CALLBACKS = ("first", "second")


@dataclass(frozen=True, slots=True)
class Call:
    """One callback and one update."""

    callback: str
    task: str
    number: int
    delivery_id: str


@dataclass(slots=True)
class CallLog:
    """The logged calls of all processes, in the order in which they were written."""

    callbacks: tuple[str, ...] = CALLBACKS  # that every update is for
    # The name of each process's dispatcher.
    dispatchers: dict[int, str] = field(default_factory=dict)
    begun: Counter[int] = field(default_factory=Counter)  # how many calls each process began
    runs: Counter[Call] = field(default_factory=Counter)  # how often each call was begun
    # The updates of a callback and task, in the order of their calls.
    numbers: dict[tuple[str, str], list[int]] = field(default_factory=lambda: defaultdict(list))
    ended: set[Call] = field(default_factory=set)  # the calls that ended
    # How often a call's process was killed while it held the notification.
    excused: Counter[tuple[str, str]] = field(default_factory=Counter)
    broken_off: int = 0  # how many calls a kill fell into: a BEGIN without an END
    again_after_end: int = 0  # calls that had ended, and were begun again all the same
    overlapping: int = 0  # calls that began while another one of their task went on
    late: int = 0  # calls of updates that were late
    is_restored: bool = False  # whether the inbox has been lost, and an older one was restored
    _open: dict[tuple[str, str], tuple[int, Call]] = field(default_factory=dict)
    _last: dict[int, str] = field(default_factory=dict)
    _killed: set[int] = field(default_factory=set)
    _overtaken: int = 0  # before the inbox was lost, like the next
    _unexplained: int = 0

    def read(self, line: str) -> Call | None:
        """Take down one line; return the call that it is about."""
        what, pid_word, *words = line.split()
        pid = int(pid_word)
        if what == "START":
            self.dispatchers[pid] = words[0]
            return None
        call = Call(words[0], words[1], int(words[2]), words[3])
        if what == "BEGIN":
            self._begin(pid, call, is_late="late" in words)
        else:
            self._end(call)
        return call

    def kill(self, pid: int) -> None:
        """Note that a process is about to be killed: what it has begun may be begun again."""
        self._killed.add(pid)

    def excuse(self, held: Mapping[str, Collection[str]]) -> None:
        """Note what a killed process held: delivery ids, and the callbacks that were done."""
        for delivery_id, done in held.items():
            self.excused.update((name, delivery_id) for name in self.callbacks if name not in done)

    def lose(self, had: Collection[tuple[str, str]]) -> None:
        """Forget the calls of which a restored inbox does not know that they have ended.

        They have to be made anew: what the receiver accepted meanwhile it never had.

        Args:
            had: The callbacks and delivery ids of those that it knows to have ended.
        """
        forgotten = {call for call in self.runs if (call.callback, call.delivery_id) not in had}
        self._overtaken, self._unexplained = self.overtaken, self.unexplained
        self._unexplained -= self._unexplained_of(set(self.runs) - forgotten)
        self.ended -= forgotten
        for call in forgotten:
            del self.runs[call]
            self.excused.pop((call.callback, call.delivery_id), None)
        self.numbers.clear()
        self.is_restored = True

    def last_begun(self, pid: int) -> str | None:
        """Return the delivery id of the call that a process began last."""
        return self._last.get(pid)

    def count_broken_off(self, pid: int) -> None:
        """Count the calls that a killed process never ended."""
        self.broken_off += sum(owner == pid for owner, _ in self._open.values())

    def missing(self, acknowledged: Mapping[str, int]) -> int:
        """Return how many calls never ended, of the updates 1… of each task."""
        seen = {(call.callback, call.task, call.number) for call in self.ended}
        wanted = {
            (callback, task, number)
            for callback in self.callbacks
            for task, last in acknowledged.items()
            for number in range(1, last + 1)
        }
        return len(wanted - seen)

    @property
    def overtaken(self) -> int:
        """How often an earlier update was called back after a later one, or one was skipped.

        Once an inbox was lost, updates may be skipped: they come late. What was being sent again
        at the next loss comes ahead of what is asked for after it.
        """
        return self._overtaken + sum(
            later < earlier if self.is_restored else later - earlier not in (0, 1)  # 0: again
            for numbers in self.numbers.values()
            for earlier, later in pairwise([0, *numbers])
        )

    @property
    def called_again(self) -> int:
        """How many calls were begun beyond the first of each."""
        return sum(count - 1 for count in self.runs.values())

    @property
    def unexplained(self) -> int:
        """How many calls were begun again though no kill fell into them."""
        return self._unexplained + self._unexplained_of(self.runs)

    def _unexplained_of(self, calls: Collection[Call]) -> int:
        return sum(
            max(0, self.runs[call] - 1 - self.excused[call.callback, call.delivery_id])
            for call in calls
        )

    def _begin(self, pid: int, call: Call, *, is_late: bool) -> None:
        place = (call.callback, call.task)
        owner, _ = self._open.get(place, (pid, call))
        self.overlapping += place in self._open and owner not in self._killed
        self.again_after_end += call in self.ended
        self._open[place] = (pid, call)
        self.begun[pid] += 1
        self._last[pid] = call.delivery_id
        self.runs[call] += 1
        self.late += is_late
        if not (is_late and self.is_restored):
            self.numbers[place].append(call.number)

    def _end(self, call: Call) -> None:
        self._open.pop((call.callback, call.task), None)
        self.ended.add(call)
