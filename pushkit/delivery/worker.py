"""The worker: claims deliveries, attempts and settles them."""

from __future__ import annotations

import asyncio
import functools
import itertools
import logging
import secrets
import time
from collections.abc import Callable, Sequence
from datetime import datetime, timedelta

from pushkit.delivery.answers import REFUSED
from pushkit.delivery.attempt import Attempt
from pushkit.delivery.chain import Chain
from pushkit.delivery.options import SenderOptions
from pushkit.delivery.queues import Queue
from pushkit.delivery.settle import Settled, Settler, emit_settled
from pushkit.delivery.slots import Claimed, DeliverySlots, Reservation
from pushkit.errors import StorageError
from pushkit.events.listeners import Listeners
from pushkit.outbox.attempts import AttemptLog
from pushkit.outbox.destinations import destination_of
from pushkit.outbox.leases import Leases
from pushkit.outbox.model import Claim
from pushkit.outbox.parking import hold_parking
from pushkit.outbox.settling import CHAINED_BYTES
from pushkit.outbox.shares import SlotLimits
from pushkit.scheduling.deadlines import Deadlines
from pushkit.scheduling.pump import Pump, cancelled
from pushkit.scheduling.retry import persist
from pushkit.storage.database import Database
from pushkit.storage.script import Script, to_micros
from pushkit.subscriptions.store import SubscriptionStore

_log = logging.getLogger("pushkit.delivery")

_LAST_WRITES = 1.0  # seconds for the transactions that run when the worker ends


class Worker:
    """Delivers due notifications."""

    def __init__(
        self,
        database: Database,
        attempt: Attempt,
        options: SenderOptions,
        *,
        clock: Callable[[], datetime],  # returns the current time, aware, in UTC
        events: Listeners,  # where the outcomes of deliveries are emitted
    ) -> None:
        self._options = options
        self._lease = attempt.longest + options.lease_margin
        self._database = database
        self._attempt = attempt
        self._deadlines = Deadlines()
        self._events = events
        self._leases = Leases(functools.partial(hold_parking, database))
        self._attempts = AttemptLog()
        self._subscriptions = SubscriptionStore()
        self._clock = clock
        self.slots: DeliverySlots = DeliverySlots(
            options.concurrency, per_origin=options.concurrency_per_host
        )
        self._claimed_at: datetime | None = None
        self._is_running = self.is_retired = False
        self.pump: Pump[Claimed] = Pump(
            "deliveries",
            claim=self._claim,
            process=self._deliver,
            until_due=self._until_due,
            slots=self.slots,
            longest_pause=options.poll_interval,
            ended=lambda claimed: self.slots.ended(destination_of(claimed.delivery), claimed.since),
        )

    @functools.cached_property
    def name(self) -> str:
        """A unique name, drawn at its first use: processes forked before then have one each."""
        return f"worker_{secrets.token_hex(8)}"

    @functools.cached_property
    def _settler(self) -> Settler:
        return Settler(
            database=self._database,
            worker=self.name,
            clock=self._clock,
            options=self._options,
            slots=self.slots,
            routes=self._attempt.routes,
            lease=self._lease,
        )

    async def run(self) -> None:
        """Deliver until cancelled; this process and others may wake it."""
        listening = asyncio.create_task(self._database.listen(self.pump.wake))
        self._is_running = True
        try:
            await self.pump.run()
        finally:
            self._is_running = self.slots.is_open = False
            await cancelled(listening)

    async def finish(self, within: timedelta) -> None:
        """Wait for running attempts; cancel those that are not done within that time."""
        # A transaction that still runs may store a delivery with a reservation, to be begun here.
        await self._database.drain(_LAST_WRITES)
        await self.pump.finish(within)

    def retire(self) -> None:
        """Release this worker's deliveries: other workers may take them over at once."""
        self.is_retired = True
        if self._database.locks is not None:
            self._database.locks.release(self.name)

    async def run_once(self) -> int:
        """Make the attempts that are due now, at most `concurrency`; return how many."""
        return await self.pump.run_once()

    def reserve(self, queue: Queue, size: int, now: datetime) -> Reservation | None:
        """Reserve a place in a queue's chain, or a slot, for a delivery that is being stored.

        Args:
            queue: Its queue, which is not paused.
            size: The length of its body in bytes.
            now: The current time.

        Returns:
            The reservation: the delivery is stored in flight, with `claim_at(now)`. None if it must
            wait for a claim.
        """
        recipient = queue.recipient
        is_on_probation = recipient.failures >= self._options.breaker.failures
        if is_on_probation or recipient.waits_until > to_micros(now):
            return None
        chain = self.slots.chains.get(recipient.id)
        may_join = size <= CHAINED_BYTES and not recipient.failures
        if chain is not None and may_join and chain.promise(queue.last_seq + 1):
            return chain
        destination = recipient.destination
        return destination if queue.oldest is None and self.slots.reserve(destination) else None

    def claim_at(self, now: datetime) -> Claim:
        """Return the claim of deliveries that are stored with a reservation."""
        return Claim(self.name, now + self._lease)

    def begin(self, claimed: Claimed) -> None:
        """Begin the attempt of a delivery that was stored with a reservation.

        After the worker was retired, the delivery is left in flight until its lease ends.
        """
        if claimed.chain is not None:
            claimed.chain.join(claimed)
        elif not self.is_retired:
            self.pump.begin(claimed)

    async def _claim(self) -> Sequence[Claimed]:
        if self._database.locks is not None:
            self._database.locks.hold(self.name)
        # Only with the lock: others would take over the deliveries in slots of a worker without it.
        self.slots.is_open = self._is_running
        claimed: list[Claimed] = []
        live = [each.delivery.id for each in self.pump.items()]
        live += itertools.chain.from_iterable(chain.ids() for chain in self.slots.chains.values())
        try:
            return await self._database.write(self._claim_script(claimed, live))
        except BaseException:
            self.slots.cancel(claimed)
            raise

    def _claim_script(self, claimed: list[Claimed], live: Sequence[str]) -> Script[list[Claimed]]:
        """Claim due deliveries, and append them to `claimed`; each of them holds a slot.

        `live` has the ids of all deliveries in progress.
        """
        free, since = self.slots.take_for_claim(), time.perf_counter()
        try:
            now = yield from self._database.now()
            if self._claimed_at is None or now < self._claimed_at:
                yield from self._leases.after_setback(now)
            self._claimed_at = now
            yield from self._take_over(now)
            result = yield from self._leases.claim(
                Claim(worker=self.name, until=now + self._lease),
                SlotLimits(
                    slots=free,
                    reserved=self.slots.reserved,
                    per_origin=self._options.concurrency_per_host,
                    probation_from=self._options.breaker.failures,
                ),
                now=now,
                held=self.slots.held(),
                used=self.slots.use.of,
                live=list(dict.fromkeys(live)),
            )
            deliveries = result.deliveries
            found = yield from self._subscriptions.by_ids([d.subscription_id for d in deliveries])
            # After a claim was lost, `last_error` is not the error of the last attempt.
            refused = [d for d in deliveries if d.last_error in REFUSED or d.fruitless_claims > 1]
            refusals = yield from self._attempts.count(refused, REFUSED)
            self.slots.note(result)
            claimed += (
                Claimed(d, found.get(d.subscription_id), since, refusals[d.id]) for d in deliveries
            )
            return claimed
        finally:
            self.slots.give_back(free - len(claimed))

    def _take_over(self, now: datetime) -> Script[None]:
        """Release the deliveries of workers on this machine that ended: their locks are free."""
        locks = self._database.locks
        if locks is None:
            return
        working = yield from self._leases.working()
        for worker in locks.dead(name for name in working if name != self.name):
            _log.warning("worker %s ended with deliveries in flight, which are taken over", worker)
            yield from self._leases.release_worker(worker, now)

    async def _deliver(self, claimed: Claimed) -> None:
        """Attempt a delivery and those that follow it in its slot; settle them."""
        name, destination = claimed.delivery.subscription_id, destination_of(claimed.delivery)
        chain = Chain(
            claimed,
            attempt=self._attempt,
            settle=self._settle,
            longest_wait=self._options.lease_margin,
            may_continue=functools.partial(self.slots.may_follow, destination),
            deadlines=self._deadlines,
        )
        if chain.is_late():
            # This process stood still: an attempt would outlast the lease.
            _log.warning(
                "delivery %s: claimed too long ago; left until its lease ends", claimed.delivery.id
            )
            return
        self.slots.chains[name] = chain
        try:
            await chain.run()
        finally:
            if self.slots.chains.get(name) is chain:
                del self.slots.chains[name]

    async def _settle(self, attempted: Sequence[Claimed]) -> Settled:
        # Until it is settled, a delivery that arrived would be sent again: so settling is retried
        # until the lease ends, if the database is out of reach.
        settled = await persist(
            lambda: self._settler.settle(attempted),
            through=StorageError,
            within=self._options.lease_margin,
        )
        emit_settled(self._events, attempted, settled)
        if settled.some_wait:
            self.slots.note_waiting()
            self.pump.wake()
        return settled

    async def _until_due(self) -> timedelta | None:
        return await self._database.read(self._until_due_script())

    def _until_due_script(self) -> Script[timedelta | None]:
        now = yield from self._database.now()
        due = yield from self._leases.next_due(now)
        return None if due is None else due - now
