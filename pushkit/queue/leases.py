"""When a lease begins and ends, as scripts: claimed, settled, given back, over, or taken over.

What the death of a worker costs a queue is decided here, too. What its row becomes then, says
`pushkit.queue.rules`.
"""

from __future__ import annotations

from collections import Counter, defaultdict, deque
from collections.abc import Callable, Collection, Sequence
from typing import Any, Final, NamedTuple

from pushkit.queue.held import Ask, Reply
from pushkit.queue.rules import (
    QUANTUM,
    Fetched,
    GroupKey,
    PendingJob,
    Queue,
    Room,
    fetched,
    leased,
    released,
    schedule,
)
from pushkit.queue.tables import FIRST_GROUP, QueueTables
from pushkit.record import field, record
from pushkit.storage.script import Script

LEFT_BEHIND: Final = ("worker_died", "lease_expired")
"""The codes of jobs whose worker ended, or was late."""
_MOST_EXPIRED: Final = 256  # in one claim
_FEW_GROUPS: Final = 8  # of which a claim reads more than the first queue
_MOST_BYTES: Final = 2**20  # of the bodies that are read of one queue


class Claimed(NamedTuple):
    """A queue that was claimed, and its next jobs."""

    queue: Queue
    jobs: Sequence[PendingJob]
    upto: int


@record(frozen=True, slots=True, kw_only=True)
class ClaimResult:
    """The queues that a claim leased, and what else is due."""

    claimed: Sequence[Any] = ()  # `Claimed`; then `Leased`, with the jobs as a memory has them
    waiting: frozenset[GroupKey] = frozenset()  # groups with more due queues, for want of room
    look_again: bool = False  # whether it did not see all that is due, or put some of it off


class TakenOver(NamedTuple):
    """What became of the queues of workers that ended, or are late."""

    ended: list[str]  # the workers that ended
    put_off: bool  # whether jobs wait, because workers may have died of them


@record(frozen=False, slots=True, kw_only=True)
class Claims:
    """Claims due queues, and takes over those of workers that ended."""

    tables: QueueTables
    # Notes the first job of each queue whose worker ended: the job, the code of the reason, and
    # how many deaths count as attempts of it.
    lose: Callable[[Sequence[tuple[PendingJob, str, int]], int], Script[None]]
    probation_from: int = 1  # from so many failures on, a group has one queue leased, and one job
    window: int = 128  # how many due queues a claim reads in the order of their time
    steps: int = 32  # of how many groups it reads the first queue, if there are more
    _last_group: GroupKey = FIRST_GROUP
    _last_owner: tuple[str, str] = field(default=("", ""))

    def claim(self, worker: str, room: Room, *, now: int, until: int) -> Script[ClaimResult]:
        """Lease due queues for a worker, fairly by owner, and read their next jobs."""
        candidates, is_cut = yield from self._candidates(now)
        waits = {each.group: each.waits_until for each in candidates if each.waits_until > now}
        tried = {
            each.group for each in candidates if each.failures >= self.probation_from
        }.difference(waits)
        busy = tried.intersection(room.under_way)
        busy |= yield from self.tables.leased_in(tried - busy)
        chosen, left = _share_out(candidates, room, blocked=busy.union(waits), single=tried)
        claimed, others, put_off = yield from self._lease(
            worker, chosen, room.bytes, tried, now=now, until=until
        )
        if waits:
            yield from self.tables.postpone(waits, now)
        # What is cut is looked for again only if this claim found something to do.
        look_again = put_off or bool(waits) or (is_cut and bool(claimed))
        return ClaimResult(claimed=claimed, waiting=frozenset(left | others), look_again=look_again)

    def claim_of(
        self, worker: str, group: GroupKey, most: int, *, now: int, until: int
    ) -> Script[Sequence[Claimed]]:
        """Lease at most so many due queues of one group, and read the first job of each."""
        queues = yield from self.tables.due(now, most, group=group)
        claimed, _, _ = yield from self._lease(
            worker, queues, most * _MOST_BYTES, [group], now=now, until=until
        )
        return claimed

    def _candidates(self, now: int) -> Script[tuple[list[Queue], bool]]:
        """Return due queues, whose rows are held: the first ones, and some of other groups.

        Also whether there are more.
        """
        window = yield from self.tables.due(now, self.window)
        if len(window) < self.window:
            return window, False
        found = {each.id: each for each in window}
        firsts = yield from self._first_queues()
        ids = [each.id for each in firsts if each.id not in found and (each.due_at or 0) <= now]
        locked = yield from self.tables.lock(ids, wait=False)
        found.update(
            (each.id, each)
            for each in locked.values()
            if each.lease_worker is None and each.due_at is not None and each.due_at <= now
        )
        # All of the window may be of groups that have no room, or whose probe is under way.
        others = {each.group for each in locked.values()} - {each.group for each in window}
        for group in sorted(others) if len(others) <= _FEW_GROUPS else ():
            more = yield from self.tables.due(now, self.window // len(others), group=group)
            found.update((each.id, each) for each in more)
        return [*found.values()], True

    def _first_queues(self) -> Script[list[Queue]]:
        """Return the first queue of the groups, and of the owners, that were read longest ago."""
        groups = yield from self.tables.first_due(self._last_group, self.steps)
        if self._last_group != FIRST_GROUP and len(groups) < self.steps:
            groups += yield from self.tables.first_due(FIRST_GROUP, self.steps - len(groups))
        is_all = len(groups) < self.steps
        self._last_group = FIRST_GROUP if is_all else groups[-1].group
        if is_all:
            return groups
        owners = yield from self.tables.first_due(self._last_owner, self.steps // 2)
        if self._last_owner != ("", "") and len(owners) < self.steps // 2:
            owners += yield from self.tables.first_due(("", ""), self.steps // 2 - len(owners))
        if owners:
            self._last_owner = owners[-1].group[:2]
        return groups + owners

    def _lease(
        self,
        worker: str,
        chosen: Sequence[Queue],
        most_bytes: int,
        tried: Collection[GroupKey],
        *,
        now: int,
        until: int,
    ) -> Script[tuple[list[Claimed], set[GroupKey], bool]]:
        """Lease queues, as long as there is room; return these, and the groups of the others.

        Also whether some were put off: their first job is due later.
        """
        others, put_off = set[GroupKey](), False
        pending = yield from self.tables.first_pending([each.id for each in chosen], QUANTUM + 1)
        claimed, written, handed_out = list[Claimed](), list[Queue](), list[PendingJob]()
        for queue in chosen:
            if most_bytes <= 0:
                others.add(queue.group)
                continue
            is_alone = queue.abandoned or queue.group in tried
            jobs = pending[queue.id]
            after, taken = fetched(
                queue,
                jobs,
                (),
                most=1 if is_alone else QUANTUM,
                most_bytes=_MOST_BYTES,
                now=now,
                is_all=len(jobs) <= QUANTUM,
            )
            if taken.jobs:
                after = leased(after, worker, now=now, until=until)
                claimed.append(Claimed(after, taken.jobs, taken.upto))
                handed_out += taken.jobs
                most_bytes -= sum(job.size for job in taken.jobs)
            else:
                after = queue._replace(due_at=schedule(queue, jobs[0] if jobs else None, now))
                put_off |= after.due_at is not None
            written.append(after)
        yield from self.tables.begin_waits_now(
            [job for jobs in pending.values() for job in jobs], now
        )
        yield from self.tables.hand_out(handed_out)
        yield from self.tables.write(written)
        return claimed, others, put_off

    # --- workers that ended ------------------------------------------------------------------

    def take_over(
        self,
        worker: str,
        *,
        held: Collection[str],
        dead: Callable[[Collection[str]], Collection[str]],
        now: int,
        spares: bool = False,
    ) -> Script[TakenOver]:
        """End leases that are over, and those of workers that ended.

        Args:
            worker: The worker that asks.
            held: The queues in its memory: it does not take its own live leases, however far the
                clock was set forward.
            dead: Returns which workers are known to have ended.
            spares: Whether others keep leases that are over: after an outage they renew them.
        """
        workers = yield from self.tables.workers()
        ended = sorted(dead([each for each in workers if each != worker]))
        ids: list[str] = []
        for name, first in workers.items():
            if name in ended or (first <= now and (not spares or name == worker)):
                until = None if name in ended else now
                ids += yield from self.tables.leased_by(name, until=until, limit=_MOST_EXPIRED)
        put_off = yield from self.expire([each for each in ids if each not in held], ended, now)
        return TakenOver(ended, put_off)

    def expire(self, ids: Sequence[str], ended: Collection[str], now: int) -> Script[bool]:
        """Take leases away from workers that ended, or are late; return whether jobs were put off.

        That is what they may have died of.
        """
        locked = yield from self.tables.lock(ids, wait=False)
        over = [
            each
            for each in locked.values()
            if each.lease_worker in ended
            or (each.lease_until is not None and each.lease_until <= now)
        ]
        # The first job may be what kills: it is handed out alone next, so that what is innocent
        # lives, and from the second death in a row on, a death counts as an attempt of it.
        pending = yield from self.tables.first_pending([each.id for each in over], QUANTUM)
        lost = [
            (held[0], LEFT_BEHIND[each.lease_worker not in ended], each.abandoned)
            for each in over
            if (
                held := [
                    job for job in pending[each.id] if job.seq <= each.sending_to and not job.waits
                ]
            )
        ]
        yield from self.lose(lost, now)
        over = [each._replace(abandoned=each.abandoned + 1) for each in over]
        scheduled = yield from _scheduled(self.tables, over, now)
        yield from self.tables.write([released(each, each.due_at) for each in scheduled.values()])
        return any(each.due_at is not None and each.due_at > now for each in scheduled.values())


def _share_out(
    candidates: Sequence[Queue],
    room: Room,
    *,
    blocked: Collection[GroupKey],
    single: Collection[GroupKey],
) -> tuple[list[Queue], set[GroupKey]]:
    """Return the queues to lease, round robin by owner, and the groups that want more."""
    of_owner: dict[tuple[str, str], deque[Queue]] = defaultdict(deque)
    for queue in sorted(candidates, key=lambda each: (each.due_at or 0, each.id)):
        of_owner[queue.tenant, queue.owner].append(queue)
    taken, chosen, left = Counter[str](), list[Queue](), set[GroupKey]()
    tried = set[GroupKey]()
    turns = deque(of_owner.values())
    while turns:
        theirs = turns.popleft()
        while theirs:
            queue = theirs.popleft()
            if queue.group in blocked or queue.group in tried:
                continue
            if len(chosen) >= room.queues or taken[queue.origin] >= room.of_origin(queue.origin):
                left.add(queue.group)
                continue
            taken[queue.origin] += 1
            if queue.group in single:
                tried.add(queue.group)
            chosen.append(queue)
            break
        if theirs:
            turns.append(theirs)
    return chosen, left


def advance(
    tables: QueueTables,
    settled: Sequence[tuple[Queue, Ask]],
    *,
    stops: Callable[[Queue], bool],
    now: int,
) -> Script[dict[str, Reply]]:
    """Keep or release queues whose results were stored, and give their holder the next jobs.

    The replies have these jobs as they are pending: who calls this reads the rest of them.

    Args:
        settled: Queues under their holder's epoch, whose rows are held, and what it said.
        stops: Whether the holder must stop: paused, changed, or its group waits or fails.
    """
    looking = [(queue, ask) for queue, ask in settled if not stops(queue) and _looks(queue, ask)]
    most = max((len(ask.has) + ask.more for _, ask in looking), default=0) + 1
    pending = yield from tables.first_pending([queue.id for queue, _ in looking], most)
    handed_out: list[PendingJob] = []
    replies: dict[str, Reply] = {}
    written, leaving = list[Queue](), list[tuple[Queue, Ask]]()
    for queue, ask in settled:
        found: Fetched | None = None
        after, jobs = queue, pending.get(queue.id)
        if jobs is not None:
            after, found = fetched(
                queue,
                jobs,
                ask.has,
                most=min(ask.more, 1) if queue.abandoned else ask.more,
                most_bytes=_MOST_BYTES,
                now=now,
                is_all=len(jobs) < most,
            )
            handed_out += found.jobs
        # Only with nothing in memory, and nothing on its way to it, may a lease end without the
        # worker's promise to begin nothing more.
        rests = not ask.has and (found is None or not found.jobs)
        rests = rests and _is_complete(queue, ask, found)
        if ask.releases or rests:
            leaving.append((after, ask))
        else:
            found = found or Fetched((), 0)
            replies[queue.id] = Reply(True, found.jobs, found.upto, stops(queue))
            written.append(after)
    scheduled = yield from _scheduled(
        tables, [queue for queue, ask in leaving if _may_have_more(queue, ask)], now
    )
    for queue, _ in leaving:
        left = scheduled.get(queue.id) or queue._replace(due_at=None)
        replies[queue.id] = Reply(False, is_due=left.due_at is not None)
        written.append(released(left, left.due_at))
    yield from tables.hand_out(handed_out)
    yield from tables.write(written)
    return replies


def _looks(queue: Queue, ask: Ask) -> bool:
    if ask.releases or (ask.gives_way and not ask.has and queue.sending_to == ask.tail):
        return False
    is_due = queue.due_at is not None or ask.looks
    return is_due or (not ask.has and queue.sending_to != ask.tail)


def _is_complete(queue: Queue, ask: Ask, found: Fetched | None) -> bool:
    """Return whether the holder's memory has, or has had, all that was handed over."""
    return queue.sending_to == ask.tail or (found is not None and found.upto == queue.last_seq)


def _may_have_more(queue: Queue, ask: Ask) -> bool:
    return ask.releases or ask.looks or queue.due_at is not None or queue.sending_to != ask.tail


def reschedule(tables: QueueTables, queues: Sequence[Queue], now: int) -> Script[None]:
    """Let queues be looked at when their first pending job is due; their rows are held.

    The holder of a leased one looks when it settles next.
    """
    free = [each for each in queues if each.lease_worker is None]
    scheduled = yield from _scheduled(tables, free, now)
    yield from tables.write(
        [scheduled.get(each.id) or each._replace(due_at=now) for each in queues]
    )


def _scheduled(tables: QueueTables, queues: Sequence[Queue], now: int) -> Script[dict[str, Queue]]:
    """Return queues by id, each due when its first pending job is if nobody leases it.

    How many workers died with a queue is forgotten with its last job, but not while it is paused.
    """
    first = yield from tables.first_pending([each.id for each in queues], 1)
    scheduled: dict[str, Queue] = {}
    for queue in queues:
        job = next(iter(first[queue.id]), None)
        scheduled[queue.id] = queue._replace(
            due_at=schedule(queue, job, now), abandoned=0 if job is None else queue.abandoned
        )
    return scheduled


def give_back(tables: QueueTables, worker: str, now: int, *, but: Collection[str]) -> Script[None]:
    """Release the queues of a worker that stops, but for some; that is no death."""
    while True:
        ids = yield from tables.leased_by(worker, until=None, limit=_MOST_EXPIRED + len(but))
        locked = yield from tables.lock([each for each in ids if each not in but])
        leaving = [each for each in locked.values() if each.lease_worker == worker]
        if not leaving:
            return
        scheduled = yield from _scheduled(tables, leaving, now)
        yield from tables.write([released(each, each.due_at) for each in scheduled.values()])
