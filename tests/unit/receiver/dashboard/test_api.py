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
from receiver import MailboxOptions, Notification, Receiver
from receiver.admin import InboxAdmin, open_inbox
from receiver.dashboard.app import dashboard_of, inbox_dashboard
from tests.eventually import eventually
from tests.site_thread import SiteThread, check_answers
from tests.unit.receiver import storing
from tests.unit.receiver.conftest import BASE_URL, trusted_sender

TOKEN = "a-token-of-the-dashboard"
BODY = b'{"statusUpdate":{"taskId":"task-1","status":{"state":"TASK_STATE_WORKING"}}}'
BEARER = {"Authorization": f"Bearer {TOKEN}"}
ACTING = DashboardAccess(token=TOKEN, allow_actions=True)
CLOSED = inbox_dashboard(InboxAdmin(open_inbox("inbox.db")), access=ACTING)
SCHEMA = schemathesis.openapi.from_dict(CLOSED.api.document("/api/v1"))
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
            await database.write(storing.store("task-1", seq, body=BODY, now=now))
        await database.close()
        receiver = Receiver(url=BASE_URL, senders=[trusted_sender()], database=location)

        receiver.mailbox(MailboxOptions(name="laptop", tokens=[TOKEN]))

        @receiver.on_update(name="told")
        async def told(_: Notification) -> None:
            raise ValueError

        site = dashboard_of(receiver, access=ACTING)
        async with receiver:
            request = WebhookRequest(target="/a2a/push", headers=Headers(), body=b"{}")
            assert (await receiver.receive(request, peer="192.0.2.1")).status >= 400
            await eventually(receiver.inbox.callback_troubles)  # its queue waits for a retry
            yield site

    with SiteThread(opened) as thread:
        yield thread


@pytest.mark.slow
@pytest.mark.parametrize("operation", OPERATIONS, ids=lambda operation: str(operation.label))
def test_every_answer_is_as_described(served: SiteThread, operation: Operation) -> None:
    check_answers(operation, served, TOKEN)


@pytest.mark.parametrize("operation", OPERATIONS, ids=lambda operation: str(operation.label))
def test_a_real_answer_of_every_operation_matches_its_schema(
    served: SiteThread, operation: Operation
) -> None:
    known = {"id": "1"} if "{id}" in operation.path else {}
    of_task = {"task": "task-1"} if operation.path == "/task" else {}
    flags = {each.name: "1" for each in operation.query if each.name == "body"}
    case = operation.Case(path_parameters=known, query=of_task | flags)
    answer = case.call_and_validate(base_url=f"{served.base}/api/v1", headers=BEARER)
    assert answer.status_code == 200
    if operation.method == "get" and not known:
        kind = "lines" if of_task else operation.path[1:]
        assert answer.json().get(kind) != [], "nothing is held against the schema of an item"
