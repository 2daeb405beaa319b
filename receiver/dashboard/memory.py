"""What a receiver tells while it is listened to: refusals by reason, and how callbacks end.

Kept in memory, and bounded: of each reason the newest of trusted senders, and the newest of
strangers, so that neither a flood nor one reason pushes out the others.
"""

from __future__ import annotations

from collections import Counter, defaultdict, deque
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from datetime import datetime, timedelta
from operator import attrgetter
from typing import Final

from pushkit.events.model import Event
from pushkit.events.receiver import CalledBack, NotificationRefused

SHOWN: Final = (NotificationRefused, CalledBack)
_KEPT: Final = 100  # of each reason, of senders and of strangers
_LATELY: Final = 40  # calls of a callback whose times are kept
_FAILURES: Final = 10
_MOST_CHARS: Final = 500


@dataclass(frozen=True, slots=True, kw_only=True)
class KeptRefusal:
    """One refusal."""

    number: int  # 1, 2, 3… since this memory began
    event: NotificationRefused  # what was told

    @property
    def reason(self) -> str:
        """What was found and expected, not too long."""
        return self.event.reason[:_MOST_CHARS]


_NUMBER: Final = attrgetter("number")


@dataclass(slots=True)
class Calls:
    """The calls of one callback."""

    calls: int = 0
    failed: int = 0
    took: deque[timedelta] = field(default_factory=lambda: deque(maxlen=_LATELY))
    failures: deque[CalledBack] = field(default_factory=lambda: deque(maxlen=_FAILURES))


class Memory:
    """Hears of refusals and calls, and keeps the newest."""

    def __init__(self, clock: Callable[[], datetime]) -> None:
        self.since: datetime = clock()
        self.counts: Counter[str] = Counter()
        self.calls: defaultdict[str, Calls] = defaultdict(Calls)
        self._number = 0
        self._kept: defaultdict[tuple[str, bool], deque[KeptRefusal]] = defaultdict(
            lambda: deque(maxlen=_KEPT)
        )

    def hear(self, event: Event) -> None:
        """Keep what is of interest."""
        if isinstance(event, NotificationRefused):
            self._number += 1
            self.counts[event.code] += 1
            one = KeptRefusal(number=self._number, event=event)
            self._kept[event.code, event.sender is not None].append(one)
        elif isinstance(event, CalledBack):
            calls = self.calls[event.callback]
            calls.calls += 1
            calls.took.append(event.took)
            if event.error is not None:
                calls.failed += 1
                calls.failures.append(event)

    def refusals(self, code: str | None = None) -> list[KeptRefusal]:
        """Return the refusals that are kept, of one reason or all, the newest first."""
        found = (each for kept in self._of(code) for each in kept)
        return sorted(found, key=_NUMBER, reverse=True)

    def find(self, number: int) -> KeptRefusal | None:
        """Return one refusal; None if it is not kept any more."""
        return next((each for each in self.refusals() if each.number == number), None)

    def _of(self, code: str | None) -> Iterator[deque[KeptRefusal]]:
        return (kept for (of, _), kept in self._kept.items() if code in (None, of))
