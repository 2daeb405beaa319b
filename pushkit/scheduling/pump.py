"""The pump: claim, process, settle, for whatever a store hands out under leases.

`run()` is a thin loop over `fill()`, which keeps every free slot busy: a slow item holds one slot,
not a batch. `run_once()` does one whole round and waits for it, for tests and for callers that pump
by hand. An item that was stored in a slot, and never waited for one, comes in by `begin()`.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
import threading
from collections.abc import Awaitable, Callable, Sequence
from datetime import timedelta
from typing import Generic, TypeVar

from pushkit.errors import StorageError
from pushkit.logs import RepeatedLog

Item = TypeVar("Item")

_log = logging.getLogger("pushkit.scheduling")

_AFTER_FAULT = timedelta(seconds=1)
# Items may be due and yet not given out, because their destination is at its limit.
_MIN_PAUSE = timedelta(milliseconds=50)


class Slots:
    """Places for items in work, taken and freed in whatever thread.

    Claims share them out among all that is due. While they are open, an item may also take one the
    moment it is stored, unless something waits for a claim.

    Attributes:
        is_open: Whether items take slots by themselves.
    """

    def __init__(self, number: int) -> None:
        self.is_open = False
        self._some_wait = True
        self._free = number
        self._lock = threading.Lock()

    @property
    def free(self) -> int:
        """How many are free."""
        return self._free

    def take(self, most: int | None = None) -> int:
        """Take as many as are free, up to a number if one is given; return how many that are."""
        with self._lock:
            taken = self._free if most is None else min(self._free, most)
            self._free -= taken
            return taken

    def take_for_claim(self) -> int:
        """Take free slots for a claim, which looks after all that wait until now.

        While items take slots by themselves, some are left to them: or they would all have to wait
        for the next claim, and so on.
        """
        if not self.is_open:
            return self.take()
        free, self._some_wait = self.free, False
        return self.take(free - free // 4)

    def let_wait(self) -> None:
        """Note that something waits for the next claim."""
        self._some_wait = True

    def give_back(self, number: int) -> None:
        """Free some."""
        with self._lock:
            self._free += number


class Pump(Generic[Item]):
    """Keeps items flowing."""

    def __init__(
        self,
        name: str,
        *,
        # Takes items that are due, and a slot for each.
        claim: Callable[[], Awaitable[Sequence[Item]]],
        # Works on one item and settles it; returns the one that follows it into its slot.
        process: Callable[[Item], Awaitable[Item | None]],
        # Says how long until `claim` may find something; None for nothing in sight.
        until_due: Callable[[], Awaitable[timedelta | None]],
        slots: Slots,  # how many items at once
        # How long to wait at most before looking again, where nobody says `wake`.
        longest_pause: timedelta = timedelta(seconds=30),
        # Hears that an item's slot is free again, and says whether to look for more.
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
        """Look for work now: something was added."""
        self._awake.set()

    async def run(self) -> None:
        """Pump until cancelled; a fault is logged and outlived."""
        self._awake = asyncio.Event()  # the one before may belong to another event loop
        while True:
            self._awake.clear()
            pause = await self._round()
            # Not wait_for: before Python 3.12 it swallows a cancellation that meets the wake-up.
            with contextlib.suppress(TimeoutError):
                async with asyncio.timeout(pause.total_seconds()):
                    await self._awake.wait()

    async def run_once(self) -> int:
        """Claim once what is due, process it to the end, and return how many items that was."""
        started = await self.fill()
        await self.drain()
        return started

    async def fill(self) -> int:
        """Start on what is due, as far as slots are free; return how many items that was.

        Whoever is cancelled in here leaves no item behind that was claimed and is worked on by
        nobody: the claim goes on, and `drain` waits for it.
        """
        if not self._slots.free:
            self._slots.let_wait()  # or whoever follows into his own slot might never leave it
            return 0
        filling = asyncio.create_task(self._start())
        self._filling.add(filling)
        filling.add_done_callback(self._filled)
        return await asyncio.shield(filling)

    def _filled(self, filling: asyncio.Task[int]) -> None:
        self._filling.discard(filling)
        if not filling.cancelled():
            filling.exception()  # whoever was cancelled does not hear of it, and nobody else need

    async def drain(self) -> None:
        """Wait for the items that are in work."""
        while self._running or self._filling:
            await asyncio.wait({*self._running, *self._filling})

    async def finish(self, within: timedelta) -> None:
        """Wait for the items that are in work, and break off what is not done by then."""
        try:
            async with asyncio.timeout(within.total_seconds()):
                await self.drain()
        except TimeoutError:
            await self.abandon()

    async def abandon(self) -> None:
        """Break off what is in work, and claims; the items come back with their leases."""
        while tasks := {*self._running, *self._filling}:
            for task in tasks:
                task.cancel()
            await asyncio.wait(tasks)

    async def _round(self) -> timedelta:
        try:
            await self.fill()
            return await self._pause()
        except Exception as exc:  # noqa: BLE001  # the top of a worker loop
            self._tell(exc, "the database is out of reach", "trying again")
        return _AFTER_FAULT

    async def _start(self) -> int:
        items = await self._claim()
        for item in items:
            self.begin(item)
        return len(items)

    def begin(self, item: Item) -> None:
        """Start on an item whose slot is taken already."""
        task = asyncio.get_running_loop().create_task(self._guard(item))
        self._running[task] = item
        task.add_done_callback(self._finished)

    def let_go(self, task: asyncio.Task[None]) -> None:
        """Free the slot of an item whose work goes on: it is the caller's from here on."""
        self._finished(task)

    async def _guard(self, item: Item) -> None:
        try:
            while (following := await self._process(item)) is not None:
                item = following
        except Exception as exc:  # noqa: BLE001  # the top of a worker loop
            self.leave_to_lease(exc)

    def leave_to_lease(self, fault: Exception) -> None:
        """Log why an item could not be settled."""
        self._tell(fault, "could not be settled", "it comes back with its lease")

    def keep_trying(self, fault: StorageError) -> None:
        """Log why an item cannot be settled yet."""
        self._tell(fault, "cannot be settled", "it is tried until it can be")

    def _finished(self, task: asyncio.Task[None]) -> None:
        if task not in self._running:
            return  # let go before
        item = self._running.pop(task)
        self._slots.give_back(1)
        if self._ended(item):
            self._awake.set()

    def _tell(self, fault: Exception, of_storage: str, then: str) -> None:
        """Log a fault, once per kind and interval: what fails may fail for every item."""
        if isinstance(fault, StorageError):
            cause = (then, type(fault).__name__, type(fault.__cause__).__name__)
            said = "%s: %s: %s; %s"
            self._faults.say(cause, logging.ERROR, said, self._name, of_storage, fault, then)
            return
        said = "%s: failed unexpectedly; %s"
        self._faults.say(
            (then, type(fault).__name__), logging.ERROR, said, self._name, then, exc_info=fault
        )

    async def _pause(self) -> timedelta:
        if not self._slots.free:
            return self._longest_pause  # whatever ends wakes the loop
        due = await self._until_due()
        return (
            self._longest_pause if due is None else min(max(due, _MIN_PAUSE), self._longest_pause)
        )


async def cancelled(task: asyncio.Task[None]) -> None:
    """Cancel a task until it ends: before Python 3.12, `wait_for` in a driver may swallow one."""
    if not task.cancelling():  # a second one would break off what ends well after the first
        task.cancel()
    while (await asyncio.wait([task], timeout=1))[1]:
        task.cancel()
