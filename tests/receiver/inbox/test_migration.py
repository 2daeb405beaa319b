"""A file of an older schema is migrated, and works as before."""

from __future__ import annotations

import contextlib
import sqlite3
from datetime import UTC, datetime, timedelta
from pathlib import Path

from receiver import Notification
from receiver.admin import InboxAdmin, open_inbox
from receiver.callbacks.dispatcher import Dispatcher, callback_retry
from receiver.callbacks.registry import CallbackRegistry
from receiver.inbox.model import InboxStatus
from receiver.replay.memory import Replay, Seen
from tests.receiver.storing import remember

DUMP = Path(__file__).resolve().parents[2] / "vectors" / "inbox_schema_3.sql"
# The file has one done, one dead, one that failed once, and the next of its task.
THEN = datetime(2026, 1, 1, tzinfo=UTC)
LATER = THEN + timedelta(minutes=1)
BODY_SHA256 = "7726fc35cb5e2008ed1d2d8d999140b0676124be4b8d4b49b92a6b1703c9fc85"


def old_file(folder: Path) -> Path:
    path = folder / "inbox.db"
    with contextlib.closing(sqlite3.connect(path)) as connection:
        connection.executescript(DUMP.read_text("utf-8"))
    return path


async def test_callbacks_of_an_old_file_are_called_if_they_are_still_missing(
    tmp_path: Path,
) -> None:
    database = open_inbox(old_file(tmp_path), clock=lambda: LATER)
    registry = CallbackRegistry()
    called: list[tuple[str, str, int]] = []

    async def good(notification: Notification) -> None:
        called.append(("good", notification.delivery_id, notification.missing))

    async def bad(notification: Notification) -> None:
        called.append(("bad", notification.delivery_id, notification.missing))

    registry.add(good, name="good")
    registry.add(bad, name="bad")
    dispatcher = Dispatcher(database, registry, retry=callback_retry(), concurrency=4)
    await database.open()
    while await dispatcher.run_once():
        continue
    admin = InboxAdmin(database)
    redriven = await admin.redrive([2])
    await dispatcher.run_once()
    stats = await admin.stats()
    await database.close()

    assert redriven.ids == (2,)
    assert called == [
        ("bad", "task-retried#1", 0),  # `good` had it
        ("good", "task-retried#4", 2),
        ("bad", "task-retried#4", 2),
        ("bad", "task-dead#1", 0),
    ]
    assert stats.statuses[InboxStatus.DONE] == 4
    assert [(each.sender, each.missing) for each in stats.senders] == [("agent", 2)]


async def test_ids_and_sequences_of_an_old_file_are_remembered(tmp_path: Path) -> None:
    path = old_file(tmp_path)
    database = open_inbox(path, clock=lambda: LATER)
    await database.open()
    seen = Seen(sender="agent", delivery_id="task-done#1", body_sha256=BODY_SHA256)

    found = await database.write(remember(seen, LATER))
    await database.close()

    assert found is Replay.DUPLICATE
    with contextlib.closing(sqlite3.connect(path)) as connection:
        rows = connection.execute("SELECT task_id, last_seq, updated_at FROM pushkit_sequences")
        ages = {task: (seq, updated_at) for task, seq, updated_at in rows}
    start = 1767225600000000
    assert ages == {
        "task-done": (1, start),
        "task-dead": (1, start),
        "task-retried": (4, start + 10_000_000),
    }


async def test_notifications_that_the_previous_version_still_accepts_are_called_back(
    tmp_path: Path,
) -> None:
    path = old_file(tmp_path)
    database = open_inbox(path, clock=lambda: LATER)
    await database.open()
    with contextlib.closing(sqlite3.connect(path)) as connection, connection:
        # The statement of the previous version, which runs on the new schema in a rolling upgrade.
        connection.execute(
            "INSERT INTO pushkit_inbox (sender, delivery_id, task_id, config_id, seq, missing,"
            " late, kid, issued_at, received_at, not_before, body)"
            " SELECT sender, 'late#1', 'task-late', config_id, seq, missing, late, kid, issued_at,"
            " received_at, not_before, body FROM pushkit_inbox WHERE id = 1"
        )
    called: list[str] = []
    registry = CallbackRegistry()

    async def note(notification: Notification) -> None:
        called.append(notification.delivery_id)

    registry.add(note, name="note")
    dispatcher = Dispatcher(database, registry, retry=callback_retry(), concurrency=4)
    while await dispatcher.run_once():
        continue
    await database.close()
    assert "late#1" in called
