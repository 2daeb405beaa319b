"""Waiting for the notifications of a task, in the order in which they are accepted.

Waiting reads the inbox and acknowledges nothing. It sees notifications that arrived before it
began, before a restart, or at another process; callbacks get them, too.
"""

from __future__ import annotations

import asyncio
import contextlib
import itertools
from collections import defaultdict
from collections.abc import AsyncGenerator, Callable, Collection, Iterator

from pushkit.a2a import StatusUpdate, TaskState
from pushkit.errors import ConfigError, InboundError, StorageError
from pushkit.options import read_member
from pushkit.scheduling.event_loop import cancelled
from pushkit.storage.database import Database
from receiver.inbox.model import Notification
from receiver.inbox.store import of_task, with_news

_POLL_SECONDS = 1.0  # between looks for what other processes accepted, unless they say so
_REST_SECONDS = 0.1  # after a look: the next one finds all that was accepted meanwhile


class _Waiter:
    """A caller that has seen a task's notifications up to an id, and waits for the next."""

    def __init__(self, after: int) -> None:
        self.after = after
        self.arrived: asyncio.Future[None] = asyncio.get_running_loop().create_future()


class Arrivals:
    """Wakes the callers that wait for a task when a notification of it was accepted."""

    def __init__(self, database: Database) -> None:
        self._database = database
        self._waiting: defaultdict[tuple[str, str], set[_Waiter]] = defaultdict(set)
        self._looking: asyncio.Task[None] | None = None
        self._other_accepted = asyncio.Event()

    def announce(self, sender: str, task_id: str) -> None:
        """Wake the callers that wait for a task: a notification of it was accepted."""
        for waiter in self._waiting.get((sender, task_id), ()):
            if not waiter.arrived.done():
                waiter.arrived.set_result(None)

    async def close(self) -> None:
        """End every wait with a `StorageError`."""
        if self._looking is not None:
            await cancelled(self._looking)
            self._looking = None
        waiting = list(itertools.chain.from_iterable(self._waiting.values()))
        self._waiting.clear()
        for waiter in waiting:
            if not (waiter.arrived.done() or waiter.arrived.get_loop().is_closed()):
                waiter.arrived.set_exception(StorageError("the receiver was closed"))
                waiter.arrived.exception()  # a caller that reads the inbox never retrieves it

    def look(self) -> None:
        """Read the inbox for all waits: another process accepted something."""
        self._other_accepted.set()

    async def updates(
        self, task_id: str, *, sender: str, after: int = 0
    ) -> AsyncGenerator[Notification, None]:
        """Yield a task's notifications after an id, in the order of acceptance, for ever."""
        while True:
            with self._waits(sender, task_id, after) as waiter:  # before reading: none is missed
                batch = await self._database.read(of_task(task_id, after=after, sender=sender))
                if not batch:
                    await waiter.arrived
            for stored in batch:
                after = stored.id
                with contextlib.suppress(InboundError):  # another version's: it is a dead letter
                    yield stored.decode()

    @contextlib.contextmanager
    def _waits(self, sender: str, task_id: str, after: int) -> Iterator[_Waiter]:
        key, waiter = (sender, task_id), _Waiter(after)
        self._waiting[key].add(waiter)
        if self._looking is None or self._looking.done():
            self._other_accepted = asyncio.Event()  # the old one may be another event loop's
            self._looking = asyncio.create_task(self._poll(), name="receiver-waiting")
        try:
            yield waiter
        finally:
            self._waiting[key].discard(waiter)
            if not self._waiting[key]:
                del self._waiting[key]
            if not self._waiting:
                self._other_accepted.set()  # ends `_poll`

    async def _poll(self) -> None:
        """Read the inbox for all waits together, until there is none."""
        while self._waiting:
            # Not wait_for: before Python 3.12 that swallows a cancellation beside an arrival.
            with contextlib.suppress(TimeoutError):
                async with asyncio.timeout(_POLL_SECONDS):
                    await self._other_accepted.wait()
            self._other_accepted.clear()
            if not self._waiting:
                return
            seen = {
                key: min(waiter.after for waiter in waiters)
                for key, waiters in self._waiting.items()
            }
            with contextlib.suppress(StorageError):  # out of reach: the next look may succeed
                for sender, task_id in await self._database.read(with_news(seen)):
                    self.announce(sender, task_id)
            await asyncio.sleep(_REST_SECONDS)


def has_stopped(notification: Notification) -> bool:
    """Return whether the agent stops by itself: the task has ended, or waits for its client."""
    state = notification.state
    return state is not None and (state.terminal or state.interrupted or has_ended(notification))


def has_ended(notification: Notification) -> bool:
    """Return whether the task has ended, perhaps in a state that only its agent knows."""
    update = notification.update
    if update.state is TaskState.UNKNOWN:
        return isinstance(update, StatusUpdate) and update.is_final
    return update.state is not None and update.state.terminal


def in_states(states: Collection[TaskState]) -> Callable[[Notification], bool]:
    """Return a function that tests whether a notification is of one of these states.

    Raises:
        ConfigError: There is no such state, or none was given: the wait would never end.
    """
    # A single state is a string, and a string is a collection of its letters.
    listed = [states] if isinstance(states, str) else list(states)
    wanted = frozenset(read_member("until", each, TaskState) for each in listed)
    if not wanted:
        raise ConfigError("until: found no state, expected at least one")
    return lambda notification: notification.state in wanted
