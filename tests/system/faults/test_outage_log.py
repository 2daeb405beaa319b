"""A database that is away for a while fills no log."""

from __future__ import annotations

import asyncio
import itertools
import logging
from collections import Counter
from datetime import UTC, datetime
from pathlib import Path

import pytest
from aiohttp import web

from pushkit import PushSender
from pushkit.errors import StorageError
from pushkit.keys.jwks import jwks_document
from receiver import Notification, Receiver, TaskPolicy, TrustedSender
from tests.databases import PostgresServer, fresh
from tests.eventually import eventually
from tests.system.faults.conftest import KEYS, Senders, Webhook, numbered

MANY = 40


def told(caplog: pytest.LogCaptureFixture, *names: str) -> Counter[str]:
    """Return how often these loggers said what, and that of an outage there is no traceback."""
    records = [
        record
        for record in caplog.records
        if record.levelno >= logging.WARNING and record.name in names
    ]
    assert not [record for record in records if record.exc_info], caplog.text
    return Counter(record.getMessage() for record in records)


async def keep_notifying(sender: PushSender, refused: list[int]) -> None:
    for number in itertools.count():
        try:
            await sender.notify(numbered("task-0", number))
        except StorageError:
            refused.append(number)
        await asyncio.sleep(0.01)


async def test_a_sender_tells_of_an_outage_once_per_cause(
    server: PostgresServer,
    senders: Senders,
    webhook: Webhook,
    caplog: pytest.LogCaptureFixture,
) -> None:
    answering = webhook.hold()
    sender = await senders.make(
        await asyncio.to_thread(fresh, server.dsn), concurrency_per_host=MANY
    )
    for number in range(MANY):
        await sender.subscribe(f"task-{number}", {"url": webhook.url}, version="1.0")
        await sender.notify(numbered(f"task-{number}", 1))

    await eventually(lambda: len(webhook.ids) == MANY)
    refused: list[int] = []
    notifying = asyncio.create_task(keep_notifying(sender, refused))
    await asyncio.to_thread(server.stop)
    answering.set()
    # Nothing can be settled, and its workers give up one after another.
    await sender.worker.runner.drain()

    await eventually(lambda: len(refused) > 3 * MANY)
    await asyncio.to_thread(server.start)
    notifying.cancel()

    lines = told(caplog, "pushkit.queue", "pushkit.storage", "asyncpg.pool")
    assert any("could not be settled" in line for line in lines)
    assert set(lines.values()) == {1}
    assert len(lines) <= 9, lines  # settling, claiming, listening: broken, refused, starting up


async def test_a_receiver_tells_of_an_outage_once_per_cause(
    server: PostgresServer,
    senders: Senders,
    tmp_path: Path,
    caplog: pytest.LogCaptureFixture,
    unused_tcp_port: int,
) -> None:
    url = f"http://127.0.0.1:{unused_tcp_port}"
    (tmp_path / "jwks.json").write_bytes(jwks_document(KEYS, datetime.now(UTC)))
    trusted = TrustedSender(
        name="agent",
        issuer="https://agent.example.com",
        jwks_file=tmp_path / "jwks.json",
        tokens=["a-token"],
        tasks=TaskPolicy.ANY,
    )
    receiver = Receiver(
        url=url, senders=[trusted], database=await asyncio.to_thread(fresh, server.dsn)
    )
    seen: list[str] = []

    @receiver.on_update()
    async def note(notification: Notification) -> None:
        seen.append(notification.task_id or "")

    runner = web.AppRunner(receiver.app())
    await runner.setup()
    await web.TCPSite(runner, "127.0.0.1", unused_tcp_port).start()
    sender = await senders.make(str(tmp_path / "outbox.db"))
    await asyncio.to_thread(server.stop)
    for number in range(4):
        task = f"task-{number}"
        config = {"url": f"{url}/a2a/push", "token": "a-token"}
        await sender.subscribe(task, config, version="1.0")
        await sender.notify(numbered(task, 1))

    async def many_were_answered_503() -> bool:
        found = [each for n in range(4) for each in await sender.deliveries(f"task-{n}")]
        assert {each.last_status for each in found} <= {None, 503}
        return sum(each.attempts for each in found) >= 8

    await eventually(many_were_answered_503)
    await asyncio.to_thread(server.start)

    await eventually(lambda: len(set(seen)) == 4)
    await runner.cleanup()

    lines = told(caplog, "pushkit.queue", "pushkit.storage", "asyncpg.pool")
    assert any("callbacks: the database is out of reach" in line for line in lines)
    assert set(lines.values()) == {1}
    assert len(lines) <= 6, lines
    refused = [
        each for each in caplog.records if each.getMessage().startswith("refused 503 storage")
    ]
    assert len(refused) == 1
