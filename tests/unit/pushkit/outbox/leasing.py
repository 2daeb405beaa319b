"""A worker without an event loop: it leases queues, and settles what a test says came of them."""

from __future__ import annotations

import math
from collections import defaultdict
from collections.abc import Sequence
from dataclasses import dataclass, field
from datetime import datetime, timedelta

from pushkit.delivery.route import DeliveryJob, job_of
from pushkit.outbox import attempts, destinations
from pushkit.outbox.attempts import is_folded, store_results
from pushkit.outbox.model import AttemptResult, Delivery
from pushkit.outbox.states import Outcome
from pushkit.outbox.store import leased_deliveries, lose
from pushkit.queue.held import Ask, Consequence, HeldQueue, Memory, Reply
from pushkit.queue.leases import Claims, advance
from pushkit.queue.rules import Leased, PendingJob, Room
from pushkit.storage.script import Script, to_micros
from pushkit.subscriptions.model import OUTBOX, Subscription
from tests.unit.pushkit.deliveries import append_delivery

LEASE = timedelta(seconds=30)
NEVER = 1_000_000  # failures
_ANSWERS = {
    Outcome.DELIVERED: Consequence.ACKNOWLEDGED,
    Outcome.RETRY: Consequence.RETRY,
    Outcome.LOCAL_FAULT: Consequence.RETRY,
}


@dataclass
class Leasing:
    """Scripts of workers, and their memory.

    Settling has no side effects but waits: the others are tested with a sender.
    """

    window: int = 128
    steps: int = 32
    probation_from: int = NEVER
    claims: Claims = field(init=False)
    workers: dict[str, Memory[DeliveryJob]] = field(
        default_factory=lambda: defaultdict(Memory[DeliveryJob])
    )
    # The queue that each leased delivery was in, by the delivery's identity, and kept with it.
    _memory: dict[int, tuple[Delivery, HeldQueue[DeliveryJob]]] = field(default_factory=dict)

    def __post_init__(self) -> None:
        self.read_little(self.window, self.steps)

    def read_little(self, window: int, steps: int) -> None:
        """Let claims read so many due queues, and so many groups if there are more."""
        self.claims = Claims(tables=OUTBOX, lose=_lose, window=window, steps=steps)

    def claim(
        self,
        worker: str,
        *,
        now: datetime,
        limit: int = 100,
        per_origin: int = 100,
        held: Sequence[str] = (),
    ) -> Script[list[Delivery]]:
        """Lease due queues, after those of late workers; return the deliveries in memory now.

        Args:
            worker: Who claims.
            now: The time.
            limit: How many queues.
            per_origin: How many of them of one origin.
            held: The queues in the worker's memory.
        """
        moment, until = to_micros(now), to_micros(now + LEASE)
        room = Room(limit, lambda _: per_origin)
        self.claims.probation_from = self.probation_from
        yield from self.claims.take_over(worker, held=held, dead=lambda _: (), now=moment)
        result = yield from self.claims.claim(worker, room, now=moment, until=until)
        ids = [job.id for each in result.claimed for job in each.jobs]
        found = yield from leased_deliveries(ids)
        for queue, pending, upto in result.claimed:
            theirs = [found[each.id] for each in pending]
            jobs = [job_of(each, None) for each in theirs]
            leased = Leased(queue.id, queue.group, queue.epoch, jobs, upto)
            memory = self.workers[worker].claimed(leased, until=math.inf, seen_at=math.inf)
            assert memory is not None
            self._remember(memory, theirs)
        return [found[each] for each in ids]

    def store(
        self, subscription: Subscription, worker: str, *, now: datetime
    ) -> Script[tuple[Delivery, bool]]:
        """Store a delivery in a worker's process; return it, and whether it was handed over."""
        new, handed = yield from append_delivery(subscription, worker, now=now, until=now + LEASE)
        if handed is not None:
            job = job_of(new, None)
            memory = self.workers[worker].hand(handed, job, until=math.inf, seen_at=math.inf)
            assert memory is not None
            self._remember(memory, [new])
        return new, handed is not None

    def _remember(self, memory: HeldQueue[DeliveryJob], deliveries: Sequence[Delivery]) -> None:
        self._memory |= {id(each): (each, memory) for each in deliveries}

    def memory(self, delivery: Delivery) -> HeldQueue[DeliveryJob]:
        """Return the memory that a leased delivery is in."""
        return self._memory[id(delivery)][1]

    def settle(
        self,
        settled: Sequence[tuple[Delivery, AttemptResult]],
        *,
        now: datetime,
        finished_at: datetime | None = None,
    ) -> Script[list[bool]]:
        """Settle deliveries of a queue in one transaction; return whether each result counts.

        Args:
            settled: Leased deliveries. The first ones of the memory, or some that were settled.
            now: The time.
            finished_at: Another time for what finishes.
        """
        memory = self.memory(settled[0][0])
        for delivery, result in settled:
            if memory.waiting and memory.waiting[0].delivery is delivery:
                job = memory.begin()
            else:
                job = memory.current = job_of(delivery, None)
            job.result = result
            memory.answer(_ANSWERS.get(result.outcome, Consequence.FINISHED))
        return (yield from self.ask(memory, now=now, finished_at=finished_at))

    def ask(
        self, memory: HeldQueue[DeliveryJob], *, now: datetime, finished_at: datetime | None = None
    ) -> Script[list[bool]]:
        """Settle what a memory has, and take its next deliveries."""
        ask = memory.ask()
        reply, stored = yield from self._settle(memory, ask, now, finished_at or now)
        memory.settled(reply, seen_at=math.inf)
        if not reply.kept:
            for worker in self.workers.values():
                worker.forget(memory)
        return [job.delivery.id in stored for job in ask.results]

    def _settle(
        self, memory: HeldQueue[DeliveryJob], ask: Ask, now: datetime, finished_at: datetime
    ) -> Script[tuple[Reply, set[str]]]:
        queue = (yield from OUTBOX.lock([ask.id])).get(ask.id)
        if queue is None or queue.epoch != ask.epoch:
            return Reply(kept=False), set()
        pairs = [(job.delivery, job.result) for job in ask.results]
        stored = yield from store_results(pairs, now=to_micros(finished_at), ahead=timedelta(0))
        for delivery, result in pairs:
            if delivery.id not in stored:
                continue
            if result.started_at is not None and not is_folded(delivery, result):
                yield from attempts.add([(delivery.id, result)])
            queue = queue._replace(abandoned=0)
            if result.retry_at is None:
                queue = queue._replace(settled_to=max(queue.settled_to, delivery.seq))
            if result.wait_until is not None:
                yield from destinations.postpone(delivery, result.wait_until, now)
                until = max(queue.waits_until, to_micros(result.wait_until))
                queue = queue._replace(waits_until=until)
        moment = to_micros(now)
        replies = yield from advance(
            OUTBOX,
            [(queue, ask)],
            stops=lambda each: not each.may_send(moment, probation_from=self.probation_from),
            now=moment,
        )
        reply = replies[ask.id]
        found = yield from leased_deliveries([each.id for each in reply.jobs])
        theirs = [found[each.id] for each in reply.jobs]
        self._remember(memory, theirs)
        jobs = [job_of(each, None) for each in theirs]
        return reply._replace(jobs=jobs, is_due=False), stored


def _lose(lost: Sequence[tuple[PendingJob, str, int]], now: int) -> Script[None]:
    """Note that workers ended, without a retry policy."""
    for job, error, deaths in lost:
        yield from lose(job.id, error, counts=deaths > 0, retry_at=job.not_before, now=now)
