"""The dispatcher: hands notifications to callbacks, per task in order.

Every callback has its own state: one that fails is called again, the others are not. A notification
whose callback keeps failing becomes a dead letter; until then it holds up its own task alone.
"""

from __future__ import annotations

import asyncio
import contextlib
import functools
import logging
import secrets
import time
from collections import Counter, deque
from collections.abc import Awaitable, Callable, Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from datetime import datetime, timedelta
from typing import TYPE_CHECKING, TypeAlias, TypeVar

from pushkit.a2a import UpdateKind
from pushkit.clock import utc_now
from pushkit.errors import InboundError, StorageError
from pushkit.events.listeners import Listeners
from pushkit.events.receiver import CalledBack, NotificationDead
from pushkit.storage.database import Database
from pushkit.storage.script import APART, Apart, Script
from pushkit.traceparent import trace_id_of
from pushkit.work import stop_after_attempt
from pushkit.work.pump import Pump, cancelled
from pushkit.work.retry import RetryPolicy, next_attempt, persist, wait_schedule
from receiver.callbacks.calls import TIMED_OUT, Call, Caller, logged_of, within_trace
from receiver.callbacks.registry import Callback, CallbackRegistry
from receiver.callbacks.turns import CrowdedError, Place, Turns
from receiver.inbox.model import ClaimedNotification, InboxStatus, Lease, Notification
from receiver.inbox.store import Inbox, task_lock

if TYPE_CHECKING:
    from pushkit.telemetry.tracing import Tracing

T = TypeVar("T")
# What follows each of a batch: the next of its task, if that is in hand now.
_Followed: TypeAlias = Sequence[ClaimedNotification | Apart | None]

_log = logging.getLogger("receiver")

_LEASE = timedelta(seconds=60)
POLL_INTERVAL = timedelta(seconds=1)
CALLBACK_TIMEOUT = timedelta(minutes=5)
# How long an end waits to be written down together with what is accepted next.
_PATIENCE = 0.002  # seconds
_LAST_WORDS = 1.0  # seconds in which the last ends are written down
_MOST_KEPT = 1024
_LARGEST_KEPT = 16 * 1024  # bytes


def callback_retry() -> RetryPolicy:
    """Return the default policy for a failing callback: ten times over about two hours."""
    return RetryPolicy(
        wait=wait_schedule((1, 5, 15, 60, 300, 600, 1200, 1800, 3600)), stop=stop_after_attempt(10)
    )


@dataclass(slots=True)
class _Round:
    """What came of calling back once."""

    unwritten: list[Call] = field(default_factory=list)  # calls that are not written down yet
    error: str | None = None  # the last failure
    pause: timedelta | None = None  # when to come back for a callback that was passed over
    unmatched: bool = False  # no callback wants it
    lost: bool = False  # it is in somebody else's hands


@dataclass(slots=True, eq=False)
class _Settling:
    """What every callback has had, until that is written down.

    Attributes:
        claimed: The notification.
        unwritten: The calls that are not written down yet.
        has_next: Whether the next of its task was taken into hand.
    """

    claimed: ClaimedNotification
    unwritten: Sequence[Call]
    has_next: bool = False


@dataclass(slots=True, eq=False)
class _Batch:
    """What is written down together: all that is there when its transaction begins."""

    settling: list[_Settling] = field(default_factory=list)


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
        self._caller = Caller(slots=concurrency, timeout=timeout, let_go=self._let_go)
        self._turns = Turns(concurrency, senders)
        self._held: dict[int, float] = {}  # ids, and when they were surely ours
        # What ends in the event loop is taken from here in whatever thread a transaction runs.
        self._unsettled: deque[_Settling] = deque()
        self._waiting: _Batch | None = None  # for its transaction, which takes what is unsettled
        self._settling: set[asyncio.Future[_Followed]] = set()
        self._kept: dict[int, Notification] = {}
        self._heart: asyncio.Task[None] | None = None
        self._is_finished = False
        self._unmatched_kinds: set[UpdateKind] = set()
        self.name: str = f"dispatcher_{secrets.token_hex(8)}"
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

    async def run(self) -> None:
        """Call back until cancelled: what is claimed, and what is handed over as it is stored."""
        self._is_finished = self._caller.is_ending = False
        self._say_alive()
        self._turns.let_wait()  # who is there already comes first
        self._turns.is_open = True
        try:
            await self.pump.run()
        finally:
            self._turns.is_open = False

    def lease(self, now: datetime, taken: float) -> Lease:
        """Return the lease of what is in hand."""
        return Lease(worker=self.name, until=now + _LEASE, taken=taken)

    def reserve(self, senders: Iterable[str]) -> list[bool]:
        """Take notifications into hand that are being stored; False if one waits for a claim."""
        return self._turns.reserve(senders)

    def cancel(self, senders: Iterable[str]) -> None:
        """Let go of what was not stored after all."""
        self._turns.cancel(senders)

    def begin(self, claimed: ClaimedNotification) -> None:
        """Call back what was stored in hand; after the end, `retire` gives it back."""
        if not self._is_finished:
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
        await self._until_settled()
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
                await self._until_settled()
        for settling in list(self._settling):
            settling.cancel()
        if self._heart is not None:
            await cancelled(self._heart)
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
        self._say_alive()
        claimed: list[ClaimedNotification] = []
        try:
            await self._database.write(self._claim_script(claimed))
        except BaseException:
            self._turns.cancel(each.stored.sender for each in claimed)
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
            found = yield from self._inbox.claim(
                self.name,
                limit=free,
                now=now,
                until=now + _LEASE,
                held=tuple(self._held),
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

    # --- calling -------------------------------------------------------------------------------

    async def _dispatch(self, claimed: ClaimedNotification) -> None:
        """Work on a notification, until it is settled or every callback has had it.

        The slot may be given up before the end, because a call hangs.
        """
        sender, task = claimed.stored.sender, asyncio.current_task()
        outside = self._caller.outside
        self._hold(claimed)
        is_done = False
        try:
            if not self._turns.enter_now(sender):
                await self._turns.enter(sender)
            begun = time.perf_counter()
            try:
                is_done = await self._work_on(claimed)
            finally:
                if task not in outside:
                    self._turns.leave(sender, time.perf_counter() - begun)
        finally:
            if not is_done:
                self._held.pop(claimed.stored.id, None)
            if task in outside:
                outside.discard(task)
                self.let_wait()  # the next of its task may be due

    def _let_go(self, task: asyncio.Task[None], sender: str) -> None:
        """Free the slot of what a call hangs in."""
        self._turns.leave(sender)
        self.pump.let_go(task)

    async def _work_on(self, claimed: ClaimedNotification) -> bool:
        """Call back; return whether every callback has had it, and its end is to be written."""
        if time.perf_counter() - self._held[claimed.stored.id] > _LEASE.total_seconds() / 2:
            # This process stood still: somebody else may have it by now, and nobody has if not.
            _log.warning(
                "notification %d: taken too long ago; left to its lease", claimed.stored.id
            )
            return False
        try:
            kept = self._kept.pop(claimed.stored.id, None)
            notification = kept or claimed.stored.decode()
        except InboundError as exc:
            # Accepted by other code than this: it must not stand in the way of the rest.
            await self._bury(claimed, f"unreadable: {exc.code}")
            return False
        matching = self.registry.wanting(notification)
        if not matching:
            self._say_unmatched(notification)
            await self._settle(claimed, _Round(unmatched=True))
            return False
        wanting = matching
        if claimed.callbacks:
            wanting = [callback for callback in matching if not claimed.had_by(callback.name)]
        if wanting and claimed.broken_off:
            names = ", ".join(callback.name for callback in wanting)
            if await self._is_held_back(claimed, names):
                return False
        # After that: what ends in the preparation has to come to an end, too.
        if wanting and self._prepare is not None:
            notification = await self._prepare(notification)
        done = await self._call_all(wanting, notification, claimed)
        if done.error is None and done.pause is None and not done.lost:
            self._settle_soon(_Settling(claimed, done.unwritten))
            return True
        await self._settle(claimed, done)
        return False

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
    ) -> _Round:
        """Call one after another, and write down at once how each ended but the last.

        Whoever slept through its lease finds that out before it calls the next. One whose share of
        the slots is taken up is passed over for now: what holds it up must not hold up the others.
        """
        done = _Round()
        for callback in callbacks:
            for call in done.unwritten:
                is_ours = await self._write_down(
                    lambda call=call: self._go_on_script(claimed, call)  # type: ignore[misc]
                )
                if not is_ours:
                    return _Round(lost=True)  # somebody else has it, and calls the rest
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
            if self._tracing is None:
                call = await self._caller.call(callback, notification, place)
            else:
                call = await self._call_within_trace(self._tracing, callback, notification, place)
            if self._events.wants(CalledBack.usual_level):
                self._tell_called(claimed, call, time.perf_counter() - begun)
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

    def settle(self) -> None:
        """Write down what is done: in one transaction with what is asked for next."""
        if self._unsettled and self._waiting is None:
            self._waiting = _Batch()
            self._settle_now(self._waiting)

    def _settle_soon(self, settling: _Settling) -> None:
        """Write down that a notification is done; its place is free meanwhile.

        Where nobody is known to wait for that, it goes with the next that is accepted.
        """
        self._turns.unsettled += 1
        self._unsettled.append(settling)
        if self._kept or not isinstance(settling.claimed.stored, Notification):
            self.settle()
        elif self._waiting is None and len(self._unsettled) == 1:
            asyncio.get_running_loop().call_later(_PATIENCE, self.settle)

    def _settle_now(self, batch: _Batch) -> None:
        self._hear_of(batch, self._database.write_together(self._settle_done, batch))

    def _hear_of(self, batch: _Batch, written: asyncio.Future[_Followed]) -> None:
        self._settling.add(written)
        written.add_done_callback(functools.partial(self._settled, batch))

    def _settled(self, batch: _Batch, written: asyncio.Future[_Followed]) -> None:
        """Begin with the next of each task, if that is in hand now."""
        self._settling.discard(written)
        error = asyncio.CancelledError() if written.cancelled() else written.exception()
        if isinstance(error, StorageError) and len(batch.settling) > 1:
            for each in batch.settling:  # one must not stand in the way of the others
                self._settle_now(_Batch([each]))
            return
        if isinstance(error, StorageError) and not isinstance(written, asyncio.Task):
            self._hear_of(batch, asyncio.create_task(self._settle_patiently(batch)))
            return
        if isinstance(error, Exception):
            self.pump.leave_to_lease(error)
        if self._waiting is batch:  # its transaction never began
            self._waiting = None
        results = written.result() if error is None else [None] * len(batch.settling)
        for each, following in zip(batch.settling, results, strict=True):
            if following is APART:
                self._settle_now(_Batch([each]))
                continue
            self._held.pop(each.claimed.stored.id, None)
            self._turns.unsettled -= 1
            if error is not None:
                self._let_next_go(each)
            elif isinstance(following, ClaimedNotification):
                self.begin(following)
        if error is not None and not self._is_finished:
            self.settle()
        if self._turns.some_wait:
            self.pump.wake()

    def _let_next_go(self, settling: _Settling) -> None:
        if settling.has_next:
            settling.has_next = False
            self._turns.cancel([settling.claimed.stored.sender])

    async def _settle_patiently(self, batch: _Batch) -> _Followed:
        return await persist(
            lambda: self._database.write_together(self._settle_done, batch),
            through=StorageError,
            within=_LEASE / 2,
        )

    async def _until_settled(self) -> None:
        while self._unsettled or self._settling:
            self.settle()
            await asyncio.wait(self._settling)

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

    async def _call_within_trace(
        self, tracing: Tracing, callback: Callback, notification: Notification, place: Place
    ) -> Call:
        with tracing.calling(
            notification.traceparent,
            callback=callback.name,
            sender=notification.sender,
            task=notification.task_id,
            delivery_id=notification.delivery_id,
        ) as span:
            call = await self._caller.call(callback, notification, place)
            if call.error is not None:
                span.fail(call.error)
            return call

    def _tell_called(self, claimed: ClaimedNotification, call: Call, took: float) -> None:
        stored = claimed.stored
        self._events.tell(
            CalledBack(
                at=self._clock(),
                sender=stored.sender,
                task_id=stored.task_id,
                delivery_id=stored.delivery_id,
                trace_id=trace_id_of(stored.traceparent),
                notification_id=stored.id,
                callback=call.callback,
                error=call.error,
                took=timedelta(seconds=took),
            )
        )

    def _tell_dead(self, claimed: ClaimedNotification, error: str | None) -> None:
        stored = claimed.stored
        _log.error(
            "notification %d is a dead letter: %s%s",
            stored.id,
            error,
            within_trace(stored),
            extra={"code": NotificationDead.kind.value, **logged_of(stored)},
        )
        if self._events.wants(NotificationDead.usual_level):
            self._events.tell(
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

    def _settle_done(
        self, batches: Sequence[_Batch], /, *, wait: bool
    ) -> Script[list[_Followed | Apart]]:
        """Write down what is done; take the next of each task into hand, where it may be.

        Of a batch in which some are held by somebody else, those are left apart.
        """
        if self._waiting in batches:
            waiting, self._waiting = self._waiting, None  # what ends from now on is of the next one
            while waiting is not None and self._unsettled:
                waiting.settling.append(self._unsettled.popleft())
        settling = [each for batch in batches for each in batch.settling]
        for each in settling:
            self._let_next_go(each)  # an attempt before this one may have failed in its commit
        tasks = {each: _task_of(each.claimed) for each in settling}
        names = {each: task_lock(*task) for each, task in tasks.items() if task is not None}
        taken = time.perf_counter()
        held, now = yield from self._database.hold(sorted(set(names.values())), wait=wait)
        ours = [each for each in settling if each not in names or names[each] in held]
        yield from self._inbox.record_calls(
            [
                (each.claimed.stored.id, call.callback, call.error)
                for each in ours
                for call in each.unwritten
            ],
            now=now,
        )
        settled = yield from self._inbox.settle_done(
            [each.claimed for each in ours], self.name, now=now
        )
        lines = {
            task: each
            for each in ours
            if each.claimed.stored.id in settled and (task := tasks[each]) is not None
        }
        following = yield from self._next_of(lines, now, taken)
        came_to = {each: following.get(each) for each in ours}
        results = [[came_to.get(each, APART) for each in batch.settling] for batch in batches]
        return [APART if each == [APART] else each for each in results]

    def _next_of(
        self, lines: Mapping[tuple[str, str], _Settling], now: datetime, begun: float
    ) -> Script[dict[_Settling, ClaimedNotification]]:
        """Take the next of tasks into hand, or offer them to claims."""
        ids = yield from self._inbox.oldest_unfinished(sorted(lines))
        if not ids:
            return {}
        following = {each: lines[task] for each, task in ids.items()}
        senders = [each.claimed.stored.sender for each in following.values()]
        for each, may in zip(following.values(), self._turns.reserve(senders), strict=True):
            each.has_next = may
        placed = [found for found, each in following.items() if each.has_next]
        followed = yield from self._inbox.follow(placed, self.lease(now, begun), now=now)
        found = {following.pop(each.stored.id): each for each in followed}
        if following:
            for each in following.values():
                self._let_next_go(each)
            yield from self._inbox.make_heads(sorted(following))
            self._turns.let_wait()
            yield from self._database.wake()
        return found

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
        yield from self._inbox.record_calls([(notification_id, call.callback, call.error)], now=now)

    def _go_on_script(self, claimed: ClaimedNotification, call: Call) -> Script[bool]:
        """Write down how a call ended; return whether this attempt may make the next one."""
        yield from self._record_script(claimed.stored.id, call)
        now = yield from self._database.now()
        return (yield from self._inbox.keep_claim(claimed, self.name, now + _LEASE))

    # --- leases --------------------------------------------------------------------------------

    def _hold(self, claimed: ClaimedNotification) -> None:
        self._held[claimed.stored.id] = claimed.leased_at
        if self._heart is None or self._heart.done():
            self._heart = asyncio.create_task(self._keep_leases(), name="receiver-leases")

    async def _keep_leases(self) -> None:
        """Renew the leases of all that is in hand, for as long as anything is."""
        while self._held:
            await asyncio.sleep(_LEASE.total_seconds() / 3)
            asked = time.perf_counter()
            # A database out of reach must not end the renewal: the callbacks go on.
            with contextlib.suppress(StorageError):
                if self._held:
                    kept = self._keep_leases_script(tuple(self._held))
                    ours = await self._database.write(kept)
                    self._held.update(dict.fromkeys(ours & self._held.keys(), asked))

    def _keep_leases_script(self, ids: Sequence[int]) -> Script[set[int]]:
        now = yield from self._database.now()
        return (yield from self._inbox.keep_leases(ids, self.name, now + _LEASE))

    async def _until_due(self) -> timedelta | None:
        return await self._database.read(self._until_due_script())

    def _until_due_script(self) -> Script[timedelta | None]:
        now = yield from self._database.now()
        due = yield from self._inbox.next_due(but=self._turns.full())
        return None if due is None else due - now


def _task_of(claimed: ClaimedNotification) -> tuple[str, str] | None:
    stored = claimed.stored
    return None if stored.task_id is None else (stored.sender, stored.task_id)
