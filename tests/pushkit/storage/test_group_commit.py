"""What is gathered, without a database: who shares a script, who waits, how it ends."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Sequence
from dataclasses import dataclass, field
from datetime import timedelta
from typing import Any

import pytest

from pushkit.errors import CommitUncertainError, PushkitError, StorageError
from pushkit.storage import group_commit
from pushkit.storage.group_commit import Batch, BatchesDone, GroupCommit
from pushkit.storage.script import DEFERRED, Deferred, Refused, Script
from tests.eventually import DEADLINE


@dataclass
class Store:
    """Runs scripts that have no statement; holds names, and notes what shared a script."""

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
            if name == "uncertain":
                raise CommitUncertainError(name)
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
            for _ in batch.script():
                raise AssertionError("a statement")
        except CommitUncertainError as exc:
            batch.error, batch.is_final = exc, True
        except PushkitError as exc:
            batch.error = exc
        self.is_run.set()
        await self.may_commit.wait()


class Asking:
    """Asks for names, all of one group."""

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


async def test_who_comes_first_goes_alone_and_the_others_together(
    store: Store, asking: Asking
) -> None:
    assert await all_of(asking, "abcd") == list("abcd")
    assert store.made == [["a"], ["b", "c", "d"]]
    assert await all_of(asking, "e") == ["e"]


async def test_what_comes_behind_the_first_waits_for_it(
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


async def test_an_error_reaches_only_whose_it_is(store: Store, asking: Asking) -> None:
    found = await all_of(asking, ["a", "b", "raises", "c"])
    assert [str(each) for each in found] == ["a", "b", "raises", "c"]
    assert [type(each) for each in found] == [str, str, PushkitError, str]
    assert store.made[1:] == [["b", "raises", "c"], ["b"], ["raises"], ["c"]]


async def test_who_is_refused_makes_nobody_run_again(store: Store, asking: Asking) -> None:
    found = await all_of(asking, ["refused", "b", "refused", "c"])
    assert [type(each) for each in found] == [PushkitError, str, PushkitError, str]
    assert store.made == [["refused"], ["b", "refused", "c"]]


async def test_what_may_have_happened_is_not_done_again(store: Store, asking: Asking) -> None:
    found = await all_of(asking, ["a", "b", "uncertain", "c"])
    assert [type(each) for each in found] == [str, *[CommitUncertainError] * 3]
    assert store.made == [["a"], ["b", "uncertain", "c"]]


async def test_what_is_held_keeps_nobody_else_waiting(store: Store, asking: Asking) -> None:
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


async def test_patience_ends(store: Store) -> None:
    asking = Asking(store, patience=timedelta(milliseconds=30))
    store.held = {"held"}
    found = await all_of(asking, ["a", "held", "b"])
    assert [type(each) for each in found] == [str, StorageError, str]
    await asking.commit.drain()


async def test_a_caller_that_goes_away_stops_nothing(store: Store, asking: Asking) -> None:
    callers = [asking.run(name) for name in "abc"]
    await asyncio.sleep(0)
    callers[1].cancel()
    found = await asyncio.gather(*callers, return_exceptions=True)
    assert [type(each) for each in found] == [str, asyncio.CancelledError, str]
    assert store.made == [["a"], ["b", "c"]]


@pytest.mark.parametrize("steps", range(8))
async def test_what_is_cancelled_at_the_end_of_a_loop_leaves_nobody_waiting(
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


def test_what_was_under_way_when_its_loop_ended_is_waited_for_by_nobody(store: Store) -> None:
    async def submit() -> GroupCommit:
        commit = GroupCommit(lambda *_: None, most=1, patience=timedelta(1), wait=True)
        commit.submit(store.group, "a")
        return commit

    commit = asyncio.run(submit())
    asyncio.run(asyncio.wait_for(commit.drain(), DEADLINE))
