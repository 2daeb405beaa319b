"""What the code of one event loop shares: rounds of items, and deadlines."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from typing import Any

from pushkit.scheduling.event_loop import Deadlines, IterationBatches


async def test_items_of_a_round_are_handled_together_at_its_end() -> None:
    handled: list[Sequence[int]] = []
    batches = IterationBatches[int](handled.append)
    for begin in (0, 4):
        for item in range(begin, begin + 4):
            batches.add(item)
        await asyncio.sleep(0)
    # Nobody knew that the first one would not be alone.
    assert handled == [(0,), [1, 2, 3], [4, 5, 6, 7]]


async def test_after_a_round_with_one_item_the_next_does_not_wait() -> None:
    handled: list[Sequence[int]] = []
    batches = IterationBatches[int](handled.append)
    for round_of in ([0, 1, 2], [3], [4]):
        for item in round_of:
            batches.add(item)
        before = list(handled)
        await asyncio.sleep(0)
    assert before == handled == [(0,), [1, 2], [3], (4,)]


async def test_items_of_tasks_that_begin_in_one_round_are_one_batch() -> None:
    handled: list[Sequence[int]] = []
    batches = IterationBatches[int](handled.append)

    async def add(item: int) -> None:
        batches.add(item)

    await asyncio.gather(*map(add, range(5)))
    assert handled == [(0,), [1, 2, 3, 4]]


async def test_items_that_are_alone_in_their_rounds_never_wait() -> None:
    handled: list[Sequence[int]] = []
    batches = IterationBatches[int](handled.append)
    for item in range(3):
        batches.add(item)
        assert handled[-1] == (item,)
        await asyncio.sleep(0)


async def test_what_is_added_while_a_batch_is_handled_is_handled_too() -> None:
    handled: list[int] = []

    def handle(items: Sequence[int]) -> None:
        handled.extend(items)
        if items[-1] == 2:
            batches.add(3)

    batches = IterationBatches[int](handle)
    for item in range(3):
        batches.add(item)
    await asyncio.sleep(0)
    await asyncio.sleep(0)
    assert handled == [0, 1, 2, 3]


def test_a_loop_that_ended_within_a_round_does_not_hold_back_the_next_one() -> None:
    handled: list[int] = []
    batches = IterationBatches[int](handled.extend)

    async def add(*items: int) -> None:
        for item in items:
            batches.add(item)
        asyncio.get_running_loop().stop()

    loop = asyncio.new_event_loop()
    adding = loop.create_task(add(1, 2))
    loop.run_forever()
    loop.close()
    assert adding.done()
    asyncio.run(_added(batches, 3, 4))
    assert [each for each in handled if each != 2] == [1, 3, 4]


async def _added(batches: IterationBatches[int], *items: int) -> None:
    for item in items:
        batches.add(item)
    await asyncio.sleep(0)


async def test_a_deadline_whose_owner_fails_takes_no_other_with_it() -> None:
    class Owner:
        def __init__(self, error: Exception | None = None) -> None:
            self.error, self.is_over = error, asyncio.Event()

        def expire(self) -> None:
            self.is_over.set()
            if self.error is not None:
                raise self.error

    loop, deadlines, told = asyncio.get_running_loop(), Deadlines(), list[Any]()
    loop.set_exception_handler(lambda _, context: told.append(context["exception"]))
    owners = [Owner(), Owner(ValueError("a filter of the application")), Owner()]
    for owner in owners:
        deadlines.set(owner, loop.time())
    for owner in owners:
        await owner.is_over.wait()

    assert told == [owners[1].error]
