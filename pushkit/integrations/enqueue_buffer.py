"""What an SDK swallows: an update that could not be stored is kept in memory and tried again.

The SDKs log an error of their notification sender and go on with the task, so that nobody would
repeat the update. While the outbox is out of reach, updates wait here: in order, bounded, and lost
if the process dies, which is why `PushSender.notify` itself never does this.
"""

from __future__ import annotations

import asyncio
import logging
from collections import deque
from collections.abc import Awaitable, Callable

from pushkit.errors import BacklogFullError, PushkitError, StorageError

__all__ = ["EnqueueBuffer"]

_log = logging.getLogger("pushkit.integrations")

_FIRST_PAUSE, _LONGEST_PAUSE = 0.2, 10.0  # seconds

Enqueue = Callable[[], Awaitable[object]]


class EnqueueBuffer:
    """Updates that wait for the outbox.

    Args:
        capacity: How many may wait; one more is refused, loudly.

    Attributes:
        refused: How many updates were not stored and never will be.
    """

    def __init__(self, capacity: int = 1000) -> None:
        self._capacity = capacity
        self._waiting: deque[Enqueue] = deque()
        self._emptying: asyncio.Task[None] | None = None
        self.refused = 0

    def __len__(self) -> int:
        """Return how many updates wait."""
        return len(self._waiting)

    async def run(self, enqueue: Enqueue) -> None:
        """Store an update now, or as soon as the outbox is back.

        Raises:
            PushkitError: It was not stored and never will be: it is not valid, or too many wait.
        """
        if self._waiting:  # what came first goes first
            self._keep(enqueue, StorageError("earlier updates wait for the outbox"))
            return
        try:
            await enqueue()
        except (StorageError, BacklogFullError) as exc:
            self._keep(enqueue, exc)
        except PushkitError as exc:
            self._refuse(exc)
            raise

    async def close(self) -> None:
        """Try once more what still waits, then give it up."""
        if self._emptying is not None:
            self._emptying.cancel()
            await asyncio.wait([self._emptying])
        while self._waiting:
            enqueue = self._waiting.popleft()
            try:
                await enqueue()
            except PushkitError as exc:
                self._refuse(exc)

    def _keep(self, enqueue: Enqueue, reason: PushkitError) -> None:
        if len(self._waiting) >= self._capacity:
            self._refuse(reason)
            raise reason
        self._waiting.append(enqueue)
        if self._emptying is None or self._emptying.done():
            _log.error("an update could not be stored, and is kept in memory: %s", reason)
            self._emptying = asyncio.create_task(self._empty(), name="pushkit-enqueue-buffer")

    async def _empty(self) -> None:
        pause = _FIRST_PAUSE
        while self._waiting:
            await asyncio.sleep(pause)
            try:
                await self._waiting[0]()
            except (StorageError, BacklogFullError):
                pause = min(pause * 2, _LONGEST_PAUSE)
                continue
            except PushkitError as exc:
                self._refuse(exc)
            self._waiting.popleft()
            pause = 0.0
        _log.warning("the updates that waited in memory are stored")

    def _refuse(self, reason: PushkitError) -> None:
        self.refused += 1
        _log.error("an update was not stored and its webhooks will not hear of it: %s", reason)
