"""A real store on a real file, with a clock that the test moves."""

from __future__ import annotations

from collections.abc import Generator
from dataclasses import dataclass, field
from datetime import UTC, datetime, timedelta
from pathlib import Path
from sqlite3 import Connection, Row, connect
from typing import TypeVar

import pytest

from pushkit.a2a import PushConfig, WireVersion
from pushkit.outbox import MIGRATION, Claim, Delivery, OutboxStore, Outcome, Result
from pushkit.storage import Script
from pushkit.storage.migrations import migrate
from pushkit.storage.sqlite import run_script
from pushkit.subscriptions import MIGRATION as SUBSCRIPTIONS
from pushkit.subscriptions import Profile, Subscription, SubscriptionKey, SubscriptionStore

T = TypeVar("T")
START = datetime(2026, 1, 1, tzinfo=UTC)
LEASE = timedelta(seconds=30)


@dataclass
class Ledger:
    """Outbox and subscriptions in one database, a transaction per call."""

    path: Path | str
    now: datetime = START
    outbox: OutboxStore = field(default_factory=OutboxStore)
    subscriptions: SubscriptionStore = field(default_factory=SubscriptionStore)
    connection: Connection = field(init=False)

    def __post_init__(self) -> None:
        self.connection = connect(self.path, isolation_level=None)
        self.connection.row_factory = Row
        self.run(migrate("sender", (SUBSCRIPTIONS, MIGRATION)))

    def close(self) -> None:
        self.connection.close()

    def run(self, script: Script[T]) -> T:
        self.connection.execute("BEGIN IMMEDIATE")
        try:
            result = run_script(self.connection, script)
        except BaseException:
            self.connection.execute("ROLLBACK")
            raise
        self.connection.execute("COMMIT")
        return result

    def advance(self, seconds: float) -> None:
        self.now += timedelta(seconds=seconds)

    def subscribe(
        self,
        config_id: str = "config-1",
        *,
        task_id: str = "task-1",
        owner: str = "alice",
        tenant: str = "",
        origin: str = "https://client.example.com:443",
        token: str | None = None,
    ) -> Subscription:
        key = SubscriptionKey(tenant=tenant, task_id=task_id, owner=owner, config_id=config_id)
        return self.run(
            self.subscriptions.put(
                key,
                PushConfig(url=f"{origin}/hook", token=token),
                version=WireVersion.V1_0,
                origin=origin,
                profile=Profile.STANDARD,
                now=self.now,
            )
        )

    def enqueue(
        self, subscription: Subscription, body: bytes = b"{}", idempotency_key: str | None = None
    ) -> str:
        return self.run(self._enqueue(subscription, body, idempotency_key))

    def _enqueue(
        self, subscription: Subscription, body: bytes, idempotency_key: str | None
    ) -> Script[str]:
        if idempotency_key is not None:
            found = yield from self.outbox.find_enqueued(subscription.id, idempotency_key, body)
            if found is not None:
                return found
        seq = yield from self.subscriptions.take_seq(subscription.id)
        return (
            yield from self.outbox.enqueue(
                subscription_id=subscription.id,
                tenant=subscription.key.tenant,
                owner=subscription.key.owner,
                task_id=subscription.key.task_id,
                config_id=subscription.key.config_id,
                origin=subscription.origin,
                seq=seq,
                content_type="application/json",
                body=body,
                idempotency_key=idempotency_key,
                now=self.now,
            )
        )

    def claim(
        self, worker: str = "worker-1", *, limit: int = 100, per_origin: int = 100
    ) -> list[Delivery]:
        claim = Claim(worker=worker, until=self.now + LEASE)
        return self.run(self.outbox.claim(claim, limit=limit, per_origin=per_origin, now=self.now))

    def settle(
        self,
        delivery: Delivery,
        outcome: Outcome = Outcome.DELIVERED,
        *,
        worker: str = "worker-1",
        retry_in: float = 5,
        hold: float | None = None,
    ) -> bool:
        retry = outcome is Outcome.RETRY
        result = Result(
            outcome=outcome,
            status=200,
            retry_at=self.now + timedelta(seconds=retry_in) if retry else None,
            hold_until=None if hold is None else self.now + timedelta(seconds=hold),
        )
        return self.run(self.outbox.settle(delivery, worker, result, self.now))

    def cancel(self, subscription: Subscription) -> int:
        return self.run(self.outbox.cancel_subscription(subscription.id, self.now))

    def find(self, delivery_id: str) -> Delivery:
        return next(delivery for delivery in self.deliveries() if delivery.id == delivery_id)

    def deliveries(self) -> list[Delivery]:
        tasks = self.connection.execute(
            "SELECT DISTINCT tenant, task_id FROM pushkit_deliveries"
        ).fetchall()
        return [
            delivery
            for tenant, task_id in tasks
            for delivery in self.run(self.outbox.of_task(tenant=tenant, task_id=task_id))
        ]

    def next_due(self) -> datetime | None:
        return self.run(self.outbox.next_due())

    def heads(self) -> dict[str, list[int]]:
        """Return the marked `seq` of each subscription."""
        found: dict[str, list[int]] = {}
        for row in self.connection.execute(
            "SELECT subscription_id, seq FROM pushkit_deliveries WHERE head = 1"
        ):
            found.setdefault(row["subscription_id"], []).append(row["seq"])
        return found


@pytest.fixture
def ledger(tmp_path: Path) -> Generator[Ledger]:
    ledger = Ledger(tmp_path / "outbox.db")
    yield ledger
    ledger.close()
