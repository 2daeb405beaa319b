"""A role of PostgreSQL that may read and write the tables, and change none; or not even that."""

from __future__ import annotations

import asyncio
import itertools
import os
import re
from collections.abc import Callable, Iterator
from datetime import UTC, datetime
from typing import TYPE_CHECKING, NamedTuple

import asyncpg
import pytest
from aiohttp import web

from pushkit import KeyRing, PushSender, StatusUpdate, TaskState, TaskStatus
from pushkit.errors import StorageError
from pushkit.outbox import store
from pushkit.outbox.schema import open_outbox
from pushkit.outbox.states import DeliveryState
from pushkit.storage.database import Database, opened, upgrade
from pushkit.storage.migrations import Access
from receiver.admin import open_inbox
from tests.contract.docs.blocks import blocks
from tests.databases import execute
from tests.served import answering

if TYPE_CHECKING:
    from pytest_aiohttp.plugin import AiohttpServer


UPDATE = StatusUpdate(task_id="task-1", context_id="c", status=TaskStatus(state=TaskState.WORKING))


def a_sender(dsn: str) -> PushSender:
    return PushSender(
        issuer="https://agent.example.com",
        keys=KeyRing.create(datetime.now(UTC)),
        database=dsn,
        allow=["127.0.0.1:*"],
    )


class Place(NamedTuple):
    """A database of its own, as its owner sees it, and a role without rights."""

    owners_dsn: str
    database: str
    role: str

    @property
    def roles_dsn(self) -> str:
        return as_role(self.owners_dsn, self.role)

    async def run(self, sql: str) -> None:
        sql = sql.replace("DATABASE agent", f"DATABASE {self.database}")
        await asyncio.to_thread(execute, self.owners_dsn, sql.replace("{role}", self.role))

    async def grant(self, but: str = "") -> None:
        """Create the tables of an outbox, and let the role read and write them, but for this."""
        await upgrade(open_outbox(self.owners_dsn))
        await self.run(
            "GRANT USAGE ON SCHEMA public TO {role};"
            "GRANT SELECT, INSERT, UPDATE, DELETE ON ALL TABLES IN SCHEMA public TO {role};" + but
        )


_numbers = itertools.count(1)


@pytest.fixture
def place(postgres_server: str) -> Iterator[Place]:
    number = next(_numbers)
    database, role = f"agent_{os.getpid()}_{number}", f"role_{os.getpid()}_{number}"
    execute(postgres_server, f"CREATE DATABASE {database}")
    dsn = re.sub("/postgres(?=[?]|$)", f"/{database}", postgres_server)
    execute(dsn, f"CREATE ROLE {role} LOGIN")
    yield Place(dsn, database, role)
    execute(dsn, f"DROP OWNED BY {role}; DROP ROLE {role}")
    execute(postgres_server, f"DROP DATABASE {database} WITH (FORCE)")


def as_role(dsn: str, role: str) -> str:
    return re.sub("//[^@/]*@", f"//{role}@", dsn)


async def test_it_delivers_where_the_schema_is_current(
    place: Place, aiohttp_server: AiohttpServer
) -> None:
    async def accept(_: web.Request) -> web.Response:
        return web.Response()

    await place.grant()
    server = await aiohttp_server(answering(accept))
    sender = a_sender(place.roles_dsn)
    await sender.open()
    await sender.subscribe("task-1", {"url": str(server.make_url("/hook"))}, version="1.0")
    await sender.notify(UPDATE)

    assert await sender.worker.run_once() == 1
    [delivery] = await sender.deliveries("task-1")
    assert delivery.state is DeliveryState.DELIVERED
    await sender.close()


async def test_one_connection_is_enough_to_read(place: Place) -> None:
    await place.grant()
    await place.run("ALTER ROLE {role} CONNECTION LIMIT 1")
    async with opened(open_outbox(place.roles_dsn), Access.READ) as outbox:
        assert await outbox.read(store.whole_backlog(1)) == 0


async def test_it_is_refused_where_something_is_to_be_done(place: Place) -> None:
    await place.grant()
    of_another_version = "integer LANGUAGE sql AS $$ SELECT 1 $$"
    await place.run(f"CREATE OR REPLACE FUNCTION pushkit_wake() RETURNS {of_another_version}")
    with pytest.raises(StorageError, match=r"belongs to the role postgres: .* as the owner"):
        await a_sender(place.roles_dsn).open()


@pytest.mark.parametrize("open_database", [open_outbox, open_inbox])
@pytest.mark.parametrize(
    ("sql", "says"),
    [
        pytest.param("SELECT 1", "GRANT CREATE ON SCHEMA public TO {role}", id="CREATE"),
        pytest.param(
            "REVOKE ALL ON SCHEMA public FROM PUBLIC", "GRANT USAGE ON SCHEMA public", id="USAGE"
        ),
        pytest.param(
            "GRANT CREATE ON SCHEMA public TO {role}; REVOKE USAGE ON LANGUAGE plpgsql FROM PUBLIC",
            "GRANT USAGE ON LANGUAGE plpgsql TO {role}",
            id="language",
        ),
        pytest.param(
            "ALTER ROLE {role} SET search_path = nowhere",
            "no schema of the search_path (nowhere) exists",
            id="no schema",
        ),
        pytest.param(
            "REVOKE CONNECT ON DATABASE agent FROM PUBLIC", "GRANT CONNECT ON", id="CONNECT"
        ),
    ],
)
async def test_a_migration_names_the_right_that_a_role_lacks_to_create_tables(
    place: Place, open_database: Callable[[str], Database], sql: str, says: str
) -> None:
    await place.run(sql)
    with pytest.raises(StorageError, match=re.escape(says.format(role=place.role))):
        await upgrade(open_database(place.roles_dsn))


@pytest.mark.parametrize(
    ("sql", "says"),
    [
        *(
            pytest.param(
                f"REVOKE {right} ON ALL TABLES IN SCHEMA public FROM {{role}}",
                f"GRANT {right} ON public.pushkit_attempts, .*pushkit_subscriptions.* TO {{role}}$",
                id=right,
            )
            for right in ("SELECT", "INSERT", "UPDATE", "DELETE")
        ),
        pytest.param(
            "REVOKE ALL ON pushkit_bodies, pushkit_writers FROM {role}",
            "GRANT SELECT, INSERT, UPDATE, DELETE ON public.pushkit_bodies TO {role};"
            " GRANT SELECT ON public.pushkit_writers TO {role}$",
            id="all on one",
        ),
        pytest.param(
            "REVOKE ALL ON SCHEMA public FROM PUBLIC, {role}",
            "GRANT USAGE ON SCHEMA public TO {role}$",
            id="USAGE",
        ),
        pytest.param(
            "REVOKE EXECUTE ON FUNCTION pushkit_now() FROM PUBLIC",
            r"GRANT EXECUTE ON FUNCTION pushkit_now\(\) TO {role}$",
            id="EXECUTE",
        ),
        pytest.param(
            "UPDATE pushkit_schema SET version = version - 1",
            "pushkit_attempts, which belongs to the role postgres: found the role {role}",
            id="ownership",
        ),
        pytest.param(
            "ALTER ROLE {role} SET default_transaction_read_only = on",
            "default_transaction_read_only",
            id="writing",
        ),
    ],
)
async def test_a_service_does_not_start_without_a_right_and_names_it(
    place: Place, sql: str, says: str
) -> None:
    await place.grant(but=sql)
    with pytest.raises(StorageError, match=says.format(role=place.role)):
        await a_sender(place.roles_dsn).open()


async def test_a_right_that_is_revoked_meanwhile_is_named(place: Place) -> None:
    await place.grant()
    names = re.escape(f"GRANT INSERT ON public.pushkit_subscriptions TO {place.role}")
    async with a_sender(place.roles_dsn) as sender:
        await place.run(f"REVOKE INSERT ON pushkit_subscriptions FROM {place.role}")
        with pytest.raises(StorageError, match=f"{names}; nothing was stored"):
            await sender.subscribe("task-1", {"url": "http://127.0.0.1:1/"}, version="1.0")


async def test_the_rights_of_a_callers_own_connection_are_named(place: Place) -> None:
    async with a_sender(place.owners_dsn) as sender:
        await sender.subscribe("task-1", {"url": "http://127.0.0.1:1/"}, version="1.0")
        await place.grant(but="REVOKE INSERT ON pushkit_bodies FROM {role}")
        connection = await asyncpg.connect(place.roles_dsn)
        names = re.escape(f"GRANT INSERT ON public.pushkit_bodies TO {place.role}")
        async with connection.transaction():
            with pytest.raises(StorageError, match=f"{names}; roll the transaction back"):
                await sender.notify(UPDATE, connection=connection)
        await connection.close()


async def test_a_role_that_may_read_some_tables_reads_them(
    place: Place,
) -> None:
    await upgrade(open_outbox(place.owners_dsn))
    await place.run(f"GRANT SELECT ON pushkit_schema, pushkit_deliveries TO {place.role}")
    async with opened(open_outbox(place.roles_dsn), Access.READ) as outbox:
        assert await outbox.read(store.whole_backlog(1)) == 0


async def test_the_rights_of_the_page_on_migrations_are_enough(place: Place) -> None:
    [grants] = [each.text for each in blocks() if each.language == "sql"]
    await place.run(grants)
    try:
        await upgrade(open_outbox(as_role(place.owners_dsn, "pushkit_owner")))
        async with a_sender(as_role(place.owners_dsn, "pushkit_app")) as sender:
            await sender.subscribe("task-1", {"url": "http://127.0.0.1:1/"}, version="1.0")
            await sender.notify(UPDATE)
            await sender.worker.run_once()
            [delivery] = await sender.deliveries("task-1")
            assert delivery.last_error == "connection_refused"
    finally:
        await place.run(
            "DROP OWNED BY pushkit_app, pushkit_owner; DROP ROLE pushkit_app, pushkit_owner"
        )
