"""Any sequence of calls, against the real store, beside a model that fits on one page."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable
from dataclasses import dataclass
from datetime import timedelta
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

from pushkit.errors import IdempotencyConflictError
from pushkit.outbox.leases import Leases
from pushkit.outbox.model import Delivery
from pushkit.outbox.states import DeliveryState, Outcome
from pushkit.scheduling.retry import after_fruitless_claims
from pushkit.subscriptions.model import Subscription
from tests.long_runs import examples

OWNERS = ("alice", "bob")
ORIGINS = ("https://one.example.com:443", "https://two.example.com:443")
WORKERS = ("worker-1", "worker-2")
LEASE = timedelta(seconds=30)
PER_ORIGIN = 3


@dataclass
class Expected:
    """A delivery in the model."""

    id: str
    seq: int
    owner: str
    origin: str
    body: bytes
    state: DeliveryState = DeliveryState.PENDING
    attempts: int = 0
    claims: int = 0
    fruitless: int = 0
    due: Any = None
    lease_until: Any = None
    worker: str | None = None

    @property
    def unfinished(self) -> bool:
        return self.state in (DeliveryState.PENDING, DeliveryState.IN_FLIGHT)


class Outbox(RuleBasedStateMachine):
    make_ledger: Callable[[], Any]

    def __init__(self) -> None:
        super().__init__()
        self.ledger = type(self).make_ledger()
        self.subscriptions: dict[tuple[str, str], Subscription] = {}
        self.rows: dict[str, list[Expected]] = {}
        self.keys: dict[tuple[str, str], Expected] = {}
        self.updates: dict[str, bytes] = {}  # by key, of one task
        self.waits_until: dict[tuple[str, str], Any] = {}
        self.held_claims: list[tuple[Delivery, str]] = []

    def teardown(self) -> None:
        self.ledger.close()

    @initialize(window=st.sampled_from([0, 16]))
    def begin(self, window: int) -> None:
        # A claim that reads few heads parks the others.
        self.ledger.leases = Leases(window=window, destinations=4 if window == 0 else 32)
        for owner in OWNERS:
            self.subscribe(owner, ORIGINS[0])

    @rule(owner=st.sampled_from(OWNERS), origin=st.sampled_from(ORIGINS))
    def subscribe(self, owner: str, origin: str) -> None:
        before = self.subscriptions.get((owner, origin))
        found = self.ledger.subscribe(origin, owner=owner, origin=origin)
        if before is not None:
            assert (found.id, found.last_seq) == (before.id, len(self.rows[before.id]))
        else:
            assert (found.id in self.rows, found.last_seq) == (False, 0)
        self.subscriptions[owner, origin] = found
        self.rows.setdefault(found.id, [])

    @rule(data=st.data(), key=st.none() | st.sampled_from("kl"), body=st.sampled_from([b"1", b"2"]))
    def enqueue(self, data: st.DataObject, key: str | None, body: bytes) -> None:
        if not self.subscriptions:
            return
        (owner, origin), subscription = data.draw(
            st.sampled_from(sorted(self.subscriptions.items(), key=lambda item: item[0]))
        )
        rows = self.rows[subscription.id]
        earlier = self.keys.get((subscription.id, key)) if key else None
        if key and self.updates.get(key, body) != body:
            with pytest.raises(IdempotencyConflictError):
                self.ledger.enqueue(subscription, body, key)
            return
        delivery_id = self.ledger.enqueue(subscription, body, key)
        if earlier is not None:
            assert delivery_id == earlier.id
            return
        row = Expected(delivery_id, len(rows) + 1, owner, origin, body, due=self.ledger.now)
        rows.append(row)
        if key:
            self.keys[subscription.id, key] = row
            self.updates[key] = body

    @rule(worker=st.sampled_from(WORKERS), limit=st.integers(1, 5))
    def claim(self, worker: str, limit: int) -> None:
        now = self.ledger.now
        for row in self.all_rows():
            if row.state is DeliveryState.IN_FLIGHT and row.lease_until <= now:
                row.state, row.lease_until = DeliveryState.PENDING, None
                row.due = max(row.due, now + after_fruitless_claims(row.fruitless - 1))
        due = self.claimable()
        claimed = self.ledger.claim(worker, limit=limit, per_origin=PER_ORIGIN)
        for delivery in claimed:
            row = due.pop(delivery.id)
            row.state, row.lease_until = DeliveryState.IN_FLIGHT, now + LEASE
            row.claims, row.fruitless = row.claims + 1, row.fruitless + 1
            row.worker = worker
            assert (delivery.seq, delivery.body) == (row.seq, row.body)
            assert (delivery.claims, delivery.attempts) == (row.claims, row.attempts)
            self.held_claims.append((delivery, worker))
        busy = {origin: self.in_flight(origin) for origin in ORIGINS}
        assert all(count <= PER_ORIGIN for count in busy.values())
        free = limit - len(claimed)
        held = Counter(row.owner for row in self.all_rows() if self.holds_a_slot(row, worker))
        if free:  # the others wait for their destination, or their owner has its share
            assert all(
                busy[row.origin] == PER_ORIGIN or held[row.owner] >= 3 * free
                for row in due.values()
            )

    @rule(
        data=st.data(),
        outcome=st.sampled_from(Outcome),
        retry_in=st.integers(0, 40),
        wait=st.none() | st.integers(1, 40),
    )
    def settle(
        self, data: st.DataObject, outcome: Outcome, retry_in: int, wait: int | None
    ) -> None:
        if not self.held_claims:
            return
        index = data.draw(st.integers(0, len(self.held_claims) - 1))
        delivery, worker = self.held_claims.pop(index)
        row = next(row for row in self.all_rows() if row.id == delivery.id)
        mine = row.state is DeliveryState.IN_FLIGHT and row.claims == delivery.claims
        assert mine is self.ledger.settle(
            delivery, outcome, worker=worker, retry_in=retry_in, wait=wait
        )
        if not mine:
            return
        row.lease_until = None
        row.state = {
            Outcome.DELIVERED: DeliveryState.DELIVERED,
            Outcome.RETRY: DeliveryState.PENDING,
            Outcome.LOCAL_FAULT: DeliveryState.PENDING,
            Outcome.NOT_BEGUN: DeliveryState.PENDING,
        }.get(outcome, DeliveryState.DEAD)
        if outcome not in {Outcome.LOCAL_FAULT, Outcome.NOT_BEGUN}:
            row.attempts, row.fruitless = row.attempts + 1, 0
        if row.state is DeliveryState.PENDING:
            row.due = self.ledger.now + timedelta(seconds=retry_in)
        if wait is not None:
            until = self.ledger.now + timedelta(seconds=wait)
            place = (row.owner, row.origin)
            self.waits_until[place] = max(until, self.waits_until.get(place, until))

    @rule(data=st.data())
    def remove(self, data: st.DataObject) -> None:
        if not self.subscriptions:
            return
        key = data.draw(st.sampled_from(sorted(self.subscriptions)))
        subscription = self.subscriptions.pop(key)
        unfinished = [row for row in self.rows[subscription.id] if row.unfinished]
        assert self.ledger.run(self.ledger.subscriptions.remove(subscription.key)) is not None
        assert self.ledger.cancel(subscription) == len(unfinished)
        for row in unfinished:
            row.state, row.lease_until = DeliveryState.CANCELLED, None

    @rule(seconds=st.integers(1, 40))
    def advance(self, seconds: int) -> None:
        self.ledger.advance(seconds)

    @invariant()
    def the_store_says_what_the_model_says(self) -> None:
        found = {
            each.id: (each.seq, each.state, each.attempts) for each in self.ledger.deliveries()
        }
        assert found == {row.id: (row.seq, row.state, row.attempts) for row in self.all_rows()}

    @invariant()
    def seq_has_no_gaps(self) -> None:
        by_subscription: dict[str, list[int]] = {}
        for delivery in self.ledger.deliveries():
            by_subscription.setdefault(delivery.subscription_id, []).append(delivery.seq)
        for found in by_subscription.values():
            assert found == list(range(1, len(found) + 1))

    @invariant()
    def the_oldest_unfinished_is_the_head(self) -> None:
        expected = {
            subscription_id: [head.seq]
            for subscription_id, rows in self.rows.items()
            if (head := self.head(rows)) is not None
        }
        assert self.ledger.heads() == expected

    @invariant()
    def next_due_is_never_late(self) -> None:
        due = self.ledger.next_due()
        if any(row.unfinished for row in self.all_rows()):
            assert due is not None
        if self.claimable():
            assert due <= self.ledger.now

    @staticmethod
    def holds_a_slot(row: Expected, worker: str) -> bool:
        return row.state is DeliveryState.IN_FLIGHT and row.worker == worker

    def all_rows(self) -> list[Expected]:
        return [row for rows in self.rows.values() for row in rows]

    def head(self, rows: list[Expected]) -> Expected | None:
        return next((row for row in rows if row.unfinished), None)

    def in_flight(self, origin: str) -> int:
        return sum(
            row.state is DeliveryState.IN_FLIGHT for row in self.all_rows() if row.origin == origin
        )

    def claimable(self) -> dict[str, Expected]:
        now = self.ledger.now
        heads = [head for rows in self.rows.values() if (head := self.head(rows)) is not None]
        return {
            head.id: head
            for head in heads
            if head.state is DeliveryState.PENDING
            and head.due <= now
            and self.waits_until.get((head.owner, head.origin), now) <= now
        }


@pytest.mark.slow
def test_any_sequence_of_calls(ledger: Any, request: pytest.FixtureRequest) -> None:
    class OnFreshDatabase(Outbox):
        make_ledger = staticmethod(ledger.fresh)

    on_sqlite = "sqlite" in request.node.callspec.id
    run_state_machine_as_test(
        OnFreshDatabase,
        settings=settings(
            max_examples=examples(40 if on_sqlite else 8), stateful_step_count=40, deadline=None
        ),
    )
