"""A listener that keeps the newest refusals of clients' push configs: no database has them.

For each reason a bounded number is kept, so that neither a flood nor one frequent reason pushes out
the others.
"""

from __future__ import annotations

from collections import Counter, defaultdict, deque
from dataclasses import replace
from datetime import datetime
from typing import Final

from pushkit.clock import utc_now
from pushkit.dashboard.documents import RefusedConfigs
from pushkit.events.model import Event
from pushkit.events.sender import PushConfigRefused

_KEPT: Final = 20  # for each reason
_MOST_CHARS: Final = 256
_OF_CLIENT: Final = ("reason", "tenant", "owner", "task_id", "host")  # and of any length


class ConfigRefusals:
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
            of_client = {name: getattr(event, name)[:_MOST_CHARS] for name in _OF_CLIENT}
            self._kept[event.code].append(replace(event, **of_client))

    def document(self) -> RefusedConfigs:
        """Return the counts by code, and the newest refusals."""
        kept = [each for of_code in self._kept.values() for each in of_code]
        newest = sorted(kept, key=lambda each: each.at, reverse=True)[:_KEPT]
        return RefusedConfigs(since=self._since, counts=self._counts, newest=newest)
