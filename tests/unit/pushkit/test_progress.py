"""Long work reports progress; after an interruption it continues with the rest."""

from __future__ import annotations

import asyncio
import contextlib
import io
import signal
import sqlite3
import subprocess
import sys
import threading
import time
from datetime import UTC, datetime, timedelta
from pathlib import Path

import pytest

from pushkit import KeyRing, PushSender, StatusUpdate, TaskState, TaskStatus
from pushkit.clock import utc_now
from pushkit.outbox.inspection import SubscriptionFilter
from pushkit.outbox.schema import SENDER_MIGRATIONS
from pushkit.progress import advance, followed
from pushkit.storage.database import upgrade
from pushkit.storage.migrations import Migration
from pushkit.storage.opening import open_location
from pushkit.terminal import databases
from pushkit.terminal.databases import run_interruptibly, showing_progress
from tests.eventually import DEADLINE

TASKS = 5  # more than one batch


class _InterruptedError(Exception):
    """Ctrl-C at a time that the test chooses."""


async def test_a_purge_that_is_interrupted_goes_on_with_the_rest(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("pushkit.delivery.admin._BATCH", 3)
    told: list[int] = []

    def interrupt(count: int) -> None:
        told.append(count)
        raise _InterruptedError

    push = PushSender(
        issuer="https://agent.example.com",
        keys=KeyRing.create(datetime.now(UTC)),
        database=tmp_path / "outbox.db",
        allow=["127.0.0.1:*"],
    )
    await push.open()  # no worker delivers
    config = {"url": "http://127.0.0.1:9/hook"}
    await push.subscribe("task-1", config, version="1.0", owner="alice")
    ids: list[str] = []
    for _ in range(TASKS):
        status = TaskStatus(state=TaskState.WORKING)
        update = StatusUpdate(task_id="task-1", context_id="c", status=status)
        ids += (await push.notify(update)).ids
    with followed(told.append):
        await push.outbox.cancel(ids)
        await push.subscription_admin.pause(SubscriptionFilter())
    *cancelled, paused = told
    assert (0 < cancelled[0] < TASKS, sum(cancelled), paused) == (True, TASKS, 1)
    told.clear()

    with followed(interrupt), pytest.raises(_InterruptedError):
        await push.outbox.purge(older_than=timedelta(0))
    with followed(told.append):
        purged = await push.outbox.purge(older_than=timedelta(0))
    await push.close()
    assert 0 < told[0] < TASKS
    assert purged == TASKS - told[0] == sum(told[1:])


class _Terminal(io.StringIO):
    def isatty(self) -> bool:
        return True


def test_a_terminal_shows_how_many_are_done_and_is_left_clean(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    screen = _Terminal()
    monkeypatch.setattr(sys, "stderr", screen)
    monkeypatch.setattr(databases, "_AT_MOST_EVERY", 0)
    with showing_progress():
        advance(1200)
        advance(34)
    assert "\r1,200 done" in screen.getvalue()
    assert "\r1,234 done" in screen.getvalue()
    assert screen.getvalue().endswith(" \r")


def test_elsewhere_nothing_is_shown(capsys: pytest.CaptureFixture[str]) -> None:
    with showing_progress():
        advance(1200)
    assert capsys.readouterr() == ("", "")


def test_an_interruption_ends_in_a_line_and_the_status_of_a_shell(
    capsys: pytest.CaptureFixture[str],
) -> None:
    with pytest.raises(SystemExit) as ended, showing_progress():  # noqa: PT012  # in the middle
        advance(200)
        raise KeyboardInterrupt
    assert ended.value.code == 130
    said = "interrupted after 200: these stay done; run the same command again to continue\n"
    assert capsys.readouterr().err == said


STEPS = (
    Migration(1, ("CREATE TABLE counted (x INTEGER)",)),
    Migration(2, ("INSERT INTO counted VALUES (1)", "INSERT INTO counted VALUES (2)")),
    Migration(3, ("DROP TABLE counted",)),
)


async def test_a_migration_reports_each_of_its_steps(location: str) -> None:
    database = open_location(location, component="counted", migrations=STEPS, clock=utc_now)
    told: list[int] = []
    with followed(told.append):
        before = await upgrade(database)
    assert (len(before.missing), told) == (3, [1, 1, 1])


def test_steps_are_shown_from_the_beginning(monkeypatch: pytest.MonkeyPatch) -> None:
    screen = _Terminal()
    monkeypatch.setattr(sys, "stderr", screen)
    with showing_progress(steps=3):
        assert "\r0 of 3 steps done" in screen.getvalue()
        advance(1)
        assert "\r1 of 3 steps done" in screen.getvalue()
    assert screen.getvalue().endswith(" \r")


def test_ctrl_c_wakes_a_loop_that_waits() -> None:
    """Another thread gets the signal: nothing interrupts the main thread's wait."""
    was_woken_otherwise = threading.Event()
    before = signal.signal(signal.SIGINT, signal.default_int_handler)

    async def wait() -> None:
        loop, waited = asyncio.get_running_loop(), asyncio.Event()

        def interrupt() -> None:
            time.sleep(0.1)  # the loop waits by now
            signal.pthread_kill(threading.get_ident(), signal.SIGINT)
            time.sleep(2)
            was_woken_otherwise.set()
            with contextlib.suppress(RuntimeError):  # the loop is closed
                loop.call_soon_threadsafe(waited.set)

        threading.Thread(target=interrupt, daemon=True).start()
        await waited.wait()

    try:
        with pytest.raises(KeyboardInterrupt):
            run_interruptibly(wait())
    finally:
        signal.signal(signal.SIGINT, before)
    assert not was_woken_otherwise.is_set()


# Long enough to be interrupted in the middle of its second step.
_MIGRATING = """
import signal, sys
from pushkit.cli import databases
from pushkit.cli.main import cli
from pushkit.outbox import schema as database
from pushkit.storage.migrations import Migration
from pushkit.outbox.inspection import SubscriptionFilter

slow = (
    "CREATE TABLE long AS WITH RECURSIVE c(x) AS (SELECT 1 UNION ALL SELECT x + 1 FROM c)"
    " SELECT count(*) FROM c",
)
more = (Migration(98, ("CREATE TABLE short (x INTEGER)",)), Migration(99, slow))
database.SENDER_MIGRATIONS = (*database.SENDER_MIGRATIONS, *more)
sys.stderr.isatty = lambda: True
signal.signal(signal.SIGINT, signal.default_int_handler)  # a shell's background jobs ignore it
cli(["migrate", "--database", sys.argv[1]])
"""


def test_a_migration_that_is_interrupted_leaves_everything_as_it_was(tmp_path: Path) -> None:
    path = tmp_path / "outbox.db"
    number = len(SENDER_MIGRATIONS)
    with subprocess.Popen(  # noqa: S603  # our own interpreter
        [sys.executable, "-c", _MIGRATING, str(path)], stderr=subprocess.PIPE
    ) as migrating:
        try:
            assert migrating.stderr is not None
            shown = b""
            while f"\r{number + 1} of {number + 2} steps".encode() not in shown:
                shown += (came := migrating.stderr.read(1))
                assert came, shown.decode()
            migrating.send_signal(signal.SIGINT)
            _, left = migrating.communicate(timeout=DEADLINE)
        finally:
            migrating.kill()
    assert migrating.returncode == 130
    assert b"interrupted: all steps were applied, or none" in left
    with contextlib.closing(sqlite3.connect(path)) as connection:
        assert connection.execute("SELECT name FROM sqlite_master").fetchall() == []
