"""Waiting for the notifications of a task."""

from __future__ import annotations

import asyncio
import contextlib
import json
from dataclasses import replace
from datetime import timedelta
from typing import TYPE_CHECKING, Any

import pytest

from pushkit.errors import ConfigError, StorageError
from pushkit.keys.jwk import Algorithm, generate_key
from receiver import Notification, TaskState
from tests.eventually import DEADLINE, eventually

if TYPE_CHECKING:
    from tests.unit.receiver.conftest import World, WorldFactory


async def waiting(world: World, task_id: str = "task-1") -> asyncio.Task[Notification]:
    """Start to wait, and return once the waiter has read the inbox and found nothing."""
    task = asyncio.create_task(world.receiver.wait(task_id, timeout=DEADLINE))
    # There is one reader: a read that starts later ends later.
    with contextlib.suppress(TimeoutError):
        await world.receiver.wait(task_id, timeout=0.02)
    return task


async def test_a_notification_that_arrives_later_ends_the_wait(world: World) -> None:
    task = await waiting(world)
    await world.receive(world.draft(1, state="working"))
    await world.receive(world.draft(2, state="completed"))

    found = await task

    assert (found.seq, found.state) == (2, TaskState.COMPLETED)


@pytest.mark.parametrize(("final", "ends"), [(True, True), (False, False), (None, False)])
async def test_an_unknown_state_ends_the_wait_if_it_is_final(
    world: World, final: bool | None, ends: bool
) -> None:
    event = {"kind": "status-update", "taskId": "task-1", "status": {"state": "expired"}}
    unknown, completed = world.draft(1), world.draft(2, state="completed")
    unknown = replace(
        unknown, body=json.dumps(event | ({} if final is None else {"final": final})).encode()
    )
    await world.receive(unknown)
    await world.receive(completed)

    found = await world.receiver.wait("task-1", timeout=DEADLINE)
    yielded = [each.seq async for each in world.receiver.updates("task-1")]

    assert found.seq == (1 if ends else 2)
    assert yielded == ([1] if ends else [1, 2])


async def test_closing_raises_nothing_beside_waits_that_end_at_the_same_moment(
    world: World,
) -> None:
    await world.receive(world.draft(state="working"))
    receiver, seen = world.receiver, list[Notification]()

    def is_never_wanted(notification: Notification) -> bool:
        seen.append(notification)
        return False

    waits = [receiver.wait("task-1", until=is_never_wanted) for _ in range(1000)]
    tasks = [asyncio.create_task(wait) for wait in waits]
    await eventually(lambda: len(seen) == 1000)
    await receiver.inbox.find()  # there is one reader: by then, all have looked for the next
    closing = asyncio.create_task(receiver.close())
    for task in tasks:  # one in each round of the event loop, so also in that which ends them
        if closing.done():
            break
        task.cancel()
        await asyncio.sleep(0)

    await closing

    ended = await asyncio.gather(*tasks, return_exceptions=True)
    assert {type(each) for each in ended} <= {asyncio.CancelledError, StorageError}


async def test_notifications_that_are_stored_together_end_a_wait(world: World) -> None:
    task = await waiting(world)
    drafts = [world.draft(number, state="completed") for number in range(1, 9)]

    verdicts = await asyncio.gather(*map(world.receive, drafts))

    assert [verdict.code for verdict in verdicts] == ["accepted"] * len(drafts)
    assert (await task).state is TaskState.COMPLETED


async def test_one_notification_ends_two_waits(world: World) -> None:
    tasks = [await waiting(world), await waiting(world)]
    await world.receive(world.draft(state="failed"))

    found = await asyncio.gather(*tasks)

    assert [notification.state for notification in found] == [TaskState.FAILED] * 2


async def test_a_wait_for_another_task_is_not_woken(traced: list[str], world: World) -> None:
    idle = [await waiting(world, f"idle-{number}") for number in range(30)]
    task = await waiting(world)  # one reader: the others have read before it
    traced.clear()
    await world.receive(world.draft(1, state="working"))
    await world.receive(world.draft(2, state="completed"))
    await task

    looked = [each for each in traced if "FROM pushkit_inbox WHERE task_id = " in each]
    assert looked
    assert all("'task-1'" in each for each in looked)
    for each in idle:
        each.cancel()


@pytest.mark.usefixtures("looks_often")
async def test_all_waits_share_one_look_for_what_other_processes_accept(
    traced: list[str], make_world: WorldFactory
) -> None:
    world = make_world()
    other = world.another_receiver()
    await world.receiver.open()
    tasks = {f"task-{n}": await waiting(world, f"task-{n}") for n in range(1, 31)}
    traced.clear()
    async with other:
        for task_id in ("task-7", "task-30"):
            await other.receive(world.draft(task_id=task_id, state="completed").request(), peer="")
        found = [await tasks[task_id] for task_id in ("task-7", "task-30")]

    assert [each.task_id for each in found] == ["task-7", "task-30"]
    looked = [each for each in traced if "FROM pushkit_inbox WHERE task_id = " in each]
    assert looked
    assert all("'task-7'" in each or "'task-30'" in each for each in looked)
    for each in tasks.values():
        each.cancel()


async def test_waiting_finds_what_arrived_before_a_restart(world: World) -> None:
    await world.receive(world.draft(state="completed"))
    await world.restart()

    found = await world.receiver.wait("task-1", timeout=DEADLINE)

    assert found.state is TaskState.COMPLETED


async def test_waiting_takes_nothing_from_a_callback(world: World) -> None:
    called: asyncio.Queue[Notification] = asyncio.Queue()

    @world.receiver.on_status("completed")
    async def completed(notification: Notification) -> None:
        await called.put(notification)

    await world.receive(world.draft(state="completed"))
    found = await world.receiver.wait("task-1", timeout=DEADLINE)
    async with asyncio.timeout(DEADLINE):
        handed_out = await called.get()

    assert handed_out == found


@pytest.mark.parametrize("timeout", [0.01, timedelta(milliseconds=10)])
async def test_a_wait_ends_at_its_timeout(world: World, timeout: float | timedelta) -> None:  # noqa: ASYNC109
    await world.receive(world.draft(state="working"))

    with pytest.raises(TimeoutError):
        await world.receiver.wait("task-1", timeout=timeout)


@pytest.mark.parametrize("state", ["input_required", "auth_required", "rejected"])
async def test_a_state_in_which_the_agent_stops_ends_the_wait(world: World, state: str) -> None:
    await world.receive(world.draft(state=state))

    found = await world.receiver.wait("task-1", timeout=DEADLINE)

    assert found.state == state.replace("_", "-")


@pytest.mark.parametrize(
    "until",
    [
        pytest.param({TaskState.WORKING}, id="set-of-states"),
        pytest.param([TaskState.FAILED, TaskState.WORKING], id="list-of-states"),
        pytest.param(TaskState.WORKING, id="one-state"),
        pytest.param(lambda found: found.seq == 2, id="predicate"),
    ],
)
async def test_a_wait_may_be_for_any_condition(world: World, until: object) -> None:
    await world.receive(world.draft(1, kind="artifact"))
    await world.receive(world.draft(2, state="working"))

    found = await world.receiver.wait("task-1", until=until, timeout=DEADLINE)  # type: ignore[arg-type]  # a lone state too

    assert found.seq == 2


async def test_a_wait_is_for_the_task_of_one_sender(make_world: WorldFactory) -> None:
    world = make_world()
    world.add_sender("other", "https://other.example.com", generate_key(Algorithm.ES256))
    await world.receive(world.draft(state="completed"))

    with pytest.raises(TimeoutError):
        await world.receiver.wait("task-1", sender="other", timeout=0.01)
    with pytest.raises(ConfigError, match="expected one of agent, other"):
        await world.receiver.wait("task-1", timeout=0.01)
    assert await world.receiver.wait("task-1", sender="agent", timeout=DEADLINE)


async def test_a_second_wait_is_for_what_arrived_after_the_first(world: World) -> None:
    await world.receive(world.draft(1, state="input_required"))
    asked = await world.receiver.wait("task-1", timeout=DEADLINE)
    await world.receive(world.draft(2, state="completed"))

    done = await world.receiver.wait("task-1", after=asked, timeout=DEADLINE)

    assert (asked.state, done.state) == (TaskState.INPUT_REQUIRED, TaskState.COMPLETED)


async def test_a_cancelled_wait_leaves_the_others(world: World) -> None:
    cancelled, kept = await waiting(world), await waiting(world)
    cancelled.cancel()
    await world.receive(world.draft(state="completed"))

    found = await kept

    assert found.state is TaskState.COMPLETED
    assert cancelled.cancelled()


async def test_a_wait_that_is_cancelled_as_something_arrives_ends(world: World) -> None:
    task = await waiting(world)
    await world.receive(world.draft(state="working"))  # wakes it, but is not wanted
    task.cancel()

    async with asyncio.timeout(DEADLINE):
        await asyncio.wait([task])

    assert task.cancelled()


async def test_a_notification_that_cannot_be_read_ends_no_wait(world: World) -> None:
    await world.receive(world.draft(1, state="working"))
    world.execute("UPDATE pushkit_inbox SET body = X'7B7D'")
    await world.receive(world.draft(2, state="completed"))

    found = await world.receiver.wait("task-1", timeout=DEADLINE)

    assert found.seq == 2


async def test_updates_end_after_a_terminal_state(world: World) -> None:
    for number, state in enumerate(("working", "input_required", "completed", "working"), start=1):
        await world.receive(world.draft(number, state=state))

    async with asyncio.timeout(DEADLINE):
        seen = [update.seq async for update in world.receiver.updates("task-1")]

    assert seen == [1, 2, 3]


async def test_updates_are_yielded_as_they_arrive(world: World) -> None:
    updates = world.receiver.updates("task-1")
    seen = []
    async with asyncio.timeout(DEADLINE):
        for number, state in enumerate(("working", "working", "failed"), start=1):
            following = asyncio.ensure_future(anext(updates))
            await world.receive(world.draft(number, state=state))
            seen.append((await following).seq)
        end = await anext(updates, None)

    assert (seen, end) == ([1, 2, 3], None)


@pytest.mark.slow
async def test_more_updates_than_one_look_returns_are_all_yielded(world: World) -> None:
    for number in range(1, 121):
        await world.receive(world.draft(number, state="completed" if number == 120 else "working"))

    async with asyncio.timeout(DEADLINE):
        seen = [update.seq async for update in world.receiver.updates("task-1")]

    assert seen == list(range(1, 121))


async def test_closing_the_receiver_ends_every_wait(world: World) -> None:
    await world.start()
    task = await waiting(world)
    following = asyncio.ensure_future(anext(world.receiver.updates("task-2")))
    await waiting(world, "task-3")  # one reader: the previous wait has read, too

    await world.receiver.close()

    for each in (task, following):
        with pytest.raises(StorageError, match="the receiver was closed"):
            await asyncio.wait_for(each, DEADLINE)


@pytest.mark.parametrize("until", ["complete", ["completed", "complete"], []])
async def test_a_wait_for_an_unknown_state_is_refused(world: World, until: Any) -> None:
    await world.start()
    with pytest.raises(ConfigError, match=r"found 'complete', expected one of|found no state"):
        await world.receiver.wait("task-1", until=until, timeout=DEADLINE)


async def _has_ended(notification: Notification) -> bool:
    return notification.state is TaskState.COMPLETED


@pytest.mark.parametrize(
    ("argument", "says"),
    [
        ({"task_id": None}, "task_id: found NoneType, expected str"),
        ({"timeout": "5"}, "timeout: found str, expected timedelta or float or int or None"),
        ({"after": 1}, "after: found int, expected Notification or None"),
        ({"until": _has_ended}, "until: found a coroutine function, expected a plain one"),
    ],
)
async def test_a_wait_that_would_end_wrongly_or_never_is_refused(
    world: World, argument: dict[str, Any], says: str
) -> None:
    await world.receive(world.draft(state="working"))
    given: dict[str, Any] = {"task_id": "task-1", "timeout": DEADLINE, **argument}
    with pytest.raises(ConfigError, match=f"^{says}"):
        await world.receiver.wait(**given)


async def test_the_updates_of_no_task_are_refused(world: World) -> None:
    given: dict[str, Any] = {"task_id": None}
    await world.start()
    with pytest.raises(ConfigError, match="task_id: found NoneType, expected str"):
        await anext(world.receiver.updates(**given))
