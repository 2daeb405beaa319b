"""`Receiver.inbox` on both databases: redrive by filter, purge in lots, retention."""

from __future__ import annotations

import asyncio
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from pathlib import Path

import asyncpg
import pytest

from pushkit.errors import ConfigError, SchemaError
from pushkit.storage.database import Database, opened
from pushkit.storage.migrations import Access
from pushkit.storage.paging import AtMost
from pushkit.storage.script import Script, Statement
from receiver import InboxFilter, InboxRetention, InboxStatus
from receiver.admin import InboxAdmin, open_inbox
from receiver.inbox.inspection import InboxGap, InboxQueue
from receiver.inbox.store import accepted_before
from tests.eventually import DEADLINE
from tests.unit.receiver.storing import claim, settle_one, store

HOUR = timedelta(hours=1)
BODY = b'{"statusUpdate":{"taskId":"task-1","status":{"state":"TASK_STATE_WORKING"}}}'


@dataclass
class Desk:
    """An inbox whose notifications are as old as a test says."""

    database: Database
    woken: int = 0

    def __post_init__(self) -> None:
        self.admin = InboxAdmin(self.database, wake=self._wake)

    def _wake(self) -> None:
        self.woken += 1

    async def settled(
        self,
        count: int,
        status: InboxStatus = InboxStatus.DONE,
        *,
        ago: timedelta = timedelta(0),
        sender: str = "agent",
    ) -> list[int]:
        """Store so many of tasks of their own that came to this end so long ago."""
        moment = datetime.now(UTC) - ago
        return await self.database.write(self._settled(count, status, moment, sender))

    def _settled(
        self, count: int, status: InboxStatus, moment: datetime, sender: str
    ) -> Script[list[int]]:
        for number in range(count):
            name = f"{status.value}-{moment.isoformat()}-{number}"
            yield from store(
                name, body=BODY, now=moment, sender=sender, delivery_id=name, config_id=None
            )
        settled: list[int] = []
        until = moment + timedelta(seconds=30)
        while claimed := (yield from claim("worker", limit=count, now=moment, until=until)):
            for each in claimed:
                yield from settle_one(each, status, now=moment)
                settled.append(each.notification.id)
        return sorted(settled)

    async def left(self) -> list[int]:
        return [summary.id for summary in await self.admin.find(limit=10_000)]

    async def sequences(self) -> int:
        return await self.database.read(_count("pushkit_sequences"))


async def known(desk: Desk, delivery_id: str) -> bool:
    """Return whether the receiver remembers that it accepted an id."""
    return bool(await desk.database.read(accepted_before([("agent", delivery_id)])))


def _count(table: str) -> Script[int]:
    rows = yield Statement(f"SELECT COUNT(*) AS found FROM {table}")  # noqa: S608  # our own names
    return int(rows[0]["found"])


@pytest.fixture
def desk(database: Database) -> Desk:
    return Desk(database)


async def test_a_page_leads_to_the_next_one(desk: Desk) -> None:
    ids = await desk.settled(3)
    page = await desk.admin.browse(limit=2)
    older = await desk.admin.browse(before=page.before, limit=2)
    assert [each.id for each in (*page.items, *older.items)] == ids[::-1]


async def test_dead_letters_are_redriven_by_filter_page_by_page(desk: Desk) -> None:
    dead = await desk.settled(250, InboxStatus.DEAD)
    others = await desk.settled(2, InboxStatus.DEAD, sender="other")

    redriven = await desk.admin.redrive(InboxFilter(sender="agent"))

    assert (redriven.ids, redriven.skipped) == (tuple(dead), 0)
    assert desk.woken == 3
    found = await desk.admin.find(InboxFilter(status=InboxStatus.DEAD))
    assert [summary.id for summary in found] == others


async def test_notifications_that_are_not_dead_are_skipped(desk: Desk) -> None:
    [dead] = await desk.settled(1, InboxStatus.DEAD)
    [done] = await desk.settled(1)

    redriven = await desk.admin.redrive([done, dead, dead, 999])

    assert (redriven.ids, redriven.skipped) == ((dead,), 2)


async def test_a_purge_goes_by_age_and_status_in_lots(desk: Desk) -> None:
    week = timedelta(days=7)
    await desk.settled(250, ago=week)
    young = await desk.settled(1)
    dead = await desk.settled(1, InboxStatus.DEAD, ago=week)

    purged = await desk.admin.purge(older_than=timedelta(days=6))

    assert purged == 250
    assert await desk.left() == sorted([*young, *dead])
    assert await desk.admin.purge(older_than=timedelta(days=6), statuses=[InboxStatus.DEAD]) == 1
    assert await desk.left() == young


async def test_a_purge_keeps_the_newest_of_the_done(desk: Desk) -> None:
    await desk.settled(120, ago=timedelta(days=2))
    kept = await desk.settled(3)
    dead = await desk.settled(1, InboxStatus.DEAD, ago=timedelta(days=3))

    assert await desk.admin.purge(max_done=3) == 120
    assert await desk.left() == sorted([*kept, *dead])


async def test_the_excess_is_found_once_however_many_batches_are_deleted(
    traced: list[str], tmp_path: Path
) -> None:
    async with opened(open_inbox(tmp_path / "inbox.db"), Access.UPGRADE) as database:
        desk = Desk(database)
        await desk.settled(250)
        traced.clear()
        assert await desk.admin.purge(max_done=3) == 247
    assert sum("OFFSET" in each for each in traced) == 1


async def test_a_purge_ends_although_more_is_done_all_the_time(desk: Desk) -> None:
    await desk.settled(5)
    async with asyncio.timeout(DEADLINE):
        purging = asyncio.create_task(desk.admin.purge(max_done=2))
        while not purging.done():
            await desk.settled(1)
    assert await purging >= 3


async def test_a_purge_leaves_what_somebody_holds_and_waits_for_nobody(postgres_dsn: str) -> None:
    async with opened(open_inbox(postgres_dsn), Access.UPGRADE) as database:
        desk = Desk(database)
        held, _ = await desk.settled(2, ago=timedelta(days=2))
        connection = await asyncpg.connect(postgres_dsn)
        async with asyncio.timeout(DEADLINE), connection.transaction():
            await connection.execute("SELECT 1 FROM pushkit_inbox WHERE id = $1 FOR UPDATE", held)
            purged = await desk.admin.purge(older_than=timedelta(days=1))

        assert (purged, await desk.left()) == (1, [held])
        await connection.close()


async def test_a_purge_of_nothing_in_particular_is_a_mistake(desk: Desk) -> None:
    with pytest.raises(ConfigError, match="expected older_than or max_done"):
        await desk.admin.purge()


async def test_a_retention_bounds_everything_that_is_kept(desk: Desk) -> None:
    day = timedelta(days=1)
    await desk.settled(2, ago=8 * day)
    await desk.settled(2, InboxStatus.DEAD, ago=40 * day)
    kept = await desk.settled(2, InboxStatus.DEAD, ago=8 * day) + await desk.settled(3)
    old = await desk.settled(1, ago=97 * HOUR)
    young = await desk.settled(1, ago=95 * HOUR)
    names = [each.delivery_id for each in await desk.admin.find() if each.id in (*old, *young)]
    assert await desk.admin.purge(older_than=94 * HOUR) == 2 + 2

    purged = await desk.admin.retain(InboxRetention(dead=30 * day))

    assert purged == 2
    assert await desk.left() == sorted(kept)
    assert await desk.sequences() == 2 + 2 + 3 + 2  # of all but what has been silent for 30 days
    assert [await known(desk, name) for name in names] == [False, True]


async def test_forever_is_for_ever(desk: Desk) -> None:
    kept = await desk.settled(2, ago=timedelta(days=1000))
    kept += await desk.settled(2, InboxStatus.DEAD, ago=timedelta(days=1000))

    assert await desk.admin.retain(InboxRetention(done=None)) == 0
    assert await desk.left() == sorted(kept)


async def test_a_negative_age_or_number_purges_nothing(desk: Desk) -> None:
    kept = await desk.settled(2)

    with pytest.raises(ConfigError, match="older_than: found -1 day"):
        await desk.admin.purge(older_than=timedelta(days=-1))
    with pytest.raises(ConfigError, match="max_done: found -1"):
        await desk.admin.purge(max_done=-1)

    assert {each.id for each in await desk.admin.find()} == set(kept)


async def test_a_string_is_no_list_of_what_to_redrive(desk: Desk) -> None:
    with pytest.raises(ConfigError, match=r"wanted: found '12', expected a list: \['12'\]"):
        await desk.admin.redrive("12")  # type: ignore[arg-type]


async def test_a_receiver_database_of_before_is_refused(location: str) -> None:
    async with opened(open_inbox(location), Access.UPGRADE) as database:
        await database.write(_call_it_by_its_old_name())

    with pytest.raises(SchemaError, match="cannot be upgraded"):
        await open_inbox(location).open()


def _call_it_by_its_old_name() -> Script[None]:
    yield Statement("UPDATE pushkit_schema SET component = 'receiver', version = 7")


# --- queues ---------------------------------------------------------------------------------------


async def test_queues_that_are_leased_or_due_are_listed_in_pages(desk: Desk) -> None:
    now = datetime.now(UTC).replace(microsecond=0)
    until = now + timedelta(seconds=30)
    await desk.settled(1)  # finished: nobody has to look at its queue
    for task_id, number in (("task-1", 1), ("task-1", 2), ("task-2", 1), (None, 1)):
        await desk.database.write(
            store(task_id, number, body=BODY, now=now, delivery_id=f"{task_id}#{number}")
        )
    [leased] = await desk.database.write(claim("worker", limit=1, now=now, until=until))

    queues = await desk.admin.queues()
    first_page = await desk.admin.queues(limit=2)
    second_page = await desk.admin.queues(after=first_page[-1].id, limit=2)

    assert [(each.sender, each.task_id) for each in queues] == [
        ("agent", "task-1"),
        ("agent", "task-2"),
        ("agent", None),
    ]
    assert queues[0] == InboxQueue(
        sender="agent",
        task_id="task-1",
        worker="worker",
        leased_at=now,
        lease_until=until,
        epoch=leased.epoch,
        abandoned=0,
        due_at=None,
        waiting=AtMost(2, more=False),
        id=leased.queue_id,
    )
    assert (queues[1].worker, queues[1].leased_at, queues[1].due_at) == (None, None, now)
    assert [*first_page, *second_page] == queues
    assert len(first_page) == 2


# --- what is lacking ------------------------------------------------------------------------------


@pytest.mark.parametrize("config_id", ["c", None])
async def test_gaps_and_the_end_of_each_task_are_listed(desk: Desk, config_id: str | None) -> None:
    async def arrive(*numbers: tuple[str, int | None]) -> None:
        for task_id, seq in numbers:
            new = store(task_id, seq, body=b"{}", now=datetime.now(UTC), config_id=config_id)
            await desk.database.write(new)

    config = config_id or ""
    await arrive(("task-1", 1), ("task-1", 5), ("task-1", 3), ("task-2", 3), ("task-3", None))

    found = await desk.admin.gaps("agent")
    task_1 = [InboxGap("task-1", config, 2, 4), InboxGap("task-1", config, 6, None)]
    assert found == [*task_1, InboxGap("task-2", config, 1, 2), InboxGap("task-2", config, 4, None)]
    assert await desk.admin.gaps("agent", task_id="task-1") == task_1

    await arrive(("task-1", 2), ("task-1", 4))
    assert await desk.admin.gaps("agent", task_id="task-1") == task_1[1:]
