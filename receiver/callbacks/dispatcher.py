"""The dispatcher: hands notifications to callbacks, per task in order.

Every callback has its own state: one that fails is called again, the others are not. A notification
whose callback keeps failing becomes a dead letter; until then it holds up its own task alone.
"""

from __future__ import annotations

import asyncio
import contextlib
import inspect
import logging
import secrets
from collections.abc import AsyncIterator, Awaitable, Callable, Sequence
from datetime import datetime, timedelta

from pushkit.errors import StorageError
from pushkit.storage import SqliteDatabase
from pushkit.work import Pump, RetryPolicy, next_attempt, stop_after_attempt, wait_schedule
from receiver.callbacks.registry import Callback, CallbackRegistry
from receiver.inbox import ClaimedNotification, Inbox, InboxStatus, Notification

__all__ = ["Dispatcher", "callback_retry"]

_log = logging.getLogger("receiver")

_LEASE = timedelta(seconds=60)


def callback_retry() -> RetryPolicy:
    """Return the default policy for a failing callback: ten times over about two hours."""
    return RetryPolicy(
        wait=wait_schedule((1, 5, 15, 60, 300, 600, 1200, 1800, 3600)), stop=stop_after_attempt(10)
    )


class Dispatcher:
    """Runs callbacks from the inbox.

    Args:
        database: Where the inbox lives.
        registry: The callbacks.
        clock: Returns now, aware, in UTC.
        retry: When a failed callback is called again.
        concurrency: How many tasks' notifications at once.
    """

    def __init__(
        self,
        database: SqliteDatabase,
        registry: CallbackRegistry,
        *,
        clock: Callable[[], datetime],
        retry: RetryPolicy,
        concurrency: int,
    ) -> None:
        self._database = database
        self._registry = registry
        self._clock = clock
        self._retry = retry
        self._inbox = Inbox()
        self._held: set[int] = set()
        self._name = f"dispatcher_{secrets.token_hex(8)}"
        self.pump = Pump(
            "callbacks",
            claim=self._claim,
            process=self._dispatch,
            until_due=self._until_due,
            concurrency=concurrency,
        )

    async def run_once(self) -> int:
        """Hand out every notification that is due now; return how many there were."""
        return await self.pump.run_once()

    async def _claim(self, limit: int) -> Sequence[ClaimedNotification]:
        now = self._clock()
        return await self._database.write(
            self._inbox.claim(
                self._name, limit=limit, now=now, until=now + _LEASE, held=tuple(self._held)
            )
        )

    async def _dispatch(self, claimed: ClaimedNotification) -> None:
        self._held.add(claimed.notification.id)
        try:
            await self._call_all(claimed)
        finally:
            self._held.discard(claimed.notification.id)

    async def _call_all(self, claimed: ClaimedNotification) -> None:
        notification = claimed.notification
        error: str | None = None
        async with self._lease_kept(notification):
            for callback in self._registry.wanting(notification):
                if callback.name not in claimed.callbacks_done:
                    error = await self._call(callback, notification) or error
        await self._settle(claimed, error)

    async def _call(self, callback: Callback, notification: Notification) -> str | None:
        """Call back, and remember it; return a short reason if that failed."""
        try:
            await _invoke(callback, notification)
        except (Exception, asyncio.CancelledError) as exc:  # a callback is somebody else's code
            if _is_cancelled(exc):
                raise
            _log.exception(
                "callback %s failed on notification %d task=%a",  # %a: no line ends of a sender's
                callback.name,
                notification.id,
                notification.task_id,
            )
            return f"{callback.name}: {type(exc).__name__}"
        await self._database.write(self._inbox.mark_callback_done(notification.id, callback.name))
        return None

    async def _settle(self, claimed: ClaimedNotification, error: str | None) -> None:
        notification, now = claimed.notification, self._clock()
        status, retry_at = InboxStatus.DONE, None
        if error is not None:
            retry_at = next_attempt(
                self._retry, attempts=claimed.attempts, since=notification.received_at, now=now
            )
            status = InboxStatus.DEAD if retry_at is None else InboxStatus.RECEIVED
        if status is InboxStatus.DEAD:
            _log.error("notification %d is a dead letter: %s", notification.id, error)
        await self._database.write(
            self._inbox.settle(
                notification.id, self._name, status, now=now, retry_at=retry_at, error=error
            )
        )

    @contextlib.asynccontextmanager
    async def _lease_kept(self, notification: Notification) -> AsyncIterator[None]:
        """Extend the lease while a callback runs, however long it takes."""
        keeper = asyncio.create_task(self._keep_lease(notification.id))
        try:
            yield
        finally:
            keeper.cancel()
            with contextlib.suppress(asyncio.CancelledError):
                await keeper

    async def _keep_lease(self, notification_id: int) -> None:
        kept = True
        while kept:
            await asyncio.sleep(_LEASE.total_seconds() / 3)
            until = self._clock() + _LEASE
            # A database out of reach must not end the renewal: the callback goes on.
            with contextlib.suppress(StorageError):
                kept = await self._database.write(
                    self._inbox.keep_lease(notification_id, self._name, until)
                )

    async def _until_due(self) -> timedelta | None:
        now = self._clock()
        due = await self._database.read(self._inbox.next_due())
        return None if due is None else due - now


def _is_cancelled(exc: BaseException) -> bool:
    """Say whether it is this task that ends, and not just something within the callback."""
    task = asyncio.current_task()
    return isinstance(exc, asyncio.CancelledError) and task is not None and task.cancelling() > 0


async def _invoke(callback: Callback, notification: Notification) -> None:
    if inspect.iscoroutinefunction(callback.function):
        await callback.function(notification)
        return
    # A plain function may block: it gets a thread, the loop goes on.
    result = await asyncio.to_thread(_call_plain, callback, notification)
    if inspect.isawaitable(result):
        await result


def _call_plain(callback: Callback, notification: Notification) -> Awaitable[None] | None:
    try:
        return callback.function(notification)
    except StopIteration as exc:
        # A future cannot carry it: before Python 3.12 the wait for the thread would never end.
        raise RuntimeError("the callback raised StopIteration") from exc
