"""Updates that wait in memory while the outbox is out of reach."""

from __future__ import annotations

import asyncio
import gc
import logging
import weakref
from collections.abc import AsyncIterator, Callable

import pytest

from pushkit.errors import InvalidUpdateError, StorageError
from pushkit.integrations import enqueue_buffer
from pushkit.integrations.enqueue_buffer import Enqueue, EnqueueBuffer
from tests.eventually import eventually


class Outbox:
    """Stores numbers in order, unless it is away."""

    def __init__(self) -> None:
        self.away: StorageError | None = None
        self.stored: list[int] = []
        self.begun = 0
        self.gate = asyncio.Event()
        self.gate.set()

    def goes_away(self) -> None:
        self.away = StorageError("the database is away")

    def storing(self, number: int, error: Exception | None = None) -> Enqueue:
        async def enqueue(first: bool) -> None:  # noqa: ARG001  # the interface
            self.begun += 1
            away = self.away
            await self.gate.wait()
            if away is not None:
                raise away
            if error is not None:
                raise error
            self.stored.append(number)

        return enqueue


@pytest.fixture(autouse=True)
def _soon(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(enqueue_buffer, "_FIRST_PAUSE", 0.01)
    monkeypatch.setattr(enqueue_buffer, "_LONGEST_PAUSE", 0.1)


@pytest.fixture
def outbox() -> Outbox:
    return Outbox()


@pytest.fixture
async def make_buffer() -> AsyncIterator[Callable[..., EnqueueBuffer]]:
    made: list[EnqueueBuffer] = []

    def make(capacity: int = 10, **limits: int) -> EnqueueBuffer:
        made.append(EnqueueBuffer(capacity, **limits))
        return made[-1]

    yield make
    for buffer in made:
        await buffer.close()


MakeBuffer = Callable[..., EnqueueBuffer]


@pytest.fixture
def buffer(make_buffer: MakeBuffer) -> EnqueueBuffer:
    return make_buffer()


async def run(buffer: EnqueueBuffer, enqueue: Enqueue, task_id: str = "task-1") -> None:
    await buffer.run(task_id, enqueue, size=100)


async def test_updates_that_could_not_be_stored_are_stored_later_in_order(
    outbox: Outbox, buffer: EnqueueBuffer
) -> None:
    await run(buffer, outbox.storing(1))
    outbox.goes_away()
    for number in (2, 3):
        await run(buffer, outbox.storing(number))
    assert (outbox.stored, len(buffer)) == ([1], 2)
    outbox.away = None
    await run(buffer, outbox.storing(4))  # must not overtake those that wait
    await eventually(lambda: len(outbox.stored) == 4)
    assert (outbox.stored, buffer.refused, len(buffer)) == ([1, 2, 3, 4], 0, 0)


async def test_a_task_that_cannot_be_stored_does_not_delay_other_tasks(
    outbox: Outbox, buffer: EnqueueBuffer
) -> None:
    held = StorageError("another transaction holds what this needs")
    await run(buffer, outbox.storing(1, held), "task-1")
    await run(buffer, outbox.storing(2), "task-1")
    await run(buffer, outbox.storing(3), "task-2")
    assert outbox.stored == [3]
    assert len(buffer) == 2


async def test_the_updates_of_a_task_are_stored_one_after_another(
    outbox: Outbox, buffer: EnqueueBuffer
) -> None:
    outbox.goes_away()
    outbox.gate.clear()
    first = asyncio.create_task(run(buffer, outbox.storing(1)))
    await eventually(lambda: outbox.begun == 1)
    second = asyncio.create_task(run(buffer, outbox.storing(2)))
    outbox.away = None  # too late for the first, which waits in memory now
    outbox.gate.set()
    await asyncio.gather(first, second)
    await eventually(lambda: len(outbox.stored) == 2)
    assert outbox.stored == [1, 2]


async def test_the_last_caller_waits_for_all_before_it(buffer: EnqueueBuffer) -> None:
    gates = [asyncio.Event() for _ in range(3)]
    begun: list[int] = []

    def storing(number: int) -> Enqueue:
        async def enqueue(first: bool) -> None:  # noqa: ARG001  # the interface
            begun.append(number)
            await gates[number].wait()

        return enqueue

    calls = [asyncio.create_task(run(buffer, storing(number))) for number in (0, 1)]
    await eventually(lambda: begun == [0])
    gates[0].set()
    await eventually(lambda: begun == [0, 1])
    calls.append(asyncio.create_task(run(buffer, storing(2))))
    await calls[0]
    await asyncio.sleep(0)
    in_the_middle = list(begun)
    for gate in gates:
        gate.set()
    await asyncio.gather(*calls)
    assert (in_the_middle, begun) == ([0, 1], [0, 1, 2])


@pytest.mark.parametrize(
    "limits",
    [
        pytest.param({"capacity": 1}, id="in all"),
        pytest.param({"per_task": 1}, id="of a task"),
        pytest.param({"max_bytes": 199}, id="in bytes"),
    ],
)
async def test_one_more_than_fits_is_refused_and_counted(
    outbox: Outbox,
    make_buffer: MakeBuffer,
    caplog: pytest.LogCaptureFixture,
    limits: dict[str, int],
) -> None:
    buffer = make_buffer(**limits)
    outbox.goes_away()
    await run(buffer, outbox.storing(1))
    await run(buffer, outbox.storing(2))
    assert (buffer.refused, len(buffer)) == (1, 1)
    assert "will not be sent to its webhooks" in caplog.text
    outbox.away = None
    await eventually(lambda: not len(buffer))
    outbox.goes_away()
    await run(buffer, outbox.storing(3))  # there is room again
    assert (buffer.refused, len(buffer)) == (1, 1)


async def test_the_end_of_a_task_has_a_place_of_its_own(
    outbox: Outbox, make_buffer: MakeBuffer
) -> None:
    buffer = make_buffer(per_task=1)
    outbox.goes_away()
    await run(buffer, outbox.storing(1))
    await buffer.run("task-1", outbox.storing(2), size=100, is_last=True)
    await buffer.run("task-1", outbox.storing(3), size=100, is_last=True)
    assert (buffer.refused, len(buffer)) == (1, 2)
    outbox.away = None
    await eventually(lambda: outbox.stored == [1, 2])


async def test_the_capacity_of_one_task_leaves_capacity_for_the_others(
    outbox: Outbox, make_buffer: MakeBuffer
) -> None:
    buffer = make_buffer(per_task=1)
    outbox.goes_away()
    await run(buffer, outbox.storing(1), "task-1")
    await run(buffer, outbox.storing(2), "task-1")
    await run(buffer, outbox.storing(3), "task-2")
    assert (buffer.refused, len(buffer)) == (1, 2)
    outbox.away = None
    await eventually(lambda: not len(buffer))
    assert sorted(outbox.stored) == [1, 3]


async def test_an_update_that_is_not_valid_is_refused_at_once(
    outbox: Outbox, buffer: EnqueueBuffer
) -> None:
    await run(buffer, outbox.storing(1, InvalidUpdateError("no task")))
    assert (len(buffer), buffer.refused) == (0, 1)


@pytest.mark.parametrize(
    "error",
    [
        pytest.param(InvalidUpdateError("no task"), id="an update that is not valid"),
        pytest.param(ZeroDivisionError(), id="a mistake in the code"),
    ],
)
async def test_an_invalid_update_does_not_delay_the_others(
    outbox: Outbox, buffer: EnqueueBuffer, error: Exception
) -> None:
    outbox.goes_away()
    await run(buffer, outbox.storing(1, error))
    await run(buffer, outbox.storing(2))
    outbox.away = None
    await eventually(lambda: not len(buffer))
    assert (outbox.stored, buffer.refused) == ([2], 1)


async def test_an_outage_is_one_line(
    outbox: Outbox, make_buffer: MakeBuffer, caplog: pytest.LogCaptureFixture
) -> None:
    buffer = make_buffer(20)
    outbox.goes_away()
    for number in range(40):
        await run(buffer, outbox.storing(number), f"task-{number}")
    errors = [each for each in caplog.records if each.levelno == logging.ERROR]
    assert len(errors) == 2  # kept, and refused
    assert buffer.refused == 20


async def test_closing_stores_what_waits_and_counts_what_it_cannot(
    outbox: Outbox, make_buffer: MakeBuffer
) -> None:
    buffer, hopeless = make_buffer(), make_buffer()
    outbox.goes_away()
    await run(buffer, outbox.storing(1))
    for number in (2, 3):
        await run(hopeless, outbox.storing(number))
    await hopeless.close()
    outbox.away = None
    await buffer.close()
    assert (outbox.stored, buffer.refused, hopeless.refused) == ([1], 0, 2)
    assert (len(buffer), len(hopeless)) == (0, 0)


async def test_closing_logs_how_many_updates_of_each_task_are_lost(
    outbox: Outbox, buffer: EnqueueBuffer, caplog: pytest.LogCaptureFixture
) -> None:
    outbox.goes_away()
    for number, task_id in enumerate(("task-1", "task-1", "task-2")):
        await run(buffer, outbox.storing(number), task_id)
    caplog.clear()
    await buffer.close()
    assert buffer.refused == 3
    assert [each.getMessage().partition(" were not stored")[0] for each in caplog.records] == [
        "task 'task-1': the updates kept in memory (2)",
        "task 'task-2': the updates kept in memory (1)",
    ]


async def test_closing_waits_for_a_running_enqueue(outbox: Outbox, buffer: EnqueueBuffer) -> None:
    outbox.goes_away()
    await run(buffer, outbox.storing(1))
    outbox.away = None
    outbox.gate.clear()
    begun = outbox.begun
    await eventually(lambda: outbox.begun > begun)  # tried again
    calling = asyncio.create_task(run(buffer, outbox.storing(2), "task-2"))
    await eventually(lambda: outbox.begun > begun + 1)
    closing = asyncio.create_task(buffer.close())
    await asyncio.sleep(0)
    outbox.gate.set()
    await asyncio.gather(calling, closing)
    assert sorted(outbox.stored) == [1, 2]
    assert outbox.begun == begun + 2  # each once


async def test_after_closing_nothing_waits_any_more(outbox: Outbox, buffer: EnqueueBuffer) -> None:
    await buffer.close()
    await run(buffer, outbox.storing(1))
    outbox.goes_away()
    await run(buffer, outbox.storing(2))
    assert (outbox.stored, len(buffer), buffer.refused) == ([1], 0, 1)


def test_a_buffer_keeps_updates_again_when_it_is_opened_again(outbox: Outbox) -> None:
    buffer = EnqueueBuffer()

    async def live(number: int) -> None:
        buffer.open()
        outbox.goes_away()
        await asyncio.gather(*(run(buffer, outbox.storing(number + each)) for each in (0, 1)))
        assert len(buffer) == 2
        outbox.away = None
        await eventually(lambda: len(buffer) == 0)
        await buffer.close()

    for number in (1, 3):
        asyncio.run(live(number))
    assert (sorted(outbox.stored), buffer.refused) == ([1, 2, 3, 4], 0)


async def test_a_task_with_nothing_to_store_leaves_nothing_behind(
    outbox: Outbox, buffer: EnqueueBuffer
) -> None:
    outbox.goes_away()
    for number in range(5):
        await run(buffer, outbox.storing(number), f"task-{number}")
    outbox.away = None
    await eventually(lambda: not len(buffer))
    for number in range(100):
        await run(buffer, outbox.storing(number), f"other-{number}")
    await eventually(lambda: not buffer._queues)


async def test_updates_that_are_refused_leave_nothing_behind(
    outbox: Outbox, make_buffer: MakeBuffer, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.CRITICAL, "pushkit.integrations")  # its records keep the errors
    buffer = make_buffer(per_task=1)
    outbox.goes_away()
    await run(buffer, outbox.storing(1))
    refused = []
    for number in range(2, 5):
        storing = outbox.storing(number)
        refused.append(weakref.ref(storing))
        await run(buffer, storing)
        del storing
    gc.collect()
    assert [each() for each in refused] == [None] * 3


async def test_a_call_that_never_ends_does_not_hold_up_a_close(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    """The agent's task store is asked for a client of 0.3, and does not answer."""
    monkeypatch.setattr(enqueue_buffer, "_CLOSED_WITHIN", 0.2)
    buffer, never = EnqueueBuffer(), asyncio.Event()

    async def hang(_first: bool) -> None:
        await never.wait()

    calling = asyncio.create_task(buffer.run("t", hang, size=1))
    await asyncio.sleep(0)
    try:
        async with asyncio.timeout(2):
            await buffer.close()
        assert "still being stored" in caplog.text
    finally:
        never.set()
        await calling


async def test_a_kept_update_that_never_ends_does_not_hold_up_a_close(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(enqueue_buffer, "_CLOSED_WITHIN", 0.2)
    monkeypatch.setattr(enqueue_buffer, "_FIRST_PAUSE", 0.0)
    buffer, hangs = EnqueueBuffer(), asyncio.Event()

    async def hang(first: bool) -> None:
        if first:
            raise StorageError("out of reach")
        hangs.set()
        await asyncio.Event().wait()

    await buffer.run("t", hang, size=1)
    await hangs.wait()
    async with asyncio.timeout(2):
        await buffer.close()
    assert (len(buffer), buffer.refused) == (0, 1)
