"""A listener that keeps the newest refusals of a receiver, and the results of its callbacks.

Its memory is bounded for each reason, for trusted senders and for strangers apart, so that neither
a flood of strangers nor one frequent reason pushes out the others.
"""

from __future__ import annotations

from collections import Counter, defaultdict, deque
from collections.abc import Iterator
from dataclasses import dataclass, field
from datetime import datetime, timedelta
from operator import attrgetter
from typing import Final

from pushkit.clock import utc_now
from pushkit.events.model import Event
from pushkit.events.receiver import CalledBack, NotificationRefused

SHOWN: Final = (NotificationRefused, CalledBack)
_KEPT: Final = 100  # refusals for each reason, of senders and of strangers
_DURATIONS: Final = 40  # the last calls of a callback whose durations are kept
_FAILURES: Final = 10
_MOST_CHARS: Final = 500


@dataclass(frozen=True, slots=True, kw_only=True)
class KeptRefusal:
    """One refusal."""

    number: int  # 1, 2, 3… since this memory began
    event: NotificationRefused

    @property
    def reason(self) -> str:
        """What was found and expected, cut to a bounded length."""
        return self.event.reason[:_MOST_CHARS]


_NUMBER: Final = attrgetter("number")


@dataclass(slots=True)
class Calls:
    """The calls of one callback."""

    calls: int = 0
    failed: int = 0
    took: deque[timedelta] = field(default_factory=lambda: deque(maxlen=_DURATIONS))
    failures: deque[CalledBack] = field(default_factory=lambda: deque(maxlen=_FAILURES))


class Memory:
    """Counts refusals and calls of callbacks, and keeps the newest ones."""

    def __init__(self) -> None:
        self.since: datetime = utc_now()
        self.counts: Counter[str] = Counter()
        self.calls: defaultdict[str, Calls] = defaultdict(Calls)
        self._number = 0
        self._kept: defaultdict[tuple[str, bool], deque[KeptRefusal]] = defaultdict(
            lambda: deque(maxlen=_KEPT)
        )

    def record(self, event: Event) -> None:
        """Keep a refusal or a call of a callback; ignore any other event."""
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
        """Return the kept refusals for one reason or all, the newest first."""
        found = (each for kept in self._of(code) for each in kept)
        return sorted(found, key=_NUMBER, reverse=True)

    def find(self, number: int) -> KeptRefusal | None:
        """Return one refusal; None if it is no longer kept."""
        return next((each for each in self.refusals() if each.number == number), None)

    def _of(self, code: str | None) -> Iterator[deque[KeptRefusal]]:
        return (kept for (of, _), kept in self._kept.items() if code in (None, of))
