"""Transactions on PostgreSQL that the end of the event loop cancels."""

from __future__ import annotations

import asyncio
import contextlib
import gc
from collections.abc import Sequence
from typing import Any

import asyncpg
import pytest

from pushkit.storage.postgres import PostgresDatabase
from pushkit.storage.script import Script, Statement
from tests.eventually import eventually
from tests.unit.pushkit.storage.things import THINGS


async def test_a_cancelled_commit_reports_no_success(
    postgres_dsn: str,
) -> None:
    written = asyncio.Event()

    def insert(names: Sequence[str], /, *, wait: bool) -> Script[Sequence[str]]:  # noqa: ARG001
        for name in names:
            yield Statement("INSERT INTO things (name) VALUES ($1)", (name,))
        written.set()
        return names

    database = PostgresDatabase(postgres_dsn, component="things", migrations=(THINGS,))
    await database.open()
    told = database.write_together(insert, "a")
    await written.wait()
    for task in asyncio.all_tasks() - {asyncio.current_task()}:
        task.cancel()

    with pytest.raises(asyncio.CancelledError):
        await told
    await database.close()


async def test_a_cancelled_open_leaves_no_connection(postgres_dsn: str) -> None:
    dsn = f"{postgres_dsn}&application_name=broken_off"
    database = PostgresDatabase(dsn, component="things", migrations=(THINGS,))
    other = await asyncpg.connect(postgres_dsn)

    async def is_gone() -> bool:
        return not await other.fetchval(
            "SELECT count(*) FROM pg_stat_activity WHERE application_name = 'broken_off'"
        )

    gc.disable()  # it would close lost connections
    try:
        for half_milliseconds in range(60):
            opening = asyncio.create_task(database.open())
            await asyncio.sleep(half_milliseconds / 2000)
            opening.cancel()
            with contextlib.suppress(asyncio.CancelledError):
                await opening
            await database.close()
        await eventually(is_gone)
    finally:
        gc.enable()
        await other.close()


@pytest.mark.parametrize("method", ["read", "write"])
@pytest.mark.parametrize("broken_off", [["COMMIT"], ["COMMIT", "ROLLBACK"]], ids=["once", "twice"])
async def test_a_script_cancelled_in_its_commit_leaves_no_transaction(
    postgres_dsn: str, monkeypatch: pytest.MonkeyPatch, method: str, broken_off: list[str]
) -> None:
    said: list[dict[str, Any]] = []  # asyncpg reports connections that come back in a transaction
    asyncio.get_running_loop().set_exception_handler(lambda _, context: said.append(context))
    database = PostgresDatabase(postgres_dsn, component="things", migrations=(THINGS,))
    await database.open()
    execute = asyncpg.Connection.execute
    reached = asyncio.Event()

    async def stay_there(self: asyncpg.Connection, query: str, *args: Any, **options: Any) -> str:
        if query in broken_off:
            reached.set()
            await asyncio.Event().wait()
        return str(await execute(self, query, *args, **options))

    monkeypatch.setattr(asyncpg.Connection, "execute", stay_there)

    def nothing() -> Script[None]:
        yield Statement("SELECT 1")

    working = asyncio.create_task(getattr(database, method)(nothing()))
    for _ in broken_off:
        await reached.wait()
        reached.clear()
        working.cancel()
    with pytest.raises(asyncio.CancelledError):
        await working
    await database.close()

    assert said == []
