"""The dispatcher: hands notifications to callbacks, per task in order.

Every callback has its own state: one that fails is called again, the others are not. A notification
whose callback keeps failing becomes a dead letter; until then it holds up its own task alone.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
import time
from collections import Counter
from collections.abc import Awaitable, Callable, Collection, Iterable, Sequence
from datetime import datetime, timedelta
from typing import TYPE_CHECKING

from pushkit.a2a import UpdateKind
from pushkit.clock import utc_now
from pushkit.errors import InboundError, StorageError
from pushkit.events.listeners import Listeners
from pushkit.events.receiver import CalledBack, NotificationDead
from pushkit.scheduling import stop_after_attempt
from pushkit.scheduling.pump import Pump
from pushkit.scheduling.retry import RetryPolicy, next_attempt, wait_schedule
from pushkit.storage.database import Database
from pushkit.storage.script import Script
from pushkit.traceparent import trace_id_of
from receiver.callbacks.calls import TIMED_OUT, Call, Caller, logged_of, within_trace
from receiver.callbacks.leases import Leases
from receiver.callbacks.registry import Callback, CallbackRegistry
from receiver.callbacks.settling import Ended, Settler
from receiver.callbacks.turns import CrowdedError, Turns
from receiver.inbox.model import ClaimedNotification, InboxStatus, Lease, Notification
from receiver.inbox.store import Inbox, task_lock

if TYPE_CHECKING:
    from pushkit.telemetry.tracing import Tracing

_log = logging.getLogger("receiver")

POLL_INTERVAL = timedelta(seconds=1)
CALLBACK_TIMEOUT = timedelta(minutes=5)
# Seconds after an outage in which leases that ended are left to their holders, who renew them.
_SPARED_FOR = 5.0
_LAST_WORDS = 1.0  # seconds in which the last ends are written down
_LONGEST_RETIRING = 5.0  # seconds in which what is left is given back
_MOST_KEPT = 1024
_LARGEST_KEPT = 16 * 1024  # bytes


def callback_retry() -> RetryPolicy:
    """Return the default policy for a failing callback: ten times over about two hours."""
    return RetryPolicy(
        wait=wait_schedule((1, 5, 15, 60, 300, 600, 1200, 1800, 3600)), stop=stop_after_attempt(10)
    )


class Dispatcher:
    """Runs callbacks from the inbox."""

    def __init__(
        self,
        database: Database,  # where the inbox lives; its clock is the one that counts
        registry: CallbackRegistry,
        *,
        retry: RetryPolicy,  # when a failed callback is called again
        concurrency: int,  # how many tasks' notifications at once
        # How long a callback may take, where it does not say itself; None for any time.
        timeout: timedelta | None = CALLBACK_TIMEOUT,
        # Adds what is known besides to a notification, before callbacks get it.
        prepare: Callable[[Notification], Awaitable[Notification]] | None = None,
        # Returns how many senders are trusted: of several, none has all places.
        senders: Callable[[], int] = lambda: 1,
        # How long to wait at most before looking for what other processes accepted, or left behind.
        poll_interval: timedelta | None = None,
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
        self._caller = Caller(
            slots=concurrency, timeout=timeout, let_go=self._let_go, left_over=self._left_over
        )
        # By the name that was given up with it, what has not ended yet.
        self._left: dict[str, set[asyncio.Task[None]]] = {}
        self._turns = Turns(concurrency, senders)
        self._kept: dict[int, Notification] = {}
        self._is_finished = False
        self._claimed_at: datetime | None = None
        self._spares_until = 0.0
        self._unmatched_kinds: set[UpdateKind] = set()
        self._is_running = False
        self._leases = Leases(database)
        self._number_of_slots = concurrency
        self.pump: Pump[ClaimedNotification] = Pump(
            "callbacks",
            claim=self._claim,
            process=self._dispatch,
            until_due=self._until_due,
            slots=self._turns,
            longest_pause=poll_interval or POLL_INTERVAL,
            ended=lambda claimed: self._turns.end(claimed.stored.sender),
        )
        self._settler = Settler(
            database,
            self._turns,
            self._leases,
            begin=self.begin,
            look=self.pump.wake,
            away=self.pump.keep_trying,
            fault=self.pump.leave_to_lease,
        )
        # As `Hands` has it.
        self.lease: Callable[[datetime, float], Lease] = self._leases.lease
        self.reserve: Callable[[Iterable[str]], list[bool]] = self._turns.reserve
        self.cancel: Callable[[Iterable[str]], None] = self._turns.cancel
        self.settle: Callable[[], None] = self._settler.settle

    @property
    def name(self) -> str:
        """Its name: see `Leases.worker`."""
        return self._leases.worker

    async def run(self) -> None:
        """Call back until cancelled: what is claimed, and what is handed over as it is stored."""
        self._is_finished = self._caller.is_ending = False
        self._turns.let_wait()  # who is there already comes first
        self._is_running = True
        try:
            await self.pump.run()
        finally:
            self._is_running = self._turns.is_open = False

    def begin(self, claimed: ClaimedNotification) -> None:
        """Call back what was stored in hand; after the end, `retire` gives it back."""
        if self._is_finished:
            self._turns.cancel([claimed.stored.sender])
        else:
            self.pump.begin(claimed)

    def keep(self, notification: Notification) -> None:
        """Keep what was stored and has to wait, so that it need not be decoded again."""
        if len(notification.body) <= _LARGEST_KEPT:
            if len(self._kept) >= _MOST_KEPT:  # the oldest, if they were called back elsewhere
                del self._kept[next(iter(self._kept))]
            self._kept[notification.id] = notification

    def wake(self) -> None:
        """Look for what was stored a moment ago, and waits to be claimed."""
        self.pump.wake()

    def let_wait(self) -> None:
        """Look for what waits to be claimed."""
        self._turns.let_wait()
        self.pump.wake()

    async def run_once(self) -> int:
        """Hand out every notification that is due now; return how many there were."""
        begun = await self.pump.run_once()
        await self._settler.drain()
        return begun

    def slots(self) -> tuple[int, int]:
        """Return how many places are in use, and how many there are."""
        return self._number_of_slots - self._turns.free_places, self._number_of_slots

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
        loop = asyncio.get_running_loop()
        ends_at = loop.time() + within.total_seconds()
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(within.total_seconds()):
                await self.pump.drain()
        self._is_finished = True
        await self._caller.break_off()
        await self.pump.abandon()
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout_at(max(ends_at, loop.time() + _LAST_WORDS)):
                await self._settler.drain()
        self._settler.abandon()
        await self._leases.close()
        self._caller.close()

    async def retire(self) -> None:
        """Give back what was broken off, and say that nothing is in work here any more.

        What is still inside of a callback stays under its lease, which nobody renews, and under the
        name that was given up with it.
        """
        before = set[asyncio.Task[None]]().union(*self._left.values())
        left = {each: of for each, of in self._caller.left.items() if each not in before}
        try:
            # Or else it comes back with its lease.
            with contextlib.suppress(StorageError, TimeoutError):
                async with asyncio.timeout(_LONGEST_RETIRING):
                    await self._database.write(self._give_back_script(left.values()))
        finally:
            self._left[self.name] = left.keys() & self._caller.left.keys()
            if left:
                self._leases.rename()  # the next end must not give it back either
            self._release_names()

    def _left_over(self, task: asyncio.Task[None]) -> None:
        """Hear that what was left inside of a callback has ended."""
        for tasks in self._left.values():
            tasks.discard(task)
        self._release_names()

    def _release_names(self) -> None:
        """Let go of names that were given up, with which nothing is in work any more."""
        for name in [name for name, tasks in self._left.items() if not tasks]:
            del self._left[name]
            if self._database.locks is not None:
                self._database.locks.release(name)

    # --- taking --------------------------------------------------------------------------------

    async def _claim(self) -> Sequence[ClaimedNotification]:
        self._say_alive()
        # Only now: what takes a place is taken over where nobody sees that this process is alive.
        self._turns.is_open = self._is_running
        claimed: list[ClaimedNotification] = []
        try:
            await self._database.write(self._claim_script(claimed))
        except BaseException as exc:
            self._turns.cancel(each.stored.sender for each in claimed)
            if isinstance(exc, StorageError):
                self._spares_until = time.perf_counter() + _SPARED_FOR
            raise
        return claimed

    def _say_alive(self) -> None:
        if self._database.locks is not None:
            self._database.locks.hold(self.name)

    def _claim_script(self, claimed: list[ClaimedNotification]) -> Script[None]:
        """Claim what is due: what stands in `claimed` in the end is in hand."""
        free = self._turns.take_for_claim()
        try:
            yield from self._take_over()
            taken = time.perf_counter()
            now = yield from self._database.now()
            if self._claimed_at is None or now < self._claimed_at:
                yield from self._inbox.after_setback(now)
            self._claimed_at = now
            found = yield from self._inbox.claim(
                self.name,
                limit=free,
                now=now,
                until=self._leases.lease(now, taken).until,
                held=self._leases.held,
                spare_others=taken < self._spares_until,
                divide=self._turns.divide,
                taken=taken,
            )
            self._turns.begin(each.stored.sender for each in found)
            claimed += found
        finally:
            self._turns.give_back(free - len(claimed))

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

    async def _until_due(self) -> timedelta | None:
        return await self._database.read(self._until_due_script())

    def _until_due_script(self) -> Script[timedelta | None]:
        now = yield from self._database.now()
        due = yield from self._inbox.next_due(but=self._turns.full())
        return None if due is None else due - now

    # --- calling -------------------------------------------------------------------------------

    async def _dispatch(self, claimed: ClaimedNotification) -> None:
        """Work on a notification in one of the places, until it is written down or has ended.

        The place may be given up before that, because a call hangs.
        """
        sender, task = claimed.stored.sender, asyncio.current_task()
        outside = self._caller.outside
        self._leases.hold(claimed)
        ended: Ended | None = None
        try:
            await self._turns.enter(sender)
            begun = time.perf_counter()
            try:
                ended = await self._call_back(claimed)
            finally:
                if task not in outside:
                    self._turns.leave(sender, time.perf_counter() - begun)
        finally:
            if ended is None:
                self._leases.let_go(claimed)
            if ended is None or task in outside:
                outside.discard(task)
                self.let_wait()  # it may be due again soon, or the next of its task now

    def _let_go(self, task: asyncio.Task[None], sender: str) -> None:
        """Free the slot of what a call hangs in."""
        self._turns.leave(sender)
        self.pump.let_go(task)

    async def _call_back(self, claimed: ClaimedNotification) -> Ended | None:
        """Call one callback after another; return what every callback has had.

        How a call ended is written down before the next one: whoever slept through its lease finds
        that out there. How the last one ended is written down with what comes next, where all went
        well, and by itself where not.
        """
        stored = claimed.stored
        if not self._leases.is_sure(claimed):
            _log.warning("notification %d: taken too long ago; left to its lease", stored.id)
            return None
        try:
            notification = self._kept.pop(stored.id, None) or stored.decode()
        except InboundError as exc:
            # Accepted by other code than this: it must not stand in the way of the rest.
            await self._fail(claimed, f"unreadable: {exc.code}", is_final=True)
            return None
        matching = self.registry.wanting(notification)
        if not matching:
            self._say_unmatched(notification)
        wanting = [callback for callback in matching if not claimed.had_by(callback.name)]
        if wanting and claimed.broken_off and await self._is_held_back(claimed, wanting):
            return None
        # After that: what ends in the preparation has to come to an end, too.
        if wanting and self._prepare is not None:
            notification = await self._prepare(notification)
        call: Call | None = None  # that is not written down yet
        error: str | None = None
        pause: timedelta | None = None
        for callback in wanting:
            if call is not None:
                is_ours = await self._write(lambda call=call: self._go_on_script(claimed, call))  # type: ignore[misc]
                if not is_ours:
                    return None  # somebody else has it, and calls the rest
                call = None
            state = claimed.callbacks.get(callback.name)
            try:
                place = await self._caller.take_place(
                    callback,
                    alone=self.registry.has_one,
                    hung_before=state is not None and state.last_error == TIMED_OUT,
                )
            except CrowdedError as exc:  # what holds one up must not hold up the others
                pause = max(pause or exc.pause, exc.pause)
                continue
            begun, calling = time.perf_counter(), self._caller.call(callback, notification, place)
            call = await (
                calling
                if self._tracing is None
                else _within(self._tracing, calling, callback, notification)
            )
            self._tell_of(call, notification, begun)
            error = f"{call.callback}: {call.error}" if call.error else error
        if error is not None:
            await self._fail(claimed, error, call)
        elif pause is not None:
            await self._write(lambda: self._put_off_script(claimed, call, pause))
        else:
            ended = Ended(claimed, call, is_unmatched=not matching)
            # Where somebody may wait for a claim, what follows must not wait for what is accepted.
            at_once = bool(self._kept) or not isinstance(stored, Notification)
            self._settler.end(ended, at_once=at_once)
            return ended
        return None

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

    async def _is_held_back(
        self, claimed: ClaimedNotification, wanting: Sequence[Callback]
    ) -> bool:
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
            names = ", ".join(callback.name for callback in wanting)
            error = f"the process ended {deaths} times in the middle of: {names}"
            await self._fail(claimed, error, is_final=True)
            return True
        if deaths == 1:
            return False
        await self._database.write(self._inbox.put_off(claimed, self.name, again_at))
        return True

    def _tell_of(self, call: Call, notification: Notification, begun: float) -> None:
        """Tell who listens how a call ended, and how long it took."""
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

    # --- what did not end well -----------------------------------------------------------------

    async def _fail(
        self,
        claimed: ClaimedNotification,
        error: str,
        call: Call | None = None,
        *,
        is_final: bool = False,  # given up, whatever its attempts are
    ) -> None:
        """Write down that a notification failed: it comes again, or is a dead letter."""
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
        """Write down what a callback had, which it has again unless that gets written down.

        Whoever is broken off in here, because the process ends, has a moment left for it.
        """
        try:
            return await self._settler.persist(lambda: self._database.write(script()))
        except asyncio.CancelledError:
            with contextlib.suppress(StorageError, TimeoutError):
                async with asyncio.timeout(_LAST_WORDS):
                    await self._database.write(script())
            raise

    def _go_on_script(self, claimed: ClaimedNotification, call: Call) -> Script[bool]:
        """Write down how a call ended; return whether this attempt may make the next one."""
        now = yield from self._database.now()
        yield from self._record_script(claimed, call, now)
        until = self._leases.lease(now, claimed.leased_at).until
        return (yield from self._inbox.keep_claim(claimed, self.name, until))

    def _put_off_script(
        self, claimed: ClaimedNotification, call: Call | None, pause: timedelta
    ) -> Script[bool]:
        """Hand a notification out later, to callbacks that were passed over."""
        now = yield from self._at_work_on(claimed)
        yield from self._record_script(claimed, call, now)
        yield from self._inbox.put_off(claimed, self.name, now + pause)
        return True

    def _fail_script(
        self, claimed: ClaimedNotification, error: str, call: Call | None, is_final: bool
    ) -> Script[bool]:
        """Write down a failure; return whether the notification is a dead letter now."""
        now = yield from self._at_work_on(claimed)
        yield from self._record_script(claimed, call, now)
        retry_at: datetime | None = None
        if not is_final:
            retry_at = next_attempt(
                self._retry, attempts=claimed.attempts, since=claimed.since, now=now
            )
        status = InboxStatus.DEAD if retry_at is None else InboxStatus.RECEIVED
        settled = yield from self._inbox.settle(
            claimed, self.name, status, now=now, retry_at=retry_at, error=error
        )
        return settled and status is InboxStatus.DEAD

    def _at_work_on(self, claimed: ClaimedNotification) -> Script[datetime]:
        """Hold a notification's task, and return the present."""
        if claimed.stored.task_id is not None:
            yield from self._database.exclusively(
                task_lock(claimed.stored.sender, claimed.stored.task_id)
            )
        return (yield from self._database.now())

    def _record_script(
        self, claimed: ClaimedNotification, call: Call | None, now: datetime
    ) -> Script[None]:
        if call is not None:
            calls = [(claimed.stored.id, call.callback, call.error)]
            yield from self._inbox.record_calls(calls, now=now)


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
