"""The dispatcher: hands notifications to callbacks, per task in order.

Every callback has its own state: one that fails is called again, the others are not. A notification
whose callback keeps failing becomes a dead letter; until then it holds up its own task alone.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
import secrets
import time
from collections import Counter
from collections.abc import AsyncIterator, Awaitable, Callable, Collection, Sequence
from dataclasses import dataclass, field
from datetime import datetime, timedelta
from typing import TypeVar

from pushkit.a2a import UpdateKind
from pushkit.clock import utc_now
from pushkit.errors import InboundError, StorageError
from pushkit.events import CalledBack, Listeners, NotificationDead
from pushkit.storage import Database, Script
from pushkit.work import (
    Pump,
    RetryPolicy,
    Slots,
    cancelled,
    next_attempt,
    persist,
    stop_after_attempt,
    wait_schedule,
)
from receiver.callbacks.calls import TIMED_OUT, Call, Caller, Slot
from receiver.callbacks.registry import Callback, CallbackRegistry
from receiver.callbacks.shares import CrowdedError
from receiver.callbacks.turns import Turns
from receiver.inbox import ClaimedNotification, Inbox, InboxStatus, Notification, task_lock

__all__ = ["Dispatcher", "callback_retry"]

T = TypeVar("T")

_log = logging.getLogger("receiver")

_LEASE = timedelta(seconds=60)
POLL_INTERVAL = timedelta(seconds=1)
CALLBACK_TIMEOUT = timedelta(minutes=5)


def callback_retry() -> RetryPolicy:
    """Return the default policy for a failing callback: ten times over about two hours."""
    return RetryPolicy(
        wait=wait_schedule((1, 5, 15, 60, 300, 600, 1200, 1800, 3600)), stop=stop_after_attempt(10)
    )


@dataclass(slots=True)
class _Round:
    """What came of calling back once.

    Attributes:
        unwritten: Calls that are not written down yet.
        error: The last failure.
        pause: When to come back for a callback that was passed over.
        unmatched: No callback wants it.
    """

    unwritten: list[Call] = field(default_factory=list)
    error: str | None = None
    pause: timedelta | None = None
    unmatched: bool = False


class Dispatcher:
    """Runs callbacks from the inbox.

    Args:
        database: Where the inbox lives; its clock is the one that counts.
        registry: The callbacks.
        retry: When a failed callback is called again.
        concurrency: How many tasks' notifications at once.
        timeout: How long a callback may take, where it does not say itself; None for any time.
        prepare: Adds what is known besides to a notification, before callbacks get it.
        senders: Returns how many senders are trusted: of several, none has all places.
        poll_interval: How long to wait at most before looking for what other processes accepted,
            or left behind.
        events: Who hears of how callbacks ended.
        clock: Returns now, aware, in UTC: for events.
    """

    def __init__(
        self,
        database: Database,
        registry: CallbackRegistry,
        *,
        retry: RetryPolicy,
        concurrency: int,
        timeout: timedelta | None = CALLBACK_TIMEOUT,
        prepare: Callable[[Notification], Awaitable[Notification]] | None = None,
        senders: Callable[[], int] = lambda: 1,
        poll_interval: timedelta | None = None,
        events: Listeners | None = None,
        clock: Callable[[], datetime] = utc_now,
    ) -> None:
        self._events = events or Listeners(_log)
        self._clock = clock
        self._database = database
        self.registry = registry
        self._retry = retry
        self._prepare = prepare
        self._inbox = Inbox()
        self._caller = Caller(slots=concurrency, timeout=timeout)
        self._turns = Turns(concurrency, senders)
        self._held: set[int] = set()
        self._without_slot: set[asyncio.Task[None]] = set()
        self._unmatched_kinds: set[UpdateKind] = set()
        self.name: str = f"dispatcher_{secrets.token_hex(8)}"
        self._slots = Slots(concurrency)
        self._number_of_slots = concurrency
        self.pump: Pump[ClaimedNotification] = Pump(
            "callbacks",
            claim=self._claim,
            process=self._dispatch,
            until_due=self._until_due,
            slots=self._slots,
            longest_pause=poll_interval or POLL_INTERVAL,
        )

    async def run_once(self) -> int:
        """Hand out every notification that is due now; return how many there were."""
        return await self.pump.run_once()

    def slots(self) -> tuple[int, int]:
        """Return how many places are in use, and how many there are."""
        return self._number_of_slots - self._slots.free, self._number_of_slots

    @property
    def hanging(self) -> Counter[str]:
        """How many calls hang, by callback."""
        return self._caller.hanging

    def count_hanging(self) -> int:
        """Return how many calls hang."""
        return self._caller.hanging.total()

    @property
    def is_stuck(self) -> bool:
        """Whether no callback can be called, because too many calls hang."""
        return self._caller.is_stuck

    async def finish(self, within: timedelta) -> None:
        """Wait for callbacks that run, and break off those that are not done by then, or hang."""
        await self.pump.finish(within=within)
        for work in list(self._without_slot):
            await cancelled(work)
        self._caller.close()
        self._turns.clear()

    async def retire(self) -> None:
        """Give back what was broken off, and say that nothing is in work here any more.

        What a thread is still inside of stays under its lease, which nobody renews.
        """
        inside = self._caller.left_inside
        try:
            with contextlib.suppress(StorageError):  # then it comes back with its lease
                await self._database.write(self._give_back_script(inside))
        finally:
            if self._database.locks is not None and not inside:
                self._database.locks.release(self.name)
            self._caller.left_inside = set()

    # --- taking --------------------------------------------------------------------------------

    async def _claim(self) -> Sequence[ClaimedNotification]:
        if self._database.locks is not None:
            self._database.locks.hold(self.name)
        claimed: Sequence[ClaimedNotification] = ()
        taken = self._slots.take()
        try:
            claimed = await self._database.write(self._claim_script(taken))
        finally:
            self._slots.give_back(taken - len(claimed))
        self._turns.begin(each.stored.sender for each in claimed)
        return claimed

    def _claim_script(self, limit: int) -> Script[list[ClaimedNotification]]:
        yield from self._take_over()
        now = yield from self._database.now()
        return (
            yield from self._inbox.claim(
                self.name,
                limit=limit,
                now=now,
                until=now + _LEASE,
                held=tuple(self._held),
                divide=self._turns.divide,
            )
        )

    def _take_over(self) -> Script[None]:
        """Give back what dispatchers on this machine left that died: their locks are free."""
        locks = self._database.locks
        if locks is None:
            return
        working = yield from self._inbox.working()
        for worker in locks.dead(name for name in working if name != self.name):
            _log.warning("%s died; its notifications are taken over", worker)
            yield from self._inbox.take_over(worker)

    def _give_back_script(self, inside: Collection[int]) -> Script[None]:
        yield from self._inbox.give_back(self.name, but=inside)
        yield from self._database.wake()

    # --- calling -------------------------------------------------------------------------------

    async def _dispatch(self, claimed: ClaimedNotification) -> None:
        """Work on a notification, until that is done or gives up its slot because a call hangs."""
        slot = Slot()
        work = asyncio.create_task(self._hold(claimed, slot))
        try:
            await asyncio.wait([work, slot.freed], return_when=asyncio.FIRST_COMPLETED)
        except asyncio.CancelledError:
            await cancelled(work)
            raise
        finally:
            self._turns.end(claimed.stored.sender)
        if work.done():
            work.result()
            return
        self._without_slot.add(work)
        work.add_done_callback(self._ended_without_slot)

    def _ended_without_slot(self, work: asyncio.Task[None]) -> None:
        self._without_slot.discard(work)
        self.pump.wake()  # the next of its task may be due
        if not work.cancelled() and (error := work.exception()) is not None:
            _log.error("callbacks: could not be settled; it comes back", exc_info=error)

    async def _hold(self, claimed: ClaimedNotification, slot: Slot) -> None:
        self._held.add(claimed.stored.id)
        try:
            async with self._lease_kept(claimed.stored.id):
                await self._work_on(claimed, slot)
        finally:
            self._held.discard(claimed.stored.id)
            self._caller.end(slot)

    async def _work_on(self, claimed: ClaimedNotification, slot: Slot) -> None:
        try:
            notification = claimed.stored.decode()
        except InboundError as exc:
            # Accepted by other code than this: it must not stand in the way of the rest.
            await self._bury(claimed, f"unreadable: {exc.code}")
            return
        matching = self.registry.wanting(notification)
        if not matching:
            self._say_unmatched(notification)
            await self._settle(claimed, _Round(unmatched=True))
            return
        wanting = [callback for callback in matching if not claimed.had_by(callback.name)]
        if wanting and claimed.broken_off:
            names = ", ".join(callback.name for callback in wanting)
            if await self._is_held_back(claimed, names):
                return
        # After that: what ends in the preparation has to come to an end, too.
        if wanting and self._prepare is not None:
            notification = await self._prepare(notification)
        await self._settle(claimed, await self._call_all(wanting, notification, claimed, slot))

    def _say_unmatched(self, notification: Notification) -> None:
        """Say once of each kind that no callback here wants it, or not all of it."""
        if notification.kind in self._unmatched_kinds:
            return
        self._unmatched_kinds.add(notification.kind)
        _log.warning(
            "no callback wants notification %d, kind=%s state=%s, and it is done; of this kind only"
            " this one is told: see `receiver inbox list --unmatched`",
            notification.id,
            notification.kind.value,
            notification.state.value if notification.state else None,
        )

    async def _call_all(
        self,
        callbacks: Sequence[Callback],
        notification: Notification,
        claimed: ClaimedNotification,
        slot: Slot,
    ) -> _Round:
        """Call one after another, and write down at once how each ended but the last.

        Whoever slept through its lease finds that out before it calls the next. One whose share of
        the slots is taken up is passed over for now: what holds it up must not hold up the others.
        """
        done = _Round()
        for callback in callbacks:
            for call in done.unwritten:
                is_ours = await self._write_down(
                    lambda call=call: self._go_on_script(notification.id, call)  # type: ignore[misc]
                )
                if not is_ours:
                    return _Round()  # somebody else has it, and calls the rest
            done.unwritten = []
            state = claimed.callbacks.get(callback.name)
            try:
                place = await self._caller.take_place(
                    callback,
                    alone=self.registry.has_one,
                    hung_before=state is not None and state.last_error == TIMED_OUT,
                )
            except CrowdedError as exc:
                done.pause = max(done.pause or exc.pause, exc.pause)
                continue
            begun = time.perf_counter()
            call = await self._caller.call(callback, notification, slot=slot, place=place)
            self._tell_called(claimed, call, timedelta(seconds=time.perf_counter() - begun))
            done.unwritten = [call]
            done.error = f"{call.callback}: {call.error}" if call.error else done.error
        return done

    async def _is_held_back(self, claimed: ClaimedNotification, names: str) -> bool:
        """Give up, or put off, what was in hand each time a process died; False to go on.

        After one death all that was in hand is called again at once. After more, each is put off by
        the schedule: they part, and the next death tells the cause from what was beside it.
        """
        deaths = claimed.attempts - 1
        if deaths < 1:
            return False
        now = await self._database.read(self._database.now())
        again_at = next_attempt(self._retry, attempts=deaths, since=claimed.since, now=now)
        if again_at is None:
            await self._bury(claimed, f"the process ended {deaths} times in the middle of: {names}")
            return True
        if deaths == 1:
            return False
        await self._database.write(self._inbox.put_off(claimed, self.name, again_at))
        return True

    # --- settling ------------------------------------------------------------------------------

    async def _settle(self, claimed: ClaimedNotification, done: _Round) -> None:
        dead = await self._write_down(lambda: self._settle_script(claimed, done))
        if dead:
            self._tell_dead(claimed, done.error)

    async def _write_down(self, script: Callable[[], Script[T]]) -> T:
        """Write what a callback had, which it has again unless that gets written down.

        While the database is away it is tried for as long as the lease surely lasts.
        """
        return await persist(
            lambda: self._database.write(script()), through=StorageError, within=_LEASE / 2
        )

    async def _bury(self, claimed: ClaimedNotification, error: str) -> None:
        """Give a notification up whatever its attempts are."""
        await self._database.write(self._bury_script(claimed, error))
        self._tell_dead(claimed, error)

    def _tell_called(self, claimed: ClaimedNotification, call: Call, took: timedelta) -> None:
        if self._events.wants(CalledBack.usual_level):
            stored = claimed.stored
            self._events.tell(
                CalledBack(
                    at=self._clock(),
                    sender=stored.sender,
                    task_id=stored.task_id,
                    delivery_id=stored.delivery_id,
                    notification_id=stored.id,
                    callback=call.callback,
                    error=call.error,
                    took=took,
                )
            )

    def _tell_dead(self, claimed: ClaimedNotification, error: str | None) -> None:
        stored = claimed.stored
        _log.error(
            "notification %d is a dead letter: %s",
            stored.id,
            error,
            extra={"code": NotificationDead.kind.value, "delivery_id": stored.delivery_id},
        )
        if self._events.wants(NotificationDead.usual_level):
            self._events.tell(
                NotificationDead(
                    at=self._clock(),
                    sender=stored.sender,
                    task_id=stored.task_id,
                    delivery_id=stored.delivery_id,
                    notification_id=stored.id,
                    error=error,
                )
            )

    def _settle_script(self, claimed: ClaimedNotification, done: _Round) -> Script[bool]:
        """Write down what became of a notification; return whether it is a dead letter now."""
        yield from self._hold_task(claimed)
        for call in done.unwritten:
            yield from self._record_script(claimed.stored.id, call)
        now = yield from self._database.now()
        if done.error is None and done.pause is not None:  # for those that were passed over
            yield from self._inbox.put_off(claimed, self.name, now + done.pause)
            return False
        status, retry_at = InboxStatus.DONE, None
        if done.error is not None:
            retry_at = next_attempt(
                self._retry, attempts=claimed.attempts, since=claimed.since, now=now
            )
            status = InboxStatus.DEAD if retry_at is None else InboxStatus.RECEIVED
        settled = yield from self._inbox.settle(
            claimed,
            self.name,
            status,
            now=now,
            retry_at=retry_at,
            error=done.error,
            unmatched=done.unmatched,
        )
        return settled and status is InboxStatus.DEAD

    def _bury_script(self, claimed: ClaimedNotification, error: str) -> Script[bool]:
        yield from self._hold_task(claimed)
        now = yield from self._database.now()
        return (
            yield from self._inbox.settle(
                claimed, self.name, InboxStatus.DEAD, now=now, error=error
            )
        )

    def _hold_task(self, claimed: ClaimedNotification) -> Script[None]:
        if claimed.stored.task_id is not None:
            yield from self._database.exclusively(
                task_lock(claimed.stored.sender, claimed.stored.task_id)
            )

    def _record_script(self, notification_id: int, call: Call) -> Script[None]:
        now = yield from self._database.now()
        yield from self._inbox.record_call(
            notification_id, call.callback, error=call.error, now=now
        )

    def _go_on_script(self, notification_id: int, call: Call) -> Script[bool]:
        """Write down how a call ended; return whether this dispatcher may make the next one."""
        yield from self._record_script(notification_id, call)
        return (yield from self._keep_lease_script(notification_id))

    # --- leases --------------------------------------------------------------------------------

    @contextlib.asynccontextmanager
    async def _lease_kept(self, notification_id: int) -> AsyncIterator[None]:
        keeper = asyncio.create_task(self._keep_lease(notification_id))
        try:
            yield
        finally:
            keeper.cancel()
            with contextlib.suppress(asyncio.CancelledError):
                await keeper

    async def _keep_lease(self, notification_id: int) -> None:
        kept = True
        while kept:
            await asyncio.sleep(_LEASE.total_seconds() / 3)
            # A database out of reach must not end the renewal: the callback goes on.
            with contextlib.suppress(StorageError):
                kept = await self._database.write(self._keep_lease_script(notification_id))

    def _keep_lease_script(self, notification_id: int) -> Script[bool]:
        now = yield from self._database.now()
        return (yield from self._inbox.keep_lease(notification_id, self.name, now + _LEASE))

    async def _until_due(self) -> timedelta | None:
        return await self._database.read(self._until_due_script())

    def _until_due_script(self) -> Script[timedelta | None]:
        now = yield from self._database.now()
        due = yield from self._inbox.next_due(but=self._turns.full())
        return None if due is None else due - now
