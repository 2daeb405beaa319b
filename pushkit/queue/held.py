"""A worker's memory of the queues that it leases: which job is next, and what to settle.

No I/O, and no clock: the runner (`pushkit.queue.runner`) asks, and the exhaustive check of the
protocol runs this very code. Moments are seconds by a clock of the worker that counts sleep.
"""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Sequence
from enum import Enum
from typing import Any, Generic, NamedTuple, Protocol, TypeVar

from pushkit.queue.rules import QUANTUM, Handed, Leased
from pushkit.queue.scheduler import count_down

KNOWN_FOR = 0.25
"""Seconds for which a worker relies on a queue's row being as it was: not paused or changed."""


class Job(Protocol):
    """A job in memory."""

    @property
    def seq(self) -> int:
        """Its number in its queue."""

    @property
    def redrives(self) -> int:
        """How often it was redriven when it was read."""

    @property
    def size(self) -> int:
        """The length of its body in bytes."""


J = TypeVar("J", bound=Job)


class Consequence(Enum):
    """What the result of a job means for its queue."""

    ACKNOWLEDGED = "acknowledged"  # the next one may begin before it is settled
    FINISHED = "finished"  # given up: the next one may begin once it is settled
    RETRY = "retry"  # it stays the first: the queue is released until it is due


class Ask(NamedTuple):
    """What a worker says when it settles a queue."""

    id: str
    epoch: int
    version: int  # of what its jobs have in common
    results: Sequence[Any]  # in order; all but the last one are acknowledged
    has: tuple[int, ...]  # the `seq` of the jobs that are in its memory, begun or not
    tail: int  # up to where its memory is complete
    looks: bool  # it knows of a gap
    releases: bool  # it has stopped: it begins nothing more under this epoch
    gives_way: bool  # others wait for its turn: it wants no more jobs
    more: int  # how many more it can take


class Reply(NamedTuple):
    """What a settlement says to the worker."""

    kept: bool  # whether it still leases the queue; False if it was released or lost
    jobs: Sequence[Any] = ()
    upto: int = 0  # up to where its memory is complete now
    stops: bool = False  # it must stop: paused, changed, or its group waits or fails
    is_due: bool = False  # whether a claim may find something now: its jobs, or others'


class HeldQueue(Generic[J]):
    """The jobs of one queue in its holder's memory, under one epoch."""

    __slots__ = (
        "answered", "current", "doubted_at", "epoch", "gap", "gives_way", "group", "id",
        "is_probe", "is_settling", "most_unsettled", "must_settle", "seen_at", "served",
        "settling", "stops", "tail", "until", "version", "waiting", "was_probe",
    )  # fmt: skip

    def __init__(
        self, leased: Leased, *, until: float, seen_at: float, most_unsettled: int = QUANTUM
    ) -> None:
        # It is a probe until its first job is answered.
        self.id, self.group, self.epoch, jobs, self.tail, self.version, self.is_probe = leased
        self.was_probe = self.is_probe
        self.most_unsettled = most_unsettled
        self.until = until  # when its lease ends, by the worker's clock: earlier than it does
        self.seen_at = seen_at  # before its row was read the last time
        self.doubted_at = -math.inf  # when it was known to be changed
        self.waiting: list[J] = [*jobs]  # by `seq`
        self.current: J | None = None  # begun, and not answered
        self.answered: list[J] = []  # and not settled
        self.settling: Sequence[J] = ()  # a settlement of them is under way
        self.is_settling = False
        self.gap = False  # a job was handed over that is not behind `tail`
        self.must_settle = False  # a result that must be settled before the next job begins
        self.stops = False  # nothing more begins under this epoch
        self.gives_way = False  # it is released once its memory is empty
        self.served = 0  # jobs that began in this turn

    def append(self, job: J) -> None:
        """Take a job that was handed over under this epoch."""
        if job.seq == self.tail + 1:
            self.waiting.append(job)
            self.tail = job.seq
        elif job.seq > self.tail:
            self.gap = True

    def may_begin(self, now: float, *, is_known: bool = False) -> bool:
        """Return whether the next job may begin.

        Args:
            now: The moment.
            is_known: Whether the queue's row was read just now, however long that took.
        """
        return (
            self.current is None
            and bool(self.waiting)
            and not self.stops
            and not self.must_settle
            and not self.is_full
            and now < self.until
            and (is_known or now - self.seen_at <= KNOWN_FOR)
        )

    def begin(self) -> J:
        """Begin the next job."""
        job = self.current = self.waiting.pop(0)
        self.served += 1
        return job

    def answer(self, answer: Consequence) -> None:
        """Note the result of the job that was begun."""
        assert self.current is not None  # noqa: S101
        self.answered.append(self.current)
        self.current = None
        self.is_probe = False
        if answer is not Consequence.ACKNOWLEDGED:
            self.must_settle = True
        if answer is Consequence.RETRY:
            self.stops = True

    def ask(self) -> Ask:
        """Return what to settle now; `settle` or `unsettled` must follow."""
        has = tuple([job.seq for job in self.waiting])
        if self.current is not None:
            has = (self.current.seq, *has)
        self.settling, self.answered = self.answered, []
        self.is_settling = True
        gap, self.gap = self.gap, False
        return Ask(
            id=self.id,
            epoch=self.epoch,
            version=self.version,
            results=self.settling,
            has=has,
            tail=self.tail,
            looks=gap,
            releases=self.stops and self.current is None,
            gives_way=self.gives_way,
            more=0 if self.gives_way and has else max(0, QUANTUM - len(has)),
        )

    def settled(self, reply: Reply, *, seen_at: float) -> None:
        """Take the reply of a settlement: the queue is still leased."""
        self.settling, self.is_settling = (), False
        self.must_settle = bool(self.answered) and self.must_settle
        self.seen_at = seen_at
        have = {job.seq for job in self.waiting}
        if self.current is not None:
            have.add(self.current.seq)
        have.update(job.seq for job in self.answered)
        new = [job for job in reply.jobs if job.seq not in have]
        if new:
            self.waiting = sorted([*self.waiting, *new], key=_seq)
        self.tail = max(self.tail, reply.upto)
        self.stops |= reply.stops

    def unsettled(self) -> None:
        """Note that the outcome of a settlement is unknown: ask again, and look."""
        self.answered = [*self.settling, *self.answered]
        self.settling, self.is_settling, self.gap = (), False, True

    def forget_waiting(self) -> None:
        """Forget the jobs that have not begun: a settlement fetches them again.

        Not while one is under way, which has said that they are in memory.
        """
        assert self.current is not None  # noqa: S101
        if self.waiting and not self.is_settling:
            self.waiting.clear()
            self.tail, self.gap = self.current.seq, True

    @property
    def wants_settlement(self) -> bool:
        """Whether there is something to settle, or to ask."""
        if self.is_settling:
            return False
        return bool(self.answered or self.gap or (self.current is None and self.rests))

    @property
    def is_full(self) -> bool:
        """Whether as many jobs are answered and not settled as may be."""
        return len(self.answered) + len(self.settling) >= self.most_unsettled

    @property
    def rests(self) -> bool:
        """Whether nothing more begins under this epoch, as far as the memory knows."""
        return self.stops or not self.waiting

    @property
    def bytes(self) -> int:
        """The bytes of the jobs in memory that are not answered."""
        return sum(job.size for job in self.waiting) + (self.current.size if self.current else 0)


def _seq(job: Job) -> int:
    return job.seq


class Memory(Generic[J]):
    """All queues that a worker leases, as far as it knows.

    Args:
        most_unsettled: How many jobs of a queue may be answered and not settled.
    """

    def __init__(self, most_unsettled: int = QUANTUM) -> None:
        self._most_unsettled = most_unsettled
        self.queues: dict[str, HeldQueue[J]] = {}
        self.at_origin = Counter[str]()  # how many of them are of each origin

    def hand(self, handed: Handed, job: J, *, until: float, seen_at: float) -> HeldQueue[J] | None:
        """Take a job that was stored and handed over; return its queue, if it is held.

        Only under the same epoch, and behind what the memory has. A new lease replaces what is
        known of an older one.
        """
        queue_id, group, epoch, seq, took, version = handed
        if took:
            leased = Leased(queue_id, group, epoch, (), seq - 1, version)
            self.claimed(leased, until=until, seen_at=seen_at)
        queue = self.queues.get(queue_id)
        if queue is not None and queue.epoch == epoch:
            queue.append(job)
            queue.seen_at = max(queue.seen_at, seen_at)
            queue.stops |= queue.version != version
        return queue

    def claimed(self, leased: Leased, *, until: float, seen_at: float) -> HeldQueue[J] | None:
        """Take a queue that was leased; None if the memory knows of that lease, or a newer one."""
        known = self.queues.get(leased.id)
        if known is not None and known.epoch >= leased.epoch:
            return None
        if known is not None:  # it may have moved to another origin since
            self.forget(known)
        queue = self.queues[leased.id] = HeldQueue[J](
            leased, until=until, seen_at=seen_at, most_unsettled=self._most_unsettled
        )
        self.at_origin[queue.group[2]] += 1
        return queue

    def forget(self, queue: HeldQueue[J]) -> None:
        """Forget a queue whose lease has ended."""
        if self.queues.get(queue.id) is queue:
            del self.queues[queue.id]
            count_down(self.at_origin, queue.group[2])
