"""A real store on each of the two databases, with a clock that the test moves."""

from __future__ import annotations

import hashlib
from dataclasses import dataclass, field, replace
from datetime import UTC, datetime, timedelta
from typing import TYPE_CHECKING, TypeVar

import pytest

from pushkit.outbox.dead_letters import DeadLetters
from pushkit.outbox.destinations import DestinationStore
from pushkit.outbox.idempotency import IdempotencyKey, TaskKey, find_enqueued
from pushkit.outbox.leases import Leases
from pushkit.outbox.migrations import SENDER_MIGRATIONS
from pushkit.outbox.model import Claim, Delivery, Result
from pushkit.outbox.settling import SettleResult, settle
from pushkit.outbox.shares import SlotLimits
from pushkit.outbox.states import CancelledBy, DeliveryState, Outcome
from pushkit.outbox.store import OutboxStore
from pushkit.storage.migrations import migrate
from pushkit.storage.script import Row, Script, Statement
from pushkit.subscriptions.model import Subscription
from pushkit.subscriptions.store import SubscriptionStore
from tests.pushkit.deliveries import add_delivery, add_subscription

if TYPE_CHECKING:
    from collections.abc import Iterator

    from tests.databases import MadeSchemas, ScriptRunner

T = TypeVar("T")
START = datetime(2026, 1, 1, tzinfo=UTC)
LEASE = timedelta(seconds=30)


@dataclass
class Ledger:
    """Outbox and subscriptions in one database, a transaction per call."""

    scripts: ScriptRunner
    now: datetime = START
    outbox: OutboxStore = field(default_factory=OutboxStore)
    leases: Leases = field(default_factory=Leases)
    destinations: DestinationStore = field(default_factory=DestinationStore)
    subscriptions: SubscriptionStore = field(default_factory=SubscriptionStore)

    def __post_init__(self) -> None:
        self.run(migrate("sender", SENDER_MIGRATIONS))

    def fresh(self) -> Ledger:
        """Return another empty ledger."""
        return Ledger(self.scripts.fresh())

    def close(self) -> None:
        self.scripts.close()

    def run(self, script: Script[T]) -> T:
        return self.scripts.run(script)

    def query(self, sql: str) -> list[Row]:
        """Return the rows of one statement."""
        return self.run(_rows(sql))

    def advance(self, seconds: float) -> None:
        self.now += timedelta(seconds=seconds)

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

    def enqueue_claimed(
        self, subscription: Subscription, worker: str = "worker-1", body: bytes = b"{}"
    ) -> Delivery:
        """Store a delivery that is in flight from the start: in a slot, or in a chain."""
        claim = Claim(worker=worker, until=self.now + LEASE)
        return self.run(add_delivery(subscription, now=self.now, body=body, claim=claim))

    def claim(
        self,
        worker: str = "worker-1",
        *,
        limit: int = 100,
        per_origin: int = 100,
        probation_from: int = 1_000_000,
    ) -> list[Delivery]:
        claim = Claim(worker=worker, until=self.now + LEASE)
        limits = SlotLimits(limit, 0, per_origin, probation_from)
        return list(self.run(self.leases.claim(claim, limits, now=self.now)).deliveries)

    def settle(
        self,
        delivery: Delivery,
        outcome: Outcome = Outcome.DELIVERED,
        *,
        worker: str = "worker-1",
        retry_in: float = 5,
        wait: float | None = None,
    ) -> bool:
        is_unasked = outcome in {Outcome.LOCAL_FAULT, Outcome.NOT_BEGUN}
        retry = outcome is Outcome.RETRY or is_unasked
        result = replace(
            self.came_to(outcome),
            retry_at=self.now + timedelta(seconds=retry_in) if retry else None,
            wait_until=None if wait is None else self.now + timedelta(seconds=wait),
        )
        return self.run(self._settle(delivery, worker, result))

    def came_to(self, outcome: Outcome) -> Result:
        """Return the result of an attempt that took no time."""
        is_unasked = outcome in {Outcome.LOCAL_FAULT, Outcome.NOT_BEGUN}
        return Result(outcome=outcome, status=200, started_at=None if is_unasked else self.now)

    def settle_together(
        self, *settled: tuple[Delivery, Outcome], worker: str = "worker-1", takes: bool = False
    ) -> SettleResult:
        """Settle deliveries of a queue in one transaction.

        Args:
            takes: Whether to claim the next deliveries, if that is allowed.
        """
        results = [(delivery, self.came_to(outcome)) for delivery, outcome in settled]
        return self.run(
            settle(
                results,
                worker,
                self.now,
                may_follow=lambda *_: takes,
                until=self.now + LEASE,
            )
        )

    def _settle(self, delivery: Delivery, worker: str, result: Result) -> Script[bool]:
        passed = yield from settle([(delivery, result)], worker, self.now)
        [is_ours] = passed.are_ours
        if is_ours and result.wait_until is not None:
            yield from self.destinations.postpone(delivery, result.wait_until, self.now)
        return is_ours

    def redrive(self, delivery: Delivery, state: DeliveryState = DeliveryState.DEAD) -> list[str]:
        return self.run(
            DeadLetters().redrive(
                delivery.subscription_id,
                [delivery.id],
                states=[state],
                origin=delivery.origin,
                now=self.now,
            )
        )

    def cancel(self, subscription: Subscription) -> int:
        return self.run(
            self.outbox.cancel_subscription(subscription.id, self.now, CancelledBy.REMOVED)
        )

    def find(self, delivery_id: str) -> Delivery:
        return next(delivery for delivery in self.deliveries() if delivery.id == delivery_id)

    def deliveries(self) -> list[Delivery]:
        return [
            delivery
            for row in self.query("SELECT DISTINCT tenant, task_id FROM pushkit_deliveries")
            for delivery in self.run(
                self.outbox.of_task(tenant=row["tenant"], task_id=row["task_id"])
            )
        ]

    def next_due(self) -> datetime | None:
        return self.run(self.leases.next_due(self.now))

    def heads(self) -> dict[str, list[int]]:
        """Return the `seq` of each subscription's head."""
        found: dict[str, list[int]] = {}
        for row in self.query("SELECT subscription_id, seq FROM pushkit_deliveries WHERE head > 0"):
            found.setdefault(row["subscription_id"], []).append(row["seq"])
        return found


def _rows(sql: str) -> Script[list[Row]]:
    return list((yield Statement(sql)))


@pytest.fixture
def ledger(scripts: ScriptRunner) -> Ledger:
    return Ledger(scripts)


@pytest.fixture
def postgres_dsn(made_outboxes: MadeSchemas) -> Iterator[str]:
    """Return the DSN of a schema with an outbox that is empty."""
    with made_outboxes.one() as dsn:
        yield dsn
