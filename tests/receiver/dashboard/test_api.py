"""The JSON API of the receiver's dashboard, held against its own OpenAPI description."""

from __future__ import annotations

import contextlib
from collections.abc import AsyncIterator, Iterator
from datetime import UTC, datetime
from typing import Any, TypeAlias

import pytest
import schemathesis
from schemathesis.core.result import Ok
from schemathesis.schemas import APIOperation

from pushkit.webhook import Headers, WebhookRequest
from pushkit.webui.access import DashboardAccess
from pushkit.webui.site import Site
from receiver import Notification, Receiver
from receiver.admin import open_inbox
from receiver.dashboard.app import dashboard_of
from receiver.dashboard.openapi import openapi_document
from tests.receiver import storing
from tests.receiver.conftest import BASE_URL, trusted_sender
from tests.site_thread import SiteThread, check_answers

TOKEN = "a-token-of-the-dashboard"
BEARER = {"Authorization": f"Bearer {TOKEN}"}
SCHEMA = schemathesis.openapi.from_dict(openapi_document("/api/v1", with_actions=True))
Operation: TypeAlias = APIOperation[Any, Any, Any, Any]
OPERATIONS = [found.ok() for found in SCHEMA.get_all_operations() if isinstance(found, Ok)]


@pytest.fixture(scope="module")
def served(tmp_path_factory: pytest.TempPathFactory) -> Iterator[SiteThread]:
    """A receiver that accepted some, and refused one."""
    location = tmp_path_factory.mktemp("dashboard") / "inbox.db"

    @contextlib.asynccontextmanager
    async def opened() -> AsyncIterator[Site]:
        database = open_inbox(location)
        await database.open()
        now = datetime.now(UTC)
        for seq in (1, 2, 5):
            await database.write(storing.store("task-1", seq, body=b"{}", now=now))
        await database.close()
        receiver = Receiver(url=BASE_URL, senders=[trusted_sender()], database=location)

        @receiver.on_update(name="told")
        async def told(_: Notification) -> None:
            raise ValueError

        access = DashboardAccess(token=TOKEN, allow_actions=True)
        site = dashboard_of(receiver, access=access)
        async with receiver:
            request = WebhookRequest(target="/a2a/push", headers=Headers(), body=b"{}")
            assert (await receiver.receive(request, peer="192.0.2.1")).status >= 400
            yield site

    with SiteThread(opened) as thread:
        yield thread


@pytest.mark.slow
@pytest.mark.parametrize("operation", OPERATIONS, ids=lambda operation: str(operation.label))
def test_every_answer_is_as_described(served: SiteThread, operation: Operation) -> None:
    check_answers(operation, served, TOKEN)


@pytest.mark.parametrize(
    ("path", "parameters", "query"),
    [
        ("/notifications/{id}", {"id": "1"}, {"body": "1"}),
        ("/refusals/{id}", {"id": "1"}, {}),
        ("/task", {}, {"task": "task-1"}),
        ("/overview", {}, {}),
        ("/callbacks", {}, {}),
    ],
)
def test_answers_of_the_api_match_its_schema(
    served: SiteThread, path: str, parameters: dict[str, str], query: dict[str, str]
) -> None:
    case = SCHEMA[path]["GET"].Case(path_parameters=parameters, query=query)
    answer = case.call_and_validate(base_url=f"{served.base}/api/v1", headers=BEARER)
    assert answer.status_code == 200
