"""Waiting for a task as if its notifications were a local await.

Waiting reads the inbox and acknowledges nothing: it sees what arrived before it began, after a
restart, and through another process; callbacks get theirs all the same.
"""

from __future__ import annotations

import asyncio
import contextlib
import itertools
from collections import defaultdict
from collections.abc import AsyncGenerator, Callable, Collection, Iterator

from pushkit.a2a import TaskState
from pushkit.errors import ConfigError, InboundError, StorageError
from pushkit.scheduling.pump import cancelled
from pushkit.storage.database import Database
from receiver.callbacks.registry import parse_member
from receiver.inbox.model import Notification
from receiver.inbox.store import Inbox

# Terminal, or interrupted: the agent will not go on by itself.
SETTLED_STATES = frozenset(state for state in TaskState if state.terminal or state.interrupted)

_POLL_SECONDS = 1.0  # what another process accepts is found by looking, where it cannot tell
_REST_SECONDS = 0.1  # many that are accepted elsewhere are one look


class _Waiter:
    """Who has seen a task's notifications up to an id, and waits for the next."""

    def __init__(self, after: int) -> None:
        self.after = after
        self.arrived: asyncio.Future[None] = asyncio.get_running_loop().create_future()


class Arrivals:
    """Tells those who wait for a task that it has a new notification, and nobody else."""

    def __init__(self, database: Database) -> None:
        self._database = database
        self._inbox = Inbox()
        self._waiting: defaultdict[tuple[str, str], set[_Waiter]] = defaultdict(set)
        self._looking: asyncio.Task[None] | None = None
        self._elsewhere = asyncio.Event()

    def announce(self, sender: str, task_id: str) -> None:
        """Wake who waits for a task: a notification of it was accepted."""
        for waiter in self._waiting.get((sender, task_id), ()):
            if not waiter.arrived.done():
                waiter.arrived.set_result(None)

    async def close(self) -> None:
        """Tell all who wait that nothing comes any more."""
        if self._looking is not None:
            await cancelled(self._looking)
            self._looking = None
        for waiter in itertools.chain.from_iterable(self._waiting.values()):
            if not waiter.arrived.done():
                waiter.arrived.set_exception(StorageError("the receiver was closed"))
                waiter.arrived.exception()  # who is just reading the inbox never asks for it

    def look_elsewhere(self) -> None:
        """Look for all who wait: another process accepted something, and nobody said what."""
        self._elsewhere.set()

    async def updates(
        self, task_id: str, *, sender: str, after: int = 0
    ) -> AsyncGenerator[Notification, None]:
        """Yield a task's notifications after an id, in the order of acceptance, without end."""
        while True:
            with self._waits(sender, task_id, after) as waiter:  # before looking: nothing between
                batch = await self._database.read(
                    self._inbox.of_task(task_id, after=after, sender=sender)
                )
                if not batch:
                    await waiter.arrived
            for stored in batch:
                after = stored.id
                with contextlib.suppress(
                    InboundError
                ):  # other code accepted it: see its dead letter
                    yield stored.decode()

    async def wait(
        self,
        task_id: str,
        *,
        wanted: Callable[[Notification], bool],
        sender: str,
        after: int = 0,
    ) -> Notification:
        """Return the first notification of a task that is wanted, of those after an id."""
        async with contextlib.aclosing(
            self.updates(task_id, sender=sender, after=after)
        ) as updates:
            async for notification in updates:
                if wanted(notification):
                    return notification
        raise AssertionError("updates() ended")  # it has no end

    @contextlib.contextmanager
    def _waits(self, sender: str, task_id: str, after: int) -> Iterator[_Waiter]:
        key, waiter = (sender, task_id), _Waiter(after)
        self._waiting[key].add(waiter)
        if self._looking is None or self._looking.done():
            self._elsewhere = asyncio.Event()  # the one before may belong to another event loop
            self._looking = asyncio.create_task(self._look(), name="receiver-waiting")
        try:
            yield waiter
        finally:
            self._waiting[key].discard(waiter)
            if not self._waiting[key]:
                del self._waiting[key]
            if not self._waiting:
                self._elsewhere.set()  # who looks for others has nobody left

    async def _look(self) -> None:
        """Look for all who wait at once, for as long as somebody does."""
        while self._waiting:
            # Not wait_for: before Python 3.12 that swallows a cancellation beside an arrival.
            with contextlib.suppress(TimeoutError):
                async with asyncio.timeout(_POLL_SECONDS):
                    await self._elsewhere.wait()
            self._elsewhere.clear()
            if not self._waiting:
                return
            seen = {
                key: min(waiter.after for waiter in waiters)
                for key, waiters in self._waiting.items()
            }
            with contextlib.suppress(StorageError):  # it is away: the next look may find it
                for sender, task_id in await self._database.read(self._inbox.with_news(seen)):
                    self.announce(sender, task_id)
            await asyncio.sleep(_REST_SECONDS)


def in_states(states: Collection[TaskState]) -> Callable[[Notification], bool]:
    """Return what says whether a notification is of one of these states.

    Raises:
        ConfigError: There is no such state, or none at all: nothing would end the waiting.
    """
    # One state alone is a string, and a string is a collection: of its letters.
    listed = [states] if isinstance(states, str) else list(states)
    wanted = frozenset(parse_member(TaskState, each) for each in listed)
    if not wanted:
        raise ConfigError("until: found no state, expected at least one")
    return lambda notification: notification.state in wanted
