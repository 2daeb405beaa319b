"""A listener that keeps the newest refusals of clients' push configs: no database has them.

For each reason a bounded number is kept, so that neither a flood nor one frequent reason pushes out
the others.
"""

from __future__ import annotations

from collections import Counter, defaultdict, deque
from datetime import datetime
from typing import Final

from pushkit.bounded_json import JsonObject
from pushkit.clock import utc_now
from pushkit.events.model import Event
from pushkit.events.sender import PushConfigRefused
from pushkit.terminal.output import document

_KEPT: Final = 20  # for each reason
_MOST_CHARS: Final = 256


class RefusedConfigs:
    """Counts refusals, and keeps the newest ones."""

    def __init__(self) -> None:
        self._since: datetime = utc_now()
        self._counts: Counter[str] = Counter()
        self._kept: defaultdict[str, deque[PushConfigRefused]] = defaultdict(
            lambda: deque(maxlen=_KEPT)
        )

    def record(self, event: Event) -> None:
        """Keep a refusal; ignore any other event."""
        if isinstance(event, PushConfigRefused):
            self._counts[event.code] += 1
            self._kept[event.code].append(event)

    def document(self) -> JsonObject:
        """Return the counts by code, and the newest refusals."""
        kept = [each for of_code in self._kept.values() for each in of_code]
        newest = sorted(kept, key=lambda each: each.at, reverse=True)[:_KEPT]
        return {
            "since": self._since.isoformat(),
            "counts": {**self._counts},
            "newest": [
                {name: str(value)[:_MOST_CHARS] for name, value in document(each).items()}
                for each in newest
            ],
        }
