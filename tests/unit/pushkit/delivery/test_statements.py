"""The statements that an update costs: how many, as docs/scaling.md says, and by which index."""

from __future__ import annotations

import re
import sqlite3
from collections.abc import Callable
from functools import partial
from pathlib import Path

import pytest
from aiohttp import web

from pushkit.storage import postgres, sqlite
from tests.unit.pushkit.delivery.conftest import (
    ON_SQLITE,
    Senders,
    Webhook,
    deliver_due,
    enqueue,
    status,
)
from tests.unit.pushkit.delivery.sides import count_backlogs, notice_of

pytestmark = pytest.mark.usefixtures("location")  # every test runs on SQLite and PostgreSQL
PAGE = (Path(__file__).parents[4] / "docs" / "scaling.md").read_text("utf-8")
NOTIFY = r"\| `notify\(\)` \|[^|]*\| (\d+) \((\d+) on PostgreSQL"
CLAIM = r"\| claim[^|]*\|[^|]*\| (\d+) \((\d+)\)"
SETTLE = r"\| settle \|[^|]*\| (\d+) \((\d+)\), for all of them"
FAILED = r"\| settle \|[^|]*\|[^|]*; (\d+) \((\d+)\) for a failed one"
# Part of each transaction's beginning on PostgreSQL.
APART = re.compile(r"SELECT oldest FROM pushkit_writers")
# Few deliveries are due, leased or heads: these partial indexes may be scanned.
SMALL = re.compile(
    r"SCAN (pushkit_deliveries|d)( USING (COVERING )?INDEX pushkit_deliveries_(due|heads|leased))"
)
# Runs once a second, and stops at its limit.
COUNT = re.compile(r"SELECT COUNT\(\*\) .*\bLIMIT\b")
# SQLite 3.53 reads such a table whole, and looks its rows up among the values.
MAY_BE_REVERSED = re.compile(r"VALUES .*(?<!CROSS)(?<!LEFT) JOIN ")
OF_A_TABLE = re.compile(r"SCAN (pushkit_\w+|[dhs])\b")


@pytest.fixture
def ran(monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """The statements that ran, BEGIN and COMMIT left out."""
    found: list[str] = []

    def note(translate: Callable[[str], str], sql: str) -> str:
        if not APART.match(sql):
            found.append(sql)
        return translate(sql)

    monkeypatch.setattr(sqlite, "in_sqlite", partial(note, sqlite.in_sqlite))
    monkeypatch.setattr(postgres, "_in_postgres", partial(note, postgres._in_postgres))
    return found


async def test_the_page_says_how_many_statements_an_update_takes(
    ran: list[str], senders: Senders, webhook: Webhook
) -> None:
    def figure(pattern: str) -> int:
        found = re.search(pattern, PAGE)
        assert found
        return int(found[2 if str(senders.database).startswith("postgresql") else 1])

    def answer(status: int) -> web.Response:
        counted.setdefault(CLAIM, []).append(len(ran))
        ran.clear()  # what runs now settles
        return web.Response(status=status)

    counted: dict[str, list[int]] = {}
    sender = await senders.open()
    await sender.subscribe("task-1", {"url": webhook.url()}, version="1.0", owner="")
    # Several times: backlogs are counted once a second, besides.
    for settling, status_code in ((SETTLE, 200), (FAILED, 503)) * 3:
        webhook.replies_with(partial(answer, status_code))
        ran.clear()
        await sender.notify(status())
        counted.setdefault(NOTIFY, []).append(len(ran))
        ran.clear()
        await sender.worker.run_once()
        counted.setdefault(settling, []).append(len(ran))
        await sender.outbox.cancel([each.id for each in await sender.deliveries("task-1")])
    assert {pattern: min(found) for pattern, found in counted.items()} == {
        pattern: figure(pattern) for pattern in counted
    }


# --- as SQLite plans them ----------------------------------------------------------------------


@ON_SQLITE
async def test_no_statement_scans_a_whole_table(
    traced: list[str], senders: Senders, webhook: Webhook
) -> None:
    sender = await senders.open()
    for n in range(20):
        hook = {"url": webhook.url(f"/{n}")}
        await sender.subscribe(f"task-{n}", hook, version="1.0", owner=f"owner-{n}")
    await deliver_due(sender)  # the first claim looks for waits that were set in the future
    await count_backlogs(sender)
    traced.clear()

    webhook.replies_with(503, path="/3")
    for key, state in ((None, "working"), ("key 1", "working"), ("key 2", "completed")):
        notices = [notice_of(sender, status(state, task_id=f"task-{n}"), key) for n in range(20)]
        await sender._database.write(sender._enqueuer.enqueue(notices))
    await deliver_due(sender)

    ran = {
        each for each in traced if each.startswith(("SELECT", "UPDATE", "INSERT", "DELETE", "WITH"))
    }
    assert sum("pushkit_subscriptions" in each for each in ran) > 5
    connection = sqlite3.connect(senders.database)
    found = {}
    for statement in ran - {each for each in ran if COUNT.match(each)}:
        plan = [row[3] for row in connection.execute(f"EXPLAIN QUERY PLAN {statement}")]
        scans = [step for step in plan if OF_A_TABLE.match(step) and not SMALL.match(step)]
        if scans:
            found[statement[:200]] = scans
    connection.close()
    assert found == {}
    assert [each for each in ran if MAY_BE_REVERSED.search(each)] == []


@ON_SQLITE
async def test_an_erasure_scans_no_table_while_others_wait_to_write(
    traced: list[str], senders: Senders, webhook: Webhook
) -> None:
    sender = await senders.open()
    await enqueue(sender, webhook.url())
    traced.clear()
    assert await sender.outbox.erase("task-1") == (1, 1)

    ran, is_writing = set(), False
    for each in traced:
        is_writing = each.startswith("BEGIN IMMEDIATE") or (is_writing and each != "COMMIT")
        if is_writing and each.startswith(("SELECT", "UPDATE", "DELETE")):
            ran.add(each)
    connection = sqlite3.connect(senders.database)
    plans = {
        each: [row[3] for row in connection.execute(f"EXPLAIN QUERY PLAN {each}")] for each in ran
    }
    connection.close()
    assert sum("pushkit_subscriptions" in each for each in ran) > 1
    assert {each: plan for each, plan in plans.items() if OF_A_TABLE.match(plan[0])} == {}
