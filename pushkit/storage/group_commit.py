"""Group commit: items that are submitted during one transaction share the next one.

A durable commit costs a flush of the disk or a round trip, whatever is in it. Items are therefore
collected in the event loop, the items of one group become one script, and a driver runs the
scripts. Results are set in the loop, and an item's error reaches its submitter alone.
"""

from __future__ import annotations

import asyncio
import contextlib
import os
from collections import deque
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from datetime import timedelta
from typing import Any, Final, Generic, TypeAlias, TypeVar

from pushkit.errors import StorageError
from pushkit.storage.script import Deferred, Group, OnDone, Refused, Script

Item = TypeVar("Item")
T = TypeVar("T")

OTHER_LOOP: Final = "the database was opened in another event loop: open one in each"
_FIRST_PAUSE: Final = 0.005  # seconds
_LONGEST_PAUSE: Final = 0.05
# Rounds of the event loop before the next transaction: a result takes two to reach the task that
# awaits it, and a third brings the task's next item, which then shares that transaction.
_ROUNDS: Final = 3


@dataclass(slots=True, eq=False)
class _Waiting(Generic[Item, T]):
    """An item that was submitted, and the future of its result."""

    group: Group[Item, T]
    item: Item
    future: asyncio.Future[T]
    on_done: OnDone[T] | None
    until: float | None = None  # until when it may be deferred, once it was
    pause: float = _FIRST_PAUSE  # before it is run again, in seconds

    def succeed(self, result: T) -> None:
        if not self.future.done():  # the submitter may have been cancelled
            self.future.set_result(result)

    def report(self, result: T) -> None:
        """Call `on_done` with the result of success."""
        if self.on_done is not None:
            self._call(result)

    def fail(self, error: BaseException) -> None:
        has_callback = self.on_done is not None
        if has_callback:
            self._call(error)
        if not self.future.done():
            self.future.set_exception(error)
            if has_callback:
                self.future.exception()  # `on_done` got it: nobody has to await the future

    def cancel(self) -> None:
        if self.on_done is not None:
            self._call(asyncio.CancelledError())
        self.future.cancel()

    def _call(self, outcome: T | BaseException) -> None:
        on_done, self.on_done = self.on_done, None  # once, even if a signal's handler raises in it
        assert on_done is not None  # noqa: S101
        try:
            on_done(outcome)
        except Exception as exc:  # noqa: BLE001  # reported like that of any callback of the loop
            context = {"message": f"{on_done!r} failed", "exception": exc}
            self.future.get_loop().call_exception_handler(context)


@dataclass(slots=True, eq=False)
class Batch(Generic[Item, T]):
    """Items of one group, which share a script; the driver runs it, and notes an error."""

    waiting: Sequence[_Waiting[Item, T]]  # empty once their results are set
    wait: bool  # whether the script may wait for rows that other transactions hold
    # The script's results. If there are none, and no error either, the event loop is ending.
    results: Sequence[T | Deferred | Refused] | None = None
    error: Exception | None = None  # what was raised instead
    is_final: bool = False  # whether all items fail with the error, and none is tried alone

    @property
    def is_of_group(self) -> bool:
        """Whether a group makes the script, and not `submit_script`."""
        return self.waiting[0].group is not _one_script

    def script(self) -> Script[Sequence[T | Deferred | Refused]]:
        """Return the group's script over the items; its results go to `note`."""
        return self.waiting[0].group([each.item for each in self.waiting], wait=self.wait)

    def note(self, results: Sequence[T | Deferred | Refused]) -> None:
        """Keep the script's results: one for each item, in order."""
        if len(results) != len(self.waiting):
            items = f"{len(results)} results for {len(self.waiting)} items"
            raise TypeError(f"a group's script has {items}")
        self.results = results


BatchesDone: TypeAlias = Callable[[Sequence[Batch[Any, Any]]], None]
# Begins to run batches, and calls `done` with them in the event loop when all have run.
Driver: TypeAlias = Callable[[Sequence[Batch[Any, Any]], BatchesDone], None]


class GroupCommit:
    """Collects items while the driver runs the ones before, and passes them to it together.

    Items of a group share a script. If it fails, each is run alone, beside the next items. An item
    that the script defers, because another transaction holds a row, is run again later. An item is
    processed even if its submitter is cancelled.

    Belongs to the process and the event loop in which it is made.

    Args:
        most: How many items go together.
        patience: How long an item may be deferred.
        wait: Whether scripts may wait for rows that other transactions hold.
    """

    def __init__(self, driver: Driver, *, most: int, patience: timedelta, wait: bool) -> None:
        self._driver = driver
        self._most = most
        self._patience = patience.total_seconds()
        self._wait = wait
        self._loop = asyncio.get_running_loop()
        self._process = os.getpid()
        self._waiting: deque[_Waiting[Any, Any]] = deque()
        self._is_scheduled = False  # the driver runs batches, or will within a few rounds
        self._has_leader = False
        self._unfinished = 0
        self._all_finished = asyncio.Event()

    def submit(
        self, group: Group[Item, T], item: Item, on_done: OnDone[T] | None = None
    ) -> asyncio.Future[T]:
        """Return the future of the group's result for an item, or of its error.

        The error is a `StorageError` if the item was deferred for longer than `patience`.

        Args:
            group: Makes the script.
            item: One of the script's items.
            on_done: Called with the result or the error, even if the future was cancelled.
        """
        waiting = self._new(group, item, on_done)
        self._waiting.append(waiting)
        if not self._is_scheduled:
            self._schedule()
        return waiting.future

    def submit_script(self, script: Script[T]) -> asyncio.Future[T]:
        """Return the future of the result of a script, which shares at most its transaction."""
        return self.submit(_one_script, script)

    def submit_or_lead(
        self, group: Group[Item, T], item: Item, on_done: OnDone[T] | None = None
    ) -> asyncio.Future[T]:
        """Submit an item; if nothing is running, run it at once: it leads, and may wait for rows.

        Items that are submitted meanwhile may need the same row, and wait for the leader, but only
        for 5 ms: a row that another process holds must not delay the items that do not need it.
        """
        if self._is_scheduled:
            return self.submit(group, item, on_done)
        waiting = self._new(group, item, on_done)
        if self._has_leader:
            if not self._waiting:
                self._loop.call_later(_FIRST_PAUSE, self._schedule)
            self._waiting.append(waiting)
        else:
            self._has_leader = True
            self._driver([Batch([waiting], wait=True)], self._leader_done)
        return waiting.future

    async def drain(self, within: float | None = None) -> None:
        """Wait until all items are finished; do nothing if the event loop of this one is closed.

        Args:
            within: The longest wait in seconds; None for no limit.
        """
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(within):
                while self._unfinished and not self._loop.is_closed():
                    self._all_finished.clear()
                    await self._all_finished.wait()

    def _new(
        self, group: Group[Item, T], item: Item, on_done: OnDone[T] | None
    ) -> _Waiting[Item, T]:
        if asyncio.get_running_loop() is not self._loop:
            raise StorageError(OTHER_LOOP)
        if os.getpid() != self._process:
            raise StorageError("the database was opened before this process was forked")
        self._unfinished += 1
        return _Waiting(group, item, self._loop.create_future(), on_done)

    def _schedule(self) -> None:
        if self._waiting and not self._is_scheduled:
            self._is_scheduled = True
            self._loop.call_soon(self._run_next)  # after the items of this round of the loop

    def _run_next(self) -> None:
        if not self._waiting:
            self._is_scheduled = False
            return
        most = min(len(self._waiting), self._most)
        waiting = [self._waiting.popleft() for _ in range(most)]
        together = _by_group(waiting) if most > 1 else (waiting,)
        self._driver([Batch(each, self._wait) for each in together], self._batches_done)

    def _batches_done(self, batches: Sequence[Batch[Any, Any]]) -> None:
        finished = sum([len(batch.waiting) for batch in batches])
        try:
            self._set_results(batches)
        finally:
            self._run_next_after(_ROUNDS, min(len(self._waiting) + finished, self._most))

    def _run_next_after(self, rounds: int, enough: int) -> None:
        """Run the next batches after so many rounds of the loop, or once enough items wait.

        In these rounds the tasks that just got results submit their next items.
        """
        if rounds and len(self._waiting) < enough:
            self._loop.call_soon(self._run_next_after, rounds - 1, enough)
        else:
            self._run_next()

    def _leader_done(self, batches: Sequence[Batch[Any, Any]]) -> None:
        self._has_leader = False
        try:
            self._set_results(batches)
        finally:
            self._schedule()

    def _set_results(self, batches: Sequence[Batch[Any, Any]]) -> None:
        try:
            self._set_all(batches)
        except (SystemExit, KeyboardInterrupt):  # of a signal's handler: the loop may run again
            self._loop.call_soon(self._set_results, batches)
            raise

    def _set_all(self, batches: Sequence[Batch[Any, Any]]) -> None:
        again: list[Batch[Any, Any]] = []
        for batch in batches:
            waiting = batch.waiting
            if not waiting:
                continue
            if batch.results is not None and batch.error is None:
                self._set_each(waiting, batch.results)
            elif batch.error is None:
                self._cancel([*waiting, *self._waiting])
            elif len(waiting) > 1 and not batch.is_final:
                again += [Batch([each], self._wait) for each in waiting]
            else:
                for each in waiting:
                    each.fail(batch.error)
                self._count_finished(len(waiting))
            batch.waiting = ()
        if again:
            self._driver(again, self._set_results)

    def _cancel(self, waiting: Sequence[_Waiting[Any, Any]]) -> None:
        self._waiting.clear()
        for each in waiting:
            each.cancel()
        self._count_finished(len(waiting))

    def _set_each(self, waiting: Sequence[_Waiting[Any, Any]], results: Sequence[Any]) -> None:
        deferred, succeeded = [], []
        for each, result in zip(waiting, results, strict=True):
            if isinstance(result, Deferred):
                deferred.append(each)
            elif isinstance(result, Refused):
                each.fail(result.error)
            else:
                each.succeed(result)
                succeeded.append((each, result))
        # All submitters continue first, then all that `on_done` begins: the same code runs for each
        # of them in turn, out of the processor's caches, and the next items are stored meanwhile.
        for each, result in succeeded:
            each.report(result)
        left = self._defer(deferred) if deferred else 0
        self._count_finished(len(waiting) - left)

    def _defer(self, deferred: Sequence[_Waiting[Any, Any]]) -> int:
        """Run items again after a pause, unless their time is over; return how many it are."""
        now = self._loop.time()
        later = []
        for each in deferred:
            each.until = now + self._patience if each.until is None else each.until
            if now < each.until:
                later.append(each)
            else:
                each.fail(held_too_long(self._patience))
        if later:
            self._loop.call_later(min(each.pause for each in later), self._requeue, later)
        for each in later:
            each.pause = min(each.pause * 2, _LONGEST_PAUSE)
        return len(later)

    def _requeue(self, waiting: Sequence[_Waiting[Any, Any]]) -> None:
        self._waiting.extend(waiting)
        self._schedule()

    def _count_finished(self, number: int) -> None:
        self._unfinished -= number
        if not self._unfinished:
            self._all_finished.set()


def _one_script(scripts: Sequence[Script[T]], /, *, wait: bool) -> Script[Sequence[T]]:  # noqa: ARG001
    """Run a single script: the group of scripts that are no group."""
    [script] = scripts
    return [(yield from script)]


def _by_group(waiting: Sequence[_Waiting[Any, Any]]) -> Iterator[Sequence[_Waiting[Any, Any]]]:
    """Collect the items of each group; a single script keeps its place between other items."""
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
    """Return the error for an item that has waited this long for a row."""
    return StorageError(
        f"PostgreSQL: another transaction holds what this needs, for {seconds:g} s already; nothing"
        " was stored: keep transactions that notify short"
    )
