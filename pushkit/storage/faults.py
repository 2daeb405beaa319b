"""Faults of the disk under a database, which reading does not show."""

from __future__ import annotations

import time
from typing import Final

_SECONDS: Final = 10.0


class RecentFault:
    """Why the disk refused a write, for ten seconds after it did.

    It is not cleared earlier: a transaction that changes nothing succeeds on a full disk, too.
    """

    def __init__(self) -> None:
        self._reason: str | None = None
        self._until = 0.0

    def note(self, reason: str) -> None:
        """Remember why a write was refused just now."""
        self._reason, self._until = reason, time.monotonic() + _SECONDS

    def reason(self) -> str | None:
        """Return why a write was refused in the last ten seconds; None if none was."""
        return self._reason if time.monotonic() < self._until else None
