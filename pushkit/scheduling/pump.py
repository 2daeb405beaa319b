"""The pump: a loop that claims items, and processes each of them in a slot.

`run()` is a thin loop over `fill()`, which keeps every free slot busy: a slow item holds one slot,
not a batch. `run_once()` does one whole round and waits for it, for tests and for callers that pump
by hand. `begin()` starts an item that was stored in a slot, and needs no claim.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
import threading
from collections.abc import Awaitable, Callable, Sequence
from datetime import timedelta
from typing import Generic, TypeVar

from pushkit.errors import ConfigError, StorageError
from pushkit.logs import RepeatedLog

Item = TypeVar("Item")

_log = logging.getLogger("pushkit.scheduling")

_AFTER_FAULT = timedelta(seconds=1)
# Items may be due and yet not claimed, because their destination is at its limit.
_MIN_PAUSE = timedelta(milliseconds=50)


class Slots:
    """Slots for items in progress, taken and given back in any thread.

    Claims share the slots out among all due items. While the slots are open, an item may also take
    one as it is stored, unless another item waits for a claim.
    """

    def __init__(self, number: int) -> None:
        self.is_open = False  # whether items may take slots as they are stored
        self._some_wait = True
        self._free = number
        self._lock = threading.Lock()

    @property
    def free(self) -> int:
        """How many slots are free."""
        return self._free

    def take(self, most: int | None = None) -> int:
        """Take the free slots, `most` at most if given; return how many."""
        with self._lock:
            taken = self._free if most is None else min(self._free, most)
            self._free -= taken
            return taken

    def take_for_claim(self) -> int:
        """Take free slots for a claim, which finds all items that wait until now.

        While the slots are open, a quarter is left for items that are stored meanwhile: otherwise
        all of them would have to wait for the next claim, and so on.
        """
        if not self.is_open:
            return self.take()
        free, self._some_wait = self.free, False
        return self.take(free - free // 4)

    def note_waiting(self) -> None:
        """Note that an item waits for the next claim."""
        self._some_wait = True

    def give_back(self, number: int) -> None:
        """Free slots."""
        with self._lock:
            self._free += number


class Pump(Generic[Item]):
    """Claims items and processes them, as many at once as there are slots."""

    def __init__(
        self,
        name: str,
        *,
        # Claims items that are due, and takes a slot for each.
        claim: Callable[[], Awaitable[Sequence[Item]]],
        # Processes and settles one item; returns the item that follows it in its slot, if any.
        process: Callable[[Item], Awaitable[Item | None]],
        # Returns how long until `claim` may find an item; None if none is unfinished.
        until_due: Callable[[], Awaitable[timedelta | None]],
        slots: Slots,  # how many items at once
        # The longest pause between two claims, if `wake` is not called.
        longest_pause: timedelta = timedelta(seconds=30),
        # Called when an item's slot is free again; returns whether to claim at once.
        ended: Callable[[Item], bool] = lambda _: True,
    ) -> None:
        self._name = name
        self._claim = claim
        self._process = process
        self._until_due = until_due
        self._slots = slots
        self._longest_pause = longest_pause
        self._ended = ended
        self._running: dict[asyncio.Task[None], Item] = {}
        self._filling: set[asyncio.Task[int]] = set()
        self._awake = asyncio.Event()
        self._faults = RepeatedLog(_log)

    def wake(self) -> None:
        """Claim now: an item was added."""
        self._awake.set()

    async def run(self) -> None:
        """Claim and process until cancelled; errors are logged, and do not end the loop."""
        self._awake = asyncio.Event()  # the old one may belong to another event loop
        while True:
            self._awake.clear()
            pause = await self._round()
            # Not wait_for: before Python 3.12 it swallows a cancellation that meets the wake-up.
            with contextlib.suppress(TimeoutError):
                async with asyncio.timeout(pause.total_seconds()):
                    await self._awake.wait()

    async def run_once(self) -> int:
        """Claim the due items once, wait until they are processed, and return how many."""
        started = await self.fill()
        await self.drain()
        return started

    async def fill(self) -> int:
        """Claim and start due items in the free slots; return how many.

        If the caller is cancelled, the claim continues, so that no claimed item is left without
        processing; `drain` waits for it.
        """
        if not self._slots.free:
            self._slots.note_waiting()  # or chains may keep their slots for ever
            return 0
        filling = asyncio.create_task(self._start())
        self._filling.add(filling)
        filling.add_done_callback(self._filled)
        await asyncio.wait([filling])  # not shield: Python 3.14 would log a failure of it
        return filling.result()

    def _filled(self, filling: asyncio.Task[int]) -> None:
        self._filling.discard(filling)
        if not filling.cancelled():
            filling.exception()  # if the caller was cancelled, nothing awaits it

    async def drain(self) -> None:
        """Wait for the items in progress."""
        while self._running or self._filling:
            await asyncio.wait({*self._running, *self._filling})

    async def finish(self, within: timedelta) -> None:
        """Wait for the items in progress, and cancel those that are not done by then."""
        try:
            async with asyncio.timeout(within.total_seconds()):
                await self.drain()
        except TimeoutError:
            await self.abandon()

    async def abandon(self) -> None:
        """Cancel claims and items in progress; the items are due again when their leases end."""
        while tasks := {*self._running, *self._filling}:
            for task in tasks:
                task.cancel()
            await asyncio.wait(tasks)

    async def _round(self) -> timedelta:
        try:
            await self.fill()
            return await self._pause()
        except Exception as exc:  # noqa: BLE001  # the top of a worker loop
            self._log_fault(exc, "the database is out of reach", "trying again")
        return _AFTER_FAULT

    async def _start(self) -> int:
        items = await self._claim()
        for item in items:
            self.begin(item)
        return len(items)

    def begin(self, item: Item) -> None:
        """Start an item whose slot is taken already."""
        task = asyncio.get_running_loop().create_task(self._guard(item))
        self._running[task] = item
        task.add_done_callback(self._finished)

    def items(self) -> Sequence[Item]:
        """Return the items in progress."""
        return list(self._running.values())

    def free_slot(self, task: asyncio.Task[None]) -> None:
        """Free the slot of an item in progress, whose task the caller owns from now on."""
        self._finished(task)

    async def _guard(self, item: Item) -> None:
        try:
            while (following := await self._process(item)) is not None:
                item = following
        except Exception as exc:  # noqa: BLE001  # the top of a worker loop
            self.leave_to_lease(exc)

    def leave_to_lease(self, fault: Exception) -> None:
        """Log why an item could not be settled."""
        self._log_fault(fault, "could not be settled", "it is due again when its lease ends")

    def keep_trying(self, fault: StorageError) -> None:
        """Log why an item cannot be settled yet."""
        self._log_fault(fault, "cannot be settled", "trying again")

    def _finished(self, task: asyncio.Task[None]) -> None:
        if task not in self._running:
            return  # `free_slot` was called before
        item = self._running.pop(task)
        self._slots.give_back(1)
        if self._ended(item):
            self._awake.set()

    def _log_fault(self, fault: Exception, of_storage: str, then: str) -> None:
        """Log a fault once per kind and interval: every item may fail alike."""
        if isinstance(fault, StorageError):
            cause = (of_storage, type(fault).__name__, type(fault.__cause__).__name__)
            text = "%s: %s: %s; %s"
            self._faults.log(cause, logging.ERROR, text, self._name, of_storage, fault, then)
            return
        text = "%s: failed unexpectedly; %s"
        self._faults.log(
            (then, type(fault).__name__), logging.ERROR, text, self._name, then, exc_info=fault
        )

    async def _pause(self) -> timedelta:
        if not self._slots.free:
            return self._longest_pause  # the end of an item wakes the loop
        try:
            async with asyncio.timeout(self._longest_pause.total_seconds()):
                due = await self._until_due()
        except TimeoutError:  # other readers of the database come first
            return _MIN_PAUSE
        return (
            self._longest_pause if due is None else min(max(due, _MIN_PAUSE), self._longest_pause)
        )


def check_may_close(opened_in: asyncio.AbstractEventLoop) -> None:
    """Raise ConfigError in another event loop while this one runs: its tasks would not end."""
    if opened_in is not asyncio.get_running_loop() and opened_in.is_running():
        raise ConfigError(
            "close: opened in another event loop, which is running: close it there, from another"
            " thread with asyncio.run_coroutine_threadsafe()"
        )


async def cancelled(task: asyncio.Task[None]) -> None:
    """Cancel a task until it ends: before Python 3.12, `wait_for` may swallow a cancellation."""
    if not task.cancelling():  # a second cancellation would interrupt its clean-up
        task.cancel()
    # A done one may belong to an event loop that is closed, where nothing can be waited for.
    while not task.done() and (await asyncio.wait([task], timeout=1))[1]:
        task.cancel()
