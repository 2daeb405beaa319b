"""Commands that messages recommend: each runs as it is printed, in any folder."""

from __future__ import annotations

import asyncio
import html
import json
import logging
import re
import shlex
import sqlite3
from dataclasses import replace
from datetime import timedelta
from pathlib import Path

import httpx
import pytest
from tenacity import stop_after_attempt

from pushkit.scheduling.retry import RetryPolicy, wait_schedule
from pushkit.storage.database import opened
from pushkit.storage.migrations import Access
from pushkit.webui.access import DashboardAccess
from receiver import (
    InboxFilter,
    InboxStatus,
    Limits,
    Notification,
    Receiver,
    TaskPolicy,
    TrustedSender,
)
from receiver.admin import InboxAdmin, open_inbox
from receiver.dashboard.app import inbox_dashboard
from receiver.testing import SigningAgent
from tests.eventually import eventually
from tests.system.cli.conftest import RECEIVER_TOML, Run

URL, PATH = "https://client.example.com", "/a2a/push"
AGENT = SigningAgent(webhook_url=URL + PATH)
ONCE = RetryPolicy(wait=wait_schedule((1,)), stop=stop_after_attempt(1))


def embedded(database: Path) -> Receiver:
    """Return a receiver as an application embeds it, without a configuration file."""
    key = AGENT.key.to_verification_key()
    sender = TrustedSender(
        name="agent",
        issuer=AGENT.issuer,
        keys=[key],
        tokens=(AGENT.token,),
        tasks=TaskPolicy.ANY,
    )
    return Receiver(
        url=URL,
        senders=[sender],
        database=database,
        limits=Limits(max_backlog_per_sender=1),
        retry=ONCE,
        drain=timedelta(0),
    )


async def receive(receiver: Receiver, task_id: str) -> str:
    request = replace(AGENT.draft(task_id).request(), target=PATH)
    return (await receiver.receive(request, peer="192.0.2.1")).code


async def trouble(receiver: Receiver, *, failing: bool) -> None:
    """Let a notification match no callback or fail; then exceed the backlog."""

    @receiver.on_update(tasks=["task-1"] if failing else ["task-2"])
    async def fail(notification: Notification) -> None:
        if notification.task_id == "task-2":
            await asyncio.Event().wait()
        raise ValueError

    async def is_settled() -> bool:
        status = InboxStatus.DEAD if failing else InboxStatus.DONE
        return bool(await receiver.inbox.find(InboxFilter(status=status)))

    async with receiver:
        assert await receive(receiver, "task-1") == "accepted"
        await eventually(is_settled)
        if not failing:
            while (code := await receive(receiver, "task-2")) == "accepted":
                continue
            assert code == "backlog_full"


def recommended(text: str) -> list[list[str]]:
    found = re.findall(r"[`>]((?:receiver|pushkit) [^`<]+)[`<]", text)
    return [shlex.split(html.unescape(each))[1:] for each in found]


@pytest.fixture
def database(own_folder: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """The inbox of an application; its path has to be quoted, and commands run elsewhere."""
    folder = own_folder / "it's here"
    folder.mkdir()
    (own_folder / "elsewhere").mkdir()
    monkeypatch.chdir(own_folder / "elsewhere")
    return folder / "inbox.db"


def test_commands_in_the_log_of_an_embedded_receiver_run_as_printed(
    receiver_command: Run, database: Path, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.INFO, "receiver")
    asyncio.run(trouble(embedded(database), failing=False))

    commands = recommended("\n".join(record.getMessage() for record in caplog.records))

    assert [command[:2] for command in commands] == [["inbox", "list"], ["inbox", "stats"]]
    for command in commands:
        assert receiver_command(*command).status == 0


def test_the_command_on_a_page_of_the_dashboard_runs_as_printed(
    receiver_command: Run, database: Path
) -> None:
    async def page() -> str:
        await trouble(embedded(database), failing=True)
        inbox = open_inbox(database)
        async with opened(inbox, Access.READ):
            site = inbox_dashboard(InboxAdmin(inbox), access=DashboardAccess()).asgi()
            transport = httpx.ASGITransport(site, client=("127.0.0.1", 1))
            async with httpx.AsyncClient(transport=transport, base_url="http://127.0.0.1") as web:
                return (await web.get("/notifications/1")).text

    [command] = recommended(asyncio.run(page()))

    assert receiver_command(*command).out == "1 dead letter called back again\n"


@pytest.mark.parametrize(
    ("command", "said"),
    [
        pytest.param(["inbox", "show", "7"], "there is no notification 7", id="no such id"),
        pytest.param(["inbox", "list"], "this is no database of pushkit's", id="no inbox"),
    ],
)
def test_a_command_that_another_one_recommends_runs_as_printed(
    receiver_command: Run, database: Path, command: list[str], said: str
) -> None:
    sqlite3.connect(database).close()
    if command != ["inbox", "list"]:
        receiver_command("migrate", "--database", str(database))

    refused = receiver_command(*command, "--database", str(database))

    assert said in refused.error
    [recommendation] = recommended(refused.err)
    assert receiver_command(*recommendation).status == 0


def test_a_command_that_makes_or_exports_a_key_file_runs_as_printed(
    pushkit_command: Run, receiver_command: Run, own_folder: Path
) -> None:
    keys = own_folder / "it's here.json"
    missing = pushkit_command("keys", "list", "--keys", str(keys))
    [making] = recommended(missing.err)
    assert pushkit_command(*making).status == 0

    (own_folder / "receiver.toml").write_text(
        RECEIVER_TOML.replace('"jwks.json"', json.dumps(keys.name))
    )
    [exporting] = recommended(receiver_command("check").err)
    assert pushkit_command(*exporting).status == 0

    keys.chmod(0o644)
    [_, remedy] = pushkit_command("keys", "list", "--keys", str(keys)).error.split(": chmod ")
    assert shlex.split(remedy) == ["600", str(keys)]


def test_the_environment_names_the_inbox_where_there_is_no_configuration(
    receiver_command: Run, database: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    without = receiver_command("migrate")
    monkeypatch.setenv("RECEIVER_DATABASE", str(database))

    made = receiver_command("migrate")
    listed = receiver_command("inbox", "list")
    mistyped = receiver_command("inbox", "list", "--config", "missing.toml")

    assert "or the inbox by --database or RECEIVER_DATABASE" in without.error
    assert (made.status, listed.status, database.exists()) == (0, 0, True)
    assert mistyped.error.startswith("missing.toml: No such file")
