"""`HasLifetime`: the rules by which `PushSender` and `Receiver` are opened, started and closed."""

from __future__ import annotations

import abc
import asyncio
import contextlib
import os
import threading
from collections.abc import AsyncIterator, Coroutine, Mapping
from typing import TYPE_CHECKING, Any, Self

from pushkit.errors import ConfigError
from pushkit.scheduling.event_loop import LoopLock, cancelled
from pushkit.storage.migrations import Access

if TYPE_CHECKING:
    from pushkit.alerts import Alerts
    from pushkit.telemetry.metrics import Metrics
    from pushkit.threads import ServingThread


class HasLifetime(abc.ABC):
    """What is opened, started and closed, again and again.

    * What a process opened is open there alone. A process that is forked from it can neither use
      nor open it, and closes nothing: tasks, threads and connections are the other one's.
    * It belongs to the event loop that opens it until it is closed there; then any may open it. If
      that loop was closed before, the next start closes what it left, and waits for nothing there.
    * An opening waits for the end of a close, and a close for an opening that has begun.
    * Metrics run while it is open; alerts from the start until what was begun is finished.
    """

    def __init__(self, package: str) -> None:
        self._package = package  # for the names of tasks and threads
        self._background: list[asyncio.Task[None]] = []  # the worker, and housekeeping
        self._alerts: Alerts | None = None
        self._metrics: Metrics | None = None
        self._closed = False  # and nobody has begun to open it since
        self._opened_in: int | None = None  # the process
        # Whose it is: from the beginning of an opening to the end of a close.
        self._loop: asyncio.AbstractEventLoop | None = None
        self._taking = threading.Lock()
        self._opening = LoopLock()
        self._closing: asyncio.Task[None] | None = None

    @property
    def is_open(self) -> bool:
        """Whether it is open in this process: updates, or notifications, can be accepted."""
        return self._opened_in == os.getpid()

    # --- what a sender and a receiver differ in ------------------------------------------------

    @abc.abstractmethod
    async def _open_parts(self, access: Access) -> None:
        """Open the database, and what a call needs."""

    @abc.abstractmethod
    def _start_parts(self) -> Mapping[str, Coroutine[Any, Any, None]]:
        """Return what runs until it is closed, by name."""

    @abc.abstractmethod
    async def _finish(self) -> None:
        """End what runs in the background, and finish what that began.

        Not called for what a closed event loop left: nothing goes on there.
        """

    @abc.abstractmethod
    async def _close_parts(self) -> None:
        """Close what is open, of this event loop or of one that was closed; the database last."""

    # --- opening -------------------------------------------------------------------------------

    async def open(self, access: Access = Access.UPGRADE) -> None:
        """Open the database, without worker or callbacks; does nothing if it is open.

        For a process that only calls `notify`, or `expect` and `wait`. Unless it was closed, such
        calls also open a receiver, and start a sender, by themselves.

        Args:
            access: By default the tables are created, or brought up to date; with `Access.WRITE`
                they must be current.

        Raises:
            ConfigError: It was opened before this process was forked; or another event loop opened
                it, which was not closed.
            StorageError: The database cannot be opened.
        """
        self._check_process()
        if self._was_left:
            await self.close()
        # What is called by the close itself may open it, too; the end of the close undoes that.
        caller = asyncio.current_task()
        while (closing := self._running_close()) is not None and closing is not caller:
            await asyncio.wait([closing])
        async with self._opening.here:
            self._take()
            self._closed = False
            if self.is_open:
                return
            await self._open_parts(access)
            self._opened_in = os.getpid()
            self._start_metrics()

    def _check_process(self) -> None:
        """Check that no other process opened it. Raises ConfigError: one did, and forked."""
        if self._opened_in is not None and not self.is_open:
            raise ConfigError(
                f"this {type(self).__name__} was opened before this process was forked: make one in"
                " each process"
            )

    @property
    def _was_left(self) -> bool:
        """Whether its event loop was closed, and had not closed it to the end."""
        return self._loop is not None and self._loop.is_closed()

    def _take(self) -> None:
        """Let it belong to the running event loop. Raises ConfigError: it is another one's."""
        here = asyncio.get_running_loop()
        with self._taking:
            if self._loop not in (None, here) and not self._was_left:
                raise ConfigError(
                    "opened in another event loop, which was not closed: use it there, or close it"
                    " there first; from another thread with asyncio.run_coroutine_threadsafe()"
                )
            self._loop = here

    async def start(self) -> None:
        """Open the database and start the worker, or the callbacks; does nothing if they run.

        A closed one starts again, also in another event loop; while it is being closed, this waits
        for the end of that.

        Raises:
            ConfigError: It was opened before this process was forked; or another event loop opened
                it, which was not closed.
            StorageError: The database cannot be opened.
        """
        await self.open()
        if not self._background:
            self._background = [
                asyncio.create_task(coroutine, name=f"{self._package}-{name}")
                for name, coroutine in self._start_parts().items()
            ]
            if self._alerts is not None:
                self._alerts.start()

    def _measure(self) -> None:
        """Start the metrics, which were just made, perhaps in another thread."""
        if self.is_open and self._loop is not None and self._loop.is_running():
            self._loop.call_soon_threadsafe(self._start_metrics)

    def _start_metrics(self) -> None:
        if self._metrics is not None and self.is_open:
            self._metrics.start()

    # --- closing -------------------------------------------------------------------------------

    async def close(self) -> None:
        """Finish what runs, for as long as `drain` says; then close the database.

        What is left waits there for the next start. Until then, calls do not open the database by
        themselves, as they do at first. Calls at the same time wait for the same close, which goes
        on if a caller is cancelled. In a process that was forked meanwhile, nothing is closed.

        Raises:
            ConfigError: Another event loop opened it, which was not closed: close it there.
        """
        if self._opened_in is not None and not self.is_open:
            return
        was_left = self._was_left
        self._take()
        self._closed = True
        closing = self._running_close()
        if closing is None:
            name = f"{self._package}-closing"
            self._closing = closing = asyncio.create_task(self._close(was_left=was_left), name=name)
        await asyncio.shield(closing)

    def _running_close(self) -> asyncio.Task[None] | None:
        """Return the close that is under way in this event loop."""
        closing = self._closing
        if closing is None or closing.done():
            return None
        return closing if closing.get_loop() is asyncio.get_running_loop() else None

    async def _close(self, *, was_left: bool) -> None:
        async with self._opening.here:
            pass
        if was_left:
            self._background = []  # they have ended with their event loop, or never will
        else:
            await self._finish()
        if self._alerts is not None:
            await self._alerts.stop()  # still open: a sender's alerts are deliveries
        self._shut()
        if self._metrics is not None:
            await self._metrics.stop()
        await self._close_parts()
        self._shut()
        self._loop = None

    def _shut(self) -> None:
        """Be open no more, from now on."""
        self._opened_in, self._closed = None, True

    async def _end_background(self) -> None:
        background, self._background = self._background, []
        for task in background:
            await cancelled(task)

    # --- ways to have it run -------------------------------------------------------------------

    async def __aenter__(self) -> Self:
        try:
            await self.start()
        except BaseException:
            await self.close()  # `__aexit__` is not called then
            raise
        return self

    async def __aexit__(self, *_: object) -> None:
        await self.close()

    @contextlib.asynccontextmanager
    async def lifespan(self, _app: object = None) -> AsyncIterator[None]:
        """Run for the lifespan of a host: `FastAPI(lifespan=push.lifespan)`."""
        async with self:
            yield

    def in_thread(self) -> ServingThread:
        """Return a thread for it, for synchronous code: `pushkit.threads` says how."""
        from pushkit.threads import ServingThread

        return ServingThread(self, self._package)
