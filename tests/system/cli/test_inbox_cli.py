"""`receiver inbox` on a file that a receiver left behind."""

from __future__ import annotations

import asyncio
import json
from datetime import UTC, datetime, timedelta
from pathlib import Path

import pytest
from tenacity import stop_after_attempt

from pushkit.scheduling.retry import RetryPolicy, wait_schedule
from pushkit.storage.database import Database, opened
from pushkit.storage.migrations import Access
from receiver import Notification
from receiver.admin import open_inbox
from receiver.callbacks.dispatcher import Dispatcher
from receiver.callbacks.registry import CallbackRegistry
from tests.system.cli.conftest import RECEIVER_TOML, Run
from tests.unit.receiver import storing

SECRET = "a-word-of-the-body"
ONCE = RetryPolicy(wait=wait_schedule((1,)), stop=stop_after_attempt(1))
BODY = '{"statusUpdate":{"taskId":"%s","contextId":"%s","status":{"state":"TASK_STATE_WORKING"}}}'


async def fill(path: Path) -> None:
    """Two dead letters of two senders, one that is done, one that waits behind a gap."""
    database = open_inbox(path)
    registry = CallbackRegistry()

    async def good(_: Notification) -> None:
        return

    async def bad(notification: Notification) -> None:
        if notification.task_id != "task-good":
            raise ValueError(SECRET)

    registry.add(good, name="handlers:good")
    registry.add(bad, name="handlers:bad")
    dispatcher = Dispatcher(database, registry, retry=ONCE, concurrency=4)
    await database.open()
    await store(database, "agent", "task-1")
    await store(database, "other", "task-2")
    await store(database, "agent", "task-good")
    await dispatcher.run_once()
    await dispatcher.retire()
    await store(database, "agent", "task-4\x1b[31m", seq=3)
    await database.close()


async def store(database: Database, sender: str, task: str, seq: int = 1) -> None:
    now = datetime.now(UTC) - timedelta(hours=1)
    body = (BODY % (task.partition("\x1b")[0], SECRET)).encode()
    await database.write(
        storing.store(task, seq, body=body, now=now, sender=sender, config_id=None)
    )


@pytest.fixture(autouse=True)
def config(own_folder: Path) -> Path:
    """A configuration and its inbox, where the commands look for them."""
    asyncio.run(fill(own_folder / "inbox.db"))
    path = own_folder / "receiver.toml"
    path.write_text(RECEIVER_TOML)
    return path


def test_dead_letters_are_listed_without_their_bodies(receiver_command: Run) -> None:
    ran = receiver_command("inbox", "list", "--status", "dead")

    head, *rows = ran.out.splitlines()
    assert (ran.status, head.split()[0]) == (0, "ID")
    assert [row.split()[3] for row in rows] == ["task-1", "task-2"]
    assert all("handlers:bad: ValueError" in row for row in rows)
    assert SECRET not in ran.out


@pytest.mark.parametrize(
    ("options", "tasks"),
    [
        pytest.param(["--sender", "other"], ["task-2"], id="sender"),
        pytest.param(["--task", "task-1"], ["task-1"], id="task"),
        pytest.param(["--status", "done"], ["task-good"], id="status"),
        pytest.param(["--after", "2", "--limit", "1"], ["task-good"], id="page"),
    ],
)
def test_a_list_is_filtered_and_json_on_request(
    receiver_command: Run, options: list[str], tasks: list[str]
) -> None:
    found = json.loads(receiver_command("inbox", "list", "--json", *options).out)

    assert [entry["task_id"] for entry in found] == tasks


def test_what_a_sender_wrote_does_not_reach_the_terminal(receiver_command: Run) -> None:
    listed = receiver_command("inbox", "list", "--status", "received")
    shown = receiver_command("inbox", "show", "4")

    assert "\x1b" not in listed.out + shown.out
    assert r"task-4\x1b[31m" in listed.out
    assert listed.out.splitlines()[1].split()[5] == "-2"


def test_show_says_what_each_callback_did(receiver_command: Run) -> None:
    ran = receiver_command("inbox", "show", "1")

    lines = [line.split() for line in ran.out.splitlines() if line.startswith("handlers:")]
    assert [(name, done, attempts, error) for name, done, attempts, _, error in lines] == [
        ("handlers:bad", "no", "1", "ValueError"),
        ("handlers:good", "yes", "1", "-"),
    ]
    assert SECRET not in ran.out


def test_show_has_the_body_on_request_alone(receiver_command: Run) -> None:
    without = json.loads(receiver_command("inbox", "show", "1", "--json").out)
    with_body = json.loads(receiver_command("inbox", "show", "1", "--json", "--body").out)

    assert "body" not in without
    assert SECRET in with_body["body"]
    assert without["callbacks"][0]["last_error"] == "ValueError"
    assert SECRET in receiver_command("inbox", "show", "1", "--body").out


def test_show_says_what_is_not_there(receiver_command: Run) -> None:
    ran = receiver_command("inbox", "show", "99")

    assert (ran.status, ran.error.partition(":")[0]) == (1, "there is no notification 99")


def test_redrive_by_id_calls_only_whom_it_failed(receiver_command: Run, own_folder: Path) -> None:
    ran = receiver_command("inbox", "redrive", "1")

    assert (ran.status, ran.out) == (0, "1 dead letter called back again\n")
    # `good` had task-1; nobody had task-4.
    called = asyncio.run(call_again(own_folder / "inbox.db"))
    assert sorted(called) == ["bad:task-1", "bad:task-4", "good:task-4"]


async def call_again(path: Path) -> list[str]:
    registry = CallbackRegistry()
    called: list[str] = []

    async def good(notification: Notification) -> None:
        called.append(f"good:{notification.update.task_id}")

    async def bad(notification: Notification) -> None:
        called.append(f"bad:{notification.update.task_id}")

    registry.add(bad, name="handlers:bad")
    registry.add(good, name="handlers:good")
    await dispatch(path, registry)
    return called


async def dispatch(path: Path, registry: CallbackRegistry) -> None:
    async with opened(open_inbox(path), Access.WRITE) as database:
        dispatcher = Dispatcher(database, registry, retry=ONCE, concurrency=1)
        while await dispatcher.run_once():
            continue
        await dispatcher.retire()


@pytest.mark.parametrize(
    ("options", "redriven"),
    [
        pytest.param(["--sender", "other"], 1, id="sender"),
        pytest.param(["--task", "task-1"], 1, id="task"),
        pytest.param(["--task", "task-good"], 0, id="nothing-dead"),
        pytest.param(["--all"], 2, id="all"),
    ],
)
def test_redrive_by_filter(receiver_command: Run, options: list[str], redriven: int) -> None:
    ran = receiver_command("inbox", "redrive", *options)
    numbers = json.loads(receiver_command("inbox", "stats", "--json").out)

    assert ran.status == 0
    assert numbers["statuses"]["dead"] == 2 - redriven


def test_what_is_no_dead_letter_is_told(receiver_command: Run) -> None:
    ran = receiver_command("inbox", "redrive", "1", "3")

    assert (ran.status, ran.error) == (
        1,
        "1 not called back again: neither dead letters nor unmatched",
    )
    assert "1 dead letter called" in ran.out


def test_purge_is_by_age_or_number(receiver_command: Run) -> None:
    assert receiver_command("inbox", "purge", "--older-than", "1d").out == "purged 0\n"
    assert receiver_command("inbox", "purge", "--keep", "0").out == "purged 1\n"
    dead = receiver_command("inbox", "purge", "--older-than", "0s", "--status", "dead")
    assert dead.out == "purged 2\n"
    assert receiver_command("inbox", "purge").status == 2


def test_stats_tell_what_never_came(receiver_command: Run) -> None:
    ran = receiver_command("inbox", "stats")
    numbers = json.loads(receiver_command("inbox", "stats", "--json").out)

    assert ran.out.splitlines()[-2].split() == ["agent", "1", "1", "2", "0", "0"]
    assert numbers["statuses"] == {"received": 1, "in_progress": 0, "done": 1, "dead": 2}
    assert numbers["senders"][0] == {
        "sender": "agent",
        "unfinished": 1,
        "dead": 1,
        "missing": 2,
        "late": 0,
        "unmatched": 0,
    }


def test_what_no_callback_wanted_is_listed_and_redriven(
    receiver_command: Run, own_folder: Path
) -> None:
    nobody = CallbackRegistry()
    asyncio.run(dispatch(own_folder / "inbox.db", nobody))  # task-4

    listed = receiver_command("inbox", "list", "--unmatched")
    counted = receiver_command("inbox", "stats")
    redriven = receiver_command("inbox", "redrive", "--unmatched")

    assert [row.split()[0] for row in listed.out.splitlines()[1:]] == ["4"]
    assert "no callback wanted it" in listed.out
    assert counted.out.splitlines()[-2].split() == ["agent", "0", "1", "2", "0", "1"]
    assert (redriven.status, redriven.out) == (0, "1 unmatched notification called back again\n")
    called = asyncio.run(call_again(own_folder / "inbox.db"))
    assert sorted(called) == ["bad:task-4", "good:task-4"]


def test_another_database_may_be_named(receiver_command: Run, config: Path) -> None:
    config.unlink()
    ran = receiver_command("inbox", "stats", "--database", "inbox.db")

    assert ran.status == 0
    assert receiver_command("inbox", "stats").status == 1


def test_the_commands_work_on_postgresql(receiver_command: Run, postgres_dsn: str) -> None:
    assert receiver_command("migrate", "--database", postgres_dsn).status == 0
    ran = receiver_command("inbox", "stats", "--json", "--database", postgres_dsn)

    assert set(json.loads(ran.out)["statuses"].values()) == {0}
