"""The page of queues: which process leases which queue, what waits, and when it is due."""

from __future__ import annotations

import html
import re
from collections.abc import AsyncIterator
from datetime import UTC, datetime, timedelta
from urllib.parse import quote

import pytest
from pytest_aiohttp.plugin import AiohttpClient

from pushkit.storage.database import Database
from pushkit.webui.access import DashboardAccess
from receiver.admin import InboxAdmin, open_inbox
from receiver.dashboard.app import inbox_dashboard
from tests.browser import Browser
from tests.unit.receiver import storing

WORKER = "dispatcher_0123456789abcdef"


@pytest.fixture
async def database(location: str) -> AsyncIterator[Database]:
    database = open_inbox(location)
    await database.open()
    yield database
    await database.close()


@pytest.fixture
async def reader(database: Database, aiohttp_client: AiohttpClient) -> Browser:
    """A browser on this machine, which may read."""
    site = inbox_dashboard(InboxAdmin(database), access=DashboardAccess())
    return await Browser.at(site, aiohttp_client)


async def store(
    database: Database, task: str | None, *, seq: int = 1, worker: str | None = None
) -> None:
    now = datetime.now(UTC) - timedelta(seconds=5)
    await database.write(
        storing.store(
            task,
            None if task is None else seq,
            body=b"{}",
            now=now,
            delivery_id=None if task else "dlv_1",
            worker=worker,
            until=now + timedelta(minutes=1),
        )
    )


async def test_a_queue_is_shown_with_the_process_that_leases_it(
    database: Database, reader: Browser
) -> None:
    await store(database, "leased", worker=WORKER)
    await store(database, "waits")
    await store(database, "waits", seq=2)

    found = {each["task_id"]: each for each in (await reader.document("/queues"))["queues"]}
    page = await reader.get("/queues")

    assert found["leased"]["worker"] == WORKER
    assert found["leased"]["leased_at"] < found["leased"]["lease_until"]
    assert found["leased"]["due_at"] is None
    assert found["waits"]["worker"] is found["waits"]["leased_at"] is None
    assert found["waits"]["waiting"] == {"number": 2, "more": False}
    assert found["waits"]["due_at"] is not None
    rows = re.findall(r"<tr>(.*?)</tr>", page, re.DOTALL)
    assert [WORKER in row for row in rows[1:]] == [True, False]
    assert "nobody" in rows[2]
    assert 'href="/task?task=waits&amp;sender=agent"' in rows[2]


async def test_a_notification_without_a_task_is_alone_in_its_queue(
    database: Database, reader: Browser
) -> None:
    await store(database, None)

    [found] = (await reader.document("/queues"))["queues"]

    assert (found["task_id"], found["id"]) == (None, "agent%0Ddlv_1")
    assert "no task" in await reader.get("/queues")


async def test_queues_come_in_pages(database: Database, reader: Browser) -> None:
    assert "No process leases a queue" in await reader.get("/queues")
    tasks = ["a/b", "c d", "\x1b[31m", "é"]
    for task in tasks:
        await store(database, task)

    seen, query = list[str](), "?limit=1"
    while query:
        page = await reader.document(f"/queues{query}")
        seen += [each["task_id"] for each in page["queues"]]
        query = page["after"] and f"?limit=1&after={quote(page['after'], safe='')}"
    link = re.search(r'rel="next" href="([^"]+)"', await reader.get("/queues?limit=3"))

    assert sorted(seen) == sorted(tasks)
    assert link
    assert "queue" in await reader.get(f"/queues{html.unescape(link[1])}")


@pytest.mark.parametrize("after", ["%00", "agent\ntask", "%zz"])
async def test_what_no_page_returned_is_refused(reader: Browser, after: str) -> None:
    await reader.get(f"/queues?after={quote(after)}", 400)
