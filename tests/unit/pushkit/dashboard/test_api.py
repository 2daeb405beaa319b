"""The JSON API, held against its own OpenAPI description."""

from __future__ import annotations

import contextlib
from collections.abc import AsyncIterator, Iterator
from dataclasses import dataclass
from datetime import timedelta

import pytest

from pushkit import KeyRing, PushSender, SenderOptions
from pushkit.clock import utc_now
from pushkit.dashboard.app import dashboard_app
from pushkit.delivery.admin import OutboxAdmin
from pushkit.delivery.subscription_admin import SubscriptionAdmin
from pushkit.outbox.schema import open_outbox
from pushkit.webui.access import DashboardAccess
from pushkit.webui.site import Site
from tests.browser import TOKEN, Browser
from tests.site_thread import (
    Operation,
    SiteThread,
    check_answers,
    check_real_answer,
    operations_of,
)
from tests.unit.pushkit.dashboard.conftest import ISSUER, House
from tests.updates import working

ACTING = DashboardAccess(token=TOKEN, allow_actions=True)
CLOSED = open_outbox("outbox.db")
OPERATIONS = operations_of(
    dashboard_app(OutboxAdmin(CLOSED), SubscriptionAdmin(CLOSED), access=ACTING)
)


async def _fill(sender: PushSender) -> tuple[str, str]:
    """Store a delivery that failed, and one that waits; return two ids."""
    ids = []
    for n in range(3):
        config = {"url": f"http://127.0.0.1:9/{n}", "token": "a-token-of-the-client"}
        subscription = await sender.subscribe(f"task-{n}", config, version="1.0", owner="alice")
        ids += (await sender.notify(working(f"task-{n}"))).ids
        if n == 0:
            await sender.worker.run_once()
    return ids[0], subscription.id


@dataclass
class Served:
    """A served dashboard, and the ids of its data."""

    thread: SiteThread
    ids: dict[str, str]


@pytest.fixture(scope="module")
def served(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Served]:
    ids: dict[str, str] = {}
    database = tmp_path_factory.mktemp("dashboard") / "outbox.db"

    @contextlib.asynccontextmanager
    async def opened() -> AsyncIterator[Site]:
        ring = KeyRing.create(utc_now())
        sender = PushSender(
            issuer=ISSUER,
            keys=ring,
            database=database,
            allow=["127.0.0.1:*"],
            options=SenderOptions(timeout=timedelta(seconds=5)),
        )
        await sender.open()
        ids["deliveries"], ids["subscriptions"] = await _fill(sender)
        yield dashboard_app(
            sender.outbox,
            sender.subscription_admin,
            access=ACTING,
            keys=ring,
        )
        await sender.close()

    with SiteThread(opened) as thread:
        yield Served(thread, ids)


@pytest.mark.slow
@pytest.mark.parametrize("operation", OPERATIONS, ids=lambda operation: str(operation.label))
def test_every_answer_is_as_described(served: Served, operation: Operation) -> None:
    check_answers(operation, served.thread)


@pytest.mark.parametrize("operation", OPERATIONS, ids=lambda operation: str(operation.label))
def test_a_real_answer_of_every_operation_matches_its_schema(
    served: Served, operation: Operation
) -> None:
    check_real_answer(operation, served.thread, served.ids)


async def test_the_api_shows_what_the_pages_show(house: House, reader: Browser) -> None:
    delivery_id = await house.dead_letter("report-7")
    found = await reader.document("/deliveries?state=dead")
    assert [each["id"] for each in found["deliveries"]] == [delivery_id]
    found = await reader.document(f"/deliveries/{delivery_id}")
    assert found["why"]["code"] == "rejected"
    assert found["request"]["line"] == "POST /strict HTTP/1.1"
    assert found["body"] is None
    assert found["answers"] is None
    assert "answer" not in found["log"][0]


async def test_an_api_of_a_reader_describes_no_actions(reader: Browser) -> None:
    async with reader.client.get("/api/openapi.json") as answer:
        found = await answer.json()
    assert not [path for path in found["paths"] if path.endswith("/redrive")]
