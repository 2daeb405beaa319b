"""What callers hear of a transaction on PostgreSQL that the end of the event loop breaks off."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence

import pytest

from pushkit.storage.migrations import Migration
from pushkit.storage.postgres import PostgresDatabase
from pushkit.storage.script import Script, Statement

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
