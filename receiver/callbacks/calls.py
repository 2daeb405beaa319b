"""One call of a callback: under its time-out, in a place of its callback's share.

It runs in the task that works on its notification. A coroutine is cancelled when its time is over.
A plain function's thread cannot be, nor a coroutine that swallows the cancellation: such a call
hangs. It keeps its notification until it ends, but no place among those that run, as long as not
too many hang.
"""

from __future__ import annotations

import asyncio
import functools
import inspect
import logging
from collections import Counter
from collections.abc import Awaitable, Callable
from dataclasses import dataclass
from datetime import timedelta
from typing import Any, Final

from pushkit.errors import PushkitError
from pushkit.logs import RepeatedLog
from pushkit.record import record
from pushkit.scheduling.deadlines import Deadlines
from pushkit.scheduling.pump import cancelled
from pushkit.traceparent import trace_id_of
from receiver.callbacks.registry import NO_TIMEOUT, Callback
from receiver.callbacks.threads import CallbackThreads
from receiver.callbacks.turns import Place, Shares, share_of
from receiver.inbox.model import Notification, StoredNotification

_log = logging.getLogger("receiver")

TIMED_OUT: Final = "timed_out"
CALLBACK_FAILED: Final = "callback_failed"
_GRACE: Final = 2.0  # seconds that a coroutine has to end once it is cancelled


@record(frozen=True, slots=True)
class Call:
    """How one call of a callback ended."""

    callback: str
    error: str | None


@dataclass(slots=True, eq=False, kw_only=True)
class _Running:
    """A call that is under way."""

    callback: Callback
    notification: Notification
    place: Place
    limit: float | None  # seconds
    task: asyncio.Task[Any]  # in which it runs
    over_time: Callable[[_Running], None]  # called when its time is over
    is_cut_off: bool = False
    hangs: bool = False
    holds: bool = False  # it hangs, and keeps the slot of its notification

    def expire(self) -> None:
        """Be told that its time is over."""
        self.over_time(self)


class Caller:
    """Calls callbacks.

    Args:
        slots: How many notifications are worked on at once. As many calls may hang besides.
        timeout: How long a call may take, where its callback says nothing; None for any time.
        let_go: Frees the slot of a notification of a sender, while the task that works on it goes
            on with a call that hangs.
        left_over: Called with a task of `left` that has ended; maybe in a thread.
    """

    def __init__(
        self,
        *,
        slots: int,
        timeout: timedelta | None,
        let_go: Callable[[asyncio.Task[Any], str], None],
        left_over: Callable[[asyncio.Task[Any]], None],
    ) -> None:
        self._slots = slots
        self._timeout = timeout
        self._let_go = let_go
        self._left_over = left_over
        self._threads = CallbackThreads(self._forget_left)
        self._shares = Shares()
        self._running: dict[asyncio.Task[Any], _Running] = {}
        self._deadlines = Deadlines()
        self._holding = 0  # slots that hanging calls have
        self._said = RepeatedLog(_log)
        self.outside: set[asyncio.Task[Any]] = set()  # tasks that gave up their slots
        # What was broken off and has not ended: the id of each one's notification.
        self.left: dict[asyncio.Task[Any], int] = {}
        self.is_ending: bool = False  # nothing is called any more

    @property
    def hanging(self) -> Counter[str]:
        """How many calls hang, by callback."""
        return Counter(run.callback.name for run in self._running.values() if run.hangs)

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

    async def call(self, callback: Callback, notification: Notification, place: Place) -> Call:
        """Call a callback with a notification, and say how that ended."""
        task = asyncio.current_task()
        assert task is not None  # noqa: S101  # the pump's
        if self.is_ending:
            place.leave()
            raise asyncio.CancelledError
        limit = self._limit(callback)
        run = _Running(
            callback=callback,
            notification=notification,
            place=place,
            limit=limit,
            task=task,
            over_time=self._is_over_time,
        )
        self._running[task] = run
        if limit is not None:
            self._look_at(run, limit)
        error: BaseException | None = None
        try:
            if callback.is_async:
                await callback.function(notification)  # type: ignore[misc]  # a coroutine
            else:
                await self._call_in_thread(callback, notification)
        except BaseException as exc:  # noqa: BLE001  # whatever it raises
            error = _failure_of(exc)
        finally:
            del self._running[task]
            self._deadlines.clear(run)
            self._holding -= int(run.holds)
            place.leave()
            self._forget_left(task)
        if run.is_cut_off:
            task.uncancel()
        self._forget_caught(task, error)
        if task.cancelling():  # not from here: the process ends
            if self._threads.is_inside(task):
                self.left[task] = notification.id
            raise asyncio.CancelledError
        if run.is_cut_off:
            self._say(run, "was cut off after %g s")
            return Call(callback.name, TIMED_OUT)
        if error is not None:
            _say_failed(callback, notification, error)
            return Call(callback.name, type(error).__name__)
        return Call(callback.name, None)

    async def break_off(self) -> None:
        """Cancel the calls that are under way, because the process ends.

        What a thread is inside of, or goes on all the same, is left behind.
        """
        self.is_ending = True
        running = list(self._running)
        for task in running:
            task.cancel()
        if running:
            await asyncio.wait(running, timeout=_GRACE)
        for task, run in list(self._running.items()):
            self.left[task] = run.notification.id
            self._give_slot_up(task, run)
        for task in self.outside.difference(self._running):
            await cancelled(task)

    def close(self) -> None:
        """End idle threads."""
        self._deadlines.close()
        self._threads.close()

    def _limit(self, callback: Callback) -> float | None:
        limit = self._timeout if callback.timeout is None else callback.timeout
        return None if limit is None or limit == NO_TIMEOUT else limit.total_seconds()

    async def _call_in_thread(self, callback: Callback, notification: Notification) -> None:
        # A plain function may block: it gets a thread, the loop goes on.
        work = functools.partial(_call_plain, callback, notification)
        result = await self._threads.run(work)
        if inspect.isawaitable(result):
            await result

    def _forget_caught(self, task: asyncio.Task[Any], error: BaseException | None) -> None:
        """Let cancellations that a callback made itself, and has caught, count for nothing."""
        if not self.is_ending and not isinstance(error, asyncio.CancelledError):
            while task.cancelling():
                task.uncancel()

    # --- calls that do not end -----------------------------------------------------------------

    def _look_at(self, run: _Running, within: float) -> None:
        self._deadlines.set(run, asyncio.get_running_loop().time() + within)

    def _is_over_time(self, run: _Running) -> None:
        """Cut a call off; one that goes on all the same, or is in a thread, hangs."""
        task = run.task
        if not (run.is_cut_off or self._threads.is_inside(task)):
            run.is_cut_off = True
            self._look_at(run, _GRACE)
            task.cancel()
            return
        run.hangs = True
        self._say(run, "hangs: it did not end within %g s")
        if len(self.outside) < self._slots:
            self._give_slot_up(task, run)
        run.holds = task not in self.outside
        self._holding += int(run.holds)
        if not run.holds:
            run.place.leave()

    def _give_slot_up(self, task: asyncio.Task[Any], run: _Running) -> None:
        if task not in self.outside:
            self.outside.add(task)
            self._let_go(task, run.notification.sender)

    def _forget_left(self, task: asyncio.Task[Any]) -> None:
        if self.left.pop(task, None) is not None:
            self._left_over(task)

    def _say(self, run: _Running, what: str) -> None:
        callback, notification = run.callback, run.notification
        self._said.say(
            (what, callback.name),
            logging.ERROR,
            f"callback %s {what} with notification %d task=%a%s",  # %a: no line ends of a sender's
            *(callback.name, run.limit or 0, notification.id, notification.task_id),
            within_trace(notification),
            extra={"code": TIMED_OUT, "callback": callback.name, **logged_of(notification)},
        )


def _failure_of(raised: BaseException) -> BaseException:
    """Return what a callback raised, as what it failed by; what ends a program goes on."""
    if isinstance(raised, KeyboardInterrupt | GeneratorExit):
        raise raised
    if isinstance(raised, Exception | asyncio.CancelledError):
        return raised
    # `sys.exit()`, or a time-out of some libraries: the callback ends, not the service.
    error = RuntimeError(f"the callback raised {type(raised).__name__}")
    error.__cause__ = raised
    return error


def _say_failed(callback: Callback, notification: Notification, error: BaseException) -> None:
    is_told = isinstance(error, PushkitError)  # a forward's, mostly: no traceback says more
    _log.error(
        "callback %s failed on notification %d task=%a%s%s",
        callback.name,
        notification.id,
        notification.task_id,
        within_trace(notification),
        f": {error}" if is_told else "",
        exc_info=None if is_told else error,
        extra={"code": CALLBACK_FAILED, "callback": callback.name, **logged_of(notification)},
    )


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


def _call_plain(callback: Callback, notification: Notification) -> Awaitable[None] | None:
    try:
        return callback.function(notification)
    except StopIteration as exc:
        # A future cannot carry it.
        raise RuntimeError("the callback raised StopIteration") from exc
