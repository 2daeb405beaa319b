"""The dispatcher: calls callbacks with notifications, in order for each task.

A notification is claimed from the inbox, or held from when it is stored (`reserve`, `begin`). It
waits for a slot, its callbacks are called one after another, and it is settled: done with all that
ended at about the same time (`settling.py`); or failed or put off, in a transaction of its own.

Every callback has its own state: one that fails is called again, the others are not. A notification
whose callback keeps failing becomes a dead letter; until then it delays its own task only.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
import time
from collections.abc import Awaitable, Callable, Collection, Sequence
from datetime import datetime, timedelta
from typing import TYPE_CHECKING

from pushkit.clock import utc_now
from pushkit.errors import InboundError, StorageError
from pushkit.events.listeners import Listeners
from pushkit.events.receiver import CalledBack, NotificationDead
from pushkit.scheduling import stop_after_attempt
from pushkit.scheduling.locks import LoopLock
from pushkit.scheduling.pump import Pump
from pushkit.scheduling.retry import RetryPolicy, next_attempt, wait_schedule
from pushkit.storage.database import Database
from pushkit.storage.script import Script
from pushkit.traceparent import trace_id_of
from receiver.callbacks.calls import TIMED_OUT, Call, Caller, logged_of, within_trace
from receiver.callbacks.leases import Leases
from receiver.callbacks.registry import Callback, CallbackRegistry
from receiver.callbacks.settling import Ended, Settler
from receiver.callbacks.slots import CrowdedError, SharedSlots
from receiver.callbacks.unmatched import UnmatchedLog
from receiver.inbox.model import ClaimedNotification, Notification
from receiver.inbox.store import Inbox, locks_of
from receiver.service_state import LARGE_BODY, turn_to_decode

if TYPE_CHECKING:
    from pushkit.telemetry.tracing import Tracing

_log = logging.getLogger("receiver")

# How often to look at least for what other processes accepted, or left unfinished.
POLL_INTERVAL = timedelta(seconds=1)
CALLBACK_CONCURRENCY = 64
CALLBACK_TIMEOUT = timedelta(minutes=5)
# Seconds after an outage in which leases that ended are left to their workers, who renew them.
_SPARED_FOR = 5.0
_LAST_WRITES = 1.0  # seconds for recording the last calls when the process ends
_LONGEST_RETIRING = 5.0  # seconds for giving back what is still held
_MOST_KEPT = 1024


def callback_retry() -> RetryPolicy:
    """Return the default policy for a failing callback: ten calls within about two hours."""
    return RetryPolicy(
        wait=wait_schedule((1, 5, 15, 60, 300, 600, 1200, 1800, 3600)), stop=stop_after_attempt(10)
    )


class Dispatcher:
    """Runs callbacks from the inbox."""

    def __init__(
        self,
        database: Database,  # the inbox's; leases and schedules are by its clock
        registry: CallbackRegistry,
        *,
        retry: RetryPolicy,  # when a failed callback is called again
        concurrency: int,  # the number of slots: how many notifications are called back at once
        # How long a call may take if its callback has no time-out; None for any time.
        timeout: timedelta | None = CALLBACK_TIMEOUT,
        # Returns what completes a notification before callbacks get it, if anything has to.
        prepare: Callable[[Notification], Awaitable[Notification] | None] = lambda _: None,
        # Returns how many senders are trusted: one of several never has all slots.
        senders: Callable[[], int] = lambda: 1,
        events: Listeners | None = None,
        clock: Callable[[], datetime] = utc_now,
        tracing: Tracing | None = None,
    ) -> None:
        self._tracing = tracing
        self._events = events or Listeners(_log)
        self._clock = clock
        self._database = database
        self.registry = registry
        self._retry = retry
        self._prepare = prepare
        self._inbox = Inbox()
        self.caller: Caller = Caller(
            slots=concurrency,
            timeout=timeout,
            free_slot=self._free_slot,
            abandoned_ended=self._release_locks,
        )
        # By former worker's name, the tasks whose calls were abandoned.
        self._abandoned: dict[str, set[asyncio.Task[None]]] = {}
        self.slots: SharedSlots = SharedSlots(concurrency, senders)
        self._kept: dict[int, Notification] = {}
        self._claimed_at: datetime | None = None
        self._spares_until = 0.0
        self._unmatched: UnmatchedLog = UnmatchedLog(database)
        self._is_running = False
        self._decoding = LoopLock()
        self.leases: Leases = Leases(database)
        self.pump: Pump[ClaimedNotification] = Pump(
            "callbacks",
            claim=self._claim,
            process=self._dispatch,
            until_due=lambda: database.read(self._until_due_script()),
            slots=self.slots,
            longest_pause=POLL_INTERVAL,
            ended=lambda claimed: self.slots.release(claimed.stored.sender),
        )
        self.settler: Settler = Settler(database, self.slots, self.leases, self.pump, self.begin)

    async def run(self) -> None:
        """Call back until cancelled: notifications that are claimed, or held from when stored."""
        self.caller.is_ending = False
        self.slots.note_waiting()  # what the inbox has already comes first
        self._is_running = True
        try:
            await self.pump.run()
        finally:
            self._is_running = self.slots.is_open = False

    def begin(self, claimed: ClaimedNotification) -> None:
        """Call back a notification that is held; after `finish`, leave it for `retire`."""
        if self.caller.is_ending:
            self.slots.cancel([claimed.stored.sender])
        else:
            self.pump.begin(claimed)

    def keep(self, notification: Notification) -> None:
        """Keep a notification that waits for a claim, so that it need not be decoded again."""
        if len(notification.body) <= LARGE_BODY:
            if len(self._kept) >= _MOST_KEPT:  # other processes may have called back the oldest
                del self._kept[next(iter(self._kept))]
            self._kept[notification.id] = notification

    def note_waiting(self) -> None:
        """Claim soon; until then, what is stored waits behind what waits already."""
        self.slots.note_waiting()
        self.pump.wake()

    async def run_once(self) -> int:
        """Call back every notification that is due now; return how many there were."""
        begun = await self.pump.run_once()
        await self.settler.drain()
        return begun

    async def finish(self, within: timedelta) -> None:
        """Wait for the callbacks that run; then break off those that did not end, or hang."""
        loop = asyncio.get_running_loop()
        ends_at = loop.time() + within.total_seconds()
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(within.total_seconds()):
                await self.pump.drain()
        await self.caller.break_off()
        await self.pump.abandon()
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout_at(max(ends_at, loop.time() + _LAST_WRITES)):
                await self.settler.drain()
        self.settler.abandon()
        await self.leases.close()
        self.caller.close()

    async def retire(self) -> None:
        """Give back what is still held, and release the worker's lock.

        Notifications of abandoned calls keep their leases, which are no longer renewed, and their
        worker's lock until the calls end. The dispatcher then continues under another name.
        """
        # A transaction that still runs may store a notification under a lease, or claim the next.
        await self._database.drain(_LAST_WRITES)
        before = set[asyncio.Task[None]]().union(*self._abandoned.values())
        abandoned = {
            task: notification
            for task, notification in self.caller.abandoned.items()
            if task not in before
        }
        try:
            # If this fails, the notifications return when their leases end.
            with contextlib.suppress(StorageError, TimeoutError):
                async with asyncio.timeout(_LONGEST_RETIRING):
                    await self._database.write(self._give_back_script(abandoned.values()))
        finally:
            self._abandoned[self.leases.worker] = set(abandoned)
            if abandoned:
                self.leases.rename()  # the next `retire` must not give them back either
            self._release_locks()

    def _release_locks(self) -> None:
        """Release the locks of former names whose abandoned calls have all ended."""
        for name, tasks in list(self._abandoned.items()):
            if not any(task in self.caller.abandoned for task in tasks):
                del self._abandoned[name]
                if self._database.locks is not None:
                    self._database.locks.release(name)

    # --- claiming ------------------------------------------------------------------------------

    async def _claim(self) -> Sequence[ClaimedNotification]:
        if self._database.locks is not None:
            self._database.locks.hold(self.leases.worker)
        # After the lock is held: without it, other processes would take over what is reserved.
        self.slots.is_open = self._is_running
        claimed: list[ClaimedNotification] = []
        try:
            await self._database.write(self._claim_script(claimed))
        except BaseException as exc:
            self.slots.cancel(each.stored.sender for each in claimed)
            if isinstance(exc, StorageError):
                self._spares_until = time.perf_counter() + _SPARED_FOR
            raise
        return claimed

    def _claim_script(self, claimed: list[ClaimedNotification]) -> Script[None]:
        """Claim what is due; add it to `claimed`."""
        free = self.slots.take_for_claim()
        try:
            yield from self._take_over()
            taken = time.perf_counter()
            now = yield from self._database.now()
            if self._claimed_at is None or now < self._claimed_at:
                yield from self._inbox.after_setback(now)
            self._claimed_at = now
            found = yield from self._inbox.claim(
                self.leases.lease(now, taken),
                limit=free,
                now=now,
                divide=self.slots.divide,
                held=self.leases.held,
                spare_others=taken < self._spares_until,
            )
            self.slots.hold(each.stored.sender for each in found)
            claimed += found
        finally:
            self.slots.give_back(free - len(claimed))

    def _take_over(self) -> Script[None]:
        """Give back what dead dispatchers on this machine held: their locks are free."""
        locks = self._database.locks
        if locks is None:
            return
        working = yield from self._inbox.working()
        for worker in locks.dead(name for name in working if name != self.leases.worker):
            _log.warning("%s died; its notifications are taken over", worker)
            yield from self._inbox.take_over(worker)

    def _give_back_script(self, abandoned: Collection[int]) -> Script[None]:
        yield from self._inbox.give_back(self.leases.worker, but=abandoned)
        yield from self._database.wake()

    def _until_due_script(self) -> Script[timedelta | None]:
        now = yield from self._database.now()
        due = yield from self._inbox.next_due(but=self.slots.full())
        return None if due is None else due - now

    # --- calling -------------------------------------------------------------------------------

    async def _dispatch(self, claimed: ClaimedNotification) -> None:
        """Call back a notification in a slot, until it is handed to the settler, or is settled.

        The slot may be released before that, because a call hangs.
        """
        sender, task = claimed.stored.sender, asyncio.current_task()
        assert task is not None  # noqa: S101  # the pump's
        without_slot = self.caller.without_slot
        self.leases.hold(claimed)
        ended: Ended | None = None
        try:
            if not self.slots.enter_now(sender):
                await self.slots.enter(sender)
            begun = time.perf_counter()
            try:
                if len(claimed.stored.body) > LARGE_BODY:
                    await turn_to_decode(self._decoding)
                ended = await self._call_back(claimed, task)
            finally:
                if task not in without_slot:
                    self.slots.leave(sender, time.perf_counter() - begun)
        finally:
            if ended is None:
                self.leases.release(claimed)
            if ended is None or task in without_slot:
                without_slot.discard(task)
                self.note_waiting()  # it may be due again soon, or the next of its task now

    def _may_be_lost(self, claimed: ClaimedNotification) -> bool:
        if self.leases.is_sure(claimed):
            return False
        text = "notification %d: its lease may have ended; not called back"
        _log.warning(text, claimed.stored.id)
        return True

    def _free_slot(self, task: asyncio.Task[None], sender: str) -> None:
        """Free the slot of a task whose call hangs."""
        self.slots.leave(sender)
        self.pump.free_slot(task)

    async def _call_back(
        self, claimed: ClaimedNotification, task: asyncio.Task[None]
    ) -> Ended | None:
        """Call one callback after another; return the notification if every callback has had it.

        The outcome of a call is recorded before the next call: a worker that was suspended beyond
        its lease learns of it there. The outcome of the last call is recorded when the notification
        is settled.
        """
        stored = claimed.stored
        try:
            notification = self._kept.pop(stored.id, None) or stored.decode()
        except InboundError as exc:
            # Another version accepted it: it must not delay the rest of its task.
            await self._fail(claimed, f"unreadable: {exc.code}", is_final=True)
            return None
        matching = self.registry.wanting(notification)
        if matching:
            self._unmatched.note_wanted(notification)
        else:
            await self._unmatched.note_unwanted(notification)
        wanting = [callback for callback in matching if not claimed.had_by(callback.name)]
        if wanting and claimed.broken_off and await self._is_held_back(claimed, wanting):
            return None
        # After that check, for the process may also die in the preparation.
        if wanting and (preparing := self._prepare(notification)) is not None:
            notification = await preparing
        call: Call | None = None  # that is not recorded yet
        error: str | None = None
        pause: timedelta | None = None
        is_ours = True
        for callback in wanting:
            if call is not None:
                is_ours = await self._write(lambda call=call: self._continue_script(claimed, call))  # type: ignore[misc]
                call = None
            state = claimed.callbacks.get(callback.name)
            hung_before = state is not None and state.last_error == TIMED_OUT
            slot = self.caller.slot_of(
                callback, alone=self.registry.has_one, hung_before=hung_before
            )
            try:
                if not slot.take_now():
                    await slot.take()
            except CrowdedError as exc:  # one callback must not delay the others
                pause = max(pause or exc.pause, exc.pause)
                continue
            # Another worker has it, or may: this process may have been suspended in any wait.
            if not is_ours or self._may_be_lost(claimed):
                slot.release()
                return None
            begun = time.perf_counter()
            calling = self.caller.call(callback, notification, slot, task)
            call = await (
                calling
                if self._tracing is None
                else _within(self._tracing, calling, callback, notification)
            )
            self._emit_called_back(call, notification, begun)
            error = f"{call.callback}: {call.error}" if call.error else error
        if error is not None:
            await self._fail(claimed, error, call)
            return None
        if pause is not None:
            await self._write(lambda: self._put_off_script(claimed, call, pause))
            return None
        ended = Ended(claimed, call, is_unmatched=not matching)
        # While notifications wait for claims, the next must not wait for an acceptance.
        self.settler.add(ended, at_once=bool(self._kept) or not isinstance(stored, Notification))
        return ended

    async def _is_held_back(
        self, claimed: ClaimedNotification, wanting: Sequence[Callback]
    ) -> bool:
        """Put off or give up a notification that was held when processes died; False to call back.

        After one death, all that the process held is called back again at once. After more, each is
        put off by the schedule: they then run apart, so that the next death singles out the cause.
        """
        deaths = claimed.attempts - 1
        if deaths < 1:
            return False
        now = await self._database.read(self._database.now())
        again_at = next_attempt(self._retry, attempts=deaths, since=claimed.since, now=now)
        if again_at is None:
            names = ", ".join(callback.name for callback in wanting)
            error = f"the process ended {deaths} times in the middle of: {names}"
            await self._fail(claimed, error, is_final=True)
            return True
        if deaths == 1:
            return False
        await self._database.write(self._inbox.put_off(claimed, self.leases.worker, again_at))
        return True

    def _emit_called_back(self, call: Call, notification: Notification, begun: float) -> None:
        """Emit how a call ended, and how long it took."""
        if not self._events.wants(CalledBack.usual_level):
            return
        self._events.emit(
            CalledBack(
                at=self._clock(),
                sender=notification.sender,
                task_id=notification.task_id,
                delivery_id=notification.delivery_id,
                trace_id=trace_id_of(notification.traceparent),
                notification_id=notification.id,
                callback=call.callback,
                error=call.error,
                took=timedelta(seconds=time.perf_counter() - begun),
            )
        )

    # --- settling one by itself ----------------------------------------------------------------

    async def _fail(
        self,
        claimed: ClaimedNotification,
        error: str,
        call: Call | None = None,
        *,
        is_final: bool = False,  # a dead letter, however few its attempts are
    ) -> None:
        """Settle a notification that failed: it is retried, or is a dead letter."""
        stored = claimed.stored
        if not await self._write(lambda: self._fail_script(claimed, error, call, is_final)):
            return
        _log.error(
            "notification %d is a dead letter: %s%s",
            stored.id,
            error,
            within_trace(stored),
            extra={"code": NotificationDead.kind.value, **logged_of(stored)},
        )
        if self._events.wants(NotificationDead.usual_level):
            self._events.emit(
                NotificationDead(
                    at=self._clock(),
                    sender=stored.sender,
                    task_id=stored.task_id,
                    delivery_id=stored.delivery_id,
                    trace_id=trace_id_of(stored.traceparent),
                    notification_id=stored.id,
                    error=error,
                )
            )

    async def _write(self, script: Callable[[], Script[bool]]) -> bool:
        """Record a call, which would otherwise be made again.

        If the process ends meanwhile, one more second is given to it.
        """
        try:
            return await self.settler.persist(lambda: self._database.write(script()))
        except asyncio.CancelledError:
            with contextlib.suppress(StorageError, TimeoutError):
                async with asyncio.timeout(_LAST_WRITES):
                    await self._database.write(script())
            raise

    def _continue_script(self, claimed: ClaimedNotification, call: Call) -> Script[bool]:
        """Record a call; return whether this attempt may make the next one."""
        now = yield from self._database.now()
        yield from self._inbox.record_calls([call], now=now)
        until = self.leases.lease(now, claimed.leased_at).until
        return (yield from self._inbox.keep_claim(claimed, self.leases.worker, until))

    def _put_off_script(
        self, claimed: ClaimedNotification, call: Call | None, pause: timedelta
    ) -> Script[bool]:
        """Put a notification off, for the callbacks whose shares are used up."""
        now = yield from self._hold_task(claimed)
        yield from self._inbox.record_calls([call] if call else [], now=now)
        yield from self._inbox.put_off(claimed, self.leases.worker, now + pause)
        return True

    def _fail_script(
        self, claimed: ClaimedNotification, error: str, call: Call | None, is_final: bool
    ) -> Script[bool]:
        """Settle a failure; return whether the notification is a dead letter now."""
        now = yield from self._hold_task(claimed)
        yield from self._inbox.record_calls([call] if call else [], now=now)
        retry_at: datetime | None = None
        if not is_final:
            retry_at = next_attempt(
                self._retry, attempts=claimed.attempts, since=claimed.since, now=now
            )
        settled = yield from self._inbox.settle_failed(
            claimed, self.leases.worker, now=now, retry_at=retry_at, error=error
        )
        return settled and retry_at is None

    def _hold_task(self, claimed: ClaimedNotification) -> Script[datetime]:
        """Hold a notification's task, and return the current time."""
        _, now = yield from self._database.hold([claimed.stored], locks_of, wait=True)
        return now


async def _within(
    tracing: Tracing, calling: Awaitable[Call], callback: Callback, notification: Notification
) -> Call:
    """Call a callback within its notification's trace."""
    with tracing.calling(
        notification.traceparent,
        callback=callback.name,
        sender=notification.sender,
        task=notification.task_id,
        delivery_id=notification.delivery_id,
    ) as span:
        call = await calling
        if call.error is not None:
            span.fail(call.error)
    return call
