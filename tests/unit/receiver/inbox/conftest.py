"""A real inbox on each of the two databases, a transaction per call, and a clock that moves."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from typing import TypeVar

import pytest

from pushkit.storage.migrations import migrate
from pushkit.storage.script import Row, Script, Statement
from receiver.inbox import inspection
from receiver.inbox.model import Call, InboxStatus, NotificationJob
from receiver.inbox.schema import RECEIVER_MIGRATIONS
from receiver.inbox.store import record_calls
from tests.databases import ScriptRunner
from tests.unit.receiver.storing import claim, settle_one, store

T = TypeVar("T")
START = datetime(2026, 1, 1, tzinfo=UTC)
LEASE = timedelta(seconds=30)
BODY = b'{"statusUpdate":{"taskId":"task-1","status":{"state":"TASK_STATE_WORKING"}}}'


@dataclass
class Shelf:
    """The inbox, whose scripts it runs."""

    scripts: ScriptRunner
    now: datetime = START

    def __post_init__(self) -> None:
        self.run(migrate("inbox", RECEIVER_MIGRATIONS))

    def run(self, script: Script[T]) -> T:
        return self.scripts.run(script)

    def query(self, sql: str) -> list[Row]:
        return self.run(_rows(sql))

    def advance(self, seconds: float) -> None:
        self.now += timedelta(seconds=seconds)

    def store(
        self,
        number: int = 1,
        task_id: str | None = "task-1",
        *,
        sender: str = "agent",
        config_id: str = "config-1",
        generation: int | None = None,
        body: bytes = BODY,
    ) -> int | None:
        return self.run(
            store(
                task_id,
                number,
                generation=generation,
                body=body,
                now=self.now,
                sender=sender,
                config_id=config_id,
            )
        )

    def stored(self, number: int = 1, task_id: str | None = "task-1", *, body: bytes = BODY) -> int:
        """Store a new notification, and return its id."""
        found = self.store(number, task_id, body=body)
        assert found is not None
        return found

    def claim(
        self, worker: str = "one", *, limit: int = 100, held: Sequence[str] = ()
    ) -> list[NotificationJob]:
        return self.run(claim(worker, limit=limit, now=self.now, until=self.now + LEASE, held=held))

    def claimed(self, number: int = 1) -> NotificationJob:
        """Store so many notifications of a task; return the first one, leased."""
        for seq in range(1, number + 1):
            self.store(seq)
        [job] = self.claim()
        return job

    def claimed_ids(self, worker: str = "one", *, limit: int = 100) -> list[str]:
        return [each.notification.delivery_id for each in self.claim(worker, limit=limit)]

    def settle(
        self,
        claimed: NotificationJob,
        status: InboxStatus = InboxStatus.DONE,
        *,
        retry_in: float | None = None,
        error: str | None = None,
    ) -> bool:
        seconds = retry_in if status is InboxStatus.RECEIVED else None
        return self.run(settle_one(claimed, status, now=self.now, retry_in=seconds, error=error))

    def redrive(self, *ids: int) -> list[int]:
        return self.run(inspection.redrive(ids, self.now))

    def record(self, notification_id: int, callback: str, error: str | None = None) -> None:
        self.run(record_calls([Call(notification_id, callback, error)], now=self.now))

    def finish(self, number: int, status: InboxStatus = InboxStatus.DONE, task: str = "t") -> int:
        """Store a notification of a task of its own, and settle it."""
        notification_id = self.stored(1, f"{task}-{number}")
        [claimed] = self.claim()
        assert self.settle(claimed, status)
        return notification_id

    def ids(self) -> list[int]:
        return [row["id"] for row in self.query("SELECT id FROM pushkit_inbox ORDER BY id")]


def _rows(sql: str) -> Script[list[Row]]:
    return list((yield Statement(sql)))


@pytest.fixture
def shelf(scripts: ScriptRunner) -> Shelf:
    return Shelf(scripts)
