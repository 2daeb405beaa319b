"""Any sequence of calls, against the real store, beside a model that fits on one page.

`tests/verification/exhaustive` visits every state of one queue. This has several queues, owners
and destinations, on both databases.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable
from dataclasses import dataclass
from datetime import datetime
from typing import Any

import pytest
from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import (
    RuleBasedStateMachine,
    initialize,
    invariant,
    rule,
    run_state_machine_as_test,
)

from pushkit.delivery.route import DeliveryJob
from pushkit.errors import IdempotencyConflictError
from pushkit.outbox.states import DeliveryState, Outcome
from pushkit.queue.held import HeldQueue
from pushkit.queue.rules import QUANTUM
from pushkit.subscriptions import store as subscriptions
from pushkit.subscriptions.model import OUTBOX, Subscription
from tests.long_runs import examples
from tests.unit.pushkit.outbox.leasing import LEASE

OWNERS = ("alice", "bob")
ORIGINS = ("https://one.example.com:443", "https://two.example.com:443")
WORKERS = ("worker-1", "worker-2")
PER_ORIGIN = 3
FINISHED = (DeliveryState.DELIVERED, DeliveryState.DEAD, DeliveryState.CANCELLED)


@dataclass
class Expected:
    """A delivery in the model: pending, or finished."""

    id: str
    seq: int
    body: bytes
    due: datetime
    state: DeliveryState = DeliveryState.PENDING
    attempts: int = 0
    redrives: int = 0


@dataclass
class ExpectedQueue:
    """A queue in the model. Whether it is leased is what its holder knows."""

    subscription: Subscription
    rows: list[Expected]
    holder: HeldQueue[DeliveryJob] | None = None
    lease_until: datetime | None = None
    abandoned: int = 0

    @property
    def pending(self) -> list[Expected]:
        return [row for row in self.rows if row.state is DeliveryState.PENDING]

    @property
    def in_memory(self) -> set[int]:
        return set() if self.holder is None else {job.seq for job in self.holder.waiting}

    def end_lease(self) -> None:
        self.holder = self.lease_until = None


class Outbox(RuleBasedStateMachine):
    make_ledger: Callable[[], Any]

    def __init__(self) -> None:
        super().__init__()
        self.ledger = type(self).make_ledger()
        self.queues: dict[str, ExpectedQueue] = {}  # also of removed subscriptions
        self.active: dict[tuple[str, str], ExpectedQueue] = {}
        self.keys: dict[tuple[str, str], Expected] = {}
        self.updates: dict[str, bytes] = {}  # by key, of one task
        self.waits_until: dict[tuple[str, str], datetime] = {}
        self.memories: list[HeldQueue[DeliveryJob]] = []  # also those whose lease has ended
        self.reads_all = True

    def teardown(self) -> None:
        self.ledger.close()

    @initialize(window=st.sampled_from([1, 16]))
    def begin(self, window: int) -> None:
        # A claim that reads few queues goes from group to group.
        self.ledger.leasing.read_little(window, 4)
        self.reads_all = window > 1
        for owner in OWNERS:
            self.subscribe(owner, ORIGINS[0])

    @rule(owner=st.sampled_from(OWNERS), origin=st.sampled_from(ORIGINS))
    def subscribe(self, owner: str, origin: str) -> None:
        self.tick()
        before = self.active.get((owner, origin))
        found = self.ledger.subscribe(origin, owner=owner, origin=origin)
        if before is not None:
            assert (found.id, found.last_seq) == (before.subscription.id, len(before.rows))
            return
        assert (found.id in self.queues, found.last_seq) == (False, 0)
        self.active[owner, origin] = self.queues[found.id] = ExpectedQueue(found, [])

    # --- callers -----------------------------------------------------------------------------

    @rule(data=st.data(), number=st.integers(1, 4))
    def enqueue(self, data: st.DataObject, number: int) -> None:
        if (queue := self.some_queue(data)) is None:
            return
        for _ in range(number):
            delivery_id = self.ledger.enqueue(queue.subscription, b"1")
            queue.rows.append(Expected(delivery_id, len(queue.rows) + 1, b"1", self.ledger.now))

    @rule(data=st.data(), key=st.sampled_from("kl"), body=st.sampled_from([b"1", b"2"]))
    def enqueue_once(self, data: st.DataObject, key: str, body: bytes) -> None:
        if (queue := self.some_queue(data)) is None:
            return
        subscription = queue.subscription
        earlier = self.keys.get((subscription.id, key))
        if self.updates.setdefault(key, body) != body:
            with pytest.raises(IdempotencyConflictError):
                self.ledger.enqueue(subscription, body, key)
            return
        delivery_id = self.ledger.enqueue(subscription, body, key)
        if earlier is not None:
            assert delivery_id == earlier.id
            return
        row = Expected(delivery_id, len(queue.rows) + 1, body, self.ledger.now)
        queue.rows.append(row)
        self.keys[subscription.id, key] = row

    @rule(data=st.data(), worker=st.sampled_from(WORKERS))
    def enqueue_beside_a_worker(self, data: st.DataObject, worker: str) -> None:
        if (queue := self.some_queue(data)) is None:
            return
        has_others = {row.seq for row in queue.pending} != queue.in_memory
        ledger, holder = self.ledger, queue.holder
        new, is_handed = ledger.run(
            ledger.leasing.store(queue.subscription, worker, now=ledger.now)
        )
        queue.rows.append(Expected(new.id, new.seq, new.body, ledger.now))
        if not is_handed:
            return
        assert not has_others, "it would overtake a delivery that waits in the table"
        assert not queue.abandoned, "it would die with a delivery that its worker may die of"
        memory = ledger.memory(new)
        if holder is None:
            queue.holder, queue.lease_until = memory, ledger.now + LEASE
            self.memories.append(memory)
        assert memory is queue.holder

    # --- workers -----------------------------------------------------------------------------

    @rule(worker=st.sampled_from(WORKERS), limit=st.integers(1, 5))
    def claim(self, worker: str, limit: int) -> None:
        now = self.ledger.now
        for queue in self.queues.values():
            if queue.lease_until is not None and queue.lease_until <= now:
                self.expire(queue)
        due = self.claimable()
        claimed = self.ledger.claim(worker, limit=limit, per_origin=PER_ORIGIN)
        by_queue: dict[str, list[int]] = {}
        for delivery in claimed:
            by_queue.setdefault(delivery.subscription_id, []).append(delivery.seq)
            row = self.queues[delivery.subscription_id].rows[delivery.seq - 1]
            assert (delivery.id, delivery.body, delivery.attempts) == (
                row.id,
                row.body,
                row.attempts,
            )
        for queue_id, seqs in by_queue.items():
            queue = due.pop(queue_id)
            assert seqs == self.next_of(queue)
            queue.holder = self.ledger.memory(
                next(each for each in claimed if each.subscription_id == queue_id)
            )
            queue.lease_until = now + LEASE
            self.memories.append(queue.holder)
        taken = Counter(self.queues[each].subscription.origin for each in by_queue)
        assert all(number <= PER_ORIGIN for number in taken.values())
        if self.reads_all and len(by_queue) < limit:
            assert all(taken[queue.subscription.origin] == PER_ORIGIN for queue in due.values())

    def expire(self, queue: ExpectedQueue) -> None:
        """End a lease whose worker is late: from the second time on it counts as an attempt."""
        in_flight = self.in_flight(queue)
        pending = queue.pending
        if pending and pending[0].seq in in_flight and queue.abandoned:
            pending[0].attempts += 1
        queue.abandoned = queue.abandoned + 1 if pending else 0
        queue.end_lease()

    def next_of(self, queue: ExpectedQueue) -> list[int]:
        """Return the deliveries that a claim takes: the first ones, up to one that is not due."""
        most = 1 if queue.abandoned else QUANTUM
        seqs = []
        for row in queue.pending[:most]:
            if row.due > self.ledger.now:
                break
            seqs.append(row.seq)
        return seqs

    @rule(
        data=st.data(),
        outcomes=st.lists(st.just(Outcome.DELIVERED), max_size=2),
        last=st.sampled_from(Outcome),
        retry_in=st.integers(0, 40),
        wait=st.none() | st.integers(1, 40),
    )
    def settle(
        self,
        data: st.DataObject,
        outcomes: list[Outcome],
        last: Outcome,
        retry_in: int,
        wait: int | None,
    ) -> None:
        busy = [memory for memory in self.memories if memory.waiting]
        if not busy:
            return
        memory = data.draw(st.sampled_from(busy))
        jobs = memory.waiting[: len(outcomes) + 1]
        results = [
            self.ledger.came_to(outcome, retry_in=retry_in, wait=wait)
            for outcome in (*outcomes[: len(jobs) - 1], last)
        ]
        queue = self.queues[memory.id]
        is_held = queue.holder is memory
        rows = [queue.rows[job.seq - 1] for job in jobs]
        ours = [
            is_held and (row.state, row.redrives) == (DeliveryState.PENDING, job.redrives)
            for row, job in zip(rows, jobs, strict=True)
        ]
        pairs = [(job.delivery, result) for job, result in zip(jobs, results, strict=True)]
        assert ours == self.ledger.run(self.ledger.leasing.settle(pairs, now=self.ledger.now))
        for row, result, is_ours in zip(rows, results, ours, strict=True):
            if not is_ours:
                continue
            queue.abandoned = 0
            row.attempts += result.started_at is not None
            row.due = result.retry_at or row.due
            if result.retry_at is None:
                is_done = result.outcome is Outcome.DELIVERED
                row.state = DeliveryState.DELIVERED if is_done else DeliveryState.DEAD
            if result.wait_until is not None:
                group = (queue.subscription.key.owner, queue.subscription.origin)
                before = self.waits_until.get(group, result.wait_until)
                self.waits_until[group] = max(result.wait_until, before)
        self.after_an_answer(queue, memory)

    @rule(data=st.data(), releases=st.booleans())
    def ask(self, data: st.DataObject, *, releases: bool) -> None:
        """Settle without results, as a worker does that has nothing left, or gives a queue back."""
        if not self.memories:
            return
        memory = data.draw(st.sampled_from(self.memories))
        memory.stops |= releases
        if memory.stops or not memory.waiting:
            self.ledger.run(self.ledger.leasing.ask(memory, now=self.ledger.now))
            self.after_an_answer(self.queues[memory.id], memory)

    def after_an_answer(self, queue: ExpectedQueue, memory: HeldQueue[DeliveryJob]) -> None:
        workers = self.ledger.leasing.workers.values()
        if any(worker.queues.get(memory.id) is memory for worker in workers):
            assert queue.holder is memory, "a lease that is over was kept"
            return
        if queue.holder is memory:
            queue.end_lease()
        memory.waiting.clear()
        self.memories.remove(memory)

    @rule(data=st.data())
    def renew(self, data: st.DataObject) -> None:
        if not self.memories:
            return
        memory = data.draw(st.sampled_from(self.memories))
        queue, until = self.queues[memory.id], self.ledger.now + LEASE
        holds = queue.holder is memory
        renewed = self.ledger.renew({memory.id: memory.epoch}, until)
        assert renewed == ({memory.id} if holds else set())
        if holds:
            queue.lease_until = until

    # --- operators ---------------------------------------------------------------------------

    @rule(data=st.data())
    def redrive(self, data: st.DataObject) -> None:
        queue = self.some_queue(data)
        rows = [row for row in queue.rows if row.state in FINISHED] if queue else []
        if not queue or not rows:
            return
        row = data.draw(st.sampled_from(rows))
        queue_id = queue.subscription.id
        assert self.ledger.redrive_one(queue_id, row.id, row.state) == [row.id]
        row.state, row.attempts, row.due = DeliveryState.PENDING, 0, self.ledger.now
        row.redrives += 1

    @rule(data=st.data())
    def cancel(self, data: st.DataObject) -> None:
        queue = self.some_queue(data)
        if queue is None or not queue.pending:
            return
        row = data.draw(st.sampled_from(queue.pending))
        may = row.seq not in self.in_flight(queue)
        assert self.ledger.cancel_one(queue.subscription.id, row.id) is may
        if may:
            row.state = DeliveryState.CANCELLED
            if not queue.pending and queue.holder is None:
                queue.abandoned = 0

    @rule(data=st.data())
    def remove(self, data: st.DataObject) -> None:
        if (queue := self.some_queue(data)) is None:
            return
        subscription, pending = queue.subscription, queue.pending
        del self.active[subscription.key.owner, subscription.origin]
        assert self.ledger.run(subscriptions.remove(subscription.key)) is not None
        assert self.ledger.cancel(subscription) == len(pending)
        for row in pending:
            row.state = DeliveryState.CANCELLED
        queue.end_lease()

    @rule(seconds=st.sampled_from([1, 10, 30, 40]))
    def advance(self, seconds: int) -> None:
        self.ledger.advance(seconds)

    # --- what always holds -------------------------------------------------------------------

    @invariant()
    def the_store_says_what_the_model_says(self) -> None:
        found = {
            each.id: (each.seq, each.state, each.attempts) for each in self.ledger.deliveries()
        }
        expected = {}
        for queue in self.queues.values():
            in_flight = self.in_flight(queue)
            for row in queue.rows:
                state = DeliveryState.IN_FLIGHT if row.seq in in_flight else row.state
                expected[row.id] = (row.seq, state, row.attempts)
        assert found == expected

    @invariant()
    def a_queue_is_leased_as_its_holder_knows_and_nothing_is_forgotten(self) -> None:
        """Each delivery is in the memory of its queue's holder, or the queue will be looked at."""
        queues = {each.subscription.id: each for each in self.active.values()}
        for queue_id, row in self.ledger.run(OUTBOX.lock(queues)).items():
            queue = queues.pop(queue_id)
            holder = queue.holder
            assert (row.lease_worker is None) == (holder is None)
            assert holder is None or row.epoch == holder.epoch
            assert row.abandoned == queue.abandoned
            if {each.seq for each in queue.pending} - queue.in_memory:
                assert row.due_at is not None
        assert not queues

    @invariant()
    def next_due_is_never_late(self) -> None:
        if self.claimable():
            assert self.ledger.next_due() <= self.ledger.now

    def tick(self) -> None:
        """Let time pass: claims choose among queues by time, and ids of one time are random."""
        self.ledger.advance(0.001)

    def some_queue(self, data: st.DataObject) -> ExpectedQueue | None:
        self.tick()
        if not self.active:
            return None
        return self.active[data.draw(st.sampled_from(sorted(self.active)))]

    def in_flight(self, queue: ExpectedQueue) -> set[int]:
        """Return the pending deliveries that the holder has in memory."""
        rows = {row.seq: row for row in queue.pending}
        jobs = [] if queue.holder is None else queue.holder.waiting
        return {
            job.seq for job in jobs if job.seq in rows and rows[job.seq].redrives == job.redrives
        }

    def claimable(self) -> dict[str, ExpectedQueue]:
        now = self.ledger.now
        return {
            queue.subscription.id: queue
            for (owner, origin), queue in self.active.items()
            if (queue.lease_until is None or queue.lease_until <= now)
            and self.waits_until.get((owner, origin), now) <= now
            and queue.pending
            and queue.pending[0].due <= now
        }


@pytest.mark.slow
def test_any_sequence_of_calls(ledger: Any, request: pytest.FixtureRequest) -> None:
    class OnFreshDatabase(Outbox):
        make_ledger = staticmethod(ledger.fresh)

    on_sqlite = "sqlite" in request.node.callspec.id
    run_state_machine_as_test(
        OnFreshDatabase,
        settings=settings(
            max_examples=examples(150 if on_sqlite else 15), stateful_step_count=40, deadline=None
        ),
    )
