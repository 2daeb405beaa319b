"""Group commit: what is asked for while a transaction is at work goes into the next one together.

A durable commit costs a flush of the disk or a round trip, whatever is in it. Items are therefore
collected in the event loop, those of one group become one script, and a driver runs what was
collected. Its results are handed out in the loop, and nobody hears of another's error.
"""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from datetime import timedelta
from typing import Any, Final, Generic, TypeAlias, TypeVar

from pushkit.errors import StorageError
from pushkit.storage.script import Deferred, Ending, Group, Refused, Script

Item = TypeVar("Item")
T = TypeVar("T")

_FIRST_PAUSE: Final = 0.005  # seconds
_LONGEST_PAUSE: Final = 0.05
# Of the event loop: an answer takes two to whoever awaits it and a third brings his next item, or
# that of somebody whom he told. What they ask for then shares the next commit.
_ROUNDS: Final = 3


@dataclass(slots=True, eq=False)
class _Waiting(Generic[Item, T]):
    """An item, and who waits for its result: until when and how often, if it was deferred."""

    group: Group[Item, T]
    item: Item
    future: asyncio.Future[T]
    ended: Ending[T] | None
    until: float | None = None
    pause: float = _FIRST_PAUSE

    def succeed(self, result: T) -> None:
        if self.ended is not None:
            self._end(self.ended, result)
        if not self.future.done():  # whoever asked may be gone
            self.future.set_result(result)

    def fail(self, error: BaseException) -> None:
        if self.ended is not None:
            self._end(self.ended, error)
        if not self.future.done():
            self.future.set_exception(error)
            if self.ended is not None:
                self.future.exception()  # it was heard: nobody has to await the future

    def cancel(self) -> None:
        if self.ended is not None:
            self._end(self.ended, asyncio.CancelledError())
        self.future.cancel()

    def _end(self, ended: Ending[T], came_to: T | BaseException) -> None:
        try:
            ended(came_to)
        except Exception as exc:  # noqa: BLE001  # nobody else hears of it, as of any callback
            context = {"message": f"{ended!r} failed", "exception": exc}
            self.future.get_loop().call_exception_handler(context)


@dataclass(slots=True, eq=False)
class Batch(Generic[Item, T]):
    """Items of one group, which share a script; a driver runs it, and notes what went wrong."""

    waiting: Sequence[_Waiting[Item, T]]
    wait: bool  # whether the script may wait for rows that somebody holds
    # What the script came to. Without them, and without an error, the event loop ends.
    results: Sequence[T | Deferred | Refused] | None = None
    error: Exception | None = None  # what was raised instead
    is_final: bool = False  # whether nobody may be tried alone: all hear of the error

    @property
    def is_of_group(self) -> bool:
        """Whether a group makes its script, and no script of its own."""
        return self.waiting[0].group is not _one_script

    def script(self) -> Script[None]:
        """Run the group's script over the items."""
        items = [each.item for each in self.waiting]
        results = yield from self.waiting[0].group(items, wait=self.wait)
        if len(results) != len(items):
            raise TypeError(f"a group's script has {len(results)} results for {len(items)} items")
        self.results = results


Ended: TypeAlias = Callable[[Sequence[Batch[Any, Any]]], None]
# Begins to run batches, and calls `ended` with them in the event loop when all is over.
Driver: TypeAlias = Callable[[Sequence[Batch[Any, Any]], Ended], None]


class GroupCommit:
    """Collects items, and hands them to a driver: what comes meanwhile goes together afterwards.

    Items of a group share a script. If it fails, each is run alone, beside what comes next. What
    a script defers, because somebody holds a row, goes into a later one. What was submitted
    is done even if whoever asked for it is cancelled.

    Belongs to the event loop in which it is made.

    Args:
        most: How many items go together.
        patience: How long something may be deferred.
        wait: Whether scripts may wait for rows that somebody holds.
    """

    def __init__(self, driver: Driver, *, most: int, patience: timedelta, wait: bool) -> None:
        self._driver = driver
        self._most = most
        self._patience = patience.total_seconds()
        self._wait = wait
        self._loop = asyncio.get_running_loop()
        self._waiting: deque[_Waiting[Any, Any]] = deque()
        self._is_due = False  # a driver is at work, or will be in a moment
        self._leads = False
        self._unfinished = 0
        self._nothing_left = asyncio.Event()

    def submit(
        self, group: Group[Item, T], item: Item, ended: Ending[T] | None = None
    ) -> asyncio.Future[T]:
        """Return what will be the group's result for an item, or what its script raises for it.

        It is a `StorageError` if somebody held what it needs for longer than there was patience.

        Args:
            group: Makes the script.
            ended: Called with what it came to, also if whoever asked is gone.
        """
        waiting = self._new(group, item, ended)
        self._waiting.append(waiting)
        self._see_to_it()
        return waiting.future

    def submit_script(self, script: Script[T]) -> asyncio.Future[T]:
        """Return what will be the result of a script that shares its transaction at most."""
        return self.submit(_one_script, script)

    def submit_or_lead(
        self, group: Group[Item, T], item: Item, ended: Ending[T] | None = None
    ) -> asyncio.Future[T]:
        """Submit an item; one that comes when it is quiet goes at once, and may wait for rows.

        What comes meanwhile may need the same row, and waits for the leader; but not for long: a
        row that somebody else holds keeps nobody else.
        """
        if self._is_due:
            return self.submit(group, item, ended)
        waiting = self._new(group, item, ended)
        if self._leads:
            if not self._waiting:
                self._loop.call_later(_FIRST_PAUSE, self._see_to_it)
            self._waiting.append(waiting)
        else:
            self._leads = True
            self._driver([Batch([waiting], wait=True)], self._leader_ended)
        return waiting.future

    async def drain(self) -> None:
        """Wait until all is done that was submitted, unless its event loop has ended before it."""
        while self._unfinished and not self._loop.is_closed():
            self._nothing_left.clear()
            await self._nothing_left.wait()

    def _new(self, group: Group[Item, T], item: Item, ended: Ending[T] | None) -> _Waiting[Item, T]:
        if asyncio.get_running_loop() is not self._loop:
            raise StorageError("the database was opened in another event loop: open one in each")
        self._unfinished += 1
        return _Waiting(group, item, self._loop.create_future(), ended)

    def _put_back(self, waiting: Sequence[_Waiting[Any, Any]]) -> None:
        self._waiting.extend(waiting)
        self._see_to_it()

    def _see_to_it(self) -> None:
        if self._waiting and not self._is_due:
            self._is_due = True
            self._loop.call_soon(self._run_next)  # after all who ask in this round of the loop

    def _run_next(self) -> None:
        if not self._waiting:
            self._is_due = False
            return
        most = min(len(self._waiting), self._most)
        waiting = [self._waiting.popleft() for _ in range(most)]
        together = _by_group(waiting) if most > 1 else (waiting,)
        self._driver([Batch(each, self._wait) for each in together], self._next_ended)

    def _next_ended(self, batches: Sequence[Batch[Any, Any]]) -> None:
        self._hand_out(batches)
        told = sum(len(batch.waiting) for batch in batches)
        self._go_on(_ROUNDS, min(len(self._waiting) + told, self._most))

    def _go_on(self, rounds: int, enough: int) -> None:
        """Run what comes next in so many rounds: with what those ask for who were just told.

        Once as many came as were told, nobody is waited for.
        """
        if rounds and len(self._waiting) < enough:
            self._loop.call_soon(self._go_on, rounds - 1, enough)
        else:
            self._run_next()

    def _leader_ended(self, batches: Sequence[Batch[Any, Any]]) -> None:
        self._leads = False
        self._hand_out(batches)
        self._see_to_it()

    def _hand_out(self, batches: Sequence[Batch[Any, Any]]) -> None:
        again: list[Batch[Any, Any]] = []
        for batch in batches:
            if batch.results is not None and batch.error is None:
                self._tell(batch.waiting, batch.results)
            elif batch.error is None:
                self._cancel([*batch.waiting, *self._waiting])
            elif len(batch.waiting) > 1 and not batch.is_final:
                again += [Batch([each], self._wait) for each in batch.waiting]
            else:
                for each in batch.waiting:
                    each.fail(batch.error)
                self._finished(len(batch.waiting))
        if again:
            self._driver(again, self._hand_out)

    def _cancel(self, waiting: Sequence[_Waiting[Any, Any]]) -> None:
        self._waiting.clear()
        for each in waiting:
            each.cancel()
        self._finished(len(waiting))

    def _tell(self, waiting: Sequence[_Waiting[Any, Any]], results: Sequence[Any]) -> None:
        deferred = []
        for each, result in zip(waiting, results, strict=True):
            if isinstance(result, Deferred):
                deferred.append(each)
            elif isinstance(result, Refused):
                each.fail(result.error)
            else:
                each.succeed(result)
        left = self._defer(deferred) if deferred else 0
        self._finished(len(waiting) - left)

    def _defer(self, deferred: Sequence[_Waiting[Any, Any]]) -> int:
        """Let items come again after a pause, if there is patience left; return how many do."""
        now = self._loop.time()
        later = []
        for each in deferred:
            each.until = now + self._patience if each.until is None else each.until
            if now < each.until:
                later.append(each)
            else:
                each.fail(held_too_long(self._patience))
        if later:
            self._loop.call_later(min(each.pause for each in later), self._put_back, later)
        for each in later:
            each.pause = min(each.pause * 2, _LONGEST_PAUSE)
        return len(later)

    def _finished(self, number: int) -> None:
        self._unfinished -= number
        if not self._unfinished:
            self._nothing_left.set()


def _one_script(scripts: Sequence[Script[T]], /, *, wait: bool) -> Script[Sequence[T]]:  # noqa: ARG001
    """Make a script of one: those that are no group never share."""
    [script] = scripts
    return [(yield from script)]


def _by_group(waiting: Sequence[_Waiting[Any, Any]]) -> Iterator[Sequence[_Waiting[Any, Any]]]:
    """Put items of a group together that wait side by side; a script of its own keeps its place."""
    groups: dict[Group[Any, Any], list[_Waiting[Any, Any]]] = {}
    for each in waiting:
        if each.group is _one_script:
            yield from groups.values()
            groups.clear()
            yield [each]
        else:
            groups.setdefault(each.group, []).append(each)
    yield from groups.values()


def held_too_long(seconds: float) -> StorageError:
    """Return what is raised for somebody who has waited this long for a row."""
    return StorageError(
        f"PostgreSQL: another transaction holds what this needs, for {seconds:g} s already; nothing"
        " was stored: keep transactions that notify short"
    )
