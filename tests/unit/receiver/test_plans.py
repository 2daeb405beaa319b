"""Statements of the receiver find their rows by an index, as SQLite plans them."""

from __future__ import annotations

import re
import sqlite3
from datetime import timedelta
from typing import TYPE_CHECKING

from receiver import InboxFilter, InboxRetention, Notification, TaskPolicy
from tests.eventually import eventually

if TYPE_CHECKING:
    from tests.unit.receiver.conftest import WorldFactory

# Of what is leased there is little; due queues and done notifications are read from one end, no
# further than a limit. Numbers, for an operator who asks, are from an index each.
SMALL = re.compile(
    r"SCAN (pushkit_inbox|i|q|pushkit_inbox_queues) USING (COVERING )?INDEX"
    r" pushkit_inbox_(queues_leased|queues_due|pending|done|unfinished|buried|dead|unmatched|gaps)"
)
# What is unfinished, once a second, and the newest ones: no further than to the limit.
BOUNDED = re.compile(r"SELECT (COUNT\(\*\)|received_at, ).*\bLIMIT\b")
# Which waits were set in the future: asked once when a dispatcher starts.
AT_THE_START = re.compile(r"SELECT q\.id FROM pushkit_inbox_queues .*SELECT j\.scheduled_at")
OF_A_TABLE = re.compile(r"SCAN (pushkit_\w+|[ceijnqrs])\b")
# SQLite 3.53 reads such a table whole, and looks its rows up among the values.
MAY_BE_REVERSED = re.compile(r"VALUES .*(?<!CROSS)(?<!LEFT) JOIN ")


async def test_no_statement_scans_a_whole_table(
    traced: list[str], make_world: WorldFactory
) -> None:
    world = make_world(tasks=TaskPolicy.BIND, tokens=())
    called: list[str] = []

    @world.receiver.on_update(name="callback")
    async def callback(notification: Notification) -> None:
        called.append(notification.delivery_id)
        if notification.seq == 2:
            raise ValueError

    receiver = await world.start()
    traced.clear()

    token = (await receiver.expect("agent")).config.token or ""
    replacing = (await receiver.expect("agent", replaces=token)).config.token or ""
    for number in (1, 1, 2):
        await world.receive(world.draft(number, token=replacing))
    await world.receive(world.draft(2, state="completed", token=replacing))  # refused

    await eventually(lambda: len(called) == 2)
    await receiver.wait("task-1", until=lambda _: True)
    await receiver.unregister("agent", token=replacing)
    await receiver.inbox.redrive(InboxFilter())
    await receiver.inbox.retain(InboxRetention(done=timedelta(days=1), dead=timedelta(days=1)))
    await receiver.inbox.purge(max_done=1)
    await receiver.inbox.stats()
    await receiver.inbox.queues()

    ran = {
        each for each in traced if each.startswith(("SELECT", "UPDATE", "INSERT", "DELETE", "WITH"))
    }
    assert sum("pushkit_expected" in each for each in ran) > 5
    connection = sqlite3.connect(world.database)
    [oldest] = [each for each in ran if "SELECT received_at AS moment" in each]
    first, *_ = connection.execute(f"EXPLAIN QUERY PLAN {oldest}")
    assert (
        "USING INTEGER PRIMARY KEY" in first[3]
    )  # not all that are unfinished, bodies beside them
    found = {}
    for statement in ran:
        if BOUNDED.match(statement) or AT_THE_START.match(statement):
            continue
        plan = [row[3] for row in connection.execute(f"EXPLAIN QUERY PLAN {statement}")]
        scans = [step for step in plan if OF_A_TABLE.match(step) and not SMALL.match(step)]
        if scans:
            found[statement[:200]] = scans
    connection.close()
    assert found == {}
    assert any("pushkit_forgotten r" in each for each in ran)
    assert [each for each in ran if MAY_BE_REVERSED.search(each)] == []
