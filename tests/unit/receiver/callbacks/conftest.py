"""An inbox with a dispatcher that the test runs."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import AsyncIterator
from dataclasses import dataclass, field
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import pytest
from tenacity import stop_after_attempt

from pushkit.scheduling.retry import RetryPolicy, wait_schedule
from pushkit.storage.database import Database
from pushkit.storage.worker_locks import WorkerLocks
from receiver import Notification
from receiver.admin import InboxAdmin, open_inbox
from receiver.callbacks.dispatcher import CALLBACK_TIMEOUT, Dispatcher
from receiver.callbacks.registry import CallbackRegistry
from receiver.inbox.inspection import NotificationReport
from receiver.inbox.model import NotificationJob
from tests.eventually import eventually
from tests.unit.receiver.storing import claim, store

START = datetime(2026, 1, 1, tzinfo=UTC)
LEASE = timedelta(seconds=60)
# Twice again, after 10 s and after 20 s, to the second.
RETRY = RetryPolicy(wait=wait_schedule((10, 20), jitter=0), stop=stop_after_attempt(3))
BODY = '{"statusUpdate":{"taskId":"%s","status":{"state":"TASK_STATE_WORKING"}}}'


@dataclass
class House:
    """An inbox, a clock that the test moves, and a dispatcher that the test runs."""

    location: str
    now: datetime = START
    registry: CallbackRegistry = field(default_factory=CallbackRegistry)
    called: list[str] = field(default_factory=list)

    def __post_init__(self) -> None:
        self.database: Database = open_inbox(self.location, clock=lambda: self.now)
        self.dispatcher = self.another_dispatcher()

    def another_dispatcher(
        self,
        concurrency: int = 16,
        *,
        timeout: timedelta | None = CALLBACK_TIMEOUT,
        senders: int = 1,  # how many are trusted
        retry: RetryPolicy = RETRY,
        **options: Any,
    ) -> Dispatcher:
        return Dispatcher(
            self.database,
            self.registry,
            retry=retry,
            concurrency=concurrency,
            timeout=timeout,
            senders=lambda: senders,
            **options,
        )

    async def store(
        self,
        number: int = 1,
        task_id: str | None = "task-1",
        *,
        config_id: str | None = "config-1",
        body: bytes | None = None,
        sender: str = "agent",
    ) -> None:
        await self.database.write(
            store(
                task_id,
                number,
                body=body or (BODY % task_id).encode(),
                now=self.now,
                config_id=config_id,
                sender=sender,
            )
        )

    @property
    def locks(self) -> WorkerLocks:
        """The locks of this machine's dispatchers."""
        assert self.database.locks is not None
        return self.database.locks

    async def run_once(self) -> int:
        return await self.dispatcher.run_once()

    async def counts(self) -> dict[str, int]:
        found = await InboxAdmin(self.database).stats()
        return {status.value: count for status, count in found.statuses.items() if count}

    async def report(self, notification_id: int = 1) -> NotificationReport:
        found = await InboxAdmin(self.database).show(notification_id)
        assert found is not None
        return found

    async def claim(self, worker: str) -> list[NotificationJob]:
        """Claim a notification for a worker of another process."""
        until = self.now + LEASE
        return await self.database.write(claim(worker, limit=1, now=self.now, until=until))

    async def until(self, counts: dict[str, int]) -> None:
        """Wait until the inbox has so many notifications of each status."""

        async def look() -> bool:
            return await self.counts() == counts

        await eventually(look)

    def record(self, name: str, failures: int = 0) -> None:
        """Register a callback that records its calls and fails the first so many times."""
        left = [failures]

        async def record(notification: Notification) -> None:
            self.called.append(f"{name}:{notification.delivery_id}")
            if left[0]:
                left[0] -= 1
                raise RuntimeError("this message-is-private")

        self.registry.add(record, name=name)


@contextlib.asynccontextmanager
async def running(dispatcher: Dispatcher) -> AsyncIterator[Dispatcher]:
    """Call back while the block runs."""
    task = asyncio.create_task(dispatcher.run())
    try:
        yield dispatcher
    finally:
        task.cancel()
        await asyncio.wait([task])
        await dispatcher.finish(timedelta(0))
        await dispatcher.retire()


@pytest.fixture
async def house(tmp_path: Path) -> AsyncIterator[House]:
    house = House(str(tmp_path / "inbox.db"))
    await house.database.open()
    yield house
    await house.database.close()
