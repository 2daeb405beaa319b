"""A callback whose result cannot be stored for long: it is not called again by another process."""

from __future__ import annotations

import contextlib
import sqlite3
from datetime import timedelta
from pathlib import Path

import pytest

from pushkit.clock import utc_now
from receiver import Notification, Receiver, TaskPolicy, TrustedSender
from receiver.callbacks import dispatcher
from receiver.testing import SigningAgent
from tests.eventually import eventually

LEASE = timedelta(seconds=3)  # renewed each second
AGENT = SigningAgent(webhook_url="https://client.example.com/a2a/push")
REFUSE_THE_FIRST = """
CREATE TRIGGER refuse BEFORE INSERT ON pushkit_callbacks WHEN NEW.notification_id = 1
BEGIN SELECT RAISE(ABORT, 'the disk is full'); END
"""


def execute(path: Path, sql: str) -> None:
    with contextlib.closing(sqlite3.connect(path)) as connection, connection:
        connection.execute(sql)


async def test_a_lease_is_renewed_until_the_result_is_stored(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(dispatcher, "_LEASE", LEASE)
    monkeypatch.setattr(dispatcher, "_SURE_FOR", LEASE / 2)
    path, called = tmp_path / "inbox.db", list[str]()

    async def post(receiver: Receiver, task_id: str) -> None:
        draft, before = AGENT.draft(task_id), len(called)
        verdict = await receiver.receive(draft.request(), path="/a2a/push")
        assert verdict.status == 202
        await eventually(lambda: len(called) > before)

    def made() -> Receiver:
        sender = TrustedSender(
            name="agent",
            issuer=AGENT.issuer,
            keys=[AGENT.key.to_verification_key()],
            tokens=[AGENT.token],
            tasks=TaskPolicy.ANY,
        )
        receiver = Receiver(url="https://client.example.com", senders=[sender], database=path)

        @receiver.on_update
        async def note(notification: Notification) -> None:
            called.append(notification.task_id or "")

        return receiver

    async with made() as first:
        execute(path, REFUSE_THE_FIRST)
        await post(first, "task-1")
        outage = utc_now()
        async with made() as second:
            while utc_now() < outage + 1.5 * LEASE:
                await post(second, "task-2")
            assert called.count("task-1") == 1
            execute(path, "DROP TRIGGER refuse")
            await eventually(lambda: _count_done(path) == len(called))
    assert called.count("task-1") == 1


def _count_done(path: Path) -> int:
    with contextlib.closing(sqlite3.connect(path)) as connection:
        found: int = connection.execute(
            "SELECT COUNT(*) FROM pushkit_inbox WHERE state = 'done'"
        ).fetchone()[0]
        return found
