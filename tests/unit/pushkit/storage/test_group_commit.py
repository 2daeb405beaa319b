"""Group commit without a database: which items share a script, and which wait.

How items end, `test_contract.py` shows on both databases.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Sequence
from dataclasses import dataclass, field
from datetime import timedelta
from typing import Any, TypeVar

import pytest

from pushkit.errors import PushkitError, StorageError
from pushkit.storage import group_commit
from pushkit.storage.group_commit import Batch, BatchesDone, GroupCommit
from pushkit.storage.script import DEFERRED, Deferred, Refused, Script
from tests.eventually import DEADLINE

T = TypeVar("T")


@dataclass
class Store:
    """Runs scripts without statements; holds names, and records which items shared a script."""

    held: set[str] = field(default_factory=set)
    made: list[list[str]] = field(default_factory=list)
    tasks: set[asyncio.Task[None]] = field(default_factory=set)
    is_run: asyncio.Event = field(default_factory=asyncio.Event)
    may_commit: asyncio.Event = field(default_factory=asyncio.Event)

    def group(
        self, names: Sequence[str], /, *, wait: bool
    ) -> Script[list[str | Deferred | Refused]]:
        yield from ()
        self.made.append(list(names))
        for name in names:
            if name == "raises":
                raise PushkitError(name)
        return [self._result(name, wait) for name in names]

    def _result(self, name: str, wait: bool) -> str | Deferred | Refused:
        if name == "refused":
            return Refused(PushkitError(name))
        return DEFERRED if name in self.held and not wait else name

    def run(self, batches: Sequence[Batch[Any, Any]], ended: BatchesDone, /) -> None:
        for batch in batches:
            self.tasks.add(task := asyncio.create_task(self._write(batch)))
            task.add_done_callback(self.tasks.discard)
            task.add_done_callback(lambda _, batch=batch: ended([batch]))  # type: ignore[misc]

    async def _write(self, batch: Batch[Any, Any]) -> None:
        await asyncio.sleep(0.001)
        try:
            batch.note(result_of(batch.script()))
        except PushkitError as exc:
            batch.error = exc
        self.is_run.set()
        await self.may_commit.wait()


def result_of(script: Script[T]) -> T:
    """Return the result of a script without statements."""
    try:
        next(script)
    except StopIteration as stop:
        result: T = stop.value
        return result
    raise AssertionError("a statement")


class Asking:
    """Submits names, all of one group."""

    def __init__(self, store: Store, patience: timedelta = timedelta(seconds=60)) -> None:
        self.store = store
        self.commit = GroupCommit(store.run, most=128, patience=patience, wait=False)

    def run(self, name: str) -> asyncio.Future[str]:
        return self.commit.submit_or_lead(self.store.group, name)


@pytest.fixture
async def store() -> Store:
    store = Store()
    store.may_commit.set()
    return store


@pytest.fixture
async def asking(store: Store) -> AsyncIterator[Asking]:
    asking = Asking(store)
    async with asyncio.timeout(DEADLINE):
        yield asking
        store.may_commit.set()
        store.held.clear()
        await asking.commit.drain()


async def all_of(asking: Asking, names: Sequence[str]) -> list[object]:
    return list(await asyncio.gather(*(asking.run(name) for name in names), return_exceptions=True))


async def test_the_first_item_goes_alone_and_the_others_together(
    store: Store, asking: Asking
) -> None:
    assert await all_of(asking, "abcd") == list("abcd")
    assert store.made == [["a"], ["b", "c", "d"]]
    assert await all_of(asking, "e") == ["e"]


async def test_items_after_the_first_wait_for_it(
    store: Store, asking: Asking, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(group_commit, "_FIRST_PAUSE", DEADLINE)
    store.may_commit.clear()
    first = asking.run("a")
    await store.is_run.wait()
    waiting = [asking.run(name) for name in "bc"]
    for _ in range(20):
        await asyncio.sleep(0)
    assert len(store.tasks) == 1
    store.may_commit.set()
    assert await asyncio.gather(first, *waiting) == ["a", "b", "c"]
    assert store.made == [["a"], ["b", "c"]]


async def test_a_refused_item_makes_no_other_run_again(store: Store, asking: Asking) -> None:
    found = await all_of(asking, ["refused", "b", "refused", "c"])
    assert [type(each) for each in found] == [PushkitError, str, PushkitError, str]
    assert store.made == [["refused"], ["b", "refused", "c"]]


async def test_an_item_that_needs_a_held_row_does_not_delay_others(
    store: Store, asking: Asking
) -> None:
    store.held = {"held"}
    waiting = [asking.run(name) for name in ("lead", *["held"] * 10)]
    for n in range(20):
        assert await all_of(asking, [f"{n}"]) == [f"{n}"]
        assert [type(each) for each in await all_of(asking, ["a", "raises"])] == [
            str,
            PushkitError,
        ]
    assert [each.done() for each in waiting] == [True, *[False] * 10]
    store.held.clear()
    assert await asyncio.gather(*waiting) == ["lead", *["held"] * 10]


async def test_an_item_is_deferred_no_longer_than_its_patience(store: Store) -> None:
    asking = Asking(store, patience=timedelta(milliseconds=30))
    store.held = {"held"}
    found = await all_of(asking, ["a", "held", "b"])
    assert [type(each) for each in found] == [str, StorageError, str]
    await asking.commit.drain()


@pytest.mark.parametrize("steps", range(8))
async def test_items_cancelled_at_the_end_of_a_loop_leave_nobody_waiting(
    store: Store, asking: Asking, steps: int
) -> None:
    store.held = {"held"}
    names = ["a", "held", "b", "raises", "c"]
    callers = [asking.run(name) for name in names]
    for _ in range(steps):
        await asyncio.sleep(0.001 if steps > 4 else 0)
    for task in [*store.tasks]:
        task.cancel()  # as `asyncio.run` does when it ends
    await asyncio.wait(callers[:1])
    store.held.clear()
    await asyncio.gather(*callers, return_exceptions=True)
    assert await all_of(asking, "xyz") == list("xyz")
    assert not store.tasks
