"""`receiver inbox queues`: which process leases which queue, and what waits."""

from __future__ import annotations

import asyncio
import json
from datetime import UTC, datetime, timedelta
from pathlib import Path

import pytest

from receiver.admin import open_inbox
from tests.system.cli.conftest import RECEIVER_TOML, Run
from tests.unit.receiver import storing

AT = datetime(2026, 1, 2, 3, 4, 5, tzinfo=UTC)
LATER = AT + timedelta(minutes=1)
WORKER = "dispatcher_0123456789abcdef"


async def fill(path: Path) -> None:
    """A queue that a process leases, one that waits, and that of a notification without a task."""
    database = open_inbox(path)
    await database.open()
    for task, seq, delivery_id in (
        ("leased", 1, None),
        ("waiting\x1b[31m", 1, None),
        ("waiting\x1b[31m", 2, None),
        (None, None, "dlv_1"),
    ):
        await database.write(
            storing.store(
                task,
                seq,
                body=b"{}",
                now=AT,
                delivery_id=delivery_id,
                worker=WORKER if task == "leased" else None,
                until=LATER,
            )
        )
    await database.close()


@pytest.fixture(autouse=True)
def config(own_folder: Path) -> None:
    asyncio.run(fill(own_folder / "inbox.db"))
    (own_folder / "receiver.toml").write_text(RECEIVER_TOML)


def test_queues_are_listed_with_the_process_that_leases_each(receiver_command: Run) -> None:
    ran = receiver_command("inbox", "queues")

    head, *rows = (line.split() for line in ran.out.splitlines())
    assert head == ["SENDER", "TASK", "WORKER", "SINCE", "EPOCH", "WAITING", "DUE"]
    assert {row[1]: (row[0], row[2], row[-2]) for row in rows} == {
        "leased": ("agent", WORKER, "1"),
        "waiting\\x1b[31m": ("agent", "-", "2"),
        "-": ("agent", "-", "1"),
    }
    assert [row[-1] == "-" for row in rows if row[1] == "leased"] == [True]


def test_json_says_since_when_and_until_when(receiver_command: Run) -> None:
    found = json.loads(receiver_command("inbox", "queues", "--json").out)

    [leased] = [each for each in found if each["task_id"] == "leased"]
    assert leased["waiting"] == {"number": 1, "more": False}
    assert leased["due_at"] is None
    moments = [datetime.fromisoformat(leased[name]) for name in ("leased_at", "lease_until")]
    assert moments == [AT, LATER]


def test_queues_come_in_pages(receiver_command: Run) -> None:
    pages = []
    after: list[str] = []
    for _ in range(3):
        ran = receiver_command("inbox", "queues", "--limit", "1", "--json", *after)
        [found] = json.loads(ran.out)
        after = ["--after", found["id"]]
        pages.append((found["task_id"], found["id"]))
    assert pages == [
        ("leased", "agent%0Aleased"),
        ("waiting\x1b[31m", "agent%0Awaiting%1B%5B31m"),
        (None, "agent%0Ddlv_1"),
    ]
    assert json.loads(receiver_command("inbox", "queues", "--json", *after).out) == []


def test_the_hint_at_the_next_page_can_be_pasted(receiver_command: Run) -> None:
    ran = receiver_command("inbox", "queues", "--limit", "2")

    assert ran.err == "there may be more: --after agent%0Awaiting%1B%5B31m\n"
