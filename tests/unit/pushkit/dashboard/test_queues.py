"""The page of queues: which worker leases which queue, what waits, and when it is due."""

from __future__ import annotations

import asyncio
import html
import re

import pytest
from aiohttp import web
from pytest_aiohttp.plugin import AiohttpServer

from tests.browser import Browser
from tests.eventually import DEADLINE
from tests.unit.pushkit.dashboard.conftest import House


async def test_a_queue_waits_for_a_worker_until_its_deliveries_are_done(
    house: House, reader: Browser
) -> None:
    await house.notify("report-7")

    [waits] = (await reader.document("/queues"))["queues"]
    shown = await reader.get("/queues")
    await house.deliver()

    assert (waits["task_id"], waits["owner"], waits["worker"]) == ("report-7", "alice", None)
    assert waits["waiting"] == {"number": 1, "more": False}
    assert waits["due_at"] is not None
    assert "nobody" in shown
    assert f'href="/subscriptions/{waits["id"]}"' in shown
    assert await reader.document("/queues") == {"queues": [], "after": None}
    assert "No worker leases a queue" in await reader.get("/queues")


async def test_a_queue_is_shown_with_the_worker_that_leases_it(
    house: House, reader: Browser, aiohttp_server: AiohttpServer
) -> None:
    began, may_end = asyncio.Event(), asyncio.Event()

    async def answer(_: web.Request) -> web.Response:
        began.set()
        await may_end.wait()
        return web.Response()

    app = web.Application()
    app.router.add_post("/slow", answer)
    server = await aiohttp_server(app)
    house.webhook = f"http://127.0.0.1:{server.port}"
    await house.notify("report-7", "/slow")
    async with asyncio.timeout(DEADLINE), asyncio.TaskGroup() as tasks:
        tasks.create_task(house.deliver())
        await began.wait()
        [found] = (await reader.document("/queues"))["queues"]
        shown = await reader.get("/queues")
        may_end.set()

    assert found["worker"]
    assert found["leased_at"] < found["lease_until"]
    assert found["worker"] in shown
    assert "nobody" not in shown


async def test_a_queue_is_shown_with_what_holds_it_back(house: House, reader: Browser) -> None:
    house.statuses["/broken"] = 500
    for number in range(5):  # enough to open the breaker
        await house.notify(f"task-{number}", "/broken")
    await house.deliver()

    found = (await reader.document("/queues"))["queues"]

    assert {each["failures"] for each in found} == {5}
    assert all(each["failing_since"] and each["waits_until"] for each in found)
    assert "its destination waits" in await reader.get("/queues")


async def test_queues_come_in_pages(house: House, reader: Browser) -> None:
    for number in range(3):
        await house.notify(f"task-{number}")

    seen, query = list[str](), "?limit=2"
    while query:
        page = await reader.document(f"/queues{query}")
        seen += [each["task_id"] for each in page["queues"]]
        query = page["after"] and f"?limit=2&after={page['after']}"
    link = re.search(r'rel="next" href="([^"]+)"', await reader.get("/queues?limit=2"))

    assert sorted(seen) == ["task-0", "task-1", "task-2"]
    assert link
    assert "task-" in await reader.get(f"/queues{html.unescape(link[1])}")


@pytest.mark.parametrize("after", ["%00", "x" * 600])
async def test_what_no_page_returned_is_refused(reader: Browser, after: str) -> None:
    await reader.get(f"/queues?after={after}", 400)
