"""The JSON API of the receiver's dashboard, held against its own OpenAPI description."""

from __future__ import annotations

import contextlib
from collections.abc import AsyncIterator, Iterator
from datetime import UTC, datetime

import pytest

from pushkit.webhook import Headers, WebhookRequest
from pushkit.webui.access import DashboardAccess
from pushkit.webui.site import Site
from receiver import MailboxOptions, Notification, Receiver
from receiver.admin import InboxAdmin, open_inbox
from receiver.dashboard.app import dashboard_of, inbox_dashboard
from tests.browser import TOKEN
from tests.eventually import eventually
from tests.site_thread import (
    Operation,
    SiteThread,
    check_answers,
    check_real_answer,
    operations_of,
)
from tests.unit.receiver import storing
from tests.unit.receiver.conftest import BASE_URL, trusted_sender

BODY = b'{"statusUpdate":{"taskId":"task-1","status":{"state":"TASK_STATE_WORKING"}}}'
ACTING = DashboardAccess(token=TOKEN, allow_actions=True)
OPERATIONS = operations_of(inbox_dashboard(InboxAdmin(open_inbox("inbox.db")), access=ACTING))
IDS = {"notifications": "1", "refusals": "1"}


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
    check_answers(operation, served)


@pytest.mark.parametrize("operation", OPERATIONS, ids=lambda operation: str(operation.label))
def test_a_real_answer_of_every_operation_matches_its_schema(
    served: SiteThread, operation: Operation
) -> None:
    check_real_answer(operation, served, IDS, task={"task": "task-1"})
