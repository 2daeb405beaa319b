"""The chain of a line: deliveries of one subscription that follow one another in one slot.

What is stored behind a delivery that is under way here is stored in flight, too, and joins its
chain. Once the one before it has arrived it is posted at once, from memory; what has arrived is
settled together, soon. So a line costs one commit for each update, and a part of another.

A chain is bounded: by how many have arrived and are not settled (they come again if the process
dies), and by how many wait. What is not begun when it ends goes back.
"""

from __future__ import annotations

import asyncio
import time
from collections import deque
from collections.abc import Callable, Coroutine, Sequence
from datetime import timedelta
from threading import Lock
from typing import TYPE_CHECKING, Final

from pushkit.scheduling.deadlines import Deadlines

if TYPE_CHECKING:
    from pushkit.delivery.slots import Claimed

_MOST: Final = 8  # answered, and waiting: of each
# Seconds after which, and a tick of the timer, what has arrived is settled, whatever follows.
_SETTLED_WITHIN: Final = 0.05
# Seconds for which nobody asks whether the line was removed, disabled, paused or changed meanwhile.
_KNOWN_FOR: Final = 0.25


class Chain:
    """A line in its slot.

    It belongs to an event loop; `promise` and `break_off` come from any thread.

    Args:
        first: What it begins with.
        longest_wait: How long after it was taken an attempt may begin: its lease runs.
        may_go_on: Says whether the next one may have the slot.
        settle: Settles what was answered, beside an attempt.
        deadlines: The timer that it shares with other chains.

    Attributes:
        answered: What was attempted, and is not settled yet.
        waiting: What is stored and comes next.
        settling: What settles beside an attempt, if anything does.
        is_open: Whether more may join it, and begin.
    """

    def __init__(
        self,
        first: Claimed,
        *,
        longest_wait: timedelta,
        may_go_on: Callable[[], bool],
        settle: Callable[[Chain], Coroutine[None, None, None]],
        deadlines: Deadlines,
    ) -> None:
        self.answered: list[Claimed] = []
        self.waiting: deque[Claimed] = deque()
        self.settling: asyncio.Task[None] | None = None
        self.is_open: bool = True
        self._longest_wait = longest_wait.total_seconds()
        self._may_go_on = may_go_on
        self._settle = settle
        self._last_seq = first.delivery.seq
        self._settled_at = first.since
        self._promised = 0
        self._lock = Lock()
        self._loop = asyncio.get_running_loop()
        self._change: asyncio.Future[None] | None = None
        self._deadlines = deadlines
        self._is_timed = False

    def promise(self, seq: int) -> bool:
        """Promise a place to a delivery that is being stored, if it is the very next one."""
        with self._lock:
            if (
                not self.is_open
                or seq != self._last_seq + 1
                or len(self.waiting) + self._promised >= _MOST
                or not self._may_go_on()
            ):
                return False
            self._promised += 1
            self._last_seq = seq
            return True

    def join(self, claimed: Claimed) -> None:
        """Append what was promised a place, and is stored."""
        with self._lock:
            self._promised -= 1
            self.waiting.append(claimed)
        if self._change is not None:
            # After whoever was told: his next update is on its way to the disk while this is sent.
            self._loop.call_soon(self._wake)

    def break_off(self) -> None:
        """Go no further than what is stored: what was promised a place was not."""
        with self._lock:
            self._promised -= 1
            self.is_open = False
        self._loop.call_soon_threadsafe(self._wake)

    def follow(self, following: Sequence[Claimed]) -> None:
        """Append what was taken when the ones before it were settled."""
        with self._lock:
            for claimed in following:
                self._last_seq = claimed.delivery.seq
                self.waiting.append(claimed)

    def close(self) -> None:
        """Let nothing more join, or begin."""
        with self._lock:
            self.is_open = False

    async def next(self) -> Claimed | None:
        """Return what may begin now, waiting for what is just being stored.

        None if something is to be settled before, or goes back, or nothing is left.
        """
        if self.is_open and len(self.answered) >= _MOST:
            return None
        if self.answered and not self._is_timed and (self._promised or self.waiting):
            self._start_timer()
        while self._promised and not (self.waiting and self.is_open):
            self._change = self._loop.create_future()
            await self._change
            self._change = None
        if not (self.is_open and self.waiting):
            return None
        now, following = time.perf_counter(), self.waiting[0]
        if now - following.since > self._longest_wait or not self._may_go_on():
            self.close()
            return None
        if self.answered and (
            now - self.answered[0].since > self._longest_wait
            # A settlement has to look at the line before.
            or now - max(self._settled_at, following.since) > _KNOWN_FOR
        ):
            return None
        return self.waiting.popleft()

    def is_late(self, claimed: Claimed) -> bool:
        """Say whether an attempt that begins now might outlast its lease."""
        return time.perf_counter() - claimed.since > self._longest_wait

    def settled(self, attempted: Sequence[Claimed]) -> None:
        """Forget what is settled, and what went back."""
        self._settled_at = time.perf_counter()
        number = min(len(attempted), len(self.answered))
        del self.answered[:number]
        for _ in attempted[number:]:
            self.waiting.popleft()

    def end(self) -> None:
        """Leave what there is as it is."""
        self.close()
        self.stop_timer()
        settling = self.settling
        if settling is not None and not settling.cancel() and not settling.cancelled():
            settling.exception()  # it is told of by now, or comes back with its lease

    def has_ended(self) -> bool:
        """Say whether nothing is left of it; then nothing joins it any more."""
        with self._lock:
            if self.answered or self.waiting or self._promised:
                return False
            self.is_open = False
            return True

    def expire(self) -> None:
        """Settle what was answered, beside an attempt."""
        self._is_timed = False
        if self.settling is not None:  # again, for what was answered meanwhile
            self._start_timer()
        else:
            self.settling = self._loop.create_task(self._settle(self))

    def stop_timer(self) -> None:
        """Settle nothing beside an attempt until it is answered."""
        if self._is_timed:
            self._deadlines.clear(self)
            self._is_timed = False

    def _start_timer(self) -> None:
        self._is_timed = True
        self._deadlines.set(self, self._loop.time() + _SETTLED_WITHIN)

    def _wake(self) -> None:
        if self._change is not None and not self._change.done():
            self._change.set_result(None)
