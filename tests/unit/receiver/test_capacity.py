"""The bounds of the unfinished inbox: refusals over them have `Retry-After`."""

from __future__ import annotations

import asyncio
import logging
from dataclasses import replace
from datetime import timedelta
from typing import TYPE_CHECKING

import pytest

from pushkit.errors import ConfigError
from pushkit.keys.jwk import Algorithm, generate_key
from receiver import Limits, Notification, TaskPolicy
from receiver.testing import Draft
from tests.eventually import eventually

if TYPE_CHECKING:
    from tests.unit.receiver.conftest import World, WorldFactory

NONE = timedelta(0)
OTHER = "https://other.example.com"
OTHERS_KEY = generate_key(Algorithm.ES256)


@pytest.fixture
def bounded(make_world: WorldFactory) -> World:
    """A receiver that takes in three unfinished notifications of each sender, and five in all."""
    world = make_world({"limits": Limits(max_backlog=5, max_backlog_per_sender=3), "drain": NONE})
    world.add_sender("other", OTHER, OTHERS_KEY)
    world.receiver.on_update(never)
    return world


async def never(_: Notification) -> None:
    """Keeps its notification unfinished."""
    await asyncio.Event().wait()


def of_other(world: World, number: int) -> Draft:
    return replace(world.draft(number), key=OTHERS_KEY, issuer=OTHER)


async def fill(world: World, number: int) -> None:
    for n in range(1, number + 1):
        assert (await world.receive(world.draft(n))).status == 202


async def test_a_sender_over_its_bound_is_refused_with_retry_after_and_nothing_is_stored(
    bounded: World,
) -> None:
    await fill(bounded, 3)
    before = bounded.rows()

    refused = await bounded.post(bounded.draft(4))
    other = await bounded.receive(of_other(bounded, 1))

    assert (refused.status, refused.code) == (429, "backlog_full")
    assert refused.headers["Retry-After"] == "10"
    assert other.status == 202
    after = bounded.rows()
    names = ("pushkit_inbox", "pushkit_inbox_queues")
    assert [after[name] - before[name] for name in names] == [1, 1]  # the other's


async def test_the_retry_of_what_was_accepted_is_no_new_notification(bounded: World) -> None:
    await fill(bounded, 3)

    retried = await bounded.receive(bounded.draft(2))

    assert (retried.status, retried.code) == (200, "duplicate")


async def test_what_was_finished_within_the_second_makes_room(make_world: WorldFactory) -> None:
    world = make_world({"limits": Limits(max_backlog_per_sender=4)})

    @world.receiver.on_update
    async def take(_: Notification) -> None:
        pass

    await world.start()

    for number in range(1, 13):  # the clock stands still
        assert (await world.receive(world.draft(number))).status == 202
        await world.until_done(number)


async def test_a_refused_notification_binds_no_token(make_world: WorldFactory) -> None:
    world = make_world(
        {"limits": Limits(max_backlog_per_sender=1), "drain": NONE},
        tasks=TaskPolicy.BIND,
        tokens=(),
    )
    world.receiver.on_update(never)
    tokens = [(await world.receiver.expect()).config.token or "" for _ in range(2)]
    await world.receive(world.draft(token=tokens[0]))

    refused = await world.receive(world.draft(task_id="task-2", token=tokens[1]))
    world.execute("UPDATE pushkit_inbox SET state = 'done'")
    world.clock.advance(1)
    bound = await world.receive(world.draft(task_id="task-3", token=tokens[1]))

    assert (refused.status, bound.status) == (429, 202)


async def test_unfinished_notifications_are_counted_seldom_while_the_limits_are_far_away(
    traced: list[str], make_world: WorldFactory
) -> None:
    world = make_world({"drain": NONE})
    world.receiver.on_update(never)
    await world.start()
    traced.clear()

    await fill(world, 10)
    world.clock.advance(9)  # of 10 s, in which 100,000 others might arrive
    await world.receive(world.draft(11))
    before = counts(traced)
    world.clock.advance(60)
    await world.receive(world.draft(12))

    assert (before, counts(traced)) == (2, 4)  # of the sender, and of all


def counts(traced: list[str]) -> int:
    return len([each for each in traced if each.startswith("SELECT COUNT(*)")])


async def test_refusals_over_a_bound_are_logged_once(
    bounded: World, caplog: pytest.LogCaptureFixture
) -> None:
    await fill(bounded, 3)
    for number in range(4, 14):
        await bounded.receive(bounded.draft(number))
    for number in (1, 2, 3, 3, 3):
        await bounded.receive(of_other(bounded, number))

    lines = [r.getMessage() for r in caplog.records if r.levelno == logging.WARNING]
    assert len([line for line in lines if "refused 429 backlog_full" in line]) == 1
    assert len([line for line in lines if "refused 503 inbox_full" in line]) == 1


@pytest.mark.parametrize("bound", ["max_backlog", "max_backlog_per_sender"])
def test_a_bound_of_one_is_the_least(bound: str) -> None:
    Limits(**{bound: 1})  # type: ignore[arg-type]  # one of several
    with pytest.raises(ConfigError, match="backlog"):
        Limits(**{bound: 0})  # type: ignore[arg-type]  # one of several


# --- fairness -------------------------------------------------------------------------------------


async def test_a_sender_whose_callbacks_hang_leaves_permits_to_the_others(
    make_world: WorldFactory,
) -> None:
    world = make_world({"concurrency": 4, "drain": NONE})
    world.add_sender("other", OTHER, OTHERS_KEY)
    called: list[tuple[str, str | None]] = []

    @world.receiver.on_update
    async def hang(notification: Notification) -> None:
        called.append((notification.sender, notification.task_id))
        if notification.sender == "agent":
            await asyncio.Event().wait()

    for number in range(8):
        await world.receive(world.draft(task_id=f"task-{number}"))

    async def have(number: int) -> bool:
        return len(called) == number

    await eventually(lambda: have(3))
    for number in range(1, 9):
        await world.receive(of_other(world, number))
    await eventually(lambda: have(11))

    assert [sender for sender, _ in called].count("agent") == 3
