"""One call of a callback: under its time-out, in a slot of its callback's share.

The call runs in the task that works on its notification. A coroutine is cancelled when its time is
over. The thread of a plain function cannot be cancelled, nor a coroutine that swallows the
cancellation: such a call hangs. It keeps its queue until it ends, but gives up its permit, unless
too many calls hang.
"""

from __future__ import annotations

import asyncio
import contextlib
import contextvars
import functools
import inspect
import logging
import queue
import threading
from collections import Counter
from collections.abc import Callable
from dataclasses import dataclass
from datetime import timedelta
from typing import Any, Final, TypeVar

from pushkit.errors import PushkitError
from pushkit.logs import RepeatedLog
from pushkit.record import record
from pushkit.scheduling.event_loop import Deadlines, cancelled
from receiver.callbacks.registry import NO_TIMEOUT, Callback
from receiver.callbacks.reporting import logged_of, named
from receiver.callbacks.shares import CrowdedError, Slot, new_shares, share_of
from receiver.inbox.model import Call, Notification

T = TypeVar("T")

_log = logging.getLogger("receiver")

TIMED_OUT: Final = "timed_out"
CALLBACK_FAILED: Final = "callback_failed"
_GRACE: Final = 2.0  # seconds that a coroutine has to end once it is cancelled


@dataclass(slots=True, eq=False, kw_only=True)
class _Running:
    callback: Callback
    queue_id: str  # of the notification
    notification: Notification
    slot: Slot  # of its callback's share
    limit: float | None  # seconds
    task: asyncio.Task[Any]  # in which it runs
    time_out: Callable[[_Running], None]  # called when its time is over
    is_cut_off: bool = False
    hangs: bool = False
    keeps_permit: bool = False  # it hangs, and keeps the permit of its notification

    def expire(self) -> None:
        """Report that its time is over, as `Deadlines` requires."""
        self.time_out(self)


class CallbackCaller:
    """Calls callbacks."""

    def __init__(
        self,
        *,
        permits: int,  # how many notifications are called back at once; as many calls may hang
        timeout: timedelta | None,  # of a call whose callback has none; None for any time
        # Gives the permit of a task up, which continues with a call that hangs.
        give_permit_up: Callable[[asyncio.Task[Any]], None],
        # Called when a call of `abandoned` has ended; maybe in a thread.
        abandoned_ended: Callable[[], None],
    ) -> None:
        self._permits = permits
        self._timeout = timeout
        self._give_up = give_permit_up
        self._abandoned_ended = abandoned_ended
        self._threads = _Threads(self._forget_abandoned)
        self._shares = new_shares()
        self._running: dict[asyncio.Task[Any], _Running] = {}
        self._deadlines = Deadlines()
        self._kept_permits = 0  # by hanging calls
        self._said = RepeatedLog(_log)
        self.without_permit: set[asyncio.Task[Any]] = set()  # tasks that gave up their permits
        # The tasks whose calls were broken off and have not ended, with their queues' ids.
        self.abandoned: dict[asyncio.Task[Any], str] = {}
        self.is_ending: bool = False  # nothing is called any more

    @property
    def hanging(self) -> Counter[str]:
        """How many calls hang, by callback."""
        return Counter(run.callback.name for run in self._running.values() if run.hangs)

    def count_hanging(self) -> int:
        """Return how many calls hang."""
        return self.hanging.total()

    @property
    def is_stuck(self) -> bool:
        """Whether hanging calls keep every permit, so that no other callback is called."""
        return self._kept_permits >= self._permits

    def slot_of(self, callback: Callback, *, alone: bool, hung_before: bool) -> Slot:
        """Return the slot for a call, of its callback's share; it is not taken yet.

        Args:
            alone: Whether it is the only callback.
            hung_before: Whether its last call with this notification timed out. All such calls
                together have half of the slots: the other half remains for other tasks.
        """
        share = callback.name, share_of(self._permits, alone=alone)
        if hung_before and self._permits > 1:
            return Slot(self._shares, share, (TIMED_OUT, self._permits // 2))
        return Slot(self._shares, share)

    async def call(
        self,
        callback: Callback,
        queue_id: str,
        notification: Notification,
        slot: Slot,
        task: asyncio.Task[Any],
    ) -> Call:
        """Call a callback in the current task; return how that ended, and release the slot.

        Raises:
            CrowdedError: What the callback puts a notification into is full.
        """
        if self.is_ending:
            slot.release()
            raise asyncio.CancelledError
        limit = self._limit(callback)
        run = _Running(
            callback=callback,
            queue_id=queue_id,
            notification=notification,
            slot=slot,
            limit=limit,
            task=task,
            time_out=self._time_out,
        )
        self._running[task] = run
        if limit is not None:
            self._deadlines.set(run, task.get_loop().time() + limit)
        error: BaseException | None = None
        try:
            if callback.is_async:
                await callback.function(notification)  # type: ignore[misc]  # a coroutine
            else:
                await self._run_in_thread(callback, notification)
        except BaseException as exc:  # noqa: BLE001  # whatever it raises
            error = _failure_of(exc)
        finally:
            self._end(run)
            if self.abandoned:
                self._forget_abandoned(task)
        try:
            if run.is_cut_off:
                task.uncancel()
            # Otherwise the process ends, or the callback cancelled its own task.
            if task.cancelling() and not self._forget_caught(task, error):
                self._note_cancelled(run)
                raise asyncio.CancelledError
            if run.is_cut_off:
                self._log_timed_out(run, "was cut off after %g s")
                return Call(notification.id, callback.name, TIMED_OUT)
            if error is not None:
                return self._failed(callback, notification, error)
            return Call(notification.id, callback.name, None)
        finally:
            del error  # its traceback refers to this frame: a cycle otherwise

    async def break_off(self) -> None:
        """Cancel the calls in progress, because the process ends.

        Calls that run in threads, or that swallow the cancellation, are abandoned.
        """
        self.is_ending = True
        running = list(self._running)
        for task in running:
            task.cancel()
        if running:
            await asyncio.wait(running, timeout=_GRACE)
        for task, run in list(self._running.items()):
            self.abandoned[task] = run.queue_id
            self._give_permit_up(run)
        for task in self.without_permit.difference(self._running):
            await cancelled(task)

    def close(self) -> None:
        """End idle threads, and forget calls of an event loop that was closed: they never end."""
        self._deadlines.close()
        self._threads.close()
        for task, run in list(self._running.items()):
            if task.get_loop().is_closed():
                self._end(run)
                if self._threads.is_inside(task):
                    self.abandoned[task] = run.queue_id
        ended = {task for task in self.without_permit if task.get_loop().is_closed()}
        self.without_permit -= ended

    def _end(self, run: _Running) -> None:
        """Free what a call takes up, once."""
        if self._running.pop(run.task, None) is not None:
            self._deadlines.clear(run)
            self._kept_permits -= int(run.keeps_permit)
            run.slot.release()

    async def _run_in_thread(self, callback: Callback, notification: Notification) -> None:
        result = await self._threads.run(functools.partial(callback.function, notification))
        if inspect.isawaitable(result):  # a plain function that returned a coroutine
            await result

    def _limit(self, callback: Callback) -> float | None:
        limit = self._timeout if callback.timeout is None else callback.timeout
        return None if limit is None or limit == NO_TIMEOUT else limit.total_seconds()

    def _forget_caught(self, task: asyncio.Task[Any], error: BaseException | None) -> bool:
        """Undo cancellations if a callback made them itself, and has caught them."""
        if self.is_ending or isinstance(error, asyncio.CancelledError):
            return False
        while task.cancelling():
            task.uncancel()
        return True

    def _note_cancelled(self, run: _Running) -> None:
        """Note a call that continues in its thread; log one that the receiver did not cancel."""
        callback, notification = run.callback, run.notification
        if self._threads.is_inside(run.task):
            self.abandoned[run.task] = run.queue_id
        if self.is_ending:
            return
        _log.error(
            "callback %s was cancelled, but not by the receiver, on %s; it is called again when its"
            " lease ends",
            callback.name,
            named(notification),
            extra={"code": CALLBACK_FAILED, "callback": callback.name, **logged_of(notification)},
        )

    # --- calls that do not end -----------------------------------------------------------------

    def _time_out(self, run: _Running) -> None:
        """Cut a call off; one in a thread hangs, and one that continues for the grace period."""
        task = run.task
        if not (run.is_cut_off or self._threads.is_inside(task)):
            run.is_cut_off = True
            self._deadlines.set(run, task.get_loop().time() + _GRACE)
            task.cancel()
            return
        run.hangs = True
        self._log_timed_out(run, "hangs: it did not end within %g s")
        if len(self.without_permit) < self._permits:
            self._give_permit_up(run)
        run.keeps_permit = task not in self.without_permit
        self._kept_permits += int(run.keeps_permit)
        if not run.keeps_permit:
            run.slot.release()

    def _give_permit_up(self, run: _Running) -> None:
        if run.task not in self.without_permit:
            self.without_permit.add(run.task)
            run.task.add_done_callback(self.without_permit.discard)
            self._give_up(run.task)

    def _forget_abandoned(self, task: asyncio.Task[Any]) -> None:
        if self.abandoned.pop(task, None) is not None:
            self._abandoned_ended()

    def _log_timed_out(self, run: _Running, what: str) -> None:
        callback, notification = run.callback, run.notification
        self._said.log(
            (what, callback.name),
            logging.ERROR,
            f"callback %s {what} with %s",
            *(callback.name, run.limit or 0, named(notification)),
            extra={"code": TIMED_OUT, "callback": callback.name, **logged_of(notification)},
        )

    def _failed(self, callback: Callback, notification: Notification, error: BaseException) -> Call:
        """Log a line per failure; its traceback only if it is the first like it in a minute."""
        if isinstance(error, CrowdedError):
            raise error
        # The message of our own errors, mostly a forward's, says all that a traceback would.
        is_ours = isinstance(error, PushkitError)
        is_first = not is_ours and self._said.due((callback.name, type(error))) is not None
        _log.error(
            "callback %s failed on %s: %s",
            callback.name,
            named(notification),
            error if is_ours else type(error).__name__,
            exc_info=error if is_first else None,
            extra={"code": CALLBACK_FAILED, "callback": callback.name, **logged_of(notification)},
        )
        return Call(notification.id, callback.name, type(error).__name__)


def _failure_of(raised: BaseException) -> BaseException:
    """Return the error of a callback that raised; raise again what ends the program."""
    if isinstance(raised, KeyboardInterrupt | GeneratorExit):
        raise raised
    if isinstance(raised, Exception | asyncio.CancelledError):
        return raised
    # `sys.exit()`, or a time-out of some libraries: the callback ends, not the service.
    error = RuntimeError(f"the callback raised {type(raised).__name__}")
    error.__cause__ = raised
    return error


# --- threads ------------------------------------------------------------------------------------


@record(frozen=True, slots=True)
class _ThreadJob:
    work: Callable[[], Any]
    loop: asyncio.AbstractEventLoop
    finished: Callable[[object, BaseException | None], None]


class _Threads:
    """Runs functions in daemon threads, as many as are called at once; idle ones are used again.

    One that hangs delays neither the others nor the process's end. asyncio's own pool is bounded,
    is shared with other code, and is joined when the process ends.
    """

    def __init__(
        self,
        # Called with a task when its function has ended, even if the task no longer waits for it;
        # in the thread if the event loop is closed by then.
        ended: Callable[[asyncio.Task[Any]], None],
    ) -> None:
        self._ended = ended
        self._idle: list[queue.SimpleQueue[_ThreadJob | None]] = []
        self._inside: set[asyncio.Task[Any]] = set()
        self._is_closed = False

    async def run(self, function: Callable[[], T]) -> T:
        """Call a function in a thread. Cancelling ends the wait; the function continues."""
        task = asyncio.current_task()
        assert task is not None  # noqa: S101  # a coroutine that runs has one
        loop = asyncio.get_running_loop()
        outcome: asyncio.Future[T] = loop.create_future()
        self._is_closed = False
        jobs = self._idle.pop() if self._idle else self._start()
        work = functools.partial(contextvars.copy_context().run, function)
        finished = functools.partial(self._finish, task, jobs, outcome)
        self._inside.add(task)
        jobs.put(_ThreadJob(work, loop, finished))
        try:
            return await outcome
        finally:
            del outcome, finished  # they hold the error, whose traceback refers to this frame

    def is_inside(self, task: asyncio.Task[Any]) -> bool:
        """Return whether a task's function still runs, even if the task no longer waits for it."""
        return task in self._inside

    def close(self) -> None:
        self._is_closed = True
        idle, self._idle = self._idle, []
        for jobs in idle:
            jobs.put(None)

    def _finish(
        self,
        task: asyncio.Task[Any],
        jobs: queue.SimpleQueue[_ThreadJob | None],
        outcome: asyncio.Future[T],
        result: T,  # what the function returned; meaningless with an error
        error: BaseException | None,
    ) -> None:
        self._inside.discard(task)
        if self._is_closed:
            jobs.put(None)
        else:
            self._idle.append(jobs)
        self._ended(task)
        if outcome.done():
            return
        if error is None:
            outcome.set_result(result)
        else:
            outcome.set_exception(error)

    def _start(self) -> queue.SimpleQueue[_ThreadJob | None]:
        jobs: queue.SimpleQueue[_ThreadJob | None] = queue.SimpleQueue()
        threading.Thread(target=_work_off, args=[jobs], name="callback", daemon=True).start()
        return jobs


def _work_off(jobs: queue.SimpleQueue[_ThreadJob | None]) -> None:
    while (job := jobs.get()) is not None:
        result: object = None
        error: BaseException | None = None
        try:
            result = job.work()
        except (KeyboardInterrupt, GeneratorExit, StopIteration) as exc:
            # The first two would end the service, and a future cannot raise the third.
            error = RuntimeError(f"the callback raised {type(exc).__name__}")
            error.__cause__ = exc
        except BaseException as exc:  # noqa: BLE001  # raised in `run`
            error = exc
        try:
            job.loop.call_soon_threadsafe(job.finished, result, error)
        except RuntimeError:  # its loop is closed: no task waits any more
            with contextlib.suppress(RuntimeError):
                job.finished(result, error)
        del job, result, error  # an idle thread keeps nothing alive
