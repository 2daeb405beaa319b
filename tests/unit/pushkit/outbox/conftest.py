"""A real store on each of the two databases, with a clock that the test moves."""

from __future__ import annotations

import hashlib
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from datetime import UTC, datetime, timedelta
from typing import TypeVar

import pytest

from pushkit.delivery.route import DeliveryJob
from pushkit.outbox import changes
from pushkit.outbox import store as outbox
from pushkit.outbox.model import AttemptResult, Delivery, IdempotencyKey, TaskKey, find_enqueued
from pushkit.outbox.schema import SENDER_MIGRATIONS
from pushkit.outbox.states import CancelledBy, DeliveryState, Outcome
from pushkit.queue.held import HeldQueue
from pushkit.queue.leases import reschedule
from pushkit.queue.rules import released
from pushkit.storage.migrations import migrate
from pushkit.storage.script import Row, Script, from_micros, to_micros
from pushkit.subscriptions import store as subscriptions
from pushkit.subscriptions.model import OUTBOX, Subscription
from tests.databases import MadeSchemas, ScriptRunner
from tests.unit.pushkit.deliveries import add_delivery, add_subscription, rows_of
from tests.unit.pushkit.outbox.leasing import Leasing

T = TypeVar("T")
START = datetime(2026, 1, 1, tzinfo=UTC)


@dataclass
class Ledger:
    """Outbox and subscriptions in one database, a transaction per call."""

    scripts: ScriptRunner
    now: datetime = START
    leasing: Leasing = field(default_factory=Leasing)

    def __post_init__(self) -> None:
        self.run(migrate("outbox", SENDER_MIGRATIONS))

    def fresh(self) -> Ledger:
        """Return another empty ledger."""
        return Ledger(self.scripts.fresh())

    def close(self) -> None:
        self.scripts.close()

    def run(self, script: Script[T]) -> T:
        return self.scripts.run(script)

    def query(self, sql: str) -> list[Row]:
        """Return the rows of one statement."""
        return self.run(rows_of(sql))

    def advance(self, seconds: float) -> None:
        self.now += timedelta(seconds=seconds)

    # --- callers -----------------------------------------------------------------------------

    def subscribe(self, config_id: str = "config-1", **columns: str) -> Subscription:
        return self.run(add_subscription(now=self.now, config_id=config_id, **columns))

    def enqueue(
        self, subscription: Subscription, body: bytes = b"{}", idempotency_key: str | None = None
    ) -> str:
        return self.run(self._enqueue(subscription, body, idempotency_key))

    def _enqueue(
        self, subscription: Subscription, body: bytes, idempotency_key: str | None
    ) -> Script[str]:
        update_sha256 = f"json-1:{hashlib.sha256(body).hexdigest()}"
        key = idempotency_key and IdempotencyKey(key=idempotency_key, update_sha256=update_sha256)
        if key:
            task_key = TaskKey(subscription.key.tenant, subscription.key.task_id, key.key)
            enqueued = (yield from find_enqueued([task_key])).get(task_key, [])
            key.check(enqueued)
            for each in enqueued:
                if each.subscription_id == subscription.id:
                    return each.id
        new = yield from add_delivery(subscription, now=self.now, body=body, key=key or None)
        return new.id

    def queue_of(self, number: int) -> tuple[Subscription, list[str]]:
        """Return a new subscription, and the ids of so many deliveries of it."""
        subscription = self.subscribe()
        return subscription, [self.enqueue(subscription) for _ in range(number)]

    # --- workers -----------------------------------------------------------------------------

    def claim(
        self,
        worker: str = "worker-1",
        *,
        limit: int = 100,
        per_origin: int = 100,
        held: Sequence[str] = (),
    ) -> list[Delivery]:
        """Lease due queues; return the deliveries that are in memory now (`Leasing.claim`)."""
        return self.run(
            self.leasing.claim(worker, now=self.now, limit=limit, per_origin=per_origin, held=held)
        )

    def claimed(self) -> Delivery:
        """Return the only delivery of a new subscription, leased."""
        self.enqueue(self.subscribe())
        [delivery] = self.claim()
        return delivery

    def memory(self, delivery: Delivery) -> HeldQueue[DeliveryJob]:
        """Return the memory that a leased delivery is in."""
        return self.leasing.memory(delivery)

    def settle(
        self,
        delivery: Delivery,
        outcome: Outcome = Outcome.DELIVERED,
        *,
        retry_in: float = 5,
        wait: float | None = None,
    ) -> bool:
        """Settle a leased delivery by itself; return whether its result counts."""
        result = self.came_to(outcome, retry_in=retry_in, wait=wait)
        return all(self.run(self.leasing.settle([(delivery, result)], now=self.now)))

    def came_to(
        self, outcome: Outcome, *, retry_in: float = 5, wait: float | None = None
    ) -> AttemptResult:
        """Return the result of an attempt that took no time."""
        is_again = outcome in {Outcome.LOCAL_FAULT, Outcome.RETRY}
        return AttemptResult(
            outcome=outcome,
            status=200,
            started_at=None if outcome is Outcome.LOCAL_FAULT else self.now,
            retry_at=self.now + timedelta(seconds=retry_in) if is_again else None,
            wait_until=None if wait is None else self.now + timedelta(seconds=wait),
        )

    def renew(self, held: Mapping[str, int], until: datetime) -> set[str]:
        return self.run(OUTBOX.renew(held, to_micros(until)))[1]

    # --- operators ---------------------------------------------------------------------------

    def redrive(self, delivery: Delivery, state: DeliveryState = DeliveryState.DEAD) -> list[str]:
        return self.redrive_one(delivery.subscription_id, delivery.id, state)

    def redrive_one(self, queue_id: str, delivery_id: str, state: DeliveryState) -> list[str]:
        return self.run(self._redrive(queue_id, delivery_id, state))

    def _redrive(self, queue_id: str, delivery_id: str, state: DeliveryState) -> Script[list[str]]:
        queue = (yield from OUTBOX.lock([queue_id]))[queue_id]
        redrive = changes.redrive
        return (yield from redrive(queue, [delivery_id], states=[state], now=self.now))

    def cancel_one(self, queue_id: str, delivery_id: str) -> bool:
        """Cancel a delivery as an operator; return whether it was not in flight."""
        return bool(self.run(self._cancel_one(queue_id, delivery_id)))

    def _cancel_one(self, queue_id: str, delivery_id: str) -> Script[list[str]]:
        queue = (yield from OUTBOX.lock([queue_id]))[queue_id]
        return (yield from changes.cancel(queue, [delivery_id], self.now))

    def cancel(self, subscription: Subscription) -> int:
        """Cancel a subscription's deliveries, those in flight too, and take its lease."""
        return self.run(self._cancel(subscription.id))

    def _cancel(self, queue_id: str) -> Script[int]:
        queues = yield from OUTBOX.lock([queue_id])
        cancelled = yield from outbox.cancel_subscription(queue_id, self.now, CancelledBy.REMOVED)
        yield from OUTBOX.write([released(queue, None) for queue in queues.values()])
        return cancelled

    def pause(self, subscription: Subscription, *, paused: bool = True) -> None:
        """Pause a subscription, or resume it."""
        self.run(self._pause(subscription.id, paused=paused))

    def _pause(self, queue_id: str, *, paused: bool) -> Script[None]:
        yield from subscriptions.set_paused(queue_id, self.now, paused=paused)
        queues = yield from OUTBOX.lock([queue_id])
        yield from reschedule(OUTBOX, [*queues.values()], to_micros(self.now))

    # --- what there is -----------------------------------------------------------------------

    def find(self, delivery_id: str) -> Delivery:
        return next(delivery for delivery in self.deliveries() if delivery.id == delivery_id)

    def deliveries(self) -> list[Delivery]:
        return [
            delivery
            for row in self.query("SELECT DISTINCT tenant, task_id FROM pushkit_deliveries")
            for delivery in self.run(outbox.of_task(tenant=row["tenant"], task_id=row["task_id"]))
        ]

    def next_due(self) -> datetime | None:
        """Return when a queue is due, or a lease ends."""
        moments = self.run(OUTBOX.moments(to_micros(self.now)))
        return max(from_micros(min(moments)), self.now) if moments else None


@pytest.fixture
def ledger(scripts: ScriptRunner) -> Ledger:
    return Ledger(scripts)


@pytest.fixture
def postgres_dsn(made_outboxes: MadeSchemas) -> Iterator[str]:
    """Return the DSN of a schema with an outbox that is empty."""
    with made_outboxes.one() as dsn:
        yield dsn
