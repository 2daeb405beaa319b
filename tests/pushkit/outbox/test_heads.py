"""The head of a queue, when two transactions on PostgreSQL overlap."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta

import asyncpg

from pushkit.outbox.dead_letters import DeadLetters
from pushkit.outbox.leases import Leases
from pushkit.outbox.migrations import SENDER_MIGRATIONS
from pushkit.outbox.model import Claim
from pushkit.outbox.shares import SlotLimits
from pushkit.outbox.states import DeliveryState
from pushkit.storage.postgres import PostgresDatabase, run_script
from pushkit.storage.script import Row, Script, Statement
from tests.pushkit.deliveries import ORIGIN, add_delivery, add_subscription

NOW = datetime(2026, 1, 1, tzinfo=UTC)


def one_dead_and_one_in_flight() -> Script[tuple[str, str, str]]:
    """Add a subscription whose worker died; return its id, and the ids of two deliveries."""
    subscription = yield from add_subscription(now=NOW)
    dead = (yield from add_delivery(subscription, now=NOW)).id
    in_flight = (yield from add_delivery(subscription, now=NOW)).id
    yield Statement(
        "UPDATE pushkit_deliveries SET state = 'dead', head = 0, finished_at = 1 WHERE id = $1",
        (dead,),
    )
    yield Statement(
        "UPDATE pushkit_deliveries SET state = 'in_flight', head = 1, lease_worker = 'gone',"
        " lease_until = 1 WHERE id = $1",
        (in_flight,),
    )
    return subscription.id, dead, in_flight


def heads() -> Script[list[Row]]:
    return list((yield Statement("SELECT id FROM pushkit_deliveries WHERE head > 0")))


async def test_a_lease_that_ends_during_a_redrive_makes_no_second_head(
    postgres_dsn: str,
) -> None:
    database = PostgresDatabase(postgres_dsn, component="sender", migrations=SENDER_MIGRATIONS)
    await database.open()
    subscription_id, dead, in_flight = await database.write(one_dead_and_one_in_flight())
    bringing_back = DeadLetters().redrive(
        subscription_id, [dead], states=[DeliveryState.DEAD], origin=ORIGIN, now=NOW
    )
    claim = Claim(worker="next", until=NOW + timedelta(hours=1))
    connection = await asyncpg.connect(postgres_dsn)
    try:
        async with connection.transaction():
            statement = next(bringing_back)
            while "ORDER BY CASE" not in statement.sql:
                rows = await connection.fetch(statement.sql, *statement.parameters)
                statement = bringing_back.send(rows)
            # Before the head is chosen, another worker releases the deliveries of the dead one.
            await database.write(Leases().claim(claim, SlotLimits(0, 0, 1, 1), now=NOW))
            await connection.fetch(statement.sql, *statement.parameters)
        [head] = await run_script(connection, heads())
        assert head["id"] == in_flight
    finally:
        await connection.close()
        await database.close()
