from __future__ import annotations

import asyncio
import gc
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager, suppress
from datetime import timedelta

import pytest

from pushkit.errors import StorageError
from pushkit.scheduling.pump import Pump, Slots, cancelled
from tests.eventually import DEADLINE


class Work:
    """Items for a pump; each ends when the test lets it."""

    def __init__(self, *due: str) -> None:
        self.due = list(due)
        self.in_work: list[str] = []
        self.done: list[str] = []
        self.most_at_once = 0
        self.claims = 0
        self.faults: list[Exception] = []
        self.slots = Slots(0)
        self.changed = asyncio.Event()
        self.gates: dict[str, asyncio.Event] = {}
        self.claiming = asyncio.Event()
        self.claiming.set()
        self.reading = asyncio.Event()
        self.reading.set()

    def pump(
        self, concurrency: int = 2, longest_pause: timedelta = timedelta(seconds=30)
    ) -> Pump[str]:
        self.slots = Slots(concurrency)
        return Pump(
            "things",
            claim=self.claim,
            process=self.process,
            until_due=self.until_due,
            slots=self.slots,
            longest_pause=longest_pause,
        )

    async def claim(self) -> list[str]:
        self.claims += 1
        self.changed.set()
        if self.faults:
            raise self.faults.pop(0)
        number = self.slots.take(len(self.due))
        taken, self.due = self.due[:number], self.due[number:]
        await self.claiming.wait()
        return taken

    async def process(self, item: str) -> None:
        self.in_work.append(item)
        self.most_at_once = max(self.most_at_once, len(self.in_work))
        self.changed.set()
        try:
            await asyncio.sleep(0)  # lets other tasks run
            await self.gates.get(item, self.claiming).wait()
            if item.startswith("bad"):
                raise RuntimeError(item)
            if item.startswith("lost"):
                raise StorageError(item)
            self.done.append(item)
        finally:
            self.in_work.remove(item)
            self.changed.set()

    async def until_due(self) -> timedelta | None:
        await self.reading.wait()
        return timedelta(0) if self.due else None

    async def until(self, condition: Callable[[], bool]) -> None:
        async with asyncio.timeout(DEADLINE):
            while not condition():
                self.changed.clear()
                await self.changed.wait()


@asynccontextmanager
async def running(coroutine: Awaitable[None]) -> AsyncIterator[asyncio.Task[None]]:
    task: asyncio.Task[None] = asyncio.ensure_future(coroutine)
    try:
        yield task
    finally:
        task.cancel()
        async with asyncio.timeout(DEADLINE):
            with suppress(asyncio.CancelledError):
                await task


async def test_run_once_processes_all_due_items_and_counts_them() -> None:
    work = Work("a", "b", "c")
    pump = work.pump()
    assert await pump.run_once() == 2
    assert await pump.run_once() == 1
    assert await pump.run_once() == 0
    assert work.done == ["a", "b", "c"]


async def test_run_processes_everything_and_never_more_at_once_than_slots() -> None:
    work = Work(*(str(number) for number in range(20)))
    async with running(work.pump(concurrency=3).run()):
        await work.until(lambda: len(work.done) == 20)
    assert work.most_at_once == 3


async def test_items_are_claimed_while_nobody_says_when_the_next_is_due() -> None:
    work = Work("a")
    work.reading.clear()
    pump = work.pump(longest_pause=timedelta(milliseconds=1))
    async with running(pump.run()):
        await work.until(lambda: work.done == ["a"])
        work.due = ["b"]
        await work.until(lambda: work.done == ["a", "b"])


async def test_a_slow_item_holds_one_slot_and_not_the_batch() -> None:
    work = Work("slow", *"abcdef")
    work.gates["slow"] = asyncio.Event()
    async with running(work.pump(concurrency=2).run()):
        await work.until(lambda: len(work.done) == 6)
        assert work.in_work == ["slow"]
        work.gates["slow"].set()
        await work.until(lambda: "slow" in work.done)


async def test_without_a_free_slot_nothing_is_claimed() -> None:
    work = Work("slow", "next")
    work.gates["slow"] = asyncio.Event()
    pump = work.pump(concurrency=1)
    await pump.fill()
    assert await pump.fill() == 0
    assert work.claims == 1
    work.gates["slow"].set()
    await pump.drain()


async def test_wake_finds_new_items() -> None:
    work = Work()
    pump = work.pump()
    async with running(pump.run()):
        await work.until(lambda: work.claims == 1)
        work.due.append("new")
        pump.wake()
        await work.until(lambda: work.done == ["new"])


@pytest.mark.parametrize(
    ("fault", "traced"),
    [
        pytest.param(StorageError("the disk is full"), False, id="the database"),
        pytest.param(RuntimeError("a bug"), True, id="anything else"),
    ],
)
async def test_the_pump_survives_a_claim_that_fails(
    fault: Exception,
    traced: bool,
    caplog: pytest.LogCaptureFixture,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr("pushkit.scheduling.pump._AFTER_FAULT", timedelta(0))
    work = Work("a")
    work.faults.append(fault)
    async with running(work.pump().run()):
        await work.until(lambda: work.done == ["a"])
    [record] = caplog.records
    assert bool(record.exc_info) is traced
    assert str(fault) in caplog.text


@pytest.mark.parametrize("fault", [StorageError, RuntimeError])
async def test_claims_that_fail_again_and_again_are_one_line(
    fault: type[Exception], caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("pushkit.scheduling.pump._AFTER_FAULT", timedelta(0))
    work = Work("a")
    work.faults += [fault(f"the {number}.") for number in range(20)]
    async with running(work.pump().run()):
        await work.until(lambda: work.done == ["a"])
    assert len(caplog.records) == 1
    assert "the 0." in caplog.text


async def test_items_that_fail_alike_are_one_line_per_cause(
    caplog: pytest.LogCaptureFixture,
) -> None:
    work = Work(*(f"{kind}-{number}" for number in range(10) for kind in ("bad", "lost")))
    assert await work.pump(concurrency=20).run_once() == 20
    assert sorted(record.getMessage() for record in caplog.records) == [
        "things: could not be settled: lost-0; it is due again when its lease ends",
        "things: failed unexpectedly; it is due again when its lease ends",
    ]


async def test_a_claim_and_a_settlement_that_fail_alike_are_two_lines(
    caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("pushkit.scheduling.pump._AFTER_FAULT", timedelta(0))
    fault = StorageError("the disk is full")
    work = Work()
    work.faults.append(fault)
    pump = work.pump()
    async with running(pump.run()):
        await work.until(lambda: bool(caplog.records))
        pump.keep_trying(fault)
    assert [record.getMessage() for record in caplog.records] == [
        "things: the database is out of reach: the disk is full; trying again",
        "things: cannot be settled: the disk is full; trying again",
    ]


@pytest.mark.parametrize("item", ["bad", "lost"])
async def test_the_pump_survives_an_item_that_fails(
    item: str, caplog: pytest.LogCaptureFixture
) -> None:
    work = Work(item, "good")
    assert await work.pump().run_once() == 2
    assert work.done == ["good"]
    assert "is due again when its lease ends" in caplog.text


async def test_drain_waits_for_items_in_progress() -> None:
    work = Work("slow")
    work.gates["slow"] = asyncio.Event()
    pump = work.pump()
    await pump.fill()
    drained = asyncio.create_task(pump.drain())
    await work.until(lambda: work.in_work == ["slow"])
    assert not drained.done()
    work.gates["slow"].set()
    await asyncio.wait_for(drained, DEADLINE)
    assert work.done == ["slow"]


async def test_items_claimed_during_a_cancellation_are_still_processed() -> None:
    work = Work("a")
    work.claiming.clear()
    pump = work.pump()
    async with running(pump.run()):
        await work.until(lambda: work.claims == 1)
    work.claiming.set()
    await asyncio.wait_for(pump.drain(), DEADLINE)
    assert work.done == ["a"]


async def test_a_claim_that_fails_after_a_cancellation_leaves_no_unretrieved_error() -> None:
    class Failing(Work):
        async def claim(self) -> list[str]:
            await super().claim()
            raise StorageError("out of reach")

    work = Failing()
    work.claiming.clear()
    pump = work.pump()
    unheard: list[dict[str, object]] = []
    asyncio.get_running_loop().set_exception_handler(lambda _, context: unheard.append(context))
    async with running(pump.run()):
        await work.until(lambda: work.claims == 1)
    work.claiming.set()
    await asyncio.wait_for(pump.drain(), DEADLINE)
    gc.collect()  # a deleted task reports an exception that was not retrieved
    assert unheard == []


async def test_abandon_cancels_items_in_progress() -> None:
    work = Work("slow")
    work.gates["slow"] = asyncio.Event()
    pump = work.pump()
    await pump.fill()
    await work.until(lambda: work.in_work == ["slow"])
    await asyncio.wait_for(pump.abandon(), DEADLINE)
    assert (work.in_work, work.done) == ([], [])


async def test_a_cancellation_that_meets_the_wake_up_is_not_lost() -> None:
    work = Work()
    pump = work.pump()
    task = asyncio.create_task(pump.run())
    await work.until(lambda: work.claims == 1)
    for _ in range(5):  # until it waits to be woken
        await asyncio.sleep(0)
    pump.wake()
    task.cancel()
    with pytest.raises(asyncio.CancelledError):
        await asyncio.wait_for(task, DEADLINE)


async def test_items_that_are_due_but_not_claimed_do_not_spin() -> None:
    class Full(Work):
        async def claim(self) -> list[str]:
            self.claims += 1
            self.changed.set()
            return []

    work = Full("not now")
    async with running(work.pump().run()):
        await work.until(lambda: work.claims == 1)
        for _ in range(100):
            await asyncio.sleep(0)
        assert work.claims == 1


async def test_an_idle_pump_claims_again_after_its_longest_pause() -> None:
    work = Work()
    work.slots = Slots(1)
    pump = Pump(
        "things",
        claim=work.claim,
        process=work.process,
        until_due=work.until_due,
        slots=work.slots,
        longest_pause=timedelta(milliseconds=1),
    )
    async with running(pump.run()):
        await work.until(lambda: work.claims >= 3)  # `wake` is not called


async def test_a_task_that_was_cancelled_before_ends_without_an_error() -> None:
    begun, ended = asyncio.Event(), asyncio.Event()

    async def work() -> None:
        begun.set()
        try:
            await asyncio.Event().wait()
        finally:
            await asyncio.sleep(0)  # like a rollback
            ended.set()

    task = asyncio.create_task(work())
    await begun.wait()
    task.cancel()
    await asyncio.sleep(0)
    await cancelled(task)
    assert ended.is_set()
