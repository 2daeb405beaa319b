"""Chains: deliveries of one queue that follow one another in one slot, without a claim.

While this process attempts a delivery, the next update of its queue is stored in flight, too, and
joins the chain. Once the delivery before it has arrived, it is posted at once, from memory.
Deliveries that have arrived are settled together, shortly after. So an update costs one commit to
store it, and a share of another one to settle it.

The number of deliveries that have arrived but are not settled is bounded, because they are sent
again if the process dies; so is the number that wait. Deliveries that are not begun when the chain
ends go back to the outbox.
"""

from __future__ import annotations

import asyncio
import time
from collections import deque
from collections.abc import Awaitable, Callable, Sequence
from datetime import timedelta
from threading import Lock
from typing import TYPE_CHECKING, Final

from pushkit.outbox.states import Outcome
from pushkit.scheduling.deadlines import Deadlines

if TYPE_CHECKING:
    from pushkit.delivery.attempt import Attempt
    from pushkit.delivery.settle import Settled
    from pushkit.delivery.slots import Claimed

_MOST: Final = 8  # answered deliveries, and also waiting ones
# Seconds after which answered deliveries are settled, even if more follow; and a tick of the timer.
_SETTLED_WITHIN: Final = 0.05
# Seconds for which a chain relies on its subscription being as it was: not removed, disabled,
# paused or changed.
_KNOWN_FOR: Final = 0.25


class Chain:
    """The deliveries of one queue in one slot.

    It belongs to an event loop. Only `promise` and `break_off` may be called from any thread.

    Args:
        first: The first delivery.
        attempt: Makes attempts.
        settle: Settles deliveries that were answered, or that go back.
        longest_wait: How long after its claim an attempt may begin, before its lease is too short.
        may_continue: Returns whether the next delivery may take over the slot.
        deadlines: The timer, shared with other chains.
    """

    def __init__(
        self,
        first: Claimed,
        *,
        attempt: Attempt,
        settle: Callable[[Sequence[Claimed]], Awaitable[Settled]],
        longest_wait: timedelta,
        may_continue: Callable[[], bool],
        deadlines: Deadlines,
    ) -> None:
        self._first = first
        self._attempt = attempt
        self._settle = settle
        self._longest_wait = longest_wait.total_seconds()
        self._may_continue = may_continue
        self._deadlines = deadlines
        self._current: Claimed | None = first  # the last one that was begun
        self._answered: list[Claimed] = []  # attempted, and not settled yet
        self._waiting: deque[Claimed] = deque()  # stored, and next
        self._settling: asyncio.Task[None] | None = None  # settles while an attempt runs
        self._is_open = True  # whether deliveries may join and begin
        self._last_seq = first.delivery.seq
        self._settled_at = first.since
        self._promised = 0
        self._lock = Lock()
        self._loop = asyncio.get_running_loop()
        self._change: asyncio.Future[None] | None = None
        self._is_timed = False

    def ids(self) -> list[str]:
        """Return the ids of the deliveries in it."""
        current = () if self._current is None else (self._current,)
        return [each.delivery.id for each in (*current, *self._answered, *self._waiting)]

    def is_late(self) -> bool:
        """Return whether the attempt of the first delivery might outlast its lease."""
        return time.perf_counter() - self._first.since > self._longest_wait

    def promise(self, seq: int) -> bool:
        """Promise a place to a delivery that is being stored, if it is next in `seq` order."""
        with self._lock:
            if (
                not self._is_open
                or seq != self._last_seq + 1
                or len(self._waiting) + self._promised >= _MOST
                or not self._may_continue()
            ):
                return False
            self._promised += 1
            self._last_seq = seq
            return True

    def join(self, claimed: Claimed) -> None:
        """Append a delivery that was promised a place, and is stored."""
        with self._lock:
            self._promised -= 1
            self._waiting.append(claimed)
        if self._change is not None:
            # After the caller of `notify`: its next update is being stored while this one is sent.
            self._loop.call_soon(self._wake)

    def break_off(self) -> None:
        """Close the chain, because a delivery that was promised a place was not stored."""
        with self._lock:
            self._promised -= 1
            self._is_open = False
        self._loop.call_soon_threadsafe(self._wake)

    async def run(self) -> None:
        """Attempt the first delivery and those that follow it; settle them.

        After an error, deliveries that are left stay under their leases.
        """
        try:
            while (current := self._current) is not None:
                current.result = await self._attempt.make(current)
                self._answered.append(current)
                if current.result.outcome is not Outcome.DELIVERED:
                    self._is_open = False
                while (following := await self._next()) is None and not self._end_if_empty():
                    await self._settle_all()
                self._current = following
        finally:
            self._is_open = False
            self._stop_timer()
            settling = self._settling
            if settling is not None and not settling.cancel() and not settling.cancelled():
                settling.exception()  # retrieved: it was logged, or the lease ends

    async def _next(self) -> Claimed | None:
        """Return the next delivery to attempt; wait for one that is being stored.

        None if the chain must settle first, was closed, or is empty.
        """
        if self._is_open and len(self._answered) >= _MOST:
            return None
        if self._answered and not self._is_timed and (self._promised or self._waiting):
            self._start_timer()
        while self._promised and not (self._waiting and self._is_open):
            self._change = self._loop.create_future()
            await self._change
            self._change = None
        if not (self._is_open and self._waiting):
            return None
        now, following = time.perf_counter(), self._waiting[0]
        if now - following.since > self._longest_wait or not self._may_continue():
            self._is_open = False
            return None
        if self._answered and (
            now - self._answered[0].since > self._longest_wait
            # Settling reads the subscription again.
            or now - max(self._settled_at, following.since) > _KNOWN_FOR
        ):
            return None
        return self._waiting.popleft()

    def _end_if_empty(self) -> bool:
        """Close the chain if no delivery is left; return whether that is so."""
        with self._lock:
            if self._answered or self._waiting or self._promised:
                return False
            self._is_open = False
            return True

    async def _settle_all(self) -> None:
        """Settle the answered deliveries; those of a closed chain that are not begun go back."""
        while self._settling is not None:  # when one has ended, the next may have begun
            await self._settling
        going_back = () if self._is_open else self._waiting
        if attempted := [*self._answered, *going_back]:
            await self._settle_now(attempted)

    async def _settle_answered(self) -> None:
        await self._settle_now(self._answered)
        self._settling = None

    async def _settle_now(self, attempted: Sequence[Claimed]) -> None:
        attempted = tuple(attempted)  # more may be answered meanwhile
        self._stop_timer()
        settled = await self._settle(attempted)
        self._settled_at = time.perf_counter()
        number = min(len(attempted), len(self._answered))
        del self._answered[:number]
        for _ in attempted[number:]:  # they went back
            self._waiting.popleft()
        with self._lock:
            for claimed in settled.following:
                self._last_seq = claimed.delivery.seq
                self._waiting.append(claimed)
        if not settled.may_continue:
            self._is_open = False

    def expire(self) -> None:
        """Settle the answered deliveries, while an attempt runs."""
        self._is_timed = False
        if self._settling is not None:  # the timer runs again for what was answered meanwhile
            self._start_timer()
        else:
            self._settling = self._loop.create_task(self._settle_answered())

    def _start_timer(self) -> None:
        self._is_timed = True
        self._deadlines.set(self, self._loop.time() + _SETTLED_WITHIN)

    def _stop_timer(self) -> None:
        if self._is_timed:
            self._deadlines.clear(self)
            self._is_timed = False

    def _wake(self) -> None:
        if self._change is not None and not self._change.done():
            self._change.set_result(None)
