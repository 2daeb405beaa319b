"""One call of a callback: under its time-out, in a place of its callback's share.

A coroutine is cancelled when its time is over. A plain function's thread cannot be, nor a coroutine
that swallows the cancellation: such a call hangs. It keeps its notification until it ends, but no
place among those that run, as long as not too many hang.
"""

from __future__ import annotations

import asyncio
import contextlib
import functools
import inspect
import logging
from collections import Counter
from collections.abc import Awaitable, Callable, Iterator
from dataclasses import dataclass
from datetime import timedelta
from typing import Any, Final

from pushkit.logs import RepeatedLog
from pushkit.traceparent import trace_id_of
from receiver.callbacks.registry import NO_TIMEOUT, Callback
from receiver.callbacks.shares import Place, Shares, share_of
from receiver.callbacks.threads import CallbackThreads
from receiver.inbox.model import Notification, StoredNotification

_log = logging.getLogger("receiver")

TIMED_OUT: Final = "timed_out"
CALLBACK_FAILED: Final = "callback_failed"
_GRACE: Final = 2.0  # seconds that a coroutine has to end once it is cancelled


@dataclass(frozen=True, slots=True)
class Call:
    """How one call of a callback ended."""

    callback: str
    error: str | None


class Slot:
    """One of the places in which notifications are worked on; a call that hangs may give it up.

    Args:
        let_go: Frees the place, while the work goes on.
    """

    def __init__(self, let_go: Callable[[], None]) -> None:
        self.is_free = False
        self._let_go = let_go

    def free(self) -> None:
        """Give the place up."""
        self.is_free = True
        self._let_go()


class Caller:
    """Calls callbacks.

    Args:
        slots: How many notifications are worked on at once. As many calls may hang besides.
        timeout: How long a call may take, where its callback says nothing; None for any time.
    """

    def __init__(self, *, slots: int, timeout: timedelta | None) -> None:
        self._slots = slots
        self._timeout = timeout
        self._threads = CallbackThreads()
        self._shares = Shares()
        self._hanging: dict[asyncio.Task[Any], str] = {}
        self._holding = 0  # slots that hanging calls have
        self._outside = 0  # notifications in work that gave up their slots
        self._said = RepeatedLog(_log)
        self.left_inside: set[int] = set()

    @property
    def hanging(self) -> Counter[str]:
        """How many calls hang, by callback."""
        return Counter(self._hanging.values())

    @property
    def is_stuck(self) -> bool:
        """Whether hanging calls have every slot, so that no other callback is called."""
        return self._holding >= self._slots

    async def take_place(self, callback: Callback, *, alone: bool, hung_before: bool) -> Place:
        """Return a place for a call.

        Args:
            alone: Whether it is the only callback.
            hung_before: Whether its last call with this notification ran out of time. All such
                calls together have half of the slots: other tasks go on.

        Raises:
            CrowdedError: This callback, or what ran out of time before, has its share.
        """
        place = await self._shares.take(callback.name, share_of(self._slots, alone=alone))
        if not hung_before or self._slots == 1:
            return place
        return await self._shares.take(TIMED_OUT, self._slots // 2, besides=place)

    async def call(
        self, callback: Callback, notification: Notification, *, slot: Slot, place: Place
    ) -> Call:
        """Call a callback with a notification, and say how that ended."""
        invoked = _invoke(self._threads, callback, notification)
        call = asyncio.get_running_loop().create_task(invoked)
        limit = self._limit(callback)
        cut_off = False
        try:
            await asyncio.sleep(0)
            if not call.done():  # most have done what they have to by now
                await asyncio.wait([call], timeout=limit)
            if not (call.done() or self._threads.is_inside(call)):
                cut_off = True
                call.cancel()
                await asyncio.wait([call], timeout=_GRACE)
            if not call.done():
                with self._hangs(call, callback, notification, slot, place):
                    await asyncio.wait([call])
        except asyncio.CancelledError:
            await self._break_off(call, notification)
            raise
        finally:
            place.leave()
        if cut_off:
            self._say(callback, notification, "was cut off after %g s", limit)
            return Call(callback.name, TIMED_OUT)
        return _ended(call, callback, notification)

    def end(self, slot: Slot) -> None:
        """Note that the work of a slot has come to its end, in the slot or outside of it."""
        self._outside -= int(slot.is_free)

    def close(self) -> None:
        """End idle threads."""
        self._threads.close()

    def _limit(self, callback: Callback) -> float | None:
        limit = self._timeout if callback.timeout is None else callback.timeout
        return None if limit is None or limit == NO_TIMEOUT else limit.total_seconds()

    @contextlib.contextmanager
    def _hangs(
        self,
        call: asyncio.Task[Any],
        callback: Callback,
        notification: Notification,
        slot: Slot,
        place: Place,
    ) -> Iterator[None]:
        self._say(
            callback, notification, "hangs: it did not end within %g s", self._limit(callback)
        )
        self._hanging[call] = callback.name
        if self._outside < self._slots and not slot.is_free:
            self._outside += 1
            slot.free()
        holds = not slot.is_free
        if not holds:
            place.leave()
        self._holding += int(holds)
        try:
            yield
        finally:
            del self._hanging[call]
            self._holding -= int(holds)

    async def _break_off(self, call: asyncio.Task[Any], notification: Notification) -> None:
        """End a call because the process ends; note what goes on all the same."""
        in_a_thread = self._threads.is_inside(call)
        self.left_inside.add(notification.id)
        call.cancel()
        try:
            await asyncio.wait([call], timeout=_GRACE)
        finally:
            if call.done() and not in_a_thread:
                self.left_inside.discard(notification.id)

    def _say(
        self, callback: Callback, notification: Notification, what: str, limit: float | None
    ) -> None:
        self._said.say(
            (what, callback.name),
            logging.ERROR,
            f"callback %s {what} with notification %d task=%a%s",  # %a: no line ends of a sender's
            *(callback.name, limit or 0, notification.id, notification.task_id),
            within_trace(notification),
            extra={"code": TIMED_OUT, "callback": callback.name, **logged_of(notification)},
        )


def _ended(call: asyncio.Task[Any], callback: Callback, notification: Notification) -> Call:
    error = asyncio.CancelledError() if call.cancelled() else call.exception()
    if error is None:
        return Call(callback.name, None)
    _log.error(
        "callback %s failed on notification %d task=%a%s",
        callback.name,
        notification.id,
        notification.task_id,
        within_trace(notification),
        exc_info=error,
        extra={"code": CALLBACK_FAILED, "callback": callback.name, **logged_of(notification)},
    )
    return Call(callback.name, type(error).__name__)


def logged_of(notification: Notification | StoredNotification) -> dict[str, object]:
    """Return what a log of objects has of a notification."""
    trace_id = trace_id_of(notification.traceparent)
    return {
        "sender": notification.sender,
        "task": notification.task_id,
        "delivery_id": notification.delivery_id,
        "notification_id": notification.id,
        **({"trace_id": trace_id} if trace_id else {}),
    }


def within_trace(notification: Notification | StoredNotification) -> str:
    """Return what a line says of the trace."""
    trace_id = trace_id_of(notification.traceparent)
    return f" trace_id={trace_id}" if trace_id else ""


async def _invoke(threads: CallbackThreads, callback: Callback, notification: Notification) -> None:
    try:
        if callback.is_async:
            await callback.function(notification)  # type: ignore[misc]  # a coroutine
            return
        # A plain function may block: it gets a thread, the loop goes on.
        result = await threads.run(functools.partial(_call_plain, callback, notification))
        if inspect.isawaitable(result):
            await result
    except SystemExit as exc:  # the callback ends, not the service
        raise RuntimeError("the callback raised SystemExit") from exc


def _call_plain(callback: Callback, notification: Notification) -> Awaitable[None] | None:
    try:
        return callback.function(notification)
    except StopIteration as exc:
        # A future cannot carry it.
        raise RuntimeError("the callback raised StopIteration") from exc
