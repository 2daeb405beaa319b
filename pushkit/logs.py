"""What goes into a log: text that somebody else wrote, and the same thing once per interval.

What goes wrong a thousand times a second (a database that is away, a stranger who is refused) must
not fill a disk, nor hide what else goes wrong: each cause gets one line in an interval.
"""

from __future__ import annotations

import logging
import math
import threading
import time
from collections.abc import Callable, Hashable, Mapping
from dataclasses import dataclass
from datetime import timedelta
from typing import Final

_INTERVAL: Final = timedelta(minutes=1)
_MAX_CAUSES: Final = 1_000
_SHOWN_CHARACTERS: Final = 128


def printable(text: str | None) -> str:
    """Return what somebody else wrote as it may stand in a log: on one line, and not too long."""
    return "-" if text is None else ascii(str(text))[1:-1][:_SHOWN_CHARACTERS]


@dataclass(slots=True)
class _Said:
    at: float
    unsaid: int = 0


class RepeatedLog:
    """Writes one line per cause and interval to a logger."""

    def __init__(
        self,
        log: logging.Logger,
        *,
        interval: timedelta = _INTERVAL,  # how long a cause is only counted, once it was said
        most: int | None = None,  # how many lines an interval may have of all causes; None for any
        clock: Callable[[], float] = time.monotonic,  # seconds that only go forward
    ) -> None:
        self._log = log
        self._interval = interval.total_seconds()
        self._clock = clock
        self._most = most
        self._began, self._lines = -math.inf, 0  # an interval, and its lines
        self._left_out = 0  # for there were too many
        self._said: dict[Hashable, _Said] = {}
        self._lock = threading.Lock()

    def say(
        self,
        # What makes two lines the same: a code, and whom it is about. Never something that a
        # stranger chooses freely: of more than 1,000 causes the oldest is forgotten.
        cause: Hashable,
        level: int,
        message: str,
        *args: object,
        exc_info: BaseException | bool = False,
        extra: Mapping[str, object] | None = None,  # facts for a log of objects, as for `logging`
    ) -> bool:
        """Log a line, unless its cause was logged within the interval; return whether it was."""
        unsaid = self.due(cause)
        if unsaid is not None:
            self.write(unsaid, level, message, *args, exc_info=exc_info, extra=extra, stacklevel=3)
        return unsaid is not None

    def write(
        self,
        unsaid: int,
        level: int,
        message: str,
        *args: object,
        exc_info: BaseException | bool = False,
        extra: Mapping[str, object] | None = None,
        stacklevel: int = 2,  # whose line it is, as for `logging`
    ) -> None:
        """Log a line that is `due`, where it is some work to make; the rest is as above."""
        if unsaid:
            message += " (and %d more like it since the last such line)"
            args = (*args, unsaid)
        self._log.log(level, message, *args, exc_info=exc_info, extra=extra, stacklevel=stacklevel)

    def due(self, cause: Hashable) -> int | None:
        """Return how many were left unsaid before this one; None if this one is, too."""
        now = self._clock()
        with self._lock:  # plain callbacks log from threads
            said = self._said.pop(cause, None)
            if said is not None and now - said.at < self._interval:
                said.unsaid += 1
                self._said[cause] = said
                return None
            if self._is_full(now):
                self._left_out += 1 + (said.unsaid if said else 0)
                return None
            if len(self._said) >= _MAX_CAUSES:
                del self._said[next(iter(self._said))]
            self._said[cause] = _Said(now)
            unsaid, self._left_out = self._left_out, 0
            return unsaid + (said.unsaid if said else 0)

    def _is_full(self, now: float) -> bool:
        """Say whether the interval has as many lines as it may have; count one more."""
        if now - self._began >= self._interval:
            self._began, self._lines = now, 0
        if self._most is not None and self._lines >= self._most:
            return True
        self._lines += 1
        return False
