"""A role of PostgreSQL that may read and write the tables, and change none."""

from __future__ import annotations

import re
from collections.abc import Iterator
from datetime import UTC, datetime
from typing import TYPE_CHECKING

import pytest
from aiohttp import web

from pushkit import KeyRing, PushSender, StatusUpdate, TaskState, TaskStatus
from pushkit.delivery.database import open_outbox
from pushkit.errors import StorageError
from pushkit.outbox.states import DeliveryState
from pushkit.outbox.store import OutboxStore
from pushkit.storage.database import opened
from pushkit.storage.migrations import Access
from tests.databases import execute

if TYPE_CHECKING:
    from pytest_aiohttp.plugin import AiohttpServer

    from tests.databases import MadeSchemas


@pytest.fixture
def owners_dsn(made_outboxes: MadeSchemas) -> Iterator[str]:
    with made_outboxes.one() as dsn:
        schema = dsn.rpartition("search_path=")[2]
        execute(
            dsn,
            "CREATE ROLE service LOGIN;"
            f" GRANT USAGE ON SCHEMA {schema} TO service;"
            f" GRANT SELECT, INSERT, UPDATE, DELETE ON ALL TABLES IN SCHEMA {schema} TO service",
        )
        yield dsn
        execute(dsn, "DROP OWNED BY service; DROP ROLE service")


@pytest.fixture
def roles_dsn(owners_dsn: str) -> str:
    return re.sub("//[^@/]*@", "//service@", owners_dsn)


@pytest.fixture
def sender(roles_dsn: str) -> PushSender:
    return PushSender(
        issuer="https://agent.example.com",
        keys=KeyRing.create(datetime.now(UTC)),
        database=roles_dsn,
        allow=["127.0.0.1:*"],
    )


async def test_it_delivers_where_the_schema_is_current(
    sender: PushSender, aiohttp_server: AiohttpServer
) -> None:
    async def accept(_: web.Request) -> web.Response:
        return web.Response()

    app = web.Application()
    app.router.add_post("/hook", accept)
    server = await aiohttp_server(app)
    await sender.open()
    await sender.subscribe("task-1", {"url": str(server.make_url("/hook"))}, version="1.0")
    await sender.notify(
        StatusUpdate(task_id="task-1", context_id="c", status=TaskStatus(state=TaskState.WORKING))
    )

    assert await sender.worker.run_once() == 1
    [delivery] = await sender.deliveries("task-1")
    assert delivery.state is DeliveryState.DELIVERED
    await sender.close()


@pytest.fixture
def _one_connection(owners_dsn: str) -> None:
    execute(owners_dsn, "ALTER ROLE service CONNECTION LIMIT 1")


@pytest.mark.usefixtures("_one_connection")
async def test_one_connection_is_enough_to_read(roles_dsn: str) -> None:
    async with opened(open_outbox(roles_dsn), Access.READ) as outbox:
        assert await outbox.read(OutboxStore().whole_backlog(1)) == 0


@pytest.fixture
def of_another_version(owners_dsn: str) -> Iterator[None]:
    wake = "CREATE OR REPLACE FUNCTION pushkit_wake() RETURNS integer LANGUAGE sql AS $$ {} $$"
    execute(owners_dsn, wake.format("SELECT 1"))
    yield
    execute(owners_dsn, "DROP FUNCTION pushkit_wake()")


@pytest.mark.usefixtures("of_another_version")
async def test_it_is_refused_where_something_is_to_be_done(sender: PushSender) -> None:
    with pytest.raises(StorageError, match="permission denied"):
        await sender.open()
