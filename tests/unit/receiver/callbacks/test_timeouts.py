"""Callbacks that do not end: each is cut off, or gives up its slot, and the others continue."""

from __future__ import annotations

import asyncio
import contextlib
import gc
import json
import threading
import weakref
from collections.abc import Iterator, Sequence
from datetime import timedelta
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

from pushkit.errors import ConfigError
from receiver import Notification
from receiver.admin import InboxAdmin
from receiver.callbacks.dispatcher import Dispatcher
from receiver.inbox.inspection import InboxFilter
from tests.eventually import DEADLINE, PATIENT, eventually
from tests.unit.receiver.callbacks.conftest import BODY, House, running

if TYPE_CHECKING:
    from tests.unit.receiver.conftest import World, WorldFactory

SOON = timedelta(milliseconds=50)
PATIENCE = "receiver.callbacks.shares._PATIENCE"  # in seconds, with a share that is used up
GRACE = "receiver.callbacks.calls._GRACE"  # in seconds, for a coroutine that is cancelled


@pytest.fixture
def release() -> Iterator[threading.Event]:
    """An event that ends the threads that hang; the end of the test sets it, too."""
    event = threading.Event()
    yield event
    event.set()


def hanging_in_threads(
    world: World, release: threading.Event, tasks: Sequence[str] = ()
) -> list[str]:
    """Register a plain function that hangs until its release; return what it is called with."""
    inside: list[str] = []

    @world.receiver.on_update(name="plain", tasks=tasks)
    def plain(notification: Notification) -> None:
        inside.append(notification.delivery_id)
        release.wait(DEADLINE)

    return inside


def hanging_in_threads_of(house: House, release: threading.Event, tasks: Sequence[str]) -> None:
    """Register a plain function that hangs for those tasks until its release."""

    def plain(notification: Notification) -> None:
        house.called.append(notification.delivery_id)
        if notification.task_id in tasks:
            release.wait(DEADLINE)

    house.registry.add(plain, name="plain")


async def after_the_end(world: World) -> dict[str | None, str]:
    """Close the receiver; return the status of each task's notification."""
    await world.receiver.close()
    await world.receiver.open()
    found = await world.receiver.inbox.find(InboxFilter())
    return {each.task_id: each.status.value for each in found}


def cancel_own_task() -> None:
    task = asyncio.current_task()
    assert task is not None
    task.cancel()


async def errors(house: House) -> list[str | None]:
    found = await InboxAdmin(house.database).find(InboxFilter())
    return [each.last_error for each in found]


# --- coroutines -----------------------------------------------------------------------------------


async def test_a_coroutine_over_its_time_is_cancelled_and_has_failed(
    house: House, caplog: pytest.LogCaptureFixture
) -> None:
    ends: list[str] = []

    async def slow(_: Notification) -> None:
        try:
            await asyncio.Event().wait()
        except asyncio.CancelledError:
            ends.append("cancelled")
            raise

    house.registry.add(slow, name="slow")
    await house.store()
    await house.another_dispatcher(timeout=SOON).run_once()

    assert ends == ["cancelled"]
    assert await errors(house) == ["slow: timed_out"]
    assert await house.counts() == {"received": 1}
    assert "callback slow was cut off after 0.05 s" in caplog.text


async def test_objects_of_a_timed_out_callback_are_freed_without_the_garbage_collector(
    house: House,
) -> None:
    class Held:
        pass

    held: list[weakref.ref[Held]] = []

    async def slow(_: Notification) -> None:
        had = Held()
        held.append(weakref.ref(had))
        await asyncio.Event().wait()

    house.registry.add(slow)
    await house.store()
    gc.disable()
    try:
        await house.another_dispatcher(timeout=SOON).run_once()
        freed = [each() is None for each in held]
    finally:
        gc.enable()
    assert freed == [True]


async def test_a_callback_may_have_a_time_of_its_own(house: House) -> None:
    async def slow(_: Notification) -> None:
        await asyncio.sleep(3 * SOON.total_seconds())

    house.registry.add(slow, name="slow", timeout=SOON)
    house.registry.add(slow, name="patient", timeout=timedelta(minutes=1))
    house.registry.add(slow, name="endless", timeout="none")
    await house.store()
    await house.another_dispatcher(timeout=None).run_once()
    await house.store(1, "task-2")
    await house.another_dispatcher(timeout=2 * SOON).run_once()
    reports = [await house.report(number) for number in (1, 2)]

    for report in reports:
        assert {each.callback: each.last_error for each in report.callbacks} == {
            "slow": "timed_out",
            "patient": None,
            "endless": None,
        }


async def test_a_coroutine_that_swallows_its_cancellation_gives_up_its_slot(
    house: House, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(GRACE, 0.05)
    go_on, called = asyncio.Event(), []

    async def stubborn(notification: Notification) -> None:
        called.append(notification.task_id)
        while notification.task_id == "task-1" and not go_on.is_set():
            with contextlib.suppress(asyncio.CancelledError):
                await go_on.wait()

    house.registry.add(stubborn)
    await house.store(1, "task-1")
    await house.store(1, "task-2")
    dispatcher = house.another_dispatcher(1, timeout=SOON)
    async with running(dispatcher):
        await eventually(lambda: len(called) == 2)
        go_on.set()
        await house.until({"received": 1, "done": 1})

    assert "timed_out" in str(await errors(house))


async def test_no_time_at_all_is_refused(house: House, make_world: WorldFactory) -> None:
    with pytest.raises(ConfigError, match="timeout"):
        house.registry.add(print, timeout=timedelta(0))
    with pytest.raises(ConfigError, match="callback_timeout"):
        make_world({"callback_timeout": timedelta(0)}).receiver  # noqa: B018  # it is made here
    with pytest.raises(ConfigError, match="callback_timeout: found int, expected timedelta"):
        make_world({"callback_timeout": 5}).receiver  # noqa: B018


# --- plain functions ------------------------------------------------------------------------------


async def test_a_plain_function_that_times_out_delays_only_its_own_task(
    house: House, release: threading.Event, caplog: pytest.LogCaptureFixture
) -> None:
    def slow(notification: Notification) -> None:
        house.called.append(notification.delivery_id)
        if notification.delivery_id == "task-1#1":
            release.wait(DEADLINE)

    house.registry.add(slow, name="slow")
    for number in (1, 2):
        await house.store(number, "task-1")
    await house.store(1, "task-2")
    dispatcher = house.another_dispatcher(1, timeout=SOON)
    async with running(dispatcher):
        await house.until({"in_progress": 2, "done": 1})
        house.now += timedelta(hours=1)  # its lease is renewed
        dispatcher.wake()
        await dispatcher.runner.fill()
        while_it_hangs, hanging = list(house.called), dict(dispatcher.caller.hanging)
        release.set()
        await house.until({"done": 3})

    assert while_it_hangs == ["task-1#1", "task-2#1"]
    assert hanging == {"slow": 1}
    assert house.called == ["task-1#1", "task-2#1", "task-1#2"]  # it was called once
    assert "callback slow hangs: it did not end within 0.05 s" in caplog.text


async def test_the_receiver_is_not_ready_once_too_many_threads_hang(
    make_world: WorldFactory, release: threading.Event, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("receiver.request_handler._READINESS_HOLDS", SOON)
    world = make_world({"concurrency": 2, "callback_timeout": SOON})
    world.edge = "asgi"
    called = hanging_in_threads(world, release)

    await world.receive(world.draft(task_id="task-1"))
    await until_ready(world, {"status": "ready", "degraded": ["callbacks"]})
    for number in range(2, 7):
        await world.receive(world.draft(task_id=f"task-{number}"))
    await until_ready(
        world, {"status": "not ready", "failed": ["callbacks"], "degraded": ["callbacks"]}
    )
    assert len(called) == 4  # twice as many as there are slots
    assert world.receiver.degraded() == {"callbacks": "callbacks: 4 calls of plain hang"}

    release.set()
    await until_ready(world, {"status": "ready"})

    await eventually(lambda: len(called) == 6)


async def test_calls_that_hang_leave_their_sender_all_permits(
    house: House, release: threading.Event
) -> None:
    hanging = [f"hangs-{number}" for number in range(3)]
    hanging_in_threads_of(house, release, hanging)
    dispatcher = house.another_dispatcher(2, timeout=SOON)
    async with running(dispatcher):
        for task in hanging:
            before = dispatcher.caller.count_hanging()
            await call_back(house, dispatcher, task)
            await eventually(lambda: dispatcher.caller.count_hanging() > before)  # noqa: B023
        assert dispatcher.usage() == (1, 2)

        await call_back(house, dispatcher, "task-1")


async def call_back(house: House, dispatcher: Dispatcher, task: str) -> None:
    """Have a notification of a task called back, as if calls had taken a minute each before."""
    dispatcher._took = 60.0
    await house.store(1, task)
    dispatcher.wake()
    await eventually(lambda: f"{task}#1" in house.called)


async def test_what_waits_behind_a_call_that_hangs_keeps_no_room(
    house: House, release: threading.Event, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("pushkit.queue.runner._MOST_BYTES", 10_000)
    hanging_in_threads_of(house, release, ["hangs"])
    body = (BODY % "hangs" + " " * 4000).encode()
    for number in range(1, 5):
        await house.store(number, "hangs", body=body)
    dispatcher = house.another_dispatcher(4, timeout=SOON)
    async with running(dispatcher):
        await eventually(lambda: dispatcher.caller.count_hanging() == 1)
        await house.store(1, "task-1", sender="other")
        dispatcher.wake()
        await eventually(lambda: "task-1#1" in house.called)
        release.set()
        await house.until({"done": 5})

    assert house.called == ["hangs#1", "task-1#1", "hangs#2", "hangs#3", "hangs#4"]


async def until_ready(world: World, expected: dict[str, object]) -> None:
    async def look() -> bool:
        return bool(json.loads((await world.get("/readyz")).text) == expected)

    await eventually(look)


async def test_a_notification_whose_thread_still_runs_is_not_given_back_at_the_next_end_either(
    make_world: WorldFactory, release: threading.Event
) -> None:
    world = make_world({"drain": SOON})
    inside = hanging_in_threads(world, release)

    await world.receive(world.draft())

    await eventually(lambda: inside)
    for _ in range(2):
        await world.receiver.close()
        await world.receiver.start()
    [found] = await world.receiver.inbox.find(InboxFilter())

    assert (len(inside), found.status.value) == (1, "in_progress")


async def test_a_notification_whose_thread_ended_before_the_receiver_is_given_back(
    make_world: WorldFactory, release: threading.Event
) -> None:
    world = make_world({"drain": SOON})
    inside = hanging_in_threads(world, release, tasks=["task-1"])

    @world.receiver.on_update(name="coroutine", tasks=["task-2"])
    async def coroutine(notification: Notification) -> None:
        inside.append(notification.delivery_id)
        try:
            await asyncio.Event().wait()
        except asyncio.CancelledError:
            release.set()
            await asyncio.sleep(0.2)  # until the thread has ended, too
            raise

    for task in ("task-1", "task-2"):
        await world.receive(world.draft(task_id=task))

    await eventually(lambda: len(inside) == 2)
    assert await after_the_end(world) == {"task-1": "received", "task-2": "received"}


async def test_a_thread_that_ends_after_the_receiver_releases_its_lock(
    make_world: WorldFactory, release: threading.Event, tmp_path: Path
) -> None:
    threads = set(threading.enumerate())
    world = make_world({"drain": SOON})
    inside = hanging_in_threads(world, release)

    await world.receive(world.draft())
    await eventually(lambda: inside)
    await world.receiver.close()
    held = locks(tmp_path)
    release.set()

    async def has_gone() -> bool:
        left = {each.name for each in set(threading.enumerate()) - threads}
        return "callback" not in left and locks(tmp_path) == 0

    await eventually(has_gone)
    assert held == 1


def locks(folder: Path) -> int:
    return len(list(folder.glob("*.lock")))


async def test_a_call_that_waits_for_a_slot_at_the_end_keeps_none(
    make_world: WorldFactory,
) -> None:
    world = make_world({"concurrency": 2, "drain": timedelta(0)})  # one slot for each
    blocked = asyncio.Event()
    called: list[str | None] = []

    @world.receiver.on_update(name="first")
    async def first(notification: Notification) -> None:
        await blocked.wait()
        called.append(notification.task_id)

    @world.receiver.on_update(name="second")
    async def second(_: Notification) -> None: ...

    for task in ("task-1", "task-2"):
        await world.receive(world.draft(task_id=task))

    await eventually(lambda: world.receiver.dispatcher.usage() == (2, 2))
    await world.receiver.close()
    blocked.set()
    await world.receiver.start()
    await eventually(lambda: sorted(map(str, called)) == ["task-1", "task-2"])


async def test_a_coroutine_that_swallows_its_cancellation_does_not_keep_the_receiver_from_closing(
    make_world: WorldFactory, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(GRACE, 0.05)
    world = make_world({"drain": SOON})
    inside, go_on = asyncio.Event(), asyncio.Event()

    @world.receiver.on_update(name="stubborn")
    async def stubborn(_: Notification) -> None:
        inside.set()
        while not go_on.is_set():
            with contextlib.suppress(asyncio.CancelledError):
                await go_on.wait()

    await world.receive(world.draft())
    await inside.wait()
    statuses = await after_the_end(world)
    go_on.set()

    assert statuses == {"task-1": "in_progress"}  # until its lease ends


async def test_the_end_does_not_wait_for_calls_that_hang(
    make_world: WorldFactory, release: threading.Event
) -> None:
    world = make_world({"drain": 2 * PATIENT, "callback_timeout": SOON})
    hanging_in_threads(world, release)

    await world.receive(world.draft())
    await eventually(world.receiver.degraded)
    async with asyncio.timeout(DEADLINE):
        statuses = await after_the_end(world)

    assert statuses == {"task-1": "in_progress"}  # until its lease ends


async def test_the_next_notification_does_not_wait_if_a_callback_cancels_its_own_task(
    house: House,
) -> None:
    async def cancels_itself(notification: Notification) -> None:
        house.called.append(notification.delivery_id)
        cancel_own_task()  # it ends before it learns of that

    house.registry.add(cancels_itself)
    for number in (1, 2):
        await house.store(number)
    await house.run_once()

    assert house.called == ["task-1#1", "task-1#2"]
    assert await house.counts() == {"done": 2}


@pytest.mark.parametrize(
    ("fails", "expected"), [(False, "done"), (True, "received")], ids=["ends-well", "raises"]
)
async def test_a_coroutine_that_caught_a_cancellation_of_its_own_has_ended(
    house: House, fails: bool, expected: str
) -> None:
    async def caught(_: Notification) -> None:
        cancel_own_task()  # as time-outs of libraries without `uncancel()` do
        with contextlib.suppress(asyncio.CancelledError):
            await asyncio.sleep(0)
        if fails:
            raise ValueError

    house.registry.add(caught, name="caught")
    await house.store()
    await house.another_dispatcher().run_once()

    assert await house.counts() == {expected: 1}
    assert await errors(house) == ["caught: ValueError" if fails else None]


async def test_a_coroutine_that_cancels_its_own_task_is_logged(
    house: House, caplog: pytest.LogCaptureFixture
) -> None:
    async def cancels_itself(_: Notification) -> None:
        cancel_own_task()
        await asyncio.sleep(0)

    house.registry.add(cancels_itself, name="broken")
    await house.store()
    await house.another_dispatcher().run_once()

    assert await house.counts() == {"in_progress": 1}  # until its lease ends
    assert (
        "callback broken was cancelled, but not by the receiver, on notification 1 " in caplog.text
    )


async def test_a_coroutine_that_ends_itself_by_a_cancellation_has_failed(house: House) -> None:
    async def beside(_: Notification) -> None:
        other = asyncio.ensure_future(asyncio.Event().wait())
        other.cancel()
        await other

    house.registry.add(beside, name="beside")
    await house.store()
    await house.another_dispatcher().run_once()

    assert await errors(house) == ["beside: CancelledError"]


# --- fairness -------------------------------------------------------------------------------------


async def test_a_callback_that_always_hangs_leaves_slots_to_the_others(
    house: House, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(PATIENCE, 0.1)
    inside: list[str] = []

    async def hang(notification: Notification) -> None:
        inside.append(notification.delivery_id)
        await asyncio.Event().wait()

    house.registry.add(hang, name="hang", tasks=[f"hang-{number}" for number in range(20)])
    house.record("other")
    for number in range(20):
        await house.store(1, f"hang-{number}")
    for number in range(8):
        await house.store(1, f"task-{number}")
    async with running(house.another_dispatcher(4, timeout=None)):
        await eventually(lambda: len(house.called) == 25)

    # `other` had all but those that `hang` holds, including those that `hang` never got.
    assert len(inside) == 3


async def test_tasks_that_timed_out_before_leave_slots_to_the_others(
    house: House, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(PATIENCE, 0.1)
    inside: list[str] = []
    again = asyncio.Event()

    async def some_hang(notification: Notification) -> None:
        task = notification.task_id or ""
        if again.is_set():
            inside.append(task)
        if task.startswith("bad"):
            await asyncio.Event().wait()

    house.registry.add(some_hang, name="some-hang")
    for number in range(4):
        await house.store(1, f"bad-{number}")
    await house.another_dispatcher(4, timeout=SOON).run_once()
    again.set()
    house.now += timedelta(seconds=10)
    for number in range(4):
        await house.store(1, f"good-{number}")
    async with running(house.another_dispatcher(4, timeout=None)):
        await eventually(lambda: len([task for task in inside if task.startswith("good")]) == 4)

    assert len([task for task in inside if task.startswith("bad")]) == 2


async def test_a_call_that_hangs_again_without_a_slot_takes_none(
    house: House, release: threading.Event
) -> None:
    first = threading.Event()

    def hang_first(notification: Notification) -> None:
        house.called.append(f"first:{notification.task_id}")
        if notification.task_id == "task-1":
            first.wait(DEADLINE)

    def hang_then(notification: Notification) -> None:
        house.called.append(f"then:{notification.task_id}")
        if notification.task_id == "task-1":
            release.wait(DEADLINE)

    house.registry.add(hang_first, name="first")
    house.registry.add(hang_then, name="then")
    await house.store(1, "task-1")
    dispatcher = house.another_dispatcher(1, timeout=SOON)
    async with running(dispatcher):
        await eventually(lambda: dispatcher.caller.hanging == {"first": 1})
        first.set()
        await eventually(lambda: dispatcher.caller.hanging == {"then": 1})
        stuck = dispatcher.caller.is_stuck
        await house.store(1, "task-2")
        dispatcher.wake()

        await eventually(lambda: "then:task-2" in house.called)

    assert not stuck
