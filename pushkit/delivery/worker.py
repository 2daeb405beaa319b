"""The worker: claims deliveries, makes their attempts, settles them."""

from __future__ import annotations

import asyncio
import logging
import secrets
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from datetime import datetime, timedelta

from pushkit.delivery.attempt import Attempt
from pushkit.delivery.breaker import REFUSED, SUBSCRIPTION_MISSING, TOO_OLD
from pushkit.delivery.consequences import Consequences
from pushkit.delivery.events import SenderEvent, tell
from pushkit.delivery.settle import Attempted, Settler
from pushkit.errors import StorageError
from pushkit.outbox import AttemptLog, Claim, Delivery, Leases, Outcome, Result
from pushkit.storage import Database, Script
from pushkit.subscriptions import StoredSubscription, SubscriptionStore
from pushkit.work import Pump, cancelled, persist

__all__ = ["Worker"]

_log = logging.getLogger("pushkit.delivery")


@dataclass(frozen=True, slots=True)
class _Claimed:
    delivery: Delivery
    stored: StoredSubscription | None
    refusals: int


class Worker:
    """Delivers what is due.

    Args:
        database: Where outbox and subscriptions live.
        attempt: How one attempt is made.
        clock: Returns now, aware, in UTC.
        concurrency: How many attempts at once.
        concurrency_per_origin: How many of them to one destination, over all owners.
        consequences: What attempts mean for destinations and subscriptions.
        lease_margin: How much longer than an attempt a lease lasts, for settling.
        poll_interval: How long to wait at most before looking for what other processes added.
        on_event: Told what an operator may want to hear of.
    """

    def __init__(
        self,
        database: Database,
        attempt: Attempt,
        *,
        clock: Callable[[], datetime],
        concurrency: int,
        concurrency_per_origin: int,
        consequences: Consequences,
        lease_margin: timedelta = timedelta(seconds=15),
        poll_interval: timedelta = timedelta(seconds=1),
        on_event: Callable[[SenderEvent], None] | None = None,
    ) -> None:
        self._lease_margin = lease_margin
        self._per_origin = concurrency_per_origin
        self._database = database
        self._attempt = attempt
        self._clock = clock
        self._consequences = consequences
        self._on_event = on_event
        self._leases = Leases(database.exclusively)
        self._attempts = AttemptLog()
        self._subscriptions = SubscriptionStore()
        self.name = f"worker_{secrets.token_hex(8)}"
        self._settler = Settler(
            database=database, worker=self.name, clock=clock, consequences=consequences
        )
        self.pump = Pump(
            "deliveries",
            claim=self._claim,
            process=self._deliver,
            until_due=self._until_due,
            concurrency=concurrency,
            longest_pause=poll_interval,
        )

    async def run(self) -> None:
        """Deliver until cancelled, woken by this process and by others."""
        listening = asyncio.create_task(self._database.listen(self.pump.wake))
        try:
            await self.pump.run()
        finally:
            await cancelled(listening)

    def retire(self) -> None:
        """Say that nothing is in work here any more: what is left is anybody's."""
        if self._database.locks is not None:
            self._database.locks.release(self.name)

    async def run_once(self) -> int:
        """Make the attempts that are due now, as many as run at once; return how many."""
        return await self.pump.run_once()

    async def _claim(self, limit: int) -> Sequence[_Claimed]:
        if self._database.locks is not None:
            self._database.locks.hold(self.name)
        return await self._database.write(self._claim_script(limit))

    def _claim_script(self, limit: int) -> Script[list[_Claimed]]:
        now = yield from self._database.now()
        yield from self._take_over(now)
        claim = Claim(worker=self.name, until=now + self._attempt.longest + self._lease_margin)
        deliveries = yield from self._leases.claim(
            claim,
            limit=limit,
            per_origin=self._per_origin,
            now=now,
            one_at_a_time_from=self._consequences.breaker.failures,
        )
        found = yield from self._subscriptions.by_ids([d.subscription_id for d in deliveries])
        refused = [d for d in deliveries if d.last_error in REFUSED]
        refusals = yield from self._attempts.count(refused, REFUSED)
        return [_Claimed(d, found.get(d.subscription_id), refusals[d.id]) for d in deliveries]

    def _take_over(self, now: datetime) -> Script[None]:
        """Give back the rows of workers on this machine that died: their locks are free."""
        locks = self._database.locks
        if locks is None:
            return
        working = yield from self._leases.working()
        for worker in locks.dead(name for name in working if name != self.name):
            _log.warning("worker %s died; its deliveries are taken over", worker)
            yield from self._leases.take_over(worker, now)

    async def _deliver(self, claimed: _Claimed) -> None:
        result = await self._result(claimed)
        attempted = Attempted(claimed.delivery, claimed.stored, result)
        # What the webhook has is sent again unless that gets written down: while the database is
        # away it is tried until the lease ends.
        events = await persist(
            lambda: self._settler.settle(attempted),
            through=StorageError,
            within=self._lease_margin,
        )
        _report(claimed.delivery, result)
        tell(self._on_event, events)

    async def _result(self, claimed: _Claimed) -> Result:
        delivery = claimed.delivery
        if claimed.stored is None:
            return Result(outcome=Outcome.DEAD, error=SUBSCRIPTION_MISSING)
        if delivery.attempts > 0 and self._attempt.is_too_old(delivery, self._clock()):
            return Result(outcome=Outcome.DEAD, error=TOO_OLD, status=delivery.last_status)
        return await self._attempt.make(delivery, claimed.stored, refusals=claimed.refusals)

    async def _until_due(self) -> timedelta | None:
        return await self._database.read(self._until_due_script())

    def _until_due_script(self) -> Script[timedelta | None]:
        now = yield from self._database.now()
        due = yield from self._leases.next_due(now)
        return None if due is None else due - now


def _report(delivery: Delivery, result: Result) -> None:
    if result.outcome is Outcome.LOCAL_FAULT:
        return  # told once for all deliveries that wait for it
    level = logging.INFO if result.outcome is Outcome.DELIVERED else logging.WARNING
    _log.log(
        level,
        "delivery %s task %s seq %d attempt %d: %s (status %s, %s)",
        delivery.id,
        delivery.task_id,
        delivery.seq,
        delivery.attempts + int(result.made is not None),
        result.outcome.value,
        result.status if result.status is not None else "none",
        result.error or "ok",
    )
