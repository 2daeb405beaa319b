"""Threads for plain callbacks: one that hangs delays neither the others nor the process's end.

asyncio's own pool is bounded, is shared with other code, and is joined when the process ends.
"""

from __future__ import annotations

import asyncio
import contextlib
import contextvars
import functools
import queue
import threading
from collections.abc import Callable
from typing import Any, TypeVar

from pushkit.record import record

T = TypeVar("T")


@record(frozen=True, slots=True)
class _Job:
    work: Callable[[], Any]
    loop: asyncio.AbstractEventLoop
    finished: Callable[[object, BaseException | None], None]


class CallbackThreads:
    """Runs functions in daemon threads, as many as are called at once; idle ones are used again."""

    def __init__(
        self,
        # Called with a task when its function has ended, even if the task no longer waits for it;
        # in the thread if the event loop is closed by then.
        ended: Callable[[asyncio.Task[Any]], None],
    ) -> None:
        self._ended = ended
        self._idle: list[queue.SimpleQueue[_Job | None]] = []
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
        jobs.put(_Job(work, loop, finished))
        try:
            return await outcome
        finally:
            del outcome, finished  # they hold the error, whose traceback refers to this frame

    def is_inside(self, task: asyncio.Task[Any]) -> bool:
        """Return whether a task's function still runs, even if the task no longer waits for it."""
        return task in self._inside

    def close(self) -> None:
        """End the idle threads; a busy one ends with its function, or with the process."""
        self._is_closed = True
        idle, self._idle = self._idle, []
        for jobs in idle:
            jobs.put(None)

    def _finish(
        self,
        task: asyncio.Task[Any],
        jobs: queue.SimpleQueue[_Job | None],
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

    def _start(self) -> queue.SimpleQueue[_Job | None]:
        jobs: queue.SimpleQueue[_Job | None] = queue.SimpleQueue()
        threading.Thread(target=_work, args=[jobs], name="callback", daemon=True).start()
        return jobs


def _work(jobs: queue.SimpleQueue[_Job | None]) -> None:
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
