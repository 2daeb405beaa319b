"""The decorators of a receiver, and how long they may be used."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest

from pushkit.errors import ConfigError
from receiver import ArtifactNotification, Notification, StatusNotification
from receiver.forwards import CommandForward
from tests.eventually import eventually

if TYPE_CHECKING:
    from tests.unit.receiver.conftest import World


async def test_a_decorator_without_parentheses_registers_its_function(world: World) -> None:
    called: list[str] = []

    @world.receiver.on_update
    async def update(notification: Notification) -> None:
        called.append(f"update:{notification.seq}")

    @world.receiver.on_status
    async def status(notification: Notification) -> None:
        called.append(f"status:{notification.seq}")

    @world.receiver.on_artifact
    async def artifact(notification: Notification) -> None:
        called.append(f"artifact:{notification.seq}")

    await world.receive(world.draft(1))
    await world.receive(world.draft(2, kind="artifact"))

    await eventually(lambda: len(called) == 4)
    assert called == ["update:1", "status:1", "update:2", "artifact:2"]


async def test_a_callback_for_a_status_or_an_artifact_always_has_the_task(world: World) -> None:
    tasks: list[str] = []

    @world.receiver.on_status("completed", "working")
    async def status(notification: StatusNotification) -> None:
        tasks.append(f"{notification.task_id} is {notification.state.value}")

    @world.receiver.on_artifact
    async def artifact(notification: ArtifactNotification) -> None:
        tasks.append(f"{notification.task_id}: {notification.update.artifact.artifact_id}")

    await world.receive(world.draft(1))
    await world.receive(world.draft(2, kind="artifact"))

    await eventually(lambda: len(tasks) == 2)
    assert tasks == ["task-1 is working", "task-1: artifact-1"]


async def test_a_function_among_states_is_refused(world: World) -> None:
    async def callback(notification: Notification) -> None:
        """Is a function among states."""

    with pytest.raises(ConfigError, match="on_status"):
        world.receiver.on_status("completed", callback)  # type: ignore[call-overload]  # the mistake


async def test_a_callback_that_is_registered_while_the_receiver_runs_is_refused(
    world: World,
) -> None:
    async def callback(notification: Notification) -> None:
        """Is registered too late."""

    receiver = await world.start()
    with pytest.raises(ConfigError, match="before it starts"):
        receiver.on_update(callback)
    with pytest.raises(ConfigError, match="before it starts"):
        receiver.on_status("completed")(callback)
    with pytest.raises(ConfigError, match="before it starts"):
        receiver.forward(CommandForward(["true"]))


async def test_a_callback_for_a_sender_that_is_not_trusted_is_logged(
    world: World, caplog: pytest.LogCaptureFixture
) -> None:
    @world.receiver.on_update(name="typo", senders=["agent", "agnet"])
    async def callback(notification: Notification) -> None:
        """Names a sender that there is not."""

    receiver = await world.start()
    says = "callback typo: senders: found 'agnet', expected some of the trusted agent"
    assert caplog.text.count(says) == 1
    await receiver.reload_senders(list(receiver.senders.values()))
    assert caplog.text.count(says) == 2


@pytest.mark.parametrize("was_closed", [False, True])
async def test_a_receiver_that_does_not_run_takes_callbacks(
    world: World, *, was_closed: bool
) -> None:
    called: list[str] = []

    async def callback(notification: Notification) -> None:
        called.append(notification.delivery_id)

    if was_closed:
        await (await world.start()).close()
    else:
        await world.receiver.open()
    world.receiver.on_update(callback)
    await world.receive(world.draft())

    await eventually(lambda: called == ["delivery-task-1-1"])
