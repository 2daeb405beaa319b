"""Work for a runner, in memory: its database answers late, fails and stops as a test says."""

from __future__ import annotations

import asyncio
from collections import Counter, defaultdict
from collections.abc import Awaitable, Callable, Collection, Mapping, Sequence
from datetime import timedelta
from typing import NamedTuple

from pushkit.errors import StorageError
from pushkit.queue.held import Ask, Consequence, Reply
from pushkit.queue.leases import ClaimResult
from pushkit.queue.rules import QUANTUM, GroupKey, Handed, Leased, Room
from pushkit.queue.runner import Due, Renewed, Runner, Seen, seconds

FAULT = StorageError("the database refused")


class Job(NamedTuple):
    queue: str
    seq: int
    redrives: int = 0
    size: int = 1


def group_of(queue: str) -> GroupKey:
    """Return the group of a queue, which is named `owner/origin/…`."""
    owner, origin, *_ = queue.split("/")
    return ("", owner, origin)


async def nothing() -> None:
    """Wait for nothing."""


class Toy:
    """Queues of jobs in memory. What it does next is in its lists, the first one first."""

    def __init__(self, **options: object) -> None:
        self.pending: defaultdict[str, list[Job]] = defaultdict(list)
        self.last: Counter[str] = Counter()
        self.epochs: Counter[str] = Counter()
        self.leased = set[str]()
        self.begun: list[Job] = []
        self.stopped = set[str]()  # queues that a look and a settlement stop
        self.extends = True  # whether renewals do: no other transaction holds the rows
        self.calls: Counter[str] = Counter()
        self.faults: dict[str, list[Exception | None]] = {}  # of the next calls, by their name
        # What calls of a name wait for.
        self.before: dict[str, Callable[[], Awaitable[object]]] = {}
        self.answers: list[Consequence | Exception] = []  # of the next attempts
        self.outcomes = dict[Job, Consequence]()
        self.attempting: Callable[[Job], Awaitable[object]] = lambda _: nothing()
        self.runner: Runner[Job] = Runner(
            "jobs",
            self,
            **{
                "permits": 4,
                "per_origin": 2,
                "lease": timedelta(seconds=60),
                "longest": timedelta(seconds=30),
                "longest_pause": timedelta(seconds=60),
                **options,
            },  # type: ignore[arg-type]
        )

    # --- callers ---------------------------------------------------------------------------------

    def store(self, queue: str, jobs: int = 1, *, size: int = 1) -> None:
        """Store jobs of a queue, as another process does."""
        for _ in range(jobs):
            self.last[queue] += 1
            self.pending[queue].append(Job(queue, self.last[queue], size=size))

    def hand(self, queue: str, *, size: int = 1) -> None:
        """Store a job, and hand it to the runner if it has room."""
        took, is_alone = queue not in self.leased, not self.pending[queue]
        self.store(queue, size=size)
        if self.runner.has_room(queue, size) and (is_alone or not took):
            self.epochs[queue] += took
            self.leased.add(queue)
            job, now = self.pending[queue][-1], seconds()
            handed = Handed(queue, group_of(queue), self.epochs[queue], job.seq, took, version=0)
            self.runner.hand(handed, job, since=now, seen_at=now)

    def take_away(self, queue: str) -> None:
        """End the lease of a queue."""
        self.leased.discard(queue)
        self.epochs[queue] += 1

    @property
    def sent(self) -> list[tuple[str, int]]:
        return [(job.queue, job.seq) for job in self.begun]

    # --- `Work` ----------------------------------------------------------------------------------

    async def _called(self, name: str) -> None:
        self.calls[name] += 1
        await self.before.get(name, nothing)()
        fault = self.faults[name].pop(0) if self.faults.get(name) else None
        if fault is not None:
            raise fault

    async def claim(self, room: Room, held: Collection[str]) -> ClaimResult:  # noqa: ARG002
        chosen, taken, waiting = list[Leased](), Counter[str](), set[GroupKey]()
        await self._called("claim")
        for queue, jobs in self.pending.items():
            group = group_of(queue)
            if not jobs or queue in self.leased or queue in self.stopped:
                continue
            if len(chosen) >= room.queues or taken[group[2]] >= room.of_origin(group[2]):
                waiting.add(group)
                continue
            taken[group[2]] += 1
            self.leased.add(queue)
            self.epochs[queue] += 1
            some = jobs[:QUANTUM]
            chosen.append(Leased(queue, group, self.epochs[queue], some, some[-1].seq))
        return ClaimResult(claimed=chosen, waiting=frozenset(waiting))

    async def attempt(self, job: Job) -> Consequence:
        self.begun.append(job)
        await self.attempting(job)
        answer = self.answers.pop(0) if self.answers else Consequence.ACKNOWLEDGED
        if isinstance(answer, Exception):
            raise answer
        self.outcomes[job] = answer
        return answer

    def settle(
        self,
        ask: Ask,
        done: Callable[[Reply | BaseException], None],
        *,
        is_urgent: bool,  # noqa: ARG002
    ) -> None:
        async def settle() -> None:
            try:
                await self._called("settle")
                reply = self._settled(ask)
                await self.before.get("reply", nothing)()
            except BaseException as exc:  # noqa: BLE001  # the runner gets it
                done(exc)
            else:
                done(reply)

        self.runner.keep(asyncio.ensure_future(settle()))

    def _settled(self, ask: Ask) -> Reply:
        if ask.epoch != self.epochs[ask.id] or ask.id not in self.leased:
            return Reply(kept=False)
        jobs = self.pending[ask.id]
        for job in ask.results:
            if job in jobs and self.outcomes[job] is not Consequence.RETRY:
                jobs.remove(job)
        more = [job for job in jobs if job.seq not in ask.has][: ask.more]
        if ask.id in self.stopped:
            more = []
        if ask.releases or not (ask.has or more):
            self.take_away(ask.id)
            return Reply(kept=False, is_due=bool(jobs) and ask.id not in self.stopped)
        upto = more[-1].seq if more else 0
        return Reply(True, more, upto, ask.id in self.stopped)

    async def look(self, ids: Sequence[str]) -> Mapping[str, Seen]:
        await self._called("look")
        return {each: Seen(self.epochs[each], each in self.stopped) for each in ids}

    async def renew(self, held: Mapping[str, int]) -> Renewed:
        await self._called("renew")
        ours = {each for each, epoch in held.items() if epoch == self.epochs[each]}
        return Renewed(ours, ours if self.extends else ())

    async def due(self) -> Due:
        await self._called("due")
        return Due(now=any(self.pending[each] for each in self.pending if each not in self.leased))
