"""`Runtime`: the parts of a running receiver, and the order in which they start and stop."""

from __future__ import annotations

import asyncio
import logging
import os
from collections.abc import Awaitable, Callable
from dataclasses import dataclass, field
from datetime import timedelta
from typing import TYPE_CHECKING

from pushkit.errors import ConfigError, StorageError
from pushkit.net.transport import Transport
from pushkit.scheduling.event_loop import LoopLock, cancelled, check_may_close, housekeep
from pushkit.storage.database import Database, fault_of
from pushkit.storage.migrations import Access
from receiver.callbacks.dispatcher import Dispatcher
from receiver.callbacks.waiting import Arrivals
from receiver.inbox.store import is_readable
from receiver.mailbox.service import Mailboxes
from receiver.trust import Trust, warn_of_weak_trust

if TYPE_CHECKING:
    from receiver.forwards import Forward

_log = logging.getLogger("receiver")

DRAIN = timedelta(seconds=20)


@dataclass(slots=True, kw_only=True)
class Runtime:
    """Opens, runs and closes the parts of a receiver."""

    database: Database  # the inbox and the expected tasks
    transport: Transport  # fetches JWK Sets
    # The trusted senders and their keys. May be replaced at any time: each request is verified
    # against the trust that was in force when it arrived.
    trust: Trust
    dispatcher: Dispatcher  # calls back
    arrivals: Arrivals  # wakes the callers of `wait` and `updates`
    mailboxes: Mailboxes  # answers the clients of mailboxes
    retain: Callable[[], Awaitable[int]]  # deletes rows whose retention is over
    drain: timedelta  # how long callbacks may continue after `wind_down`
    # The process that opened it, and in which it is open.
    _opened_in: int | None = field(default=None, init=False)
    _loop: asyncio.AbstractEventLoop | None = field(default=None, init=False)  # that opened it
    _is_closed: bool = field(default=False, init=False)  # closed, and not opened again since
    _ends_at: float | None = field(default=None, init=False)  # of the drain, by the loop's clock
    forwards: list[Forward] = field(default_factory=list, init=False)  # closed after callbacks
    # Held while the inbox opens or closes: two callers may open it at once.
    _opening: LoopLock = field(default_factory=LoopLock, init=False)
    _background: list[asyncio.Task[None]] = field(default_factory=list, init=False)
    _listening: asyncio.Task[None] | None = field(default=None, init=False)

    @property
    def is_open(self) -> bool:
        """Whether notifications can be accepted."""
        return self._opened_in == os.getpid()

    @property
    def is_forked(self) -> bool:
        """Whether it was opened before this process was forked: nothing of it runs here."""
        return self._opened_in is not None and not self.is_open

    @property
    def is_running(self) -> bool:
        """Whether callbacks run, and are not being stopped."""
        return bool(self._background) and self._ends_at is None

    def check_may_close(self) -> None:
        """Raise ConfigError if it was opened in another event loop, which is running."""
        if self._loop is not None and self.is_open:
            check_may_close(self._loop)

    async def open(self, access: Access = Access.UPGRADE) -> None:
        """Open the inbox, without callbacks."""
        async with self._opening.here:
            if self.is_forked:
                raise ConfigError(
                    "the receiver was opened before this process was forked: make one in each"
                    " process"
                )
            await self.database.open(access)
            if not self.is_open:
                self._opened_in, self._loop = os.getpid(), asyncio.get_running_loop()
            self._is_closed = False

    async def ask(self) -> None:
        """Open the inbox for a query or a write, unless the receiver was closed.

        Raises:
            StorageError: It was closed, or the inbox cannot be opened.
        """
        if self._is_closed:
            raise StorageError("the receiver was closed")
        await self.open()

    async def listen(self) -> None:
        """Open the inbox, and learn from now on of notifications that other processes accept."""
        await self.ask()
        self._begin_to_listen()

    def _begin_to_listen(self) -> None:
        if self._listening is None:
            self._listening = asyncio.create_task(
                self.database.listen(self.hear, self.look),
                name="receiver-listening",
            )

    async def start(self) -> None:
        """Open the inbox and start the callbacks. Do nothing if they run already."""
        await self.open()
        self._begin_to_listen()
        if self._background:
            return
        self.mailboxes.begin()
        self.dispatcher.registry.is_frozen = True
        warn_of_weak_trust(self.trust.senders.values())
        self.dispatcher.registry.warn_of_unknown(self.trust.senders)
        self.trust.load()
        if allowed := self.transport.policy.allow:
            _log.warning("URLs named in allow are not checked: %s", ", ".join(allowed))
        self._background = [
            asyncio.create_task(self.dispatcher.run(), name="receiver-callbacks"),
            asyncio.create_task(
                housekeep("inbox", self.retain, log=_log), name="receiver-housekeeping"
            ),
        ]

    def wind_down(self) -> None:
        """Start no more callbacks; running ones have the time of `drain` from now on.

        Clients that wait at mailboxes are answered.
        """
        self.mailboxes.end()
        if self._ends_at is None:
            self._ends_at = asyncio.get_running_loop().time() + self.drain.total_seconds()
            for task in self._background:
                task.cancel()

    async def close(self) -> None:
        """Wait for running callbacks, then close everything; the inbox last."""
        self.wind_down()
        self._opened_in, self._is_closed = None, True
        background, self._background = self._background, []
        for task in background:
            await cancelled(task)
        left = (self._ends_at or 0) - asyncio.get_running_loop().time()
        await self.dispatcher.finish(within=timedelta(seconds=max(left, 0)))
        self._ends_at = None
        for forward in self.forwards:
            await forward.close()
        await self.dispatcher.retire()
        self.dispatcher.registry.is_frozen = False
        await self.trust.close()
        await self.transport.close()
        async with self._opening.here:
            # Again: another task may have opened it meanwhile.
            self._opened_in, self._is_closed = None, True
            listening, self._listening = self._listening, None
            if listening is not None:
                await cancelled(listening)
            await self.database.close()
            await self.arrivals.close()

    def hear(self) -> None:
        """Wake the dispatcher and those in `wait`: another process stored a notification."""
        self.dispatcher.runner.wake_soon()
        self.look()

    def look(self) -> None:
        """Wake those in `wait`, and clients of mailboxes: another process stored something."""
        self.arrivals.look()
        self.mailboxes.wake()

    async def unready(self) -> dict[str, str]:
        """Return the failing parts without which nothing can be served, each with its reason."""
        unready: dict[str, str] = {}
        if fault := await fault_of(self.database, is_readable()):
            unready["storage"] = f"storage: {fault}"
        if not self._background or any(task.done() for task in self._background):
            unready["callbacks"] = "callbacks: the dispatcher does not run"
        elif self.dispatcher.caller.is_stuck:
            hanging = sorted(self.dispatcher.caller.hanging.items())
            says = ", ".join(_hang(name, many) for name, many in hanging)
            unready["callbacks"] = f"callbacks: none can be called: {says}"
        return unready

    def degraded(self) -> dict[str, str]:
        """Return the parts that fail for some senders or callbacks, each with its reason."""
        degraded: dict[str, str] = {}
        for (part, _), reason in self.faults_of_some().items():
            degraded[part] = f"{degraded[part]}; {reason}" if part in degraded else reason
        return degraded

    def faults_of_some(self) -> dict[tuple[str, str], str]:
        """Return the same one by one, by the part and the name of its sender or callback."""
        missing = sorted(self.trust.missing().items())
        hanging = sorted(self.dispatcher.caller.hanging.items())
        return {
            **{("keys", name): f"keys of sender {name}: {reason}" for name, reason in missing},
            **{("callbacks", name): f"callbacks: {_hang(name, many)}" for name, many in hanging},
        }


def _hang(name: str, many: int) -> str:
    return f"{many} calls of {name} hang" if many > 1 else f"a call of {name} hangs"
