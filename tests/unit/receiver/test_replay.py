"""The same notification again: answered, and never called back a second time."""

from __future__ import annotations

from dataclasses import replace
from datetime import timedelta
from typing import TYPE_CHECKING

import pytest

from pushkit.errors import ConfigError
from receiver import InboxRetention, Notification, RateLimit, Receiver
from tests.eventually import eventually
from tests.unit.receiver.drafts import claiming, sending

if TYPE_CHECKING:
    from tests.unit.receiver.conftest import World, WorldFactory

FAST = RateLimit(per_second=100_000, burst=100_000)


def record_calls(receiver: Receiver) -> list[str]:
    called: list[str] = []

    @receiver.on_update(name="record")
    async def record(notification: Notification) -> None:
        called.append(notification.delivery_id)

    return called


async def all_called(receiver: Receiver) -> None:
    """Hand out what is due, and wait for what is in work."""
    await receiver.dispatcher.run_once()


async def test_a_retry_is_a_duplicate_and_calls_nobody(world: World) -> None:
    called = record_calls(world.receiver)
    first = await world.receive(world.draft())
    await all_called(world.receiver)  # or its lease would end with the clock
    world.clock.advance(3600)

    retried = await world.receive(world.draft())  # signed anew, with the same id
    await all_called(world.receiver)

    assert [first.status, retried.status] == [202, 200]
    assert retried.code == "duplicate"
    assert called == ["delivery-task-1-1"]


async def test_a_retry_of_what_was_just_accepted_does_not_need_the_database(world: World) -> None:
    await world.receive(world.draft())
    world.execute("ALTER TABLE pushkit_inbox RENAME TO elsewhere")

    retried = await world.receive(world.draft())
    other = await world.receive(world.draft(state="failed"))

    assert (retried.status, retried.code) == (200, "duplicate")
    assert (other.status, other.code) == (503, "storage")  # what it is, only the database knows


async def test_a_forgotten_id_is_no_duplicate_of_a_recent_one(
    make_world: WorldFactory,
) -> None:
    retention = InboxRetention(
        ids=timedelta(minutes=2), done=timedelta(minutes=1), dead=timedelta(minutes=1)
    )
    world = make_world({"retention": retention}, tolerance=timedelta(minutes=1))
    record_calls(world.receiver)
    await world.receive(world.draft())
    await all_called(world.receiver)
    world.clock.advance(150)
    await world.receiver.inbox.retain(retention)

    again = await world.receive(world.draft())

    assert again.status == 202


async def test_ids_are_remembered_for_as_long_as_what_was_captured_is_of_this_moment(
    make_world: WorldFactory,
) -> None:
    minute = timedelta(minutes=1)
    forgetful = make_world({"retention": InboxRetention(ids=1.5 * minute)}, tolerance=minute)
    with pytest.raises(ConfigError, match="tolerance: found 0:01:00, expected at most half of"):
        forgetful.another_receiver()
    world = make_world({"retention": InboxRetention(ids=2 * minute)}, tolerance=minute)

    with pytest.raises(ConfigError, match="tolerance"):
        await world.receiver.reload_senders([replace(world.sender, tolerance=1.1 * minute)])

    assert world.receiver.senders["agent"].tolerance == minute


@pytest.mark.parametrize("restarted", [False, True])
async def test_a_known_id_and_body_signed_for_another_task_are_no_retry(
    world: World, *, restarted: bool
) -> None:
    await world.receive(world.draft())
    if restarted:
        await world.restart()
    other = claiming(world.draft(), taskId="task-2")

    verdicts = [await world.receive(each) for each in (other, world.draft())]

    assert [verdict.code for verdict in verdicts] == ["malformed_request", "duplicate"]


@pytest.mark.parametrize("identifier", ["taskId", "configId"])
async def test_a_known_id_and_body_signed_with_an_impossible_id_are_no_retry(
    world: World, identifier: str
) -> None:
    await world.receive(world.draft())
    other = claiming(world.draft(), **{identifier: "x" * 513})

    assert (await world.receive(other)).code == "malformed_request"


async def test_a_refused_request_leaves_its_id_free(world: World) -> None:
    refused = sending(world.draft(), "X-A2A-Token", "other")

    verdicts = [await world.receive(refused), await world.receive(world.draft())]

    assert [verdict.status for verdict in verdicts] == [401, 202]


@pytest.mark.parametrize(
    ("state", "status", "code"),
    [
        pytest.param("working", 200, "duplicate", id="same-body"),
        pytest.param("failed", 409, "id_conflict", id="other-body"),
    ],
)
async def test_retention_deletes_a_notification_with_its_queue_and_keeps_its_id(
    world: World, state: str, status: int, code: str
) -> None:
    await world.receive(world.draft())
    await all_called(world.receiver)
    before = world.rows()
    world.clock.advance(60)
    await world.receiver.inbox.retain(InboxRetention(done=timedelta(seconds=59)))
    after = world.rows()
    await world.restart()  # it remembers nothing in memory

    retried = await world.receive(world.draft(state=state))

    names = ("pushkit_inbox", "pushkit_inbox_queues", "pushkit_forgotten")
    assert [before[name] for name in names] == [1, 1, 0]
    assert [after[name] for name in names] == [0, 0, 1]
    assert (retried.status, retried.code) == (status, code)
    assert world.rows() == after


async def test_a_receiver_keeps_house_from_its_start(world: World) -> None:
    await world.receive(world.draft(1))
    await world.receiver.dispatcher.run_once()
    await world.restart()
    world.clock.advance(31 * 24 * 3600)
    await world.start()

    async def empty() -> bool:
        rows = world.rows()
        return not any(rows.values())

    await eventually(empty)


async def test_an_id_that_another_task_stores_at_this_moment_is_answered_503_and_then_taken(
    world: World,
) -> None:
    await world.start()
    # What the other transaction leaves: nobody saw the id, and the insert meets it.
    world.execute(
        "CREATE TRIGGER met BEFORE INSERT ON pushkit_inbox BEGIN SELECT RAISE(IGNORE); END"
    )

    in_the_race = await world.post(world.draft())
    stored = world.rows()
    world.execute("DROP TRIGGER met")
    retried = await world.post(world.draft())

    assert (in_the_race.status, in_the_race.code) == (503, "being_stored")
    assert in_the_race.headers["Retry-After"] == "1"
    assert not any(stored.values())
    assert retried.status == 202
