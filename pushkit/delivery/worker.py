"""The worker: leases queues of deliveries, attempts and settles them (`pushkit.queue`)."""

from __future__ import annotations

import asyncio
from collections.abc import Collection, Sequence
from datetime import timedelta

from pushkit.delivery.answers import REFUSED
from pushkit.delivery.attempt import Attempt
from pushkit.delivery.route import DeliveryJob, job_of, read_subscriptions
from pushkit.delivery.settle import DeliverySettler, SettledDeliveries, emit_settled
from pushkit.outbox import attempts
from pushkit.outbox.states import Outcome
from pushkit.outbox.store import leased_deliveries, lose
from pushkit.queue.held import Consequence
from pushkit.queue.leases import Claimed
from pushkit.queue.rules import PendingJob
from pushkit.queue.runner import Runner, Seen
from pushkit.queue.worker import QueueWorker
from pushkit.scheduling.event_loop import cancelled
from pushkit.scheduling.retry import after_faults, next_attempt
from pushkit.storage.database import Database
from pushkit.storage.script import Script, from_micros, to_micros
from pushkit.subscriptions import store as subscriptions
from pushkit.subscriptions.model import OUTBOX

_LAST_WRITES = 1.0  # seconds for the transactions that run when the worker ends
_ANSWERS = {
    Outcome.DELIVERED: Consequence.ACKNOWLEDGED,
    Outcome.RETRY: Consequence.RETRY,
    Outcome.LOCAL_FAULT: Consequence.RETRY,
    Outcome.DEAD: Consequence.FINISHED,
    Outcome.GONE: Consequence.FINISHED,
}


class Worker(QueueWorker[DeliveryJob]):
    """Delivers due notifications."""

    def __init__(
        self,
        database: Database,
        attempt: Attempt,  # with the options, clock and listeners of its sender
    ) -> None:
        options = attempt.options
        lease = options.timeout + options.lease_margin
        super().__init__(
            database,
            OUTBOX,
            kind="worker",
            lease=lease,
            probation_from=options.breaker.failures,
        )
        self._options = options
        self._attempt = attempt
        self._settling = DeliverySettler(
            database=database, clock=attempt.clock, options=options, routes=attempt.routes
        ).script
        self.is_retired = False
        self.runner: Runner[DeliveryJob] = Runner(
            "deliveries",
            self,
            permits=options.concurrency,
            per_origin=options.concurrency_per_host,
            lease=lease,
            longest=options.timeout,
            longest_pause=options.poll_interval,
            take_turn=attempt.rate_limiter.take,
        )

    # --- life --------------------------------------------------------------------------------

    async def run(self) -> None:
        """Deliver until cancelled; this process and others may wake it."""
        listening = asyncio.create_task(self._database.listen(self.runner.wake_soon))
        try:
            await self.runner.run()
        finally:
            await cancelled(listening)

    async def finish(self, within: timedelta) -> None:
        """Wait for running attempts; cancel those that are not done within that time."""
        # A transaction that still runs may hand a delivery over, to be begun here.
        self.runner.is_open = False
        await self._database.drain(_LAST_WRITES)
        await self.runner.finish(within)

    def retire(self) -> None:
        """Release this worker's queues: other workers may take them over at once."""
        self.is_retired = True
        self.runner.retire()
        if self._database.locks is not None:
            self._database.locks.release(self.name)

    def changed(self, ids: Collection[str]) -> None:
        """Look at queues again: an operator, or a client, changed them in this process."""
        self.runner.doubt(ids)
        self.runner.wake()

    async def run_once(self) -> int:
        """Claim once, and work off what is due of the claimed queues; return how many attempts."""
        return await self.runner.run_once()

    # --- `QueueWorker` -----------------------------------------------------------------------

    def _jobs_of(self, claimed: Sequence[Claimed]) -> Script[dict[str, DeliveryJob]]:
        """Read leased deliveries with their bodies and subscriptions."""
        deliveries = yield from leased_deliveries([job.id for each in claimed for job in each.jobs])
        refusals = yield from attempts.count(deliveries.values(), REFUSED)
        jobs = {each.id: job_of(each, None, refusals[each.id]) for each in deliveries.values()}
        yield from read_subscriptions(list(jobs.values()))
        return jobs

    def _version(self, jobs: Sequence[DeliveryJob]) -> int:
        """Return the revision of the subscription of leased deliveries."""
        to = jobs[0].to
        return 0 if to is None else to.subscription.revision

    def _lose(self, lost: Sequence[tuple[PendingJob, str, int]], now: int) -> Script[None]:
        """Note that workers ended with deliveries, which may be what they died of.

        The policy says when to give up. What it says of waiting is for webhooks: a delivery that
        only happened to be there when its workers were killed waits no longer than after a fault
        of this side.
        """
        deliveries = yield from leased_deliveries([job.id for job, _, _ in lost])
        blamed = [deliveries[job.id] for job, _, deaths in lost if deaths]
        refusals = yield from attempts.count(blamed, REFUSED)
        moment = from_micros(now)
        for job, error, deaths in lost:
            delivery = deliveries[job.id]
            retry_at: int | None = job.not_before
            if deaths:
                next_at = next_attempt(
                    self._options.retry,
                    attempts=delivery.attempts - refusals[job.id] + 1,
                    since=delivery.age_from,
                    now=moment,
                )
                soon = to_micros(moment + after_faults(deaths))
                retry_at = None if next_at is None else min(to_micros(next_at), soon)
            yield from lose(job.id, error, counts=deaths > 0, retry_at=retry_at, now=now)

    async def attempt(self, job: DeliveryJob) -> Consequence:
        """Make one attempt."""
        job.result = result = await self._attempt.make(job)
        return _ANSWERS[result.outcome]

    def _tell(self, settled: SettledDeliveries) -> None:
        emit_settled(self._attempt.events, settled)

    def _look(self, ids: Sequence[str]) -> Script[dict[str, Seen]]:
        now = to_micros((yield from self._database.now()))
        found = yield from subscriptions.read_current(ids)
        return {
            name: Seen(
                each.queue.epoch,
                not (each.active and each.queue.may_probe(now)),
                each.revision,
                on_probation=each.queue.failures >= self._options.breaker.failures,
            )
            for name, each in found.items()
        }
