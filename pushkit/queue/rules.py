"""The lease of a queue, as pure rules: who may hand a job to memory, and what its row becomes.

A queue is jobs in order. A worker leases the queue, not the job, takes its next jobs into memory,
works them off one after another, and writes their results in batches.

| event | who | the queue's row |
|---|---|---|
| a job is stored | a caller | `last_seq`; handed to memory, or `due_at` |
| handed over | the transaction that stores it | the lease if there is none; `sending_to` |
| claimed | a worker with room | the lease; `sending_to`; `due_at` is what it left |
| settled | the holder | the lease stays while it has jobs; `due_at`, `sending_to` after a look |
| released | the holder | no lease; `due_at` is when its first job is due |
| expired | any worker | no lease; `abandoned`; `due_at` |
| taken away | an operator, who removes or disables | no lease; nothing is due |

- A job is **in flight** if its queue is leased, `seq <= sending_to`, and it does not wait (`waits`:
  redriven under a lease, or stored to be joined with newer ones, and not fetched yet).
- `due_at` says when somebody has to look for jobs that no memory has; None if there are none.
- The **epoch** grows whenever a lease begins or ends. It fences settling, renewing, releasing and
  appending.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Sequence
from typing import Any, Final, NamedTuple

QUANTUM: Final = 8
"""The most jobs of a queue that are in memory, that are answered and not settled, and that go one
after another before other queues get their turn."""

GroupKey = tuple[str, str, str]
"""What waits and fails together: tenant, owner and origin."""


class Queue(NamedTuple):
    """The row of a queue. Times are microseconds by the database's clock."""

    id: str
    tenant: str
    owner: str
    origin: str
    last_seq: int  # the `seq` of its newest job
    due_at: int | None  # when to look for jobs that no memory has; None if there are none
    lease_worker: str | None  # who leases it
    leased_at: int | None  # since when
    lease_until: int | None
    epoch: int
    sending_to: int  # up to where jobs are with the holder; 0 without a lease
    settled_to: int  # the `seq` of the newest job that was finished in its turn
    abandoned: int  # how many leases in a row ended with their worker
    paused: int
    waits_until: int = 0  # until when its group waits
    failures: int = 0  # how many failures in a row its group has

    @property
    def group(self) -> GroupKey:
        """What it waits with."""
        return (self.tenant, self.owner, self.origin)

    def is_due_later(self, now: int) -> bool:
        """Return whether a claim is to look at it later, and nobody leases it now."""
        return self.lease_worker is None and self.due_at is not None and self.due_at > now

    def may_probe(self, now: int) -> bool:
        """Return whether one of its jobs may be sent: not paused, and its group does not wait."""
        return not self.paused and self.waits_until <= now

    def may_send(self, now: int, *, probation_from: int) -> bool:
        """Return whether several of its jobs may be sent: its group works, too."""
        return self.may_probe(now) and self.failures < probation_from


class PendingJob(NamedTuple):
    """A job in the table that is not finished."""

    queue_id: str
    id: Any  # as its table's column has it
    seq: int
    not_before: int
    scheduled_at: int  # when that was set
    redrives: int  # how often it was redriven: fences results of before
    waits: int  # not fetched yet
    size: int  # of its body, in bytes


def due_of(job: PendingJob, now: int) -> int:
    """Return when a job is due: one whose wait was set in the future waits from now on."""
    if job.scheduled_at > now:
        return now + job.not_before - job.scheduled_at
    return job.not_before


class Handed(NamedTuple):
    """A job that was handed to the memory of its queue's holder as it was stored."""

    queue_id: str
    group: GroupKey
    epoch: int
    seq: int
    took: bool  # whether the lease began with it
    version: int  # of what the queue's jobs have in common


def leased(queue: Queue, worker: str, *, now: int, until: int) -> Queue:
    """Begin a lease."""
    return queue._replace(
        lease_worker=worker, leased_at=now, lease_until=until, epoch=queue.epoch + 1
    )


def released(queue: Queue, due_at: int | None) -> Queue:
    """End a lease, if there is one. Every end moves the epoch: the fence is one comparison."""
    return queue._replace(
        lease_worker=None,
        leased_at=None,
        lease_until=None,
        epoch=queue.epoch + 1,
        sending_to=0,
        due_at=due_at,
    )


def appended(
    queue: Queue,
    worker: str | None,
    *,
    now: int,
    until: int,
    probation_from: int,
    not_before: int = 0,
    version: int = 0,
) -> tuple[Queue, Handed | None]:
    """Add one job to a queue, and hand it to a worker's memory if that is allowed.

    It is if nobody leases the queue or that worker does, nothing is due outside its memory, the
    queue is not paused, its group works, no worker died with it, and the job may be sent now.

    Args:
        worker: The worker in whose process the job is stored, if it has room; None to leave the
            job in the table.
        not_before: When the job may be sent.
        version: Of what the queue's jobs have in common.
    """
    seq = queue.last_seq + 1
    may_hand = (
        worker is not None
        and not_before <= now
        and queue.lease_worker in (None, worker)
        and queue.due_at is None
        and not queue.abandoned
        and queue.may_send(now, probation_from=probation_from)
    )
    if not may_hand:
        # Nothing is due in a paused queue without a lease: resuming looks for its jobs.
        is_seen = queue.due_at is not None or (queue.paused and queue.lease_worker is None)
        due_at = queue.due_at if is_seen else max(now, not_before)
        return queue._replace(last_seq=seq, due_at=due_at), None
    took = queue.lease_worker is None
    if took and worker is not None:
        queue = leased(queue, worker, now=now, until=until)
    handed = Handed(queue.id, queue.group, queue.epoch, seq, took, version)
    return queue._replace(last_seq=seq, sending_to=seq), handed


def schedule(queue: Queue, first: PendingJob | None, now: int) -> int | None:
    """Return when a queue without a lease is due, given its first pending job."""
    return None if first is None or queue.paused else max(now, due_of(first, now))


class Room(NamedTuple):
    """How much a claim may lease: a worker leases ahead of what it sends, within bounds."""

    queues: int  # in all
    of_origin: Callable[[str], int]  # how many more of an origin
    # Groups with a job that has begun here, though its lease may have been taken away.
    under_way: Collection[GroupKey] = ()
    bytes: int = 2**26  # of the bodies that are read in all; the last queue may exceed it


class Leased(NamedTuple):
    """A queue that a worker leases, with its next jobs."""

    id: str
    group: GroupKey
    epoch: int
    jobs: Sequence[Any]  # by `seq`
    upto: int  # up to where the memory is complete with them
    version: int = 0  # of what the jobs have in common, as it was then
    is_probe: bool = False  # whether its one job shows whether its group, on probation, works


class Fetched(NamedTuple):
    """The jobs that a look found for the memory of a queue's holder."""

    jobs: Sequence[PendingJob]
    upto: int  # up to where the memory is complete now; 0 if it still is not


def fetched(
    queue: Queue,
    pending: Sequence[PendingJob],
    has: Sequence[int],
    *,
    most: int,
    now: int,
    most_bytes: int,
    is_all: bool,
) -> tuple[Queue, Fetched]:
    """Take the next jobs of a queue into its holder's memory.

    Args:
        pending: Its first pending jobs, by `seq`.
        has: The `seq` of those that the memory has already.
        most: How many more it can take.
        most_bytes: How many bytes it can take; one job is taken whatever its size.
        is_all: Whether `pending` is all that there is.
    """
    missing = [job for job in pending if job.seq not in has]
    jobs: list[PendingJob] = []
    for job in missing:
        most_bytes -= job.size
        if len(jobs) >= most or due_of(job, now) > now or (jobs and most_bytes < 0):
            break
        jobs.append(job)
    if is_all and len(jobs) == len(missing):
        upto = queue.last_seq
        return queue._replace(due_at=None, sending_to=upto), Fetched(jobs, upto)
    upto = jobs[-1].seq if jobs else 0
    due = due_of(missing[len(jobs)], now) if len(jobs) < len(missing) else now
    sending_to = max(queue.sending_to, upto)
    return queue._replace(due_at=max(now, due), sending_to=sending_to), Fetched(jobs, upto)
