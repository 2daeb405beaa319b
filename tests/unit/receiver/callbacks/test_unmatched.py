"""The log of what no callback wants: nothing to worry about, unless a callback was lost."""

from __future__ import annotations

import logging
from typing import TYPE_CHECKING

import pytest

from receiver import InboxFilter, InboxStatus, Notification
from tests.eventually import eventually
from tests.unit.receiver.callbacks.conftest import House, running

if TYPE_CHECKING:
    from tests.unit.receiver.conftest import World

INFO, WARNING = logging.INFO, logging.WARNING


@pytest.fixture(autouse=True)
def all_lines(caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(INFO, "receiver")


def levels(caplog: pytest.LogCaptureFixture) -> list[int]:
    return [record.levelno for record in caplog.records if "no callback wants" in record.msg]


async def forget(_: Notification) -> None:
    """Do nothing with it."""


async def receive(world: World, *states: str, kind: str = "status", task_id: str = "task") -> None:
    """Receive an update of each state, and wait until all are done."""
    done = len(await world.receiver.inbox.find(InboxFilter(status=InboxStatus.DONE)))
    for number, state in enumerate(states, start=1):
        await world.receive(world.draft(number, task_id=task_id, state=state, kind=kind))
    await world.until_done(done + len(states))


async def test_what_nobody_ever_wanted_is_logged_once_and_not_as_a_warning(
    world: World, caplog: pytest.LogCaptureFixture
) -> None:
    world.receiver.on_status("completed")(forget)
    await world.start()

    await receive(world, "submitted", "working", "completed", "working")
    await receive(world, "working", kind="artifact", task_id="other")

    assert levels(caplog) == [INFO]


async def test_a_kind_that_another_task_wants_is_logged_once_as_a_warning(
    world: World, caplog: pytest.LogCaptureFixture
) -> None:
    world.receiver.on_status("completed", tasks=["one"])(forget)
    await world.start()

    await receive(world, "completed", task_id="one")
    await receive(world, "working", "completed", task_id="two")
    await receive(world, "completed", task_id="three")

    assert levels(caplog) == [INFO, WARNING]


async def test_a_kind_that_was_wanted_before_a_restart_is_logged_as_a_warning(
    world: World, caplog: pytest.LogCaptureFixture
) -> None:
    world.receiver.on_status("completed")(forget)
    await world.start()
    await receive(world, "working", "completed")
    caplog.clear()
    await world.restart()
    world.receiver.on_status("failed")(forget)
    await world.start()

    await receive(world, "completed", task_id="two")
    await receive(world, "working", task_id="three")

    assert levels(caplog) == [WARNING, INFO]


@pytest.mark.usefixtures("no_threads_of_asyncio")
async def test_others_are_called_back_though_the_application_has_used_up_asyncios_threads(
    house: House,
) -> None:
    async def wanted(notification: Notification) -> None:
        house.called.append(notification.delivery_id)

    house.registry.add(wanted, tasks=["task-2"])
    for task in ("task-1", "task-2"):
        await house.store(1, task)
    async with running(house.another_dispatcher(1)):
        await eventually(lambda: house.called == ["task-2#1"])
