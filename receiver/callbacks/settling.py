"""Writing down what callbacks have had, together, and taking what follows into hand.

A place is free as soon as its callbacks have ended. That they have goes into the transaction that
stores what is accepted next, or into one of its own a moment later: all that has ended when it
begins is one item of it.
"""

from __future__ import annotations

import asyncio
import functools
import time
from collections import deque
from collections.abc import Awaitable, Callable, Mapping, Sequence
from dataclasses import dataclass, field
from datetime import datetime
from typing import Final, TypeAlias, TypeVar

from pushkit.errors import StorageError
from pushkit.scheduling.retry import persist
from pushkit.storage.database import Database
from pushkit.storage.script import DEFERRED, Deferred, Script
from receiver.callbacks.calls import Call
from receiver.callbacks.leases import Leases
from receiver.callbacks.turns import Turns
from receiver.inbox.model import ClaimedNotification
from receiver.inbox.store import Inbox, task_lock
from receiver.inbox.together import Asked, together

T = TypeVar("T")

# What follows each of a batch: the next of its task, if that is in hand now.
_Followed: TypeAlias = Sequence[ClaimedNotification | Deferred | None]

_PATIENCE: Final = 0.002  # seconds that an end waits for what is accepted next


@dataclass(slots=True, eq=False)
class Ended:
    """A notification that every callback has had, until that is written down.

    Attributes:
        claimed: The notification.
        call: The last call, which is not written down yet; None if no callback wants it.
        has_next: Whether the next of its task was taken into hand.
        has_offered: Whether the next of its task waits for a claim.
        task: Its task, by sender and id, if it has one.
    """

    claimed: ClaimedNotification
    call: Call | None
    is_unmatched: bool = False
    has_next: bool = False
    has_offered: bool = False
    task: tuple[str, str] | None = field(init=False)

    def __post_init__(self) -> None:
        stored = self.claimed.stored
        self.task = None if stored.task_id is None else (stored.sender, stored.task_id)


@dataclass(slots=True, eq=False)
class _Batch:
    """What is written down together."""

    ended: list[Ended] = field(default_factory=list)


class Settler:
    """Writes down what has ended.

    Args:
        begin: Begins with what follows, and is in hand.
        look: Looks for what waits for a claim.
        away: Hears why something cannot be written down yet: it is tried again.
        fault: Hears why something could not be written down: it comes back with its lease.
    """

    def __init__(
        self,
        database: Database,
        turns: Turns,
        leases: Leases,
        *,
        begin: Callable[[ClaimedNotification], None],
        look: Callable[[], None],
        away: Callable[[StorageError], None],
        fault: Callable[[Exception], None],
    ) -> None:
        self._database = database
        self._inbox = Inbox()
        self._turns = turns
        self._leases = leases
        self._begin = begin
        self._look = look
        self._away = away
        self._fault = fault
        # What ends in the event loop is taken from here in whatever thread a transaction runs.
        self._ended: deque[Ended] = deque()
        self._next: _Batch | None = None  # for its transaction, which takes all that has ended
        self._writing: set[asyncio.Future[_Followed]] = set()

    def end(self, ended: Ended, *, at_once: bool) -> None:
        """Write down that a notification is done: with what is accepted next, or at once."""
        self._turns.unsettled += 1
        self._ended.append(ended)
        if at_once:
            self.settle()
        elif self._next is None and len(self._ended) == 1:
            asyncio.get_running_loop().call_later(_PATIENCE, self.settle)

    def settle(self) -> None:
        """Write down what has ended: in one transaction with what is asked for next."""
        if self._ended and self._next is None:
            self._next = _Batch()
            self._write(self._next)

    async def drain(self) -> None:
        """Write down all that has ended."""
        while self._ended or self._writing:
            self.settle()
            await asyncio.wait(self._writing)

    def abandon(self) -> None:
        """Leave the rest to its leases."""
        while self._ended:
            self._leases.let_go(self._ended.pop().claimed)
            self._turns.unsettled -= 1
        for writing in list(self._writing):
            writing.cancel()

    def _write(self, batch: _Batch) -> None:
        self._hear_of(batch, self._database.write_together(together, self._asked(batch)))

    def _asked(self, batch: _Batch) -> Asked:
        # First: what is accepted beside it may be right behind.
        return Asked(self._script, batch, is_first=True)

    def _hear_of(self, batch: _Batch, writing: asyncio.Future[_Followed]) -> None:
        self._writing.add(writing)
        writing.add_done_callback(functools.partial(self._written, batch))

    def _written(self, batch: _Batch, writing: asyncio.Future[_Followed]) -> None:
        """Begin with the next of each task, if that is in hand now."""
        self._writing.discard(writing)
        error = asyncio.CancelledError() if writing.cancelled() else writing.exception()
        if isinstance(error, StorageError) and len(batch.ended) > 1:
            for each in batch.ended:  # one must not stand in the way of the others
                self._write(_Batch([each]))
            return
        if isinstance(error, StorageError):
            self._hear_of(batch, asyncio.create_task(self._write_patiently(batch)))
            return
        if isinstance(error, Exception):
            self._fault(error)
        if self._next is batch:  # its transaction never began
            self._next = None
        following = writing.result() if error is None else [None] * len(batch.ended)
        for each, followed in zip(batch.ended, following, strict=True):
            if followed is DEFERRED:
                self._write(_Batch([each]))
                continue
            self._leases.let_go(each.claimed)
            self._turns.unsettled -= 1
            if error is not None:
                self._let_next_go(each)
            elif isinstance(followed, ClaimedNotification):
                self._begin(followed)
        if error is not None:
            self.settle()
        if any(each.has_offered for each in batch.ended):
            self._turns.let_wait()  # a claim may have looked before this was committed
        if self._turns.some_wait:
            self._look()

    async def _write_patiently(self, batch: _Batch) -> _Followed:
        return await self.persist(
            lambda: self._database.write_together(together, self._asked(batch))
        )

    async def persist(self, write: Callable[[], Awaitable[T]]) -> T:
        """Write until it succeeds, or this is cancelled: what had ended would be called again.

        If the lease ends meanwhile, whoever has it then finds out what had ended.
        """
        while True:
            try:
                return await persist(write, through=StorageError, within=self._leases.patience)
            except StorageError as exc:
                self._away(exc)

    def _let_next_go(self, ended: Ended) -> None:
        if ended.has_next:
            ended.has_next = False
            self._turns.cancel([ended.claimed.stored.sender])

    # --- in a transaction ----------------------------------------------------------------------

    def _script(
        self, batches: Sequence[_Batch], /, *, wait: bool
    ) -> Script[list[_Followed | Deferred]]:
        """Write down what is done; take the next of each task into hand, where it may be.

        Of a batch in which some are held by somebody else, those are deferred.
        """
        if self._next in batches:
            first, self._next = self._next, None  # what ends from now on is of the next one
            while first is not None and self._ended:
                first.ended.append(self._ended.popleft())
        ended = [each for batch in batches for each in batch.ended]
        for each in ended:
            self._let_next_go(each)  # an attempt before this one may have failed in its commit
        names = {each: task_lock(*each.task) for each in ended if each.task is not None}
        taken = time.perf_counter()
        held, now = yield from self._database.hold(sorted(set(names.values())), wait=wait)
        ours = [each for each in ended if each not in names or names[each] in held]
        yield from self._inbox.record_calls(
            [
                (each.claimed.stored.id, each.call.callback, each.call.error)
                for each in ours
                if each.call is not None
            ],
            now=now,
        )
        settled: set[int] = set()
        for unmatched in {each.is_unmatched for each in ours}:
            settled |= yield from self._inbox.settle_done(
                [each.claimed for each in ours if each.is_unmatched is unmatched],
                self._leases.worker,
                now=now,
                unmatched=unmatched,
            )
        lines = {
            each.task: each
            for each in ours
            if each.task is not None and each.claimed.stored.id in settled
        }
        following = yield from self._next_of(lines, now, taken)
        came_to = {each: following.get(each) for each in ours}
        results = [[came_to.get(each, DEFERRED) for each in batch.ended] for batch in batches]
        return [DEFERRED if each == [DEFERRED] else each for each in results]

    def _next_of(
        self, lines: Mapping[tuple[str, str], Ended], now: datetime, taken: float
    ) -> Script[dict[Ended, ClaimedNotification]]:
        """Take the next of tasks into hand, or offer them to claims."""
        ids = yield from self._inbox.oldest_unfinished(sorted(lines))
        if not ids:
            return {}
        following = {each: lines[task] for each, task in ids.items()}
        senders = [each.claimed.stored.sender for each in following.values()]
        for each, may in zip(following.values(), self._turns.reserve(senders), strict=True):
            each.has_next = may
        placed = [found for found, each in following.items() if each.has_next]
        followed = yield from self._inbox.follow(placed, self._leases.lease(now, taken), now=now)
        found = {following.pop(each.stored.id): each for each in followed}
        if following:
            for each in following.values():
                self._let_next_go(each)
                each.has_offered = True
            yield from self._inbox.make_heads(sorted(following))
            self._turns.let_wait()
            yield from self._database.wake()
        return found
