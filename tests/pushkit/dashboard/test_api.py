"""The JSON API, held against its own OpenAPI description."""

from __future__ import annotations

import asyncio
import contextlib
import threading
from collections.abc import Iterator
from datetime import timedelta
from pathlib import Path
from typing import Any, TypeAlias

import pytest
import schemathesis
from aiohttp import web
from hypothesis import given, settings
from schemathesis.core.result import Ok
from schemathesis.schemas import APIOperation

from pushkit import KeyRing, PushSender, SenderOptions, StatusUpdate, TaskState, TaskStatus
from pushkit.clock import utc_now
from pushkit.dashboard.app import dashboard_app
from pushkit.dashboard.openapi import openapi_document
from pushkit.keys.source import StaticKeySource
from pushkit.webui.access import DashboardAccess
from tests.pushkit.dashboard.conftest import ISSUER, TOKEN, Browser, House

EXAMPLES = 25
BEARER = {"Authorization": f"Bearer {TOKEN}"}
SCHEMA = schemathesis.openapi.from_dict(openapi_document("/api/v1", with_actions=True))
Operation: TypeAlias = APIOperation[Any, Any, Any, Any]
OPERATIONS = [found.ok() for found in SCHEMA.get_all_operations() if isinstance(found, Ok)]


async def _fill(sender: PushSender) -> tuple[str, str]:
    """Store a delivery that failed, and one that waits; return two ids."""
    ids = []
    for n in range(3):
        config = {"url": f"http://127.0.0.1:9/{n}", "token": "a-token-of-the-client"}
        subscription = await sender.subscribe(f"task-{n}", config, version="1.0", owner="alice")
        status = TaskStatus(state=TaskState.WORKING)
        update = StatusUpdate(task_id=f"task-{n}", context_id="c", status=status)
        ids += (await sender.notify(update)).ids
        if n == 0:
            await sender.worker.run_once()
    return ids[0], subscription.id


class _Service(threading.Thread):
    """The dashboard in an event loop of its own: schemathesis asks from this thread."""

    def __init__(self, database: Path) -> None:
        super().__init__(name="dashboard")
        self._database = database
        self._loop = asyncio.new_event_loop()
        self.listens = threading.Event()
        self.api = ""
        self.delivery_id = self.subscription_id = ""

    def run(self) -> None:
        """Serve until told to stop."""
        self._loop.run_until_complete(self._serve())
        self._loop.close()

    def stop(self) -> None:
        """End it."""
        self._loop.call_soon_threadsafe(self._ending.set)
        self.join()

    async def _serve(self) -> None:
        self._ending = asyncio.Event()
        ring = KeyRing.create(utc_now())
        sender = PushSender(
            issuer=ISSUER,
            keys=ring,
            database=self._database,
            allow=["127.0.0.1:*"],
            options=SenderOptions(timeout=timedelta(seconds=5)),
        )
        await sender.open()
        self.delivery_id, self.subscription_id = await _fill(sender)
        site = dashboard_app(
            sender.outbox,
            sender.subscription_admin,
            access=DashboardAccess(token=TOKEN, allow_actions=True),
            keys=StaticKeySource(ring),
        )
        runner = web.AppRunner(site.app(), access_log=None)
        await runner.setup()
        await web.TCPSite(runner, "127.0.0.1", 0).start()
        self.api = f"http://127.0.0.1:{runner.addresses[0][1]}/api/v1"
        self.listens.set()
        await self._ending.wait()
        await runner.cleanup()
        await sender.close()


@pytest.fixture(scope="module")
def service(tmp_path_factory: pytest.TempPathFactory) -> Iterator[_Service]:
    service = _Service(tmp_path_factory.mktemp("dashboard") / "outbox.db")
    service.start()
    assert service.listens.wait(30)
    yield service
    service.stop()


@pytest.mark.slow
@pytest.mark.parametrize("operation", OPERATIONS, ids=lambda operation: str(operation.label))
def test_every_answer_is_as_described(
    service: _Service, operation: APIOperation[Any, Any, Any, Any]
) -> None:
    @given(case=operation.as_strategy())
    @settings(max_examples=EXAMPLES, deadline=None, derandomize=True, database=None)
    def check(case: schemathesis.Case[Any]) -> None:
        case.call_and_validate(base_url=service.api, headers=BEARER)

    check()


@pytest.mark.parametrize("kind", ["deliveries", "subscriptions"])
def test_what_is_there_is_as_described(service: _Service, kind: str) -> None:
    ids = {"deliveries": service.delivery_id, "subscriptions": service.subscription_id}
    case = SCHEMA[f"/{kind}/{{id}}"]["GET"].Case(
        path_parameters={"id": ids[kind]}, query={"body": "1", "answers": "1"}
    )
    answer = case.call_and_validate(base_url=service.api, headers=BEARER)
    assert answer.status_code == 200


async def test_the_api_shows_what_the_pages_show(house: House, reader: Browser) -> None:
    delivery_id = await house.dead_letter("report-7")
    async with reader.client.get("/api/v1/deliveries", params={"state": "dead"}) as answer:
        found = await answer.json()
    assert [each["id"] for each in found["deliveries"]] == [delivery_id]
    async with reader.client.get(f"/api/v1/deliveries/{delivery_id}") as answer:
        found = await answer.json()
    assert found["why"]["code"] == "rejected"
    assert found["request"]["line"] == "POST /strict HTTP/1.1"
    assert found["body"] is None
    with contextlib.suppress(KeyError):
        assert "answer" not in found["log"][0]


async def test_an_api_of_a_reader_describes_no_actions(reader: Browser) -> None:
    async with reader.client.get("/api/openapi.json") as answer:
        found = await answer.json()
    assert not [path for path in found["paths"] if path.endswith("/redrive")]
