"""Log lines: text from outside made printable, and one line per cause and interval.

A failure that repeats a thousand times a second (a database that is down, a stranger who is
refused) must neither fill a disk nor hide other failures.
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


def printable(text: str | None, most: int = _SHOWN_CHARACTERS) -> str:
    """Return text from outside for a log: on one line, in ASCII, of 128 characters at most."""
    return "-" if text is None else ascii(str(text))[1:-1][:most]


def one_word(text: str | None) -> str:
    """Return `printable` text without blanks, so that it cannot pass for further fields of a line.

    An ASGI server may take the client's address from a header, whatever it contains.
    """
    return printable(text).replace(" ", "\\x20")


@dataclass(slots=True)
class _Logged:
    at: float
    suppressed: int = 0


class RepeatedLog:
    """Writes one line per cause and interval to a logger."""

    def __init__(
        self,
        log: logging.Logger,
        *,
        interval: timedelta = _INTERVAL,  # after a line, its cause is only counted for this long
        most: int | None = None,  # lines per interval, of all causes; None for no limit
        clock: Callable[[], float] = time.monotonic,  # in seconds, monotonic
    ) -> None:
        self._log = log
        self._interval = interval.total_seconds()
        self._clock = clock
        self._most = most
        self._began, self._lines = -math.inf, 0  # of the current interval
        self._left_out = 0  # lines suppressed by `most`
        self._logged: dict[Hashable, _Logged] = {}
        self._lock = threading.Lock()

    def log(
        self,
        # Identifies lines that repeat: a code and its subject. Never a value that a stranger
        # chooses freely, because of more than 1,000 causes the oldest is forgotten.
        cause: Hashable,
        level: int,
        message: str,
        *args: object,
        exc_info: BaseException | bool = False,
        extra: Mapping[str, object] | None = None,  # facts for structured logs, as for `logging`
    ) -> bool:
        """Log a line unless its cause was logged within the interval; return whether it was."""
        count = self.due(cause)
        if count is not None:
            self.write(count, level, message, *args, exc_info=exc_info, extra=extra, stacklevel=3)
        return count is not None

    def write(
        self,
        suppressed: int,
        level: int,
        message: str,
        *args: object,
        exc_info: BaseException | bool = False,
        extra: Mapping[str, object] | None = None,
        stacklevel: int = 2,  # which caller is named as the source, as for `logging`
    ) -> None:
        """Log a line after `due` returned a count: as `log`, for lines that are costly to make."""
        if suppressed:
            message += " (and %d more like it since the last such line)"
            args = (*args, suppressed)
        self._log.log(level, message, *args, exc_info=exc_info, extra=extra, stacklevel=stacklevel)

    def due(self, cause: Hashable) -> int | None:
        """Return how many lines were suppressed before this one; None to suppress this one too."""
        now = self._clock()
        with self._lock:  # synchronous callbacks log from threads
            last = self._logged.pop(cause, None)
            if last is not None and now - last.at < self._interval:
                last.suppressed += 1
                self._logged[cause] = last
                return None
            if self._is_full(now):
                self._left_out += 1 + (last.suppressed if last else 0)
                return None
            if len(self._logged) >= _MAX_CAUSES:
                del self._logged[next(iter(self._logged))]
            self._logged[cause] = _Logged(now)
            left_out, self._left_out = self._left_out, 0
            return left_out + (last.suppressed if last else 0)

    def _is_full(self, now: float) -> bool:
        """Return whether the interval has `most` lines; if not, count one more."""
        if now - self._began >= self._interval:
            self._began, self._lines = now, 0
        if self._most is not None and self._lines >= self._most:
            return True
        self._lines += 1
        return False
