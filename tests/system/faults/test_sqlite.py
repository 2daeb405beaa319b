"""The file is locked by another process, or the disk is full."""

from __future__ import annotations

import asyncio
import sqlite3
from collections.abc import Iterator
from contextlib import closing, contextmanager
from datetime import timedelta
from pathlib import Path
from typing import Any

import pytest

from pushkit.errors import StorageError
from pushkit.outbox.states import DeliveryState
from pushkit.storage.script import Group, OnDone, Script, Statement
from tests.eventually import eventually
from tests.system.faults.conftest import Senders, Traffic, Webhook, database_of, numbered


@contextmanager
def locked(path: Path) -> Iterator[None]:
    """Hold the lock of whoever writes, as another process does."""
    with closing(sqlite3.connect(path, isolation_level=None)) as other:
        other.execute("BEGIN IMMEDIATE")
        yield


def _impatient(database: Any) -> None:
    database._busy_timeout = timedelta(milliseconds=50)


async def test_a_lock_of_another_process_refuses_loses_nothing_and_is_outlived(
    tmp_path: Path, senders: Senders, webhook: Webhook
) -> None:
    path = tmp_path / "outbox.db"
    sender = await senders.make(str(path), prepare=_impatient)
    traffic = Traffic(sender, webhook)
    async with traffic.flowing():
        with locked(path):
            await traffic.until(traffic.refused, 8)


async def test_what_arrived_while_the_file_was_locked_is_not_sent_again(
    tmp_path: Path, senders: Senders, webhook: Webhook
) -> None:
    path = tmp_path / "outbox.db"
    answering = webhook.hold()
    sender = await senders.make(str(path), prepare=_impatient)
    await sender.subscribe("task-1", {"url": webhook.url}, version="1.0")
    await sender.notify(numbered("task-1", 1))
    await eventually(lambda: webhook.ids)
    refused = asyncio.Event()
    settle = database_of(sender).write_together

    def note(settling: asyncio.Future[Any]) -> None:
        if settling.exception() is not None:
            refused.set()

    def watched(
        group: Group[Any, Any], item: object, on_done: OnDone[Any] | None = None
    ) -> asyncio.Future[Any]:
        settling: asyncio.Future[Any] = settle(group, item, on_done)
        settling.add_done_callback(note)
        return settling

    database_of(sender).write_together = watched  # type: ignore[method-assign]
    with locked(path):
        answering.set()
        await refused.wait()  # the attempt is over, and could not be written down

    async def delivered() -> bool:
        return (await sender.deliveries("task-1"))[0].state is DeliveryState.DELIVERED

    await eventually(delivered)
    assert webhook.numbers["task-1"] == [1]


async def test_a_full_disk_refuses_loses_nothing_and_is_outlived(
    tmp_path: Path, senders: Senders, webhook: Webhook
) -> None:
    path = tmp_path / "outbox.db"
    sender = await senders.make(str(path))
    traffic = Traffic(sender, webhook, size=5000)

    async def there_is_room_again() -> bool:
        try:
            await database_of(sender).write(_room_for(pages=1_000_000))
        except StorageError:  # it shared a transaction with what found the disk full
            return False
        return True

    async with traffic.flowing():
        await database_of(sender).write(_room_for(pages=20))
        await traffic.until(traffic.refused, 40)
        with closing(sqlite3.connect(path)) as connection:
            assert connection.execute("PRAGMA integrity_check").fetchall() == [("ok",)]
        await eventually(there_is_room_again)


def _room_for(*, pages: int) -> Script[None]:
    # SQLite answers a file at its limit as it answers a disk without room.
    rows = yield Statement("PRAGMA page_count")
    yield Statement(f"PRAGMA max_page_count = {rows[0]['page_count'] + pages}")


async def test_with_a_full_disk_what_is_refused_is_not_stored(
    tmp_path: Path, senders: Senders, webhook: Webhook
) -> None:
    sender = await senders.make(str(tmp_path / "outbox.db"), working=False)
    await sender.subscribe("task-1", {"url": webhook.url}, version="1.0")
    await sender.notify(numbered("task-1", 1))
    await database_of(sender).write(_room_for(pages=4))
    with pytest.raises(StorageError, match="full"):
        await sender.notify(numbered("task-1", 2, size=100_000))
    assert [each.seq for each in await sender.deliveries("task-1")] == [1]
    assert (await sender.unready())["storage"] == (
        "storage: it cannot be written: database or disk is full"
    )
    await database_of(sender).write(_room_for(pages=1_000))
    await sender.notify(numbered("task-1", 2, size=100_000))
    assert [each.seq for each in await sender.deliveries("task-1")] == [1, 2]  # no gap
    assert await sender.worker.run_once() == 2
