"""`Runtime`: the parts of a running receiver, and the order in which they start and stop."""

from __future__ import annotations

import asyncio
import functools
import logging
from collections.abc import Coroutine
from datetime import timedelta
from typing import TYPE_CHECKING, Any

from pushkit.errors import StorageError
from pushkit.lifetime import HasLifetime
from pushkit.net.transport import Transport
from pushkit.scheduling.event_loop import cancelled, housekeep
from pushkit.storage.database import Database, fault_of
from pushkit.storage.migrations import Access
from receiver.admin import InboxAdmin
from receiver.callbacks.dispatcher import Dispatcher
from receiver.callbacks.waiting import Arrivals
from receiver.inbox.retention import InboxRetention
from receiver.inbox.store import is_readable
from receiver.mailbox.service import Mailboxes
from receiver.trust import Trust, warn_of_weak_trust

if TYPE_CHECKING:
    from receiver.forwards import Forward

_log = logging.getLogger("receiver")

DRAIN = timedelta(seconds=20)


class Runtime(HasLifetime):
    """Opens, runs and closes the parts of a receiver."""

    # The trusted senders that are currently in force, and their keys. It may be replaced at any
    # time: a request is verified against the trust that was in force when it arrived.
    trust: Trust
    inbox: InboxAdmin  # for operators: find, redrive, purge
    dispatcher: Dispatcher  # calls back
    _database: Database  # the inbox and the expected tasks
    _transport: Transport  # fetches JWK Sets
    _arrivals: Arrivals  # wakes the callers of `wait` and `updates`
    _mailboxes: Mailboxes  # answers the clients of mailboxes
    _retention: InboxRetention
    _drain: timedelta  # how long callbacks may continue after `wind_down`

    def __init__(self) -> None:
        super().__init__("receiver")
        self._forwards: list[Forward] = []  # closed after callbacks
        self._ends_at: float | None = None  # of the drain, by the loop's clock
        self._listening: asyncio.Task[None] | None = None

    @property
    def _is_running(self) -> bool:
        """Whether callbacks run, and are not being stopped."""
        return bool(self._background) and self._ends_at is None

    async def _open_parts(self, access: Access) -> None:
        await self._database.open(access)

    async def _ask(self) -> None:
        """Open the inbox for a query or a write, unless the receiver was closed.

        Raises:
            StorageError: It was closed, or the inbox cannot be opened.
        """
        if self._closed:
            raise StorageError("the receiver was closed")
        if not self.is_open or self._was_left:
            await self.open()

    async def _listen(self) -> None:
        """Open the inbox, and learn from now on of notifications that other processes accept."""
        await self._ask()
        self._begin_to_listen()

    def _begin_to_listen(self) -> None:
        if self._listening is None:
            self._listening = asyncio.create_task(
                self._database.listen(self._hear, self._look_again),
                name="receiver-listening",
            )

    def _start_parts(self) -> dict[str, Coroutine[Any, Any, None]]:
        self._begin_to_listen()
        self._mailboxes.begin()
        self.dispatcher.registry.is_frozen = True
        warn_of_weak_trust(self.trust.senders.values())
        self.dispatcher.registry.warn_of_unknown(self.trust.senders)
        self.trust.load()
        if allowed := self._transport.policy.allow:
            _log.warning("URLs named in allow are not checked: %s", ", ".join(allowed))
        retain = functools.partial(self.inbox.retain, self._retention)
        return {
            "callbacks": self.dispatcher.run(),
            "housekeeping": housekeep("inbox", retain, log=_log),
        }

    def wind_down(self) -> None:
        """Start no more callbacks; running ones have `drain` from now on.

        A coroutine that does not end in time is cancelled, and called again after the next start. A
        plain function cannot be cancelled: its notification is called back again when the lease has
        expired. Notifications are still accepted, and clients that wait at mailboxes are answered:
        for a service that is stopping. `close` does the same, and the rest.
        """
        self._mailboxes.end()
        if self._ends_at is None:
            self._ends_at = asyncio.get_running_loop().time() + self._drain.total_seconds()
            for task in self._background:
                task.cancel()

    async def _finish(self) -> None:
        self.wind_down()
        self._shut()
        await self._end_background()
        left = (self._ends_at or 0) - asyncio.get_running_loop().time()
        await self.dispatcher.finish(within=timedelta(seconds=max(left, 0)))

    async def _close_parts(self) -> None:
        self._ends_at = None
        for forward in self._forwards:
            await forward.close()
        await self.dispatcher.retire()
        self.dispatcher.registry.is_frozen = False
        await self.trust.close()
        await self._transport.close()
        listening, self._listening = self._listening, None
        if listening is not None:
            await cancelled(listening)
        await self._database.close()
        await self._arrivals.close()

    def _hear(self) -> None:
        """Wake the dispatcher and those in `wait`: another process stored a notification."""
        self.dispatcher.runner.wake_soon()
        self._look_again()

    def _look_again(self) -> None:
        """Wake those in `wait`, and clients of mailboxes: another process stored something."""
        self._arrivals.look()
        self._mailboxes.wake()

    async def unready(self) -> dict[str, str]:
        """Return the failing parts without which nothing can be served, each with its reason.

        `storage` and `callbacks` (they do not run, or all hang); `{}` if it is ready.
        """
        unready: dict[str, str] = {}
        if fault := await fault_of(self._database, is_readable()):
            unready["storage"] = f"storage: {fault}"
        if not self._background or any(task.done() for task in self._background):
            unready["callbacks"] = "callbacks: the dispatcher does not run"
        elif self.dispatcher.caller.is_stuck:
            hanging = sorted(self.dispatcher.caller.hanging.items())
            says = ", ".join(_hang(name, many) for name, many in hanging)
            unready["callbacks"] = f"callbacks: none can be called: {says}"
        return unready

    def degraded(self) -> dict[str, str]:
        """Return the parts that fail for some senders or callbacks, each with its reason.

        `keys` (a sender's requests are answered 503 until its keys are loaded) and `callbacks`
        (calls that hang); `{}` if nothing fails.
        """
        degraded: dict[str, str] = {}
        for (part, _), reason in self._faults_of_some().items():
            degraded[part] = f"{degraded[part]}; {reason}" if part in degraded else reason
        return degraded

    def _faults_of_some(self) -> dict[tuple[str, str], str]:
        """Return the same one by one, by the part and the name of its sender or callback."""
        missing = sorted(self.trust.missing().items())
        hanging = sorted(self.dispatcher.caller.hanging.items())
        return {
            **{("keys", name): f"keys of sender {name}: {reason}" for name, reason in missing},
            **{("callbacks", name): f"callbacks: {_hang(name, many)}" for name, many in hanging},
        }


def _hang(name: str, many: int) -> str:
    return f"{many} calls of {name} hang" if many > 1 else f"a call of {name} hangs"
