"""`pushkit worker` as processes of its own, over a SQLite file and over PostgreSQL."""

from __future__ import annotations

import asyncio
import contextlib
import json
import os
import signal
import socket
import subprocess
from collections.abc import Iterator
from dataclasses import dataclass, field, replace
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import asyncpg
import click
import pytest

from pushkit import Retention, SenderOptions
from pushkit.cli.worker import sender_of, worker_settings
from pushkit.scheduling.retry import MAX_AGE, gives_up, wait_schedule
from pushkit.storage.postgres import _MIGRATION_LOCK
from tests.eventually import DEADLINE, eventually, eventually_sync
from tests.forked import forked
from tests.system.cli.conftest import ISSUER, UVLOOPS, Run, Webhook, enqueue, running

pytestmark = pytest.mark.slow


@dataclass
class Workers:
    """Starts the command, and ends what a test left running."""

    folder: Path
    started: contextlib.ExitStack
    outputs: list[Path] = field(default_factory=list)

    def start(self, database: str, *arguments: str) -> subprocess.Popen[str]:
        command = ["worker", "--database", database, "--issuer", ISSUER, "--allow", "127.0.0.1:*"]
        call = [*forked("pushkit.cli.main"), *command, *arguments]
        process, output = self.started.enter_context(running(self.folder, *call))
        self.outputs.append(output)
        return process

    def ready(self, count: int = 1) -> list[int]:
        """Return the process ids once so many deliver."""
        lines = eventually_sync(lambda: self._delivering(count))
        return [int(line.split()[1]) for line in lines]

    def _delivering(self, count: int) -> list[str]:
        lines = [line for line in self.output.splitlines() if " delivers for " in line]
        return lines if len(lines) >= count else []

    @property
    def output(self) -> str:
        return "".join(each.read_text() for each in self.outputs)


@pytest.fixture
def workers(jwks: Path) -> Iterator[Workers]:
    with contextlib.ExitStack() as started:
        yield Workers(jwks.parent, started)


def received(webhook: Webhook) -> list[str | None]:
    return [request.header("webhook-id") for request in list(webhook.requests)]


@pytest.mark.parametrize("stop", [signal.SIGTERM, signal.SIGINT])
def test_a_worker_delivers_and_ends_with_0(
    workers: Workers, webhook: Webhook, location: str, stop: signal.Signals
) -> None:
    ids = enqueue(location, webhook, 3)
    process = workers.start(location)
    workers.ready()
    eventually_sync(lambda: set(ids) <= set(received(webhook)))
    process.send_signal(stop)
    assert process.wait(DEADLINE) == 0
    assert "drains" in workers.output
    assert workers.output.count("ERROR") == 0


def test_a_worker_that_waits_for_a_migration_ends_when_it_is_told_to(
    workers: Workers, postgres_dsn: str
) -> None:
    async def while_another_migrates() -> int:
        connection = await asyncpg.connect(postgres_dsn)
        await connection.execute("SELECT pg_advisory_lock($1)", _MIGRATION_LOCK)
        process = workers.start(postgres_dsn)

        async def waits() -> bool:
            found = "SELECT 1 FROM pg_locks WHERE locktype = 'advisory' AND NOT granted"
            return bool(await connection.fetchval(found))

        await eventually(waits)
        process.terminate()
        status = await asyncio.to_thread(process.wait, DEADLINE)
        await connection.close()
        return status

    assert asyncio.run(while_another_migrates()) == 0


@pytest.mark.parametrize("uvloop", UVLOOPS)
def test_a_worker_runs_on_uvloop_where_it_is_installed(
    workers: Workers, webhook: Webhook, own_folder: Path, uvloop: str
) -> None:
    (own_folder / "uvloop.py").write_text(UVLOOPS[uvloop])
    ids = enqueue("outbox.db", webhook, 3)
    workers.start("outbox.db")
    eventually_sync(lambda: set(ids) <= set(received(webhook)))
    assert workers.output.count("the loop of uvloop") == (1 if uvloop == "installed" else 0)


def test_several_processes_share_the_work_each_on_uvloop(
    workers: Workers, webhook: Webhook, own_folder: Path, location: str
) -> None:
    (own_folder / "uvloop.py").write_text(UVLOOPS["installed"])
    process = workers.start(location, "--processes", "2")
    assert len(set(workers.ready(2))) == 2
    assert workers.output.count("the loop of uvloop") == 2
    ids = enqueue(location, webhook, 30)
    eventually_sync(lambda: set(ids) <= set(received(webhook)))
    process.terminate()
    assert process.wait(DEADLINE) == 0
    assert sorted(received(webhook), key=str) == sorted(ids)


def test_two_machines_share_a_postgresql_database(
    workers: Workers, webhook: Webhook, postgres_dsn: str
) -> None:
    processes = [workers.start(postgres_dsn), workers.start(postgres_dsn)]
    workers.ready(2)
    ids = enqueue(postgres_dsn, webhook, 30)
    eventually_sync(lambda: set(ids) <= set(received(webhook)))
    for process in processes:
        process.terminate()
    assert [process.wait(DEADLINE) for process in processes] == [0, 0]
    assert sorted(received(webhook), key=str) == sorted(ids)


def test_a_process_that_dies_ends_the_whole_with_1(
    workers: Workers, webhook: Webhook, tmp_path: Path
) -> None:
    database = str(tmp_path / "outbox.db")
    process = workers.start(database, "--processes", "2")
    victim, other = workers.ready(2)
    os.kill(victim, signal.SIGKILL)
    assert process.wait(DEADLINE) == 1
    assert f"process {victim} ended with -9" in workers.output
    assert f"process {other} drains" in workers.output
    ids = enqueue(database, webhook, 1)
    assert received(webhook) == []
    workers.start(database)
    eventually_sync(lambda: received(webhook) == ids)


def test_the_drain_has_a_deadline(workers: Workers, tmp_path: Path) -> None:
    database = str(tmp_path / "outbox.db")
    with socket.create_server(("127.0.0.1", 0)) as silent:
        silent.settimeout(DEADLINE)
        enqueue(database, Webhook(port=silent.getsockname()[1]), 1)
        process = workers.start(database, "--drain", "0")
        connection, _ = silent.accept()
        with connection:
            process.terminate()
            assert process.wait(DEADLINE) == 0


def options_with(*arguments: str) -> SenderOptions:
    @click.command()
    @worker_settings
    def show(settings: dict[str, Any]) -> None:
        found.append(sender_of(**settings).options)

    found: list[SenderOptions] = []
    show.main(["--database", "x.db", "--issuer", ISSUER, *arguments], standalone_mode=False)
    return found[0]


@pytest.mark.usefixtures("workers")  # its key file
def test_what_is_finished_can_be_kept_for_ever() -> None:
    found = options_with("--keep-dead", "forever", "--keep-delivered", "2d")
    assert found.retain == Retention(delivered=timedelta(days=2), dead=None)
    with pytest.raises(click.BadParameter):
        options_with("--keep-dead", "for ever and a day")


@pytest.mark.usefixtures("workers")  # its key file
def test_without_options_it_delivers_as_a_sender_does() -> None:
    options, default = options_with(), SenderOptions()
    assert replace(options, retry=default.retry) == default
    now = datetime.now(UTC)
    assert isinstance(options.retry.wait, wait_schedule)
    assert vars(options.retry.wait) == vars(default.retry.wait)
    for attempts in range(1, 12):
        for age in (timedelta(0), MAX_AGE - timedelta(days=2), MAX_AGE):
            given_up = [
                gives_up(each.retry, attempts=attempts, since=now - age, now=now)
                for each in (options, default)
            ]
            assert given_up[0] is given_up[1]


def test_how_it_delivers_is_set_by_options(
    workers: Workers, webhook: Webhook, tmp_path: Path, pushkit_command: Run
) -> None:
    database = str(tmp_path / "outbox.db")
    webhook.status = 500
    [delivery_id] = enqueue(database, webhook, 1)
    process = workers.start(
        database, "--waits", "0s,0s", "--keep-answers", "none", "--processes", "2"
    )

    show = ["outbox", "show", delivery_id, "--json", "--answers", "--database", database]

    def attempts() -> list[dict[str, Any]]:
        shown = json.loads(pushkit_command(*show).out)
        return list(shown["log"]) if shown["state"] == "dead" else []

    found = eventually_sync(attempts)
    assert [(each["status"], each["answer"]) for each in found] == [(500, None)] * 3
    assert len(received(webhook)) == 3
    process.terminate()
    assert process.wait(DEADLINE) == 0


def test_processes_end_with_the_one_that_started_them(workers: Workers, tmp_path: Path) -> None:
    process = workers.start(str(tmp_path / "outbox.db"), "--processes", "2")
    children = workers.ready(2)
    process.kill()
    process.wait(DEADLINE)
    eventually_sync(lambda: all(f"process {child} drains" in workers.output for child in children))


@pytest.mark.parametrize("processes", ["1", "2"])
def test_a_database_out_of_reach_ends_it_with_1(workers: Workers, processes: str) -> None:
    dsn = "postgresql://pushkit:a-password@127.0.0.1:1/agent"
    process = workers.start(dsn, "--processes", processes)
    assert process.wait(DEADLINE) == 1
    assert "error: PostgreSQL: cannot connect" in workers.output
    assert "Traceback" not in workers.output
    assert "a-password" not in workers.output


def test_alerts_do_not_go_without_the_token_that_an_empty_variable_was_to_hold(
    pushkit_command: Run, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("PUSHKIT_ALERT_TOKEN", "")
    to = ["--database", "outbox.db", "--issuer", ISSUER]
    ran = pushkit_command("worker", *to, "--alert-webhook", "https://ops.example.com/alerts")
    says = "PUSHKIT_ALERT_TOKEN: found an empty value, expected a secret; unset it if there is none"
    assert (ran.status, ran.error) == (1, says)
