"""Settling the notifications that every callback has had, and claiming the next of their tasks.

A notification's slot is free as soon as its callbacks have ended. It is settled in the transaction
that stores what is accepted next, or in one of its own a moment later: all notifications that have
ended when the transaction begins are one item of it.
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
from pushkit.scheduling.pump import Pump
from pushkit.scheduling.retry import persist
from pushkit.storage.database import Database
from pushkit.storage.script import DEFERRED, Deferred, Script
from receiver.callbacks.calls import Call
from receiver.callbacks.leases import SURE_FOR, Leases
from receiver.callbacks.slots import SharedSlots
from receiver.inbox.model import ClaimedNotification
from receiver.inbox.store import Inbox, locks_of
from receiver.inbox.together import GroupItem, together

T = TypeVar("T")

# The next notification of each task of a batch, if this process holds it now.
_Followed: TypeAlias = Sequence[ClaimedNotification | Deferred | None]

_PATIENCE: Final = 0.002  # seconds that settling waits for something to be accepted


@dataclass(slots=True, eq=False)
class Ended:
    """A notification that every callback has had, until it is settled."""

    claimed: ClaimedNotification
    call: Call | None  # the last call, which is not recorded yet; None if no callback wants it
    is_unmatched: bool = False
    holds_next: bool = False  # whether this process holds the next notification of the task
    offers_next: bool = False  # whether the next notification of the task waits for a claim
    task: tuple[str, str] | None = field(init=False)  # by sender and id, if it has one

    def __post_init__(self) -> None:
        stored = self.claimed.stored
        self.task = None if stored.task_id is None else (stored.sender, stored.task_id)


@dataclass(slots=True, eq=False)
class _Batch:
    """Notifications that are settled together."""

    ended: list[Ended] = field(default_factory=list)


class Settler:
    """Settles the notifications that every callback has had."""

    def __init__(
        self,
        database: Database,
        slots: SharedSlots,
        leases: Leases,
        pump: Pump[ClaimedNotification],  # claims what waits, and logs why it cannot be settled
        # Calls back the next notification of a task, which this process holds.
        begin: Callable[[ClaimedNotification], None],
    ) -> None:
        self._database = database
        self._inbox = Inbox()
        self._slots = slots
        self._leases = leases
        self._pump = pump
        self._begin = begin
        # Filled in the event loop, and emptied in the thread of a transaction.
        self._ended: deque[Ended] = deque()
        self._next: _Batch | None = None  # submitted and empty: its transaction will fill it
        self._writing: set[asyncio.Future[_Followed]] = set()

    def add(self, ended: Ended, *, at_once: bool) -> None:
        """Settle a notification with what is accepted next, or at once."""
        self._slots.unsettled += 1
        self._ended.append(ended)
        if at_once:
            self.settle()
        elif self._next is None and len(self._ended) == 1:
            asyncio.get_running_loop().call_later(_PATIENCE, self.settle)

    def settle(self) -> None:
        """Settle what has ended, in one transaction with what is submitted next."""
        if self._ended and self._next is None:
            self._next = _Batch()
            self._write(self._next)

    async def drain(self) -> None:
        """Settle all that has ended, and wait for it."""
        while self._ended or self._writing:
            self.settle()
            await asyncio.wait(self._writing)

    def abandon(self) -> None:
        """Leave the rest to its leases."""
        while self._ended:
            self._leases.release(self._ended.pop().claimed)
            self._slots.unsettled -= 1
        for writing in list(self._writing):
            writing.cancel()

    def _submit(self, batch: _Batch) -> asyncio.Future[_Followed]:
        # First: what is accepted in the same transaction may then be the next of a task.
        return self._database.write_together(
            together, GroupItem(self._script, batch, is_first=True)
        )

    def _write(self, batch: _Batch, writing: asyncio.Future[_Followed] | None = None) -> None:
        writing = writing or self._submit(batch)
        self._writing.add(writing)
        writing.add_done_callback(functools.partial(self._written, batch))

    def _written(self, batch: _Batch, writing: asyncio.Future[_Followed]) -> None:
        """Call back the next notification of each task, if this process holds it now."""
        self._writing.discard(writing)
        error = asyncio.CancelledError() if writing.cancelled() else writing.exception()
        if isinstance(error, StorageError) and len(batch.ended) > 1:
            for each in batch.ended:  # one that fails must not delay the others
                self._write(_Batch([each]))
            return
        if isinstance(error, StorageError):
            self._write(batch, asyncio.create_task(self.persist(lambda: self._submit(batch))))
            return
        if isinstance(error, Exception):
            self._pump.leave_to_lease(error)
        if self._next is batch:  # its transaction never began
            self._next = None
        following = writing.result() if error is None else [None] * len(batch.ended)
        for each, followed in zip(batch.ended, following, strict=True):
            if followed is DEFERRED:
                self._write(_Batch([each]))
                continue
            self._leases.release(each.claimed)
            self._slots.unsettled -= 1
            if error is not None:
                self._cancel_next(each)
            elif isinstance(followed, ClaimedNotification):
                self._begin(followed)
        if error is not None:
            self.settle()
        if any(each.offers_next for each in batch.ended):
            self._slots.note_waiting()  # a claim may have looked before this was committed
        if self._slots.some_wait:
            self._pump.wake()

    async def persist(self, write: Callable[[], Awaitable[T]]) -> T:
        """Try to write until it succeeds: callbacks that ended would be called again otherwise.

        If the lease ends meanwhile, the next worker sees what was recorded by then.
        """
        while True:
            try:
                return await persist(write, through=StorageError, within=SURE_FOR)
            except StorageError as exc:
                self._pump.keep_trying(exc)

    def _cancel_next(self, ended: Ended) -> None:
        if ended.holds_next:
            ended.holds_next = False
            self._slots.cancel([ended.claimed.stored.sender])

    # --- in a transaction ----------------------------------------------------------------------

    def _script(
        self, batches: Sequence[_Batch], /, *, wait: bool
    ) -> Script[list[_Followed | Deferred]]:
        """Settle batches, and claim or offer the next notification of each task.

        Those whose task another transaction holds are deferred.
        """
        if self._next in batches:
            first, self._next = self._next, None  # what ends from now on is in another batch
            while first is not None and self._ended:
                first.ended.append(self._ended.popleft())
        ended = [each for batch in batches for each in batch.ended]
        for each in ended:
            self._cancel_next(each)  # this script may run again after a commit that failed
        taken = time.perf_counter()
        ours, now = yield from self._database.hold(
            ended, lambda each: locks_of(each.claimed.stored), wait=wait
        )
        yield from self._inbox.record_calls(
            [each.call for each in ours if each.call is not None], now=now
        )
        settled: set[int] = set()
        for unmatched in {each.is_unmatched for each in ours}:
            settled |= yield from self._inbox.settle_done(
                [each.claimed for each in ours if each.is_unmatched is unmatched],
                self._leases.worker,
                now=now,
                unmatched=unmatched,
            )
        by_task = {
            each.task: each
            for each in ours
            if each.task is not None and each.claimed.stored.id in settled
        }
        following = yield from self._next_of(by_task, now, taken)
        outcomes = {each: following.get(each) for each in ours}
        results = [[outcomes.get(each, DEFERRED) for each in batch.ended] for batch in batches]
        return [DEFERRED if each == [DEFERRED] else each for each in results]

    def _next_of(
        self, by_task: Mapping[tuple[str, str], Ended], now: datetime, taken: float
    ) -> Script[dict[Ended, ClaimedNotification]]:
        """Claim the next notification of each task, or offer it to claims."""
        ids = yield from self._inbox.oldest_unfinished(sorted(by_task))
        if not ids:
            return {}
        following = {each: by_task[task] for each, task in ids.items()}
        senders = [each.claimed.stored.sender for each in following.values()]
        for each, may in zip(following.values(), self._slots.reserve(senders), strict=True):
            each.holds_next = may
        reserved = [found for found, each in following.items() if each.holds_next]
        followed = yield from self._inbox.follow(reserved, self._leases.lease(now, taken), now=now)
        found = {following.pop(each.stored.id): each for each in followed}
        if following:
            for each in following.values():
                self._cancel_next(each)
                each.offers_next = True
            yield from self._inbox.make_heads(sorted(following))
            self._slots.note_waiting()
            yield from self._database.wake()
        return found
