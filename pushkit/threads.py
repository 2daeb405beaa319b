"""A sender or receiver in a thread, for synchronous code: Flask, Django, scripts.

    with receiver.in_thread() as thread:
        done = thread.call(receiver.wait(task_id, timeout=600))

The thread runs an event loop from `start()` to `close()` of what it serves. What is `async` goes
through `call`, from any number of threads; what is not, such as `receiver.on_status`, is used as
ever. A callback that is a plain function runs in a thread of its own, and may use `call`, too.

No thread survives a fork. Under gunicorn and others that fork, `start()` it in each worker: where
the application is imported, without `--preload`, or in gunicorn's `post_worker_init`.
"""

from __future__ import annotations

import asyncio
import concurrent.futures.thread  # noqa: F401  # see the end
import logging
import os
import threading
from collections.abc import Coroutine
from concurrent.futures import FIRST_COMPLETED, CancelledError, Future, wait
from typing import Any, Protocol, Self, TypeVar

from pushkit.errors import ConfigError

T = TypeVar("T")

_log = logging.getLogger("pushkit")
_running: dict[ServingThread, None] = {}  # in the order in which they were started


class Served(Protocol):
    """What a thread serves: a `PushSender` or a `Receiver`."""

    async def start(self) -> None:
        """Start, in the thread's event loop."""

    async def close(self) -> None:
        """Finish, in the same event loop."""


class ServingThread:
    """A thread with an event loop, for one object; it may be started again after `close`."""

    def __init__(self, served: Served, name: str) -> None:
        self._served = served
        self.name: str = name
        self._starting = threading.Lock()
        self._lock = threading.Lock()  # nothing is handed to a loop that is ending
        self._loop: asyncio.AbstractEventLoop | None = None
        self._ending = asyncio.Event()
        self._ended: Future[None] = Future()
        self._thread: threading.Thread | None = None
        self._started_in = 0  # the process

    def start(self) -> Self:
        """Start, and return once the object has started; do nothing if it has already.

        If nobody calls `close`, the end of the process does, last started first. Python 3.12.0 and
        3.12.1 start no thread by then: what would need one, such as a request whose host is to be
        looked up, is tried again after the next start.

        Raises:
            ConfigError: It was started before this process was forked.
            PushkitError: The object cannot start.
        """
        self._check_process()
        with self._starting:  # another thread that starts it waits, too
            return self._start()

    def _start(self) -> Self:
        if self._thread is not None and self._thread.is_alive():
            return self
        self._started_in, self._ended, self._ending = os.getpid(), Future(), asyncio.Event()
        started: Future[None] = Future()
        self._thread = threading.Thread(
            target=self._run, args=[started, self._ended], name=self.name, daemon=True
        )
        self._thread.start()
        wait([started, self._ended], return_when=FIRST_COMPLETED)
        if not started.done():
            self._ended.result()
        _running[self] = None
        return self

    def call(self, coroutine: Coroutine[Any, Any, T]) -> T:
        """Run a coroutine in the thread's event loop; return its result, or raise its error.

        If the caller is interrupted, the coroutine is cancelled.

        Raises:
            ConfigError: The thread does not run, or ended meanwhile; or this is its event loop.
        """
        try:
            future = self._hand_over(coroutine)
        except ConfigError:
            coroutine.close()
            raise
        waited: list[Future[Any]] = [future, self._ended]
        try:
            wait(waited, return_when=FIRST_COMPLETED)
            if future.done():
                return future.result()
        except CancelledError:
            pass
        except BaseException:
            future.cancel()
            raise
        raise ConfigError(f"{self.name}: the thread ended during the call")

    def close(self) -> None:
        """Close the object, and end the thread; do nothing if it does not run, or in a fork.

        Raises:
            ConfigError: This is the thread's event loop.
            PushkitError: The object could not be closed.
        """
        if self._thread is None or self._started_in != os.getpid():
            return
        self._check_caller("close")
        with self._lock:
            if self._loop is not None:
                self._loop.call_soon_threadsafe(self._ending.set)
        self._thread.join()
        self._thread = None
        _running.pop(self, None)
        self._ended.result()

    def __enter__(self) -> Self:
        return self.start()

    def __exit__(self, *_: object) -> None:
        self.close()

    def _hand_over(self, coroutine: Coroutine[Any, Any, T]) -> Future[T]:
        self._check_caller("call")
        with self._lock:
            if self._loop is None:
                raise ConfigError(f"{self.name}: the thread does not run: start() it")
            return asyncio.run_coroutine_threadsafe(coroutine, self._loop)

    def _check_process(self) -> None:
        if self._thread is not None and self._started_in != os.getpid():
            raise ConfigError(
                f"{self.name}: the thread was started before this process was forked, and is not"
                " here: start it, with an object of its own, in each process"
            )

    def _check_caller(self, method: str) -> None:
        self._check_process()
        if threading.current_thread() is self._thread:
            raise ConfigError(f"{method}: this is the thread's own event loop: use `await`")

    def _run(self, started: Future[None], ended: Future[None]) -> None:
        try:
            asyncio.run(self._serve(started, ended))
        except BaseException as exc:  # noqa: BLE001  # `start` or `close` raises it
            if not ended.done():  # else Python had no thread any more to end asyncio's own
                ended.set_exception(exc)

    async def _serve(self, started: Future[None], ended: Future[None]) -> None:
        try:
            await self._served.start()
            with self._lock:
                self._loop = asyncio.get_running_loop()
            started.set_result(None)
            await self._ending.wait()
        finally:
            with self._lock:
                self._loop = None
            await asyncio.sleep(0)  # what was handed over begins, and sees the end
            await self._served.close()
        ended.set_result(None)


def _close_all() -> None:
    for thread in [*_running][::-1]:
        try:
            thread.close()
        except BaseException as exc:  # noqa: BLE001  # the others have to be closed, too
            _log.warning("%s: not closed at the end of the process: %s", thread.name, exc)


# `atexit` would be too late: closing needs executors. They end by such a call, too, which was
# registered when their module was imported; the calls are made in reverse.
threading._register_atexit(_close_all)  # type: ignore[attr-defined]
