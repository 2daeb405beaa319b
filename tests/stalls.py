"""Deadlines that count no time in which this process stood still.

Of what never comes a test learns by a deadline, and one that waits for long is slow. On a busy
machine a process may stand still for longer than a short one: then what would have come in time
is missed. So an event loop may be given a clock that goes on only while the loop does.
"""

from __future__ import annotations

import asyncio
import contextlib
import time
from collections.abc import Iterator, Sequence
from typing import Any

__all__ = ["stalls_not_counted"]

# Seconds that a round of the loop waits at most, and that it may take in all: the rest is a stall.
_WAIT, _ROUND = 0.05, 0.1


@contextlib.contextmanager
def stalls_not_counted(loop: asyncio.AbstractEventLoop) -> Iterator[None]:
    """Have a loop of asyncio's own measure all its time-outs without the stalls."""
    selector: Any = loop._selector  # type: ignore[attr-defined]
    select, lost, seen = selector.select, 0.0, time.monotonic()

    def now() -> float:
        nonlocal lost, seen
        at = time.monotonic()
        lost += max(at - seen - _ROUND, 0.0)
        seen = at
        return at - lost

    def select_and_look(timeout: float | None = None) -> Sequence[Any]:
        now()
        return select(_WAIT if timeout is None else min(timeout, _WAIT))  # type: ignore[no-any-return]

    selector.select, loop.time = select_and_look, now  # type: ignore[method-assign]
    try:
        yield
    finally:
        del selector.select, loop.time
