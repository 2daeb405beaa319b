"""What one update costs in statements, which docs/scaling.md says."""

from __future__ import annotations

import re
from collections.abc import Callable
from functools import partial
from pathlib import Path

import pytest
from aiohttp import web

from pushkit.storage import postgres, sqlite
from tests.unit.pushkit.delivery.conftest import Senders, Webhook, status

pytestmark = pytest.mark.usefixtures("location")  # every test runs on SQLite and PostgreSQL
PAGE = (Path(__file__).parents[4] / "docs" / "scaling.md").read_text("utf-8")
NOTIFY = r"\| `notify\(\)` \|[^|]*\| (\d+) \((\d+) on PostgreSQL"
CLAIM = r"\| claim[^|]*\|[^|]*\| (\d+) \((\d+)\)"
SETTLE = r"\| settle \|[^|]*\| (\d+) \((\d+)\), for all of them"
FAILED = r"\| settle \|[^|]*\|[^|]*; (\d+) \((\d+)\) for a failed one"
# Part of each transaction's beginning on PostgreSQL.
APART = re.compile(r"SELECT oldest FROM pushkit_writers")


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
