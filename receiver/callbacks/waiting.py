"""Waiting for a task as if its notifications were a local await.

Waiting reads the inbox and acknowledges nothing: it sees what arrived before it began, after a
restart, and through another process; callbacks get theirs all the same.
"""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import AsyncGenerator, Callable, Collection

from pushkit.a2a import TaskState
from pushkit.errors import InboundError
from pushkit.storage import Database
from receiver.inbox import Inbox, Notification

__all__ = ["SETTLED_STATES", "Arrivals"]

# Terminal, or interrupted: the agent will not go on by itself.
SETTLED_STATES = frozenset(state for state in TaskState if state.terminal or state.interrupted)

_POLL_SECONDS = 1.0  # what another process accepts is found by looking, where it cannot tell


class Arrivals:
    """Tells waiters that the inbox grew.

    Args:
        database: Where the inbox lives.
    """

    def __init__(self, database: Database) -> None:
        self._database = database
        self._inbox = Inbox()
        self._arrived: asyncio.Future[None] | None = None

    def announce(self) -> None:
        """Wake every waiter: a notification was accepted, in this process or in another."""
        arrived, self._arrived = self._arrived, None
        if arrived is not None and not arrived.done():
            arrived.set_result(None)

    async def updates(
        self, task_id: str, *, sender: str, after: int = 0
    ) -> AsyncGenerator[Notification, None]:
        """Yield a task's notifications after an id, in the order of acceptance, without end."""
        while True:
            arrived = self._next_arrival()  # taken before looking: nothing falls between
            batch = await self._database.read(
                self._inbox.of_task(task_id, after=after, sender=sender)
            )
            for stored in batch:
                after = stored.id
                with contextlib.suppress(
                    InboundError
                ):  # other code accepted it: see its dead letter
                    yield stored.decode()
            if not batch:
                # Not wait_for: before Python 3.12 that swallows a cancellation beside an arrival.
                with contextlib.suppress(TimeoutError):
                    async with asyncio.timeout(_POLL_SECONDS):
                        await asyncio.shield(arrived)

    async def wait(
        self,
        task_id: str,
        *,
        until: Collection[TaskState] | Callable[[Notification], bool],
        sender: str,
        after: int = 0,
    ) -> Notification:
        """Return the first notification of a task that is wanted, of those after an id."""
        wanted = until if callable(until) else _in_states(until)
        async with contextlib.aclosing(
            self.updates(task_id, sender=sender, after=after)
        ) as updates:
            async for notification in updates:
                if wanted(notification):
                    return notification
        raise AssertionError("updates() ended")  # it has no end

    def _next_arrival(self) -> asyncio.Future[None]:
        if self._arrived is None:
            self._arrived = asyncio.get_running_loop().create_future()
        return self._arrived


def _in_states(states: Collection[TaskState]) -> Callable[[Notification], bool]:
    # One state alone is a string, and a string is a collection: of its letters.
    wanted = frozenset({states} if isinstance(states, str) else states)
    return lambda notification: notification.state in wanted
