"""The mark of the head, under concurrent transactions on PostgreSQL."""

from __future__ import annotations

from datetime import timedelta

import asyncpg

from pushkit.storage.postgres import PostgresDatabase, run_script
from pushkit.storage.script import Row, Script, Statement
from receiver.inbox import inspection
from receiver.inbox.migrations import RECEIVER_MIGRATIONS
from tests.receiver.inbox.conftest import BODY, START
from tests.receiver.storing import claim, store


def one_dead_and_one_in_progress() -> Script[tuple[int, int]]:
    """Add two notifications of a task whose worker died; return their ids."""
    for number in (1, 2):
        yield from store("task-1", number, body=BODY, now=START)
    yield Statement("UPDATE pushkit_inbox SET status = 'dead', head = 0 WHERE seq = 1")
    yield Statement(
        "UPDATE pushkit_inbox SET status = 'in_progress', head = 1, lease_worker = 'gone',"
        " lease_until = 1 WHERE seq = 2"
    )
    first, second = yield Statement("SELECT id FROM pushkit_inbox ORDER BY seq")
    return first["id"], second["id"]


def heads() -> Script[list[Row]]:
    return list((yield Statement("SELECT id FROM pushkit_inbox WHERE head = 1")))


async def test_a_lease_that_ends_while_an_older_one_is_redriven_makes_no_second_head(
    postgres_dsn: str,
) -> None:
    database = PostgresDatabase(postgres_dsn, component="receiver", migrations=RECEIVER_MIGRATIONS)
    await database.open()
    dead, in_progress = await database.write(one_dead_and_one_in_progress())
    redriving = inspection.redrive([dead], [("agent", "task-1")], START)
    claiming = claim("next", limit=0, now=START, until=START + timedelta(hours=1))
    connection = await asyncpg.connect(postgres_dsn)
    try:
        async with connection.transaction():
            statement = next(redriving)
            while "ORDER BY CASE" not in statement.sql:
                rows = await connection.fetch(statement.sql, *statement.parameters)
                statement = redriving.send(rows)
            # Before the head is chosen, another worker gives back what the dead one held.
            await database.write(claiming)
            await connection.fetch(statement.sql, *statement.parameters)
        [head] = await run_script(connection, heads())
        assert head["id"] == in_progress
    finally:
        await connection.close()
        await database.close()
