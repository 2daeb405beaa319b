"""The dispatcher: the worker that calls callbacks with notifications, in order for each task.

It leases queues of the inbox (`pushkit.queue`). An attempt is the calls of a notification's
callbacks, one after another. Every callback has its own state: one that fails is called again, the
others are not. A notification whose callback keeps failing becomes a dead letter; until then it
delays its own task only.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
import math
import time
from collections.abc import Awaitable, Callable, Sequence
from datetime import datetime, timedelta
from typing import TYPE_CHECKING, Any, Final

from pushkit.clock import utc_now
from pushkit.errors import InboundError, StorageError
from pushkit.events import CalledBack, Listeners
from pushkit.queue.held import Ask, Consequence
from pushkit.queue.leases import Claimed, give_back
from pushkit.queue.rules import PendingJob
from pushkit.queue.runner import Runner, Seen, seconds
from pushkit.queue.worker import QueueWorker
from pushkit.scheduling import stop_after_attempt
from pushkit.scheduling.event_loop import LoopLock
from pushkit.scheduling.retry import (
    RetryPolicy,
    after_faults,
    gives_up,
    persist,
    wait_schedule,
)
from pushkit.storage.database import Database
from pushkit.storage.script import Script, from_micros, to_micros
from pushkit.webhook import trace_id_of
from receiver.callbacks.calls import TIMED_OUT, CallbackCaller
from receiver.callbacks.registry import Callback, CallbackRegistry
from receiver.callbacks.reporting import UnmatchedLog, report_dead
from receiver.callbacks.settling import Settled, Settler
from receiver.callbacks.shares import CrowdedError, Slot
from receiver.inbox.model import Attempted, Call, CallbackOutcome, Notification, NotificationJob
from receiver.inbox.store import (
    INBOX,
    GroupItem,
    jobs_of,
    note_death,
    record_calls,
    record_late_calls,
    together,
)
from receiver.request import LARGE_BODY, turn_to_decode

if TYPE_CHECKING:
    from pushkit.telemetry.tracing import Tracing

_log = logging.getLogger("receiver")

# How often to look at least for what other processes accepted, or left unfinished.
POLL_INTERVAL = timedelta(seconds=1)
CALLBACK_CONCURRENCY = 64
CALLBACK_TIMEOUT = timedelta(minutes=5)
_LEASE: Final = timedelta(seconds=60)
_SURE_FOR: Final = _LEASE / 2  # how long a lease is certain to last after it was renewed
_LAST_WRITES: Final = 1.0  # seconds for recording the last calls when the process ends
_LONGEST_RETIRING: Final = 5.0  # seconds for giving back what is still held
_AHEAD_SECONDS: Final = 1.0
_LEAST_TOOK: Final = 0.001
_MOST_AHEAD: Final = 32  # times as many queues as are called back at once
_ANSWERS: Final = {
    CallbackOutcome.DONE: Consequence.ACKNOWLEDGED,
    CallbackOutcome.UNMATCHED: Consequence.ACKNOWLEDGED,
    CallbackOutcome.FAILED: Consequence.RETRY,
    CallbackOutcome.DEAD: Consequence.FINISHED,
    CallbackOutcome.PUT_OFF: Consequence.RETRY,
    CallbackOutcome.LOST: Consequence.RETRY,
}


def callback_retry() -> RetryPolicy:
    """Return the default policy for a failing callback: ten calls within about two hours."""
    return RetryPolicy(
        wait=wait_schedule((1, 5, 15, 60, 300, 600, 1200, 1800, 3600)), stop=stop_after_attempt(10)
    )


class Dispatcher(QueueWorker[NotificationJob]):
    """Runs callbacks from the inbox."""

    def __init__(
        self,
        database: Database,  # the inbox's; leases and schedules are by its clock
        registry: CallbackRegistry,
        *,
        retry: RetryPolicy,  # when a failed callback is called again
        concurrency: int,  # how many notifications are called back at once
        # How long a call may take if its callback has no time-out; None for any time.
        timeout: timedelta | None = CALLBACK_TIMEOUT,
        # Completes a notification before callbacks get it.
        prepare: Callable[[Notification], Awaitable[Notification]] | None = None,
        # Returns how many senders are trusted: one of several never has all permits.
        senders: Callable[[], int] = lambda: 1,
        events: Listeners | None = None,
        clock: Callable[[], datetime] = utc_now,
        tracing: Tracing | None = None,
    ) -> None:
        super().__init__(database, INBOX, kind="dispatcher", lease=_LEASE)
        self._tracing = tracing
        self._events = events or Listeners(_log)
        self._clock = clock
        self.registry = registry
        self._retry = retry
        self._concurrency = concurrency
        self._senders = senders
        self._prepare = prepare
        self._unmatched = UnmatchedLog(database)
        self._decoding = LoopLock()
        self._settler = Settler(database, retry)
        self._settling = self._settler.script
        self.caller: CallbackCaller = CallbackCaller(
            permits=concurrency,
            timeout=timeout,
            give_permit_up=self._give_permit_up,
            abandoned_ended=self._release_locks,
        )
        self._took = 1.0  # seconds of an attempt, a moving average
        self._ended_at = 0.0  # when the last one ended
        # By former worker's name, the tasks whose calls were abandoned.
        self._abandoned: dict[str, set[asyncio.Task[None]]] = {}
        self.runner = self._new_runner()

    def _new_runner(self) -> Runner[NotificationJob]:
        return Runner(
            "callbacks",
            self,
            permits=self._concurrency,
            per_origin=self._concurrency,
            lease=_LEASE,
            longest=_LEASE - _SURE_FOR,
            longest_pause=POLL_INTERVAL,
            most_unsettled=1,
            insists=True,
            is_alone=lambda: self._senders() <= 1,
            most_held=self._most_held,
        )

    def _most_held(self) -> int:
        """Return how many queues of a sender to hold: with what begins within a second.

        Another process may call back at once what would wait longer here.
        """
        free = self.runner.scheduler.free
        took = self._took if free else max(self._took, seconds() - self._ended_at)
        ahead = min(_AHEAD_SECONDS / max(took, _LEAST_TOOK), _MOST_AHEAD)
        # Those whose calls hang without a permit are in memory beside them.
        hanging = len(self.caller.without_permit)
        return hanging + self._concurrency + math.ceil(self._concurrency * ahead)

    def usage(self) -> tuple[int, int]:
        """Return how many notifications are being called back, and how many may be."""
        return self._concurrency - self.runner.scheduler.free, self._concurrency

    # --- life --------------------------------------------------------------------------------

    async def run(self) -> None:
        """Call back until cancelled."""
        self.caller.is_ending = False
        await self.runner.run()

    async def run_once(self) -> int:
        """Call back every notification that is due now; return how many there were."""
        called = 0
        with self.runner.renewing():
            while made := await self.runner.run_once():
                called += made
        return called

    async def finish(self, within: timedelta) -> None:
        """Wait for the callbacks that run; then break off those that did not end, or hang."""
        loop = asyncio.get_running_loop()
        ends_at = loop.time() + within.total_seconds()
        self.runner.is_open = False
        # A transaction that still runs may hand a notification over, to be called back here.
        await self._database.drain(_LAST_WRITES)
        await self.runner.wind_down(timedelta(seconds=max(ends_at - loop.time(), 0)))
        await self.caller.break_off()
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout_at(max(ends_at, loop.time() + _LAST_WRITES)):
                await self.runner.drain()
        await self.runner.abandon()

    async def retire(self) -> None:
        """Give back what is still leased, and release the worker's lock.

        The queues of abandoned calls stay leased, without renewal, and their worker's lock is held
        until these calls end. The dispatcher then continues under another name.
        """
        self.runner.retire()
        self.caller.close()
        # A transaction that still runs may lease a queue.
        await self._database.drain(_LAST_WRITES)
        before = set[asyncio.Task[None]]().union(*self._abandoned.values())
        abandoned = {
            task: queue_id for task, queue_id in self.caller.abandoned.items() if task not in before
        }
        try:
            # If this fails, the notifications return when their leases end.
            with contextlib.suppress(StorageError, TimeoutError):
                async with asyncio.timeout(_LONGEST_RETIRING):
                    await self._database.write(self._give_back(set(abandoned.values())))
        finally:
            self._abandoned[self.name] = set(abandoned)
            if abandoned:
                del self.name  # the next `retire` must not give them back either
            self._release_locks()
            self.runner = self._new_runner()

    def _give_back(self, abandoned: set[str]) -> Script[None]:
        now = yield from self._database.now()
        yield from give_back(INBOX, self.name, to_micros(now), but=abandoned)
        yield from self._database.wake()

    def _give_permit_up(self, task: asyncio.Task[None]) -> None:
        self.runner.give_permit_up(task)  # the current one

    def _release_locks(self) -> None:
        """Release the locks of former names whose abandoned calls have all ended."""
        for name, tasks in list(self._abandoned.items()):
            if not any(task in self.caller.abandoned for task in tasks):
                del self._abandoned[name]
                if self._database.locks is not None:
                    self._database.locks.release(name)

    # --- `QueueWorker` -----------------------------------------------------------------------

    def _jobs_of(self, claimed: Sequence[Claimed]) -> Script[dict[int, NotificationJob]]:
        return jobs_of([(each.queue, each.jobs) for each in claimed])

    def _lose(self, lost: Sequence[tuple[PendingJob, str, int]], now: int) -> Script[None]:
        """Note that processes ended with notifications, which may be what they died of.

        After one death, all that the process had is called back again at once. After more, each
        waits for a while: they then run apart, so that the next death singles out the cause. The
        policy says when to give up (`_kills`).
        """
        moment = from_micros(now)
        for job, error, deaths in lost:
            due = to_micros(moment + after_faults(deaths)) if deaths else None
            yield from note_death(job.id, error, due, now=now)

    def _look(self, ids: Sequence[str]) -> Script[dict[str, Seen]]:
        queues = yield from INBOX.read(ids)
        return {name: Seen(each.epoch, bool(each.paused)) for name, each in queues.items()}

    def _settle_together(self, ask: Ask, settled: Callable[[Any], None]) -> None:
        item = GroupItem(self._settling, ask, is_first=True)
        self._database.write_together(together, item, settled)

    def _tell(self, settled: Settled) -> None:
        for job in settled.dead:
            error = (job.result and job.result.error) or ""
            report_dead(job.notification, error, events=self._events, clock=self._clock)

    # --- calling -------------------------------------------------------------------------------

    async def attempt(self, job: NotificationJob) -> Consequence:
        """Call a notification's callbacks, one after another."""
        began = seconds()
        try:
            result = await self._call_back(job)
        except StorageError as exc:  # before a call: those that were made are recorded by then
            _log.warning("notification %d: not called back: %s", job.notification.id, exc)
            result = Attempted(CallbackOutcome.LOST)
        self._ended_at = seconds()
        self._took += (self._ended_at - began - self._took) / 8
        job.result = result
        return _ANSWERS[result.outcome]

    async def _call_back(self, job: NotificationJob) -> Attempted:
        try:
            if job.size > LARGE_BODY and not isinstance(job.notification, Notification):
                await turn_to_decode(self._decoding)
            notification = job.notification.decode()
        except InboundError as exc:
            # Another version accepted it: it must not delay the rest of its task.
            return Attempted(CallbackOutcome.DEAD, error=f"unreadable: {exc.code}")
        matching = self.registry.wanting(notification)
        if not matching:
            await self._unmatched.note_unwanted(notification)
            return Attempted(CallbackOutcome.UNMATCHED)
        self._unmatched.note_wanted(notification)
        wanting = [callback for callback in matching if not job.had_by(callback.name)]
        if wanting and job.broken_off and (await self._kills(job)):
            names = ", ".join(callback.name for callback in wanting)
            error = f"the process ended {job.attempts} times in the middle of: {names}"
            return Attempted(CallbackOutcome.DEAD, error=error)
        # After that check, for the process may also die in the preparation.
        if wanting and self._prepare is not None:
            notification = await self._prepare(notification)
        return await self._call_all(wanting, job, notification)

    async def _call_all(
        self, wanting: Sequence[Callback], job: NotificationJob, notification: Notification
    ) -> Attempted:
        """Call one callback after another.

        The outcome of a call is recorded before the next call: a process that was suspended beyond
        its lease learns of it there. The outcome of the last call is recorded when the notification
        is settled.
        """
        call: Call | None = None  # that is not recorded yet
        error: str | None = None
        pause: timedelta | None = None
        is_ours = True
        for callback in wanting:
            if call is not None:
                is_ours = await self._record(job, call)
                call = None
            state = job.callbacks.get(callback.name)
            hung_before = state is not None and state.last_error == TIMED_OUT
            slot = self.caller.slot_of(
                callback, alone=self.registry.has_one, hung_before=hung_before
            )
            try:
                if not slot.take_now():
                    await slot.take()
                # Another process has it, or may: this one may have been suspended in any wait.
                if not is_ours or not await self._is_leased(job):
                    slot.release()
                    return Attempted(CallbackOutcome.LOST)
                call = await self._call(callback, job, notification, slot)
            except CrowdedError as exc:  # one callback must not delay the others
                pause = max(pause or exc.pause, exc.pause)
                continue
            error = f"{call.callback}: {call.error}" if call.error else error
        if error is not None:
            return Attempted(CallbackOutcome.FAILED, call, error)
        if pause is not None:
            return Attempted(CallbackOutcome.PUT_OFF, call, pause=pause.total_seconds())
        return Attempted(CallbackOutcome.DONE, call)

    async def _call(
        self,
        callback: Callback,
        job: NotificationJob,
        notification: Notification,
        slot: Slot,
    ) -> Call:
        task = asyncio.current_task()
        assert task is not None  # noqa: S101  # the runner's
        begun = time.perf_counter()
        calling = self.caller.call(callback, job.queue_id, notification, slot, task)
        if self._tracing is None:
            call = await calling
        else:
            with self._tracing.calling(
                notification.traceparent,
                callback=callback.name,
                sender=notification.sender,
                task=notification.task_id,
                delivery_id=notification.delivery_id,
            ) as span:
                call = await calling
                if call.error is not None:
                    span.fail(call.error)
        self._emit_called_back(call, notification, begun)
        return call

    async def _kills(self, job: NotificationJob) -> bool:
        """Return whether so many processes ended with a notification that it is given up."""
        now = await self._database.read(self._database.now())
        return gives_up(self._retry, attempts=job.attempts, since=job.since, now=now)

    async def _is_leased(self, job: NotificationJob) -> bool:
        """Return whether this process certainly leases a notification's queue; ask if need be."""
        if self._is_sure(job):
            return True
        await self.runner.renew()
        if self._is_sure(job):
            return True
        text = "notification %d: its lease may have ended; not called back"
        _log.warning(text, job.notification.id)
        return False

    def _is_sure(self, job: NotificationJob) -> bool:
        queue = self.runner.memory.queues.get(job.queue_id)
        return queue is not None and queue.epoch == job.epoch and seconds() < queue.until

    async def _record(self, job: NotificationJob, call: Call) -> bool:
        """Record a call before the next one; return whether this lease still holds.

        If that fails it is tried again: the call would otherwise be made again. If the process ends
        meanwhile, one more second is given to it.
        """

        def write() -> Awaitable[bool]:
            return self._database.write(self._recording(job, call))

        while True:
            try:
                return await persist(write, through=StorageError, within=_SURE_FOR)
            except StorageError as exc:
                _log.warning("callbacks: a call cannot be recorded; trying again: %s", exc)
            except asyncio.CancelledError:
                with contextlib.suppress(StorageError, TimeoutError):
                    async with asyncio.timeout(_LAST_WRITES):
                        await write()
                raise

    def _recording(self, job: NotificationJob, call: Call) -> Script[bool]:
        now = yield from self._database.now()
        held, _ = yield from INBOX.renew({job.queue_id: job.epoch}, self.lease_until(now))
        record = record_calls if job.queue_id in held else record_late_calls
        yield from record([call], now=now)
        return job.queue_id in held

    # --- what is said of it ------------------------------------------------------------------

    def _emit_called_back(self, call: Call, notification: Notification, begun: float) -> None:
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
