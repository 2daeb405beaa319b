"""Items of a group: those that come while its script is at work go into the next one together."""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import Awaitable, Coroutine, Iterable, Sequence
from dataclasses import dataclass
from datetime import timedelta
from typing import Any, Generic, Protocol, TypeVar

from pushkit.errors import CommitUncertainError, StorageError
from pushkit.storage.script import Apart, Group, Refused, Script, alone

__all__ = ["Gathering", "held_too_long"]

Item = TypeVar("Item")
S = TypeVar("S")
T = TypeVar("T")

_MOST = 128
_FIRST_PAUSE = timedelta(milliseconds=5)
_LONGEST_PAUSE = timedelta(milliseconds=50)


class Write(Protocol):
    """Runs a script in a transaction."""

    def __call__(self, script: Script[S], /) -> Awaitable[S]: ...


@dataclass(slots=True, eq=False)
class _Waiting(Generic[Item, T]):
    item: Item
    future: asyncio.Future[T]
    until: float
    pause: timedelta = _FIRST_PAUSE

    def succeed(self, result: T) -> None:
        if not self.future.done():  # whoever asked may be gone
            self.future.set_result(result)

    def fail(self, error: Exception) -> None:
        if not self.future.done():
            self.future.set_exception(error)


class Gathering(Generic[Item, T]):
    """One script of several items at a time, and beside it one item that came when it was quiet.

    What a script cannot do is run again item by item. What it leaves apart, because somebody holds
    a row, goes into a later one: nobody waits for a row but the one who came when it was quiet, so
    that a row that is held for long keeps nobody else. What was gathered is done even if whoever
    asked for it is cancelled.

    Args:
        group: Makes the scripts.
        write: Runs them.
        patience: How long something may be left apart.
    """

    def __init__(self, group: Group[Item, T], write: Write, *, patience: timedelta) -> None:
        self._group = group
        self._write = write
        self._patience = patience.total_seconds()
        self._waiting: deque[_Waiting[Item, T]] = deque()
        self._leader: asyncio.Task[None] | None = None
        self._worker: asyncio.Task[None] | None = None
        self._tasks: set[asyncio.Task[None]] = set()

    def run(self, item: Item) -> asyncio.Future[T]:
        """Return what will be the group's result for an item, or what its script raises for it.

        It is a `StorageError` if somebody held what it needs for longer than there was patience.
        """
        loop = asyncio.get_running_loop()
        waiting = _Waiting[Item, T](item, loop.create_future(), loop.time() + self._patience)
        if self._leader is not None or self._worker is not None:
            self._put([waiting])
        else:
            self._leader = self._start(self._lead(waiting), [waiting])
        return waiting.future

    async def _lead(self, waiting: _Waiting[Item, T]) -> None:
        try:
            result = await self._write(alone(self._group, waiting.item))
        except Exception as exc:  # noqa: BLE001  # whoever waits must hear of it
            waiting.fail(exc)
        else:
            waiting.succeed(result)
        finally:
            self._leader = None

    async def drain(self) -> None:
        """Wait until nothing is at work."""
        while self._tasks:
            await asyncio.wait(self._tasks)

    def _put(self, items: Iterable[_Waiting[Item, T]]) -> None:
        self._waiting.extend(items)
        if self._worker is None:
            self._worker = self._start(self._work(), ())

    def _start(
        self, work: Coroutine[Any, Any, None], items: Sequence[_Waiting[Item, T]]
    ) -> asyncio.Task[None]:
        """Begin a task of ours; if it is cancelled, even before its first step, so are its items.

        That is the end of an event loop.
        """

        def ended(task: asyncio.Task[None]) -> None:
            self._tasks.discard(task)
            if task is self._leader:
                self._leader = None
            if not task.cancelled():
                return
            left = [*items]
            if self._worker is task:
                self._worker = None
                left += self._waiting
                self._waiting.clear()
            for each in left:
                each.future.cancel()

        task = asyncio.create_task(work)
        self._tasks.add(task)
        task.add_done_callback(ended)
        return task

    async def _work(self) -> None:
        while self._waiting:
            most = min(len(self._waiting), _MOST)
            await self._run([self._waiting.popleft() for _ in range(most)])
        self._worker = None

    async def _run(self, items: Sequence[_Waiting[Item, T]]) -> None:
        try:
            script = self._group([each.item for each in items], wait=False)
            results = await self._write(script)
        except CommitUncertainError as exc:
            for each in items:
                each.fail(exc)  # a second time might be once too often
        except Exception as exc:  # noqa: BLE001  # whoever waits must hear of it
            if len(items) == 1:
                items[0].fail(exc)
            else:
                for each in items:
                    self._start(self._run([each]), [each])
        except asyncio.CancelledError:
            for each in items:
                each.future.cancel()
            raise
        else:
            self._tell(items, results)

    def _tell(
        self, items: Sequence[_Waiting[Item, T]], results: Sequence[T | Apart | Refused]
    ) -> None:
        apart = []
        now = asyncio.get_running_loop().time()
        for each, result in zip(items, results, strict=True):
            if isinstance(result, Refused):
                each.fail(result.error)
            elif not isinstance(result, Apart):
                each.succeed(result)
            elif now < each.until:
                apart.append(each)
            else:
                each.fail(held_too_long(self._patience))
        if apart:
            self._start(self._later(apart), apart)

    async def _later(self, items: Sequence[_Waiting[Item, T]]) -> None:
        pause = min(each.pause for each in items)
        for each in items:
            each.pause = min(each.pause * 2, _LONGEST_PAUSE)
        await asyncio.sleep(pause.total_seconds())
        self._put(items)


def held_too_long(seconds: float) -> StorageError:
    """Return what is raised for somebody who has waited this long for a row."""
    return StorageError(
        f"PostgreSQL: another transaction holds what this needs, for {seconds:g} s already; nothing"
        " was stored: keep transactions that notify short"
    )
