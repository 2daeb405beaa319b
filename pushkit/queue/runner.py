"""The runner: takes the next job of each queue, works it off, buffers its result, and flushes.

    stored job ─ hand() ─┐                         ┌─ answered, the next one begins at once
    due queue ── claim ──┴▶ memory ▶ permit ▶ job ─┴▶ buffer ▶ flush: settle many queues together

Queues come from the transactions that store jobs, and from claims; both are the same lease. All
state belongs to one event loop. What the jobs are is the user's business (`Work`).
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
import math
import random
import time
from collections import Counter
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from datetime import timedelta
from typing import Any, Final, Generic, NamedTuple, Protocol, TypeVar

from pushkit.errors import StorageError
from pushkit.logs import RepeatedLog
from pushkit.queue.held import KNOWN_FOR, Ask, Consequence, HeldQueue, Job, Memory, Reply
from pushkit.queue.leases import ClaimResult
from pushkit.queue.rules import QUANTUM, GroupKey, Handed, Room
from pushkit.queue.scheduler import Scheduler, count_down

J = TypeVar("J", bound=Job)
J_contra = TypeVar("J_contra", bound=Job, contravariant=True)

_log = logging.getLogger("pushkit.queue")

_SETTLED_WITHIN: Final = 0.05  # seconds after which answered jobs are settled
_SETTLED_WHEN_IDLE: Final = 0.004  # … if nothing else is under way
_LOOKED_AT: Final = 64  # queues whose rows are looked at together
_MOST_QUEUES: Final = 20_000  # in memory
_MOST_BYTES: Final = 2**26  # of bodies in memory
_LONG_BODY: Final = 2**18
_AFTER_FAULT: Final = timedelta(seconds=1)
_MIN_PAUSE: Final = timedelta(milliseconds=50)
_JITTER: Final = 0.05  # seconds over which woken workers spread their looks
_FIRST_RETRY: Final = 0.05
_LONGEST_RETRY: Final = 2.0

clock = getattr(time, "CLOCK_BOOTTIME", None)


def seconds() -> float:
    """Return seconds by a clock that never goes back, and counts sleep where the system can."""
    return time.monotonic() if clock is None else time.clock_gettime(clock)


class Seen(NamedTuple):
    """A queue's row, as a look found it."""

    epoch: int
    stops: bool
    version: int = 0
    on_probation: bool = False  # its group is: only a probe may begin


class Renewed(NamedTuple):
    """Which leases hold, and which of them were extended: others' transactions may hold a row."""

    held: Collection[str]
    extended: Collection[str]


class Due(NamedTuple):
    """Whether a claim may find something now, and how long until it may find something more."""

    now: bool
    later: timedelta | None = None


class Work(Protocol[J_contra]):
    """What a runner works on: the protocol of its database, and one job."""

    async def claim(self, room: Room, held: Collection[str]) -> ClaimResult:
        """Lease due queues, and take over those of workers that ended."""

    async def attempt(self, job: J_contra) -> Consequence:
        """Work off one job, and keep its result in it; raise nothing but for a defect."""

    def settle(
        self, ask: Ask, done: Callable[[Reply | BaseException], None], *, is_urgent: bool
    ) -> None:
        """Settle one queue, and call `done` in the event loop.

        Together with others; or, if its last result `is_urgent`, in a transaction of its own.
        """

    async def look(self, ids: Sequence[str]) -> Mapping[str, Seen]:
        """Return what the rows of some queues say."""

    async def renew(self, held: Mapping[str, int]) -> Renewed:
        """Extend the leases of queues, by id and epoch."""

    async def due(self) -> Due:
        """Look whether a claim may find something; only reads."""


class Runner(Generic[J]):
    """Works off the queues of one worker.

    Args:
        name: What the jobs are, for the log.
        work: What to do.
        permits: How many jobs at once.
        per_origin: How many of them at one origin.
        lease: How long a lease lasts.
        longest: How long a job may take: it begins only if that is left of the lease.
        longest_pause: The longest pause between two looks for due queues.
        most_unsettled: How many jobs of a queue may be answered and not settled: a crash repeats
            them.
        insists: Whether a result that cannot be stored is tried again for ever, and not only
            until the lease ends.
        is_alone: Returns whether there is only one owner (`Scheduler`).
        most_held: Returns how many queues of an origin to hold in memory, by how long jobs take:
            what would not begin soon may begin at once in another process.
        take_turn: Takes an origin's next turn and returns 0, or returns how many seconds away
            it is.
    """

    def __init__(
        self,
        name: str,
        work: Work[J],
        *,
        permits: int,
        per_origin: int,
        lease: timedelta,
        longest: timedelta,
        longest_pause: timedelta,
        most_unsettled: int = QUANTUM,
        insists: bool = False,
        is_alone: Callable[[], bool] = lambda: False,
        most_held: Callable[[], int] = lambda: _MOST_QUEUES,
        take_turn: Callable[[str], float] = lambda _: 0,
    ) -> None:
        self._name = name
        self._work = work
        self._permits = permits
        self._ahead = 2 * per_origin  # queues of a group that are claimed and have not begun
        self._begins_within = (lease - longest).total_seconds()
        self._longest = longest.total_seconds()
        self._longest_pause = longest_pause
        self._take_turn = take_turn
        self.scheduler: Scheduler[HeldQueue[J]] = Scheduler(
            permits,
            per_origin=per_origin,
            is_alone=is_alone,
            take_turn=take_turn,
            needs_turn=lambda queue: not queue.rests,
        )
        self._insists = insists
        self._most_held = most_held
        self.memory: Memory[J] = Memory(most_unsettled)
        self._lined = set[HeldQueue[J]]()  # in line, or with a permit
        # The turns under way, and since when each of them has its permit; None if it gave it up.
        self._turns: dict[asyncio.Task[None], tuple[HeldQueue[J], float | None]] = {}
        self._fresh: Counter[str] = Counter()  # claimed queues that have not begun, by origin
        self._unbegun = set[HeldQueue[J]]()
        # To be settled with the next flush, in this order.
        self._unsettled: dict[HeldQueue[J], None] = {}
        self._retries = dict[HeldQueue[J], float]()
        self._crowded: frozenset[str] = (
            frozenset()
        )  # origins with more due queues than were claimed
        self._since_look = frozenset[str]()  # those of them of which the last look may not know
        self._tasks = set[asyncio.Task[Any]]()
        self._bytes = 0
        self._was_full = False  # whether a claim was left out for want of room
        self.is_open = False  # whether stored jobs may be handed over
        self.is_running = False  # whether `run` claims and renews
        self._is_closing = self._is_retired = False
        self._attempts = 0
        self._look_took = 0.0  # seconds of the last look
        self._pump_is_due = False
        self._flush: asyncio.TimerHandle | None = None
        self._unsettled_since = 0.0
        self._active_at = 0.0
        self._awake = asyncio.Event()
        self._idle = asyncio.Event()
        self._faults = RepeatedLog(_log)

    # --- jobs that are stored ----------------------------------------------------------------

    def has_room(self, queue_id: str, size: int, origin: str = "") -> bool:
        """Return whether a job that is being stored may be handed over; callable in any thread.

        It is a guess by what the memory was a moment ago, and need not be right.
        """
        queue = self.memory.queues.get(queue_id)
        return (
            self.is_open
            and size <= _LONG_BODY
            and self._bytes < _MOST_BYTES
            and (
                len(self.memory.queues) < _MOST_QUEUES
                and self.memory.at_origin[origin] < self._most_held()
                if queue is None
                else len(queue.waiting) < QUANTUM and not queue.stops
            )
        )

    def hand(self, handed: Handed, job: J, *, since: float, seen_at: float) -> None:
        """Take a stored job, in the event loop after its commit.

        Args:
            handed: How it was handed over.
            job: The job.
            since: A moment (`seconds`) before the transaction read the queue's row.
            seen_at: A moment at which it still held it.
        """
        if self._is_retired:
            return  # its lease ends with this worker
        self._active_at = since
        known = self.memory.queues.get(handed.queue_id)
        before = 0 if known is None else known.bytes
        until = since + self._begins_within
        queue = self.memory.hand(handed, job, until=until, seen_at=seen_at)
        if queue is None:
            return
        if known is not None and known is not queue:
            self._lose(known)
            before = 0
        self._bytes += queue.bytes - before
        self._offer(queue)

    def wake(self) -> None:
        """Look for due queues now."""
        self._awake.set()

    def wake_for(self, origin: str) -> None:
        """Look for due queues of an origin: now, or once there is room for some."""
        if self._wants_more(origin):
            self.wake()
        else:
            self._crowded |= {origin}
            self._since_look |= {origin}

    def _wants_more(self, origin: str) -> bool:
        """Whether there is room for several: a claim for each would cost too much."""
        held = 4 * self.memory.at_origin[origin] > 3 * self._most_held()
        return not held and self._fresh[origin] <= self._ahead // 2

    def doubt(self, ids: Collection[str]) -> None:
        """Look at the rows of queues before their next jobs begin: they were changed."""
        queues, now = self.memory.queues, seconds()
        for name in queues.keys() & ids:
            queues[name].doubted_at = now
            queues[name].seen_at = -math.inf

    def wake_soon(self) -> None:
        """Look for due queues shortly: another process stored a job, and woke all workers."""
        asyncio.get_running_loop().call_later(random.uniform(0, _JITTER), self.wake)  # noqa: S311

    # --- the loops ---------------------------------------------------------------------------

    async def run(self) -> None:
        """Claim and work until cancelled; errors are logged, and do not end the loop."""
        self._awake = asyncio.Event()  # the old one may belong to another event loop
        self.is_running = True
        try:
            with self.renewing():
                while True:
                    self._awake.clear()
                    pause = await self._round()
                    # Not wait_for: before Python 3.12 it swallows a cancellation.
                    with contextlib.suppress(TimeoutError):
                        async with asyncio.timeout(pause.total_seconds()):
                            await self._awake.wait()
        finally:
            self.is_running = self.is_open = False

    async def run_once(self) -> int:
        """Claim what is due once, work it off, and settle it; return how many jobs were made."""
        before = self._attempts
        await self.fill()
        await self.drain()
        return self._attempts - before

    async def fill(self) -> bool:
        """Claim due queues; return whether to look again soon (see `ClaimResult`)."""
        if self._is_closing:
            return False
        self._was_full = self._is_full
        if self._was_full:
            return False
        most = min(2 * self._permits + _LOOKED_AT, _MOST_QUEUES - len(self.memory.queues))
        under_way = {queue.group for queue, _ in self._turns.values()}
        room = Room(most, self._room_at, under_way, _MOST_BYTES - self._bytes)
        since, self._since_look = seconds(), frozenset()
        claiming = asyncio.create_task(self._work.claim(room, frozenset(self.memory.queues)))
        claiming.add_done_callback(lambda done: self._claimed(done, since))
        self.keep(claiming)
        # If the caller is cancelled the claim continues: no queue is left without its jobs.
        await asyncio.wait([claiming])
        return claiming.result().look_again

    @property
    def _is_full(self) -> bool:
        return len(self.memory.queues) >= _MOST_QUEUES or self._bytes >= _MOST_BYTES

    @property
    def _may_claim_again(self) -> bool:
        """Whether a quarter is free: a claim for each queue that ends would cost too much."""
        many = 4 * len(self.memory.queues) > 3 * _MOST_QUEUES
        return not many and 4 * self._bytes <= 3 * _MOST_BYTES

    def _room_at(self, origin: str) -> int:
        room = self._most_held() - self.memory.at_origin[origin]
        return min(self._ahead - self._fresh[origin], room)

    def _claimed(self, claiming: asyncio.Future[ClaimResult], since: float) -> None:
        if claiming.cancelled() or claiming.exception() is not None:
            return
        result = claiming.result()
        self._crowded = self._since_look.union(origin for _, _, origin in result.waiting)
        for leased in result.claimed:
            known = self.memory.queues.get(leased.id)
            queue = self.memory.claimed(leased, until=since + self._begins_within, seen_at=since)
            if queue is not None:
                if known is not None:
                    self._lose(known)
                queue.stops = self._is_closing
                self._bytes += queue.bytes
                self._unbegun.add(queue)
                self._fresh[queue.group[2]] += 1
                self._offer(queue)

    async def _round(self) -> timedelta:
        self._was_full = self._is_full or (self._was_full and not self._may_claim_again)
        if self._was_full:
            return self._longest_pause  # `_note_idle` wakes it
        try:
            # Of several workers that were woken, those that come later find nothing due.
            self._since_look = frozenset()
            due = await self._due()
            if not due.now:  # others have claimed what there was
                self._crowded = self._since_look
            if due.now and await self.fill():
                return _MIN_PAUSE
        except Exception as exc:  # noqa: BLE001  # the top of a worker loop
            self._log_fault(exc, "the database is out of reach; trying again")
            return _AFTER_FAULT
        if due.later is None:
            return self._longest_pause
        return min(max(due.later, _MIN_PAUSE), self._longest_pause)

    async def _due(self) -> Due:
        try:
            async with asyncio.timeout(self._longest_pause.total_seconds()):
                return await self._work.due()
        except TimeoutError:  # other readers of the database come first: a claim finds it out
            return Due(now=True)

    @contextlib.contextmanager
    def renewing(self) -> Iterator[None]:
        """Renew leases meanwhile."""
        renewing = asyncio.create_task(self._renew_all(), name="pushkit-heartbeat")
        try:
            yield
        finally:
            renewing.cancel()

    async def _renew_all(self) -> None:
        """Renew all leases of this process, three times in the time that a lease has to spare."""
        while True:
            await asyncio.sleep(self._begins_within / 3)
            try:
                await self.renew()
            except Exception as exc:  # noqa: BLE001  # the top of a worker loop
                self._log_fault(exc, "leases cannot be renewed; trying again")

    async def renew(self) -> None:
        """Renew the leases of all queues in memory; forget those that are over."""
        held, since = dict(self.memory.queues), seconds()
        if not held:
            return
        renewed = await self._work.renew({name: queue.epoch for name, queue in held.items()})
        for name, queue in held.items():
            if name in renewed.extended:
                queue.until = max(queue.until, since + self._begins_within)
                self._offer(queue)
            elif name not in renewed.held:
                self._lose(queue)
        self._note_idle()

    # --- turns -------------------------------------------------------------------------------

    def _offer(self, queue: HeldQueue[J]) -> None:
        """Let a queue wait for a permit if its next job may begin; settle it if that must be."""
        if queue in self._lined or not self._is_held(queue):
            return
        if queue.waiting and not queue.stops and not queue.must_settle and not queue.is_full:
            if seconds() >= queue.until:
                if not self.is_running:  # else the heartbeat offers it again
                    self._lose(queue)
                return
            self._lined.add(queue)
            self.scheduler.add(queue)
            if not self._pump_is_due:
                self._pump_is_due = True
                # After the callers of this round of the event loop.
                asyncio.get_running_loop().call_soon(self._pump)
        elif queue.wants_settlement:
            self._settle_soon(queue, at_once=queue.stops or queue.must_settle or queue.is_full)

    def _pump(self) -> None:
        """Begin the turns of the queues that may have a permit."""
        self._pump_is_due = False
        stale: list[HeldQueue[J]] = []
        now = seconds()
        while (queue := self.scheduler.next()) is not None:
            if now - queue.seen_at > KNOWN_FOR and not queue.rests:
                stale.append(queue)
            else:
                self._begin_turn(queue)
        for origin, wait in list(self.scheduler.waits.items()):
            if wait > 0:
                self.scheduler.waits[origin] = 0
                asyncio.get_running_loop().call_later(wait, self._end_wait, origin)
        if stale:
            self.keep(asyncio.create_task(self._look_at(stale)))

    def _end_wait(self, origin: str) -> None:
        self.scheduler.end_wait(origin)
        self._pump()

    async def _look_at(self, queues: Sequence[HeldQueue[J]]) -> None:
        """Look at the rows of queues that have a permit, and of some that wait for one.

        However long that takes, one job of each of them may begin then.
        """
        since, known, tried = seconds(), set[HeldQueue[J]](), set[GroupKey]()
        # Of those in line, what a slow look finds is outdated before their turns.
        most = _LOOKED_AT if self._look_took <= KNOWN_FOR else 0
        looked = {queue.id: queue for queue in self.scheduler.waiting(most)}
        looked |= {queue.id: queue for queue in queues}
        try:
            seen = await self._work.look(list(looked))
            self._look_took = seconds() - since
            for name, queue in looked.items():
                row = seen.get(name)
                if row is None or row.epoch > queue.epoch:
                    self._lose(queue)
                elif row.epoch == queue.epoch and since > queue.doubted_at:
                    queue.seen_at = max(queue.seen_at, since)
                    queue.stops |= row.stops or row.version != queue.version
                    if row.on_probation and not queue.is_probe and row.version == queue.version:
                        queue.stops = True
                        tried.add(queue.group)
                    known.add(queue)
            self._make_way(tried)
        except Exception as exc:  # noqa: BLE001  # they are looked at again
            self._log_fault(exc, "cannot look at queues; trying again")
            await asyncio.sleep(_MIN_PAUSE.total_seconds())
        finally:
            for queue in queues:
                self._begin_turn(queue, is_known=queue in known)

    def _make_way(self, groups: Collection[GroupKey]) -> None:
        """Give the queues of groups on probation up: none is probed while one of them is leased.

        At once, and not in their turns, for which they may wait long.
        """
        for queue in list(self.memory.queues.values()) if groups else ():
            if queue.group in groups and not queue.is_probe and queue.current is None:
                queue.stops = True
                self._settle(queue)

    def _begin_turn(self, queue: HeldQueue[J], *, is_known: bool = False) -> None:
        if queue in self._unbegun:
            self._unbegun.discard(queue)
            count_down(self._fresh, queue.group[2])
        queue.gives_way = queue.group[2] in self._crowded
        task = asyncio.get_running_loop().create_task(self._turn(queue, is_known=is_known))
        self._turns[task] = (queue, seconds())
        task.add_done_callback(self._end_turn)

    async def _turn(self, queue: HeldQueue[J], *, is_known: bool) -> None:
        """Work off jobs of one queue, one after another, until it is another one's turn."""
        queue.served = 0
        while queue.served < QUANTUM and queue.may_begin(
            seconds(), is_known=is_known and not queue.served
        ):
            if queue.served and (
                self.scheduler.comes_before(queue) or self._take_turn(queue.group[2]) > 0
            ):
                break
            job = queue.begin()
            self._attempts += 1
            try:
                answer = await self._work.attempt(job)
            finally:
                has_permit = self._has_permit(asyncio.current_task())
                if has_permit:  # else it counts no more
                    self._bytes -= job.size
            queue.answer(answer)
            self._active_at = seconds()
            self._settle_soon(queue, at_once=queue.must_settle or queue.is_full)
            if not has_permit:
                break

    def _has_permit(self, task: asyncio.Task[None] | None) -> bool:
        turn = None if task is None else self._turns.get(task)
        return turn is None or turn[1] is not None  # None: an eager task, in its first step

    def give_permit_up(self, task: asyncio.Task[None]) -> None:
        """Give up the permit of a turn whose job hangs: it goes on, and nothing waits for it.

        Nor does it take room from others: what is behind it is fetched again once it ends.
        """
        queue, began = self._turns.get(task, (None, None))
        if queue is not None and began is not None:
            self._turns[task] = (queue, None)
            self._bytes -= queue.bytes
            queue.forget_waiting()
            self._bytes += sum(job.size for job in queue.waiting)
            now = seconds()
            self.scheduler.done(queue, now - began, now)
            self._pump()
            self._note_idle()

    def _end_turn(self, task: asyncio.Task[None]) -> None:
        queue, began = self._turns.pop(task)
        if began is not None:
            now = seconds()
            self.scheduler.done(queue, now - began, now)
        self._lined.discard(queue)
        fault = None if task.cancelled() else task.exception()
        if fault is not None:
            self._log_fault(fault, "failed unexpectedly; due again when the lease ends")
        if fault is not None or queue.current is not None:
            # What it had begun is due again when the lease ends: nothing may begin before it.
            self._lose(queue)
        others_wait = queue.group[2] in self._crowded
        queue.gives_way = others_wait and queue.served >= QUANTUM
        if self._is_held(queue):
            self._offer(queue)
        else:  # another queue may have waited for the end of this attempt
            self.wake()
        self._note_room(queue)
        if not self._pump_is_due:
            self._pump()
        self._note_idle()

    def _note_room(self, queue: HeldQueue[J]) -> None:
        """Look for due queues of a queue's origin, if there are more, and room for some now."""
        if queue.group[2] in self._crowded and self._wants_more(queue.group[2]):
            self.wake()

    # --- results -----------------------------------------------------------------------------

    def _settle_soon(self, queue: HeldQueue[J], *, at_once: bool) -> None:
        if at_once:
            self._settle(queue)
            return
        if not self._unsettled:
            self._unsettled_since = seconds()
        self._unsettled[queue] = None
        if self._flush is None:
            loop = asyncio.get_running_loop()
            self._flush = loop.call_later(_SETTLED_WHEN_IDLE, self._flush_if_due)

    def _flush_if_due(self) -> None:
        """Settle, once nothing was under way for a moment, or the first of them has waited."""
        now = seconds()
        is_busy = bool(self._turns) or self.scheduler.has_waiting
        rests_at = now + _SETTLED_WITHIN if is_busy else self._active_at + _SETTLED_WHEN_IDLE
        due = min(rests_at, self._unsettled_since + _SETTLED_WITHIN)
        if now >= due:
            self.flush()
        else:
            loop = asyncio.get_running_loop()
            self._flush = loop.call_later(due - now, self._flush_if_due)

    def flush(self) -> None:
        """Settle all queues that have something to settle, together."""
        if self._flush is not None:
            self._flush.cancel()
            self._flush = None
        for queue in list(self._unsettled):
            self._settle(queue)

    def _settle(self, queue: HeldQueue[J]) -> None:
        if queue.is_settling:
            return  # it is settled again after the reply
        self._unsettled.pop(queue, None)
        if not queue.wants_settlement or not (queue.answered or self._is_held(queue)):
            self._retries.pop(queue, None)
            self._note_idle()
            return
        since, must = seconds(), queue.must_settle
        ask = queue.ask()
        try:
            self._work.settle(ask, lambda reply: self._settled(queue, reply, since), is_urgent=must)
        except StorageError as exc:  # it is not open
            self._settled(queue, exc, since)

    def _settled(self, queue: HeldQueue[J], reply: Reply | BaseException, since: float) -> None:
        if isinstance(reply, BaseException):
            self._settle_again(queue, reply)
            return
        self._retries.pop(queue, None)
        before = queue.bytes
        queue.settled(reply, seen_at=since)
        self._bytes += queue.bytes - before
        if reply.kept and self._is_held(queue):
            self._offer(queue)
        else:
            self._lose(queue)
            self._note_room(queue)
        # Others of a destination on probation waited for what became of the probe.
        if reply.is_due or (queue.was_probe and not reply.kept):
            self.wake()
        if queue.answered:
            must = queue.must_settle or queue.is_full or queue.stops
            self._settle_soon(queue, at_once=must)
        self._note_idle()

    def _settle_again(self, queue: HeldQueue[J], fault: BaseException) -> None:
        """Settle again after a fault, until the lease ends: else what arrived is sent again."""
        queue.unsettled()
        if isinstance(fault, asyncio.CancelledError):
            self._retries.pop(queue, None)
            queue.answered = []
            self._lose(queue)
            return
        pause = self._retries.get(queue, _FIRST_RETRY)
        insists = self._insists and not self._is_retired
        is_late = seconds() > queue.until + self._longest and not insists
        if not isinstance(fault, StorageError) or is_late:
            self._log_fault(fault, "could not be settled; due again when the lease ends")
            self._retries.pop(queue, None)
            queue.answered = []
            self._lose(queue)
            self._note_idle()
            return
        self._log_fault(fault, "cannot be settled; trying again")
        self._retries[queue] = min(pause * 2, _LONGEST_RETRY)
        loop = asyncio.get_running_loop()
        loop.call_later(pause * random.uniform(0.5, 1), self._settle, queue)  # noqa: S311

    def _lose(self, queue: HeldQueue[J]) -> None:
        """Forget a queue whose lease is over, with the jobs of it that have not begun."""
        self.memory.forget(queue)
        self._bytes -= sum(job.size for job in queue.waiting)
        queue.waiting.clear()
        queue.stops = True
        if not queue.answered:
            self._unsettled.pop(queue, None)
        if queue in self._unbegun and queue not in self._lined:
            self._unbegun.discard(queue)
            count_down(self._fresh, queue.group[2])

    def _is_held(self, queue: HeldQueue[J]) -> bool:
        return self.memory.queues.get(queue.id) is queue

    # --- the end -----------------------------------------------------------------------------

    def retire(self) -> None:
        """Take no more stored jobs: others may take this worker's leases over."""
        self._is_retired = True

    @property
    def is_idle(self) -> bool:
        """Whether nothing is in memory, and nothing under way, but jobs that hang."""
        return (
            not (self._tasks or self._retries)
            and all(began is None for _, began in self._turns.values())
            and {queue for queue, _ in self._turns.values()}.issuperset(self.memory.queues.values())
        )

    async def drain(self) -> None:
        """Wait until the queues in memory are worked off and settled, but for jobs that hang."""
        while not self.is_idle:
            self._idle.clear()
            if not self._turns and not self.scheduler.has_waiting:
                self.flush()
            await self._idle.wait()

    async def finish(self, within: timedelta) -> None:
        """Begin no more jobs, wait for those under way, settle, and give all leases back.

        Those that are not done within that time are cancelled: they are due again when their
        leases end.
        """
        if not await self.wind_down(within):
            await self.abandon()
        self._is_closing = False

    async def wind_down(self, within: timedelta) -> bool:
        """Begin no more jobs, and settle; return whether those under way ended within that time."""
        self.is_open, self._is_closing = False, True
        self._pump()  # what was handed over just now begins, if it may
        await asyncio.sleep(0)
        await asyncio.sleep(0)
        for queue in list(self.memory.queues.values()):
            queue.stops = True
            if queue.current is None:
                self._settle(queue)
        try:
            with self.renewing():
                async with asyncio.timeout(within.total_seconds()):
                    await self.drain()
        except TimeoutError:
            return False
        return True

    async def abandon(self) -> None:
        """Cancel all that is under way, but jobs that hang: they may not let themselves be."""
        while True:
            for queue in [*self.memory.queues.values(), *self._retries]:
                queue.answered = []
                self._lose(queue)
            self._retries.clear()
            self._pump()  # what is in line comes out of it
            turns = [task for task, (_, began) in self._turns.items() if began is not None]
            tasks = {*turns, *self._tasks}
            if not tasks:
                return
            for task in tasks:
                task.cancel()
            await asyncio.wait(tasks)

    def _note_idle(self) -> None:
        self._idle.set()
        if self._was_full and self._may_claim_again:
            self.wake()

    def keep(self, task: asyncio.Task[Any]) -> None:
        """Keep a task until it is done: this one is not idle meanwhile."""
        self._tasks.add(task)
        task.add_done_callback(self._dropped)

    def _dropped(self, task: asyncio.Task[Any]) -> None:
        self._tasks.discard(task)
        if not task.cancelled():
            task.exception()  # who awaits it gets it
        self._note_idle()

    def _log_fault(self, fault: BaseException, then: str) -> None:
        """Log a fault once per kind and interval: every queue may fail alike."""
        if isinstance(fault, StorageError):
            cause = (then, type(fault).__name__, type(fault.__cause__).__name__)
            self._faults.log(cause, logging.ERROR, "%s: %s: %s", self._name, then, fault)
            return
        self._faults.log(
            (then, type(fault).__name__),
            logging.ERROR,
            "%s: %s",
            self._name,
            then,
            exc_info=fault,
        )
