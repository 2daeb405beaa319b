"""Items of a group: those that come while its script is at work go into the next one together."""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import Awaitable, Coroutine, Sequence
from dataclasses import dataclass
from typing import Any, Generic, Protocol, TypeVar

from pushkit.errors import CommitUncertainError
from pushkit.storage.script import Apart, Group, Script, alone

__all__ = ["Gathering"]

Item = TypeVar("Item")
S = TypeVar("S")
T = TypeVar("T")

_MOST = 128
_ALONE_AT_ONCE = 2  # connections that may wait for rows that somebody holds: others are needed


class Write(Protocol):
    """Runs a script in a transaction."""

    def __call__(self, script: Script[S], /) -> Awaitable[S]: ...


@dataclass(slots=True, eq=False)
class _Waiting(Generic[Item, T]):
    item: Item
    future: asyncio.Future[T]

    def succeed(self, result: T) -> None:
        if not self.future.done():  # whoever asked may be gone
            self.future.set_result(result)

    def fail(self, error: Exception) -> None:
        if not self.future.done():
            self.future.set_exception(error)


class Gathering(Generic[Item, T]):
    """One script of several items at a time, and beside it one item that came when it was quiet.

    What a script leaves apart, or cannot do, is run alone. What was gathered is done even if
    whoever asked for it is cancelled.

    Args:
        group: Makes the scripts.
        write: Runs them.
    """

    def __init__(self, group: Group[Item, T], write: Write) -> None:
        self._group = group
        self._write = write
        self._waiting: deque[_Waiting[Item, T]] = deque()
        self._leads = False
        self._at_work = False
        self._alone = asyncio.Semaphore(_ALONE_AT_ONCE)
        self._tasks: set[asyncio.Task[None]] = set()

    async def run(self, item: Item) -> T:
        """Return the group's result for an item, or raise what its script raises for it."""
        if not (self._leads or self._at_work):
            return await self._lead(item)
        waiting = _Waiting[Item, T](item, asyncio.get_running_loop().create_future())
        self._waiting.append(waiting)
        if not self._at_work:
            self._at_work = True
            self._start(self._work())
        return await waiting.future

    async def _lead(self, item: Item) -> T:
        # A task of its own would cost whoever comes alone. It may wait for a row; others do not.
        self._leads = True
        try:
            return await self._write(alone(self._group, item))
        finally:
            self._leads = False

    async def drain(self) -> None:
        """Wait until nothing is at work."""
        while self._tasks:
            await asyncio.wait(self._tasks)

    def _start(self, work: Coroutine[Any, Any, None]) -> None:
        task = asyncio.create_task(work)
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)

    async def _work(self) -> None:
        try:
            while self._waiting:
                most = min(len(self._waiting), _MOST)
                await self._run([self._waiting.popleft() for _ in range(most)])
        finally:
            self._at_work = False
            for each in self._waiting:  # this is being cancelled
                each.future.cancel()
            self._waiting.clear()

    async def _run(self, items: Sequence[_Waiting[Item, T]]) -> None:
        try:
            script = self._group([each.item for each in items], wait=False)
            results = await self._write(script)
        except CommitUncertainError as exc:
            for each in items:
                each.fail(exc)  # a second time might be once too often
        except Exception:  # noqa: BLE001  # whose it is turns out when each is alone
            self._run_alone(items)
        except BaseException:
            for each in items:
                each.future.cancel()
            raise
        else:
            apart = []
            for each, result in zip(items, results, strict=True):
                if isinstance(result, Apart):
                    apart.append(each)
                else:
                    each.succeed(result)
            self._run_alone(apart)

    def _run_alone(self, items: Sequence[_Waiting[Item, T]]) -> None:
        """Run each by itself, beside whatever comes: it may wait for long."""
        for each in items:
            self._start(self._run_one(each))

    async def _run_one(self, waiting: _Waiting[Item, T]) -> None:
        try:
            async with self._alone:
                waiting.succeed(await self._write(alone(self._group, waiting.item)))
        except Exception as exc:  # noqa: BLE001  # whoever waits must hear of it
            waiting.fail(exc)
        finally:
            waiting.future.cancel()  # where this was cancelled; else it has ended
