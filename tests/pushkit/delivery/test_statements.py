"""What one update costs in statements, which docs/scaling.md says."""

from __future__ import annotations

import re
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING

import pytest
from aiohttp import web

from pushkit.storage import postgres, sqlite
from tests.pushkit.delivery.conftest import Senders, Webhook, status

if TYPE_CHECKING:
    from collections.abc import Callable


PAGE = (Path(__file__).parents[3] / "docs" / "scaling.md").read_text("utf-8")
NOTIFY = r"\| `notify\(\)` \|[^|]*\| (\d+) \((\d+) on PostgreSQL, \d+ if stored in flight\)"
SETTLE = r"\| settle \|[^|]*\| (\d+) \((\d+)\), for all of them"
FAILED = r"\| settle \|[^|]*\|[^|]*; (\d+) \((\d+)\) for a failed one"
# The one is part of each transaction's beginning on PostgreSQL; the other runs once a second.
APART = re.compile(r"SELECT oldest FROM pushkit_writers|SELECT COUNT\(\*\)")


@pytest.fixture
def outbox(location: str) -> str:
    """Return the location of the outbox: every test runs on SQLite and PostgreSQL."""
    return location


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
        ran.clear()  # what runs now settles
        return web.Response(status=status)

    sender = await senders.open()
    await sender.subscribe("task-1", {"url": webhook.url()}, version="1.0", owner="")
    webhook.replies_with(partial(answer, 200), partial(answer, 503))
    for settling in (SETTLE, FAILED):
        ran.clear()
        await sender.notify(status())
        assert len(ran) == figure(NOTIFY)
        await sender.worker.run_once()
        assert len(ran) == figure(settling)
