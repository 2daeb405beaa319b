"""What callers hear of a transaction on PostgreSQL that the end of the event loop breaks off."""

from __future__ import annotations

import asyncio
import contextlib
import gc
from collections.abc import Sequence

import asyncpg
import pytest

from pushkit.storage.migrations import Migration
from pushkit.storage.postgres import PostgresDatabase
from pushkit.storage.script import Script, Statement
from tests.eventually import eventually

THINGS = Migration(1, ("CREATE TABLE things (name TEXT PRIMARY KEY)",))


async def test_who_waits_for_a_commit_that_is_broken_off_is_told_of_no_success(
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


async def test_an_open_that_is_broken_off_leaves_no_connection(postgres_dsn: str) -> None:
    dsn = f"{postgres_dsn}&application_name=broken_off"
    database = PostgresDatabase(dsn, component="things", migrations=(THINGS,))
    other = await asyncpg.connect(postgres_dsn)

    async def is_gone() -> bool:
        return not await other.fetchval(
            "SELECT count(*) FROM pg_stat_activity WHERE application_name = 'broken_off'"
        )

    gc.disable()  # it closes what nobody knows any more
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
