"""Sender and receiver whose PostgreSQL is behind PgBouncer, which shares sessions."""

from __future__ import annotations

import asyncio
import functools
import itertools
import logging
import os
from collections.abc import AsyncIterator
from contextlib import AsyncExitStack
from datetime import timedelta
from pathlib import Path
from typing import TYPE_CHECKING, NamedTuple
from urllib.parse import parse_qs, urlsplit

import asyncpg
import pytest
from tenacity import stop_after_attempt

from pushkit import (
    KeyRing,
    PushSender,
    RetryPolicy,
    SenderOptions,
    StatusUpdate,
    TaskState,
    TaskStatus,
    wait_schedule,
)
from pushkit.clock import utc_now
from pushkit.delivery.answers import BreakerPolicy
from pushkit.errors import ConfigError, StorageError
from pushkit.keys.jwks import parse_jwks
from pushkit.outbox.schema import open_outbox
from receiver import Notification, Receiver, TrustedSender
from tests.databases import execute
from tests.eventually import DEADLINE, eventually
from tests.ports import free_port
from tests.system.integration.test_behind_proxies import installed, listening, running

if TYPE_CHECKING:
    from pytest_aiohttp.plugin import AiohttpServer

CONFIG = """\
[databases]
* = {server}
[pgbouncer]
listen_addr = 127.0.0.1
listen_port = {port}
unix_socket_dir =
auth_type = any
admin_users = console
pool_mode = {mode}
default_pool_size = 8
ignore_startup_parameters = {ignores}
"""
ISSUER = "https://agent.example.com"
TASKS = [f"task-{number}" for number in range(10)]
UPDATES = 10  # of each task
OPTIONS = SenderOptions(
    retry=RetryPolicy(wait=wait_schedule([0.05], jitter=0), stop=stop_after_attempt(1000)),
    breaker=BreakerPolicy(failures=1_000_000),
    # What a killed connection leaves in flight comes back within the test.
    timeout=timedelta(seconds=2),
    lease_margin=timedelta(seconds=0.5),
)

_numbers = itertools.count(1)


class PgBouncer(NamedTuple):
    """PgBouncer in front of the test server."""

    server: str  # the DSN
    port: int

    async def made(self) -> str:
        """Return the DSN of a new database."""
        name = f"pooled_{os.getpid()}_{next(_numbers)}"
        await asyncio.to_thread(execute, self.server, f"CREATE DATABASE {name}")
        return f"postgresql://agent@127.0.0.1:{self.port}/{name}"

    async def replace_sessions(self) -> None:
        """Have PgBouncer connect anew, as soon as transactions end."""
        console = await asyncpg.connect(
            f"postgresql://console@127.0.0.1:{self.port}/pgbouncer", statement_cache_size=0
        )
        await console.execute("RECONNECT")
        await console.close()

    async def kill_sessions(self) -> None:
        """Break sessions off, in the middle of transactions, too."""
        kill = "SELECT pg_terminate_backend(pid) FROM pg_stat_activity WHERE datname ~ '^pooled_'"
        await asyncio.to_thread(execute, self.server, kill)


def started(folder: Path, server: str, port: int, mode: str, ignores: str) -> list[str]:
    """Return the command that starts PgBouncer in front of a server."""
    binary = installed("pgbouncer")
    at = urlsplit(server)
    host = parse_qs(at.query).get("host", [at.hostname or "127.0.0.1"])[0]
    there = f"host={host} port={at.port or 5432} user={at.username or 'postgres'}"
    there += f" password={at.password}" if at.password else ""
    config = folder / "pgbouncer.ini"
    config.write_text(CONFIG.format(server=there, port=port, mode=mode, ignores=ignores), "utf-8")
    if os.getuid() != 0:
        return [binary, str(config)]
    # It refuses to be root, and only its owner may enter the folder of the server's socket.
    for each in (*folder.parents[:2], folder, config):
        each.chmod(0o755)
    return [binary, "--user", Path(host).owner() if host[0] == "/" else "nobody", str(config)]


@pytest.fixture
async def pgbouncer(
    request: pytest.FixtureRequest, tmp_path: Path, postgres_server: str
) -> AsyncIterator[PgBouncer]:
    port = free_port()
    mode, _, ignores = getattr(request, "param", "transaction").partition(":")
    command = started(tmp_path, postgres_server, port, mode, ignores)
    with running(command, Path("/"), tmp_path / "pgbouncer.log"):
        await listening(port)
        yield PgBouncer(postgres_server, port)


def a_sender(dsn: str, keys: KeyRing) -> PushSender:
    return PushSender(
        issuer=ISSUER, keys=keys, database=dsn, allow=["127.0.0.1:*"], options=OPTIONS
    )


def said(caplog: pytest.LogCaptureFixture) -> list[str]:
    """Return what was logged of poolers."""
    return [each.getMessage() for each in caplog.records if "pooler" in each.getMessage()]


async def notify_until_stored(sender: PushSender, task: str, number: int) -> None:
    update = StatusUpdate(
        task_id=task, context_id=str(number), status=TaskStatus(state=TaskState.WORKING)
    )
    async with asyncio.timeout(DEADLINE):
        while True:
            try:
                await sender.notify(update, idempotency_key=f"{task}/{number}")
            except StorageError:
                await asyncio.sleep(0)
            else:
                return


@pytest.mark.parametrize(
    ("query", "kills"),
    [
        pytest.param("", False, id="found out"),
        pytest.param("?pooler=transaction", True, id="declared, and sessions are killed"),
    ],
)
async def test_all_updates_arrive_in_order_while_sessions_are_replaced(
    pgbouncer: PgBouncer,
    aiohttp_server: AiohttpServer,
    caplog: pytest.LogCaptureFixture,
    query: str,
    kills: bool,
) -> None:
    caplog.set_level(logging.INFO, "pushkit.storage")
    port = free_port()
    outbox, inbox = await pgbouncer.made() + query, await pgbouncer.made() + query
    keys = KeyRing.create(utc_now() - timedelta(days=2))
    agent, *workers = [a_sender(outbox, keys) for _ in range(5)]
    receiver = Receiver(
        url=f"http://127.0.0.1:{port}",
        senders=[
            TrustedSender(name="agent", issuer=ISSUER, keys=parse_jwks(agent.jwks().body).keys)
        ],
        database=inbox,
    )
    called: dict[str, list[int]] = {task: [] for task in TASKS}

    @receiver.on_status("working")
    async def note(notification: Notification) -> None:
        called[str(notification.task_id)].append(int(str(notification.update.context_id)))

    await aiohttp_server(receiver.app(), port=port)
    async with AsyncExitStack() as stack:
        await agent.open()
        stack.push_async_callback(agent.close)
        for task in TASKS:
            expected = await receiver.expect(version="1.0")
            await agent.subscribe(task, expected.as_json(), version="1.0")
        for worker in workers:
            await stack.enter_async_context(worker)

        async def notify_in_order(task: str) -> None:
            for number in range(UPDATES):
                await notify_until_stored(agent, task, number)

        def were_called(many: int) -> bool:
            return sum(map(len, called.values())) >= many

        async def replace() -> None:
            for many in (20, 40, 60):
                await eventually(functools.partial(were_called, many))
                await pgbouncer.replace_sessions()
                if kills:
                    await pgbouncer.kill_sessions()

        await asyncio.gather(replace(), *map(notify_in_order, TASKS))
        await eventually(lambda: all(UPDATES - 1 in called[task] for task in TASKS))
    first = {task: list(dict.fromkeys(numbers)) for task, numbers in called.items()}
    assert first == {task: list(range(UPDATES)) for task in TASKS}
    if not kills:
        assert called == first
    assert len(said(caplog)) == (0 if query else 6)  # once for each that opened a database


async def test_a_database_is_made_once_by_many_that_open_it(pgbouncer: PgBouncer) -> None:
    dsn = await pgbouncer.made()
    databases = [open_outbox(dsn) for _ in range(4)]
    await asyncio.gather(*(each.open() for each in databases))
    assert {(await each.schema()).is_current for each in databases} == {True}
    await asyncio.gather(*(each.close() for each in databases))


@pytest.mark.parametrize("pgbouncer", ["session"], indirect=True)
async def test_a_pooler_in_session_mode_is_used_like_a_server(
    pgbouncer: PgBouncer, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.INFO, "pushkit.storage")
    heard = asyncio.Event()
    one, other = open_outbox(dsn := await pgbouncer.made()), open_outbox(dsn)
    await one.open()
    await other.open()
    hears = asyncio.create_task(other.listen(heard.set))
    await heard.wait()
    heard.clear()
    await one.write(one.wake())
    await heard.wait()
    hears.cancel()
    await one.close()
    await other.close()
    assert said(caplog) == []


@pytest.mark.parametrize("pgbouncer", ["statement"], indirect=True)
async def test_a_pooler_without_transactions_is_refused(pgbouncer: PgBouncer) -> None:
    for query in ("", "?pooler=transaction"):
        with pytest.raises(StorageError, match="not allowed in statement pooling mode"):
            await open_outbox(await pgbouncer.made() + query).open()


@pytest.mark.parametrize("pgbouncer", ["transaction:search_path,options"], indirect=True)
@pytest.mark.parametrize("setting", ["search_path=elsewhere", "options=-csearch_path%3Delsewhere"])
async def test_a_search_path_that_sessions_would_not_keep_is_refused(
    pgbouncer: PgBouncer, setting: str
) -> None:
    dsn = f"{await pgbouncer.made()}?{setting}"
    for query in ("", "&pooler=transaction"):
        with pytest.raises(ConfigError, match=r"ALTER ROLE .* SET search_path"):
            await open_outbox(dsn + query).open()
