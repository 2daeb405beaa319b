"""An event loop in virtual time, whose every choice comes from one seed.

When nothing is ready, the clock leaps to the next timer. Tasks that are ready at the same moment
run in a seeded order; plain callbacks run in the order of their calls, as asyncio promises. Each
step takes a few seeded microseconds. There is no selector, no thread and no socket: connections are
those of the simulated network.

A process is a context variable of everything that it runs. A killed process never runs again: no
`finally`, no `close()`, as after SIGKILL.
"""

from __future__ import annotations

import asyncio
import heapq
import itertools
import random
from collections import Counter, deque
from collections.abc import Callable, Coroutine, Generator, Iterator, Sequence
from contextvars import Context, ContextVar, copy_context
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from tests.verification.simulation.network import Network

__all__ = ["PROCESS", "NothingHappensError", "Process", "SimulatedLoop", "TooLongError"]


class NothingHappensError(Exception):
    """The scenario is not over, and nothing is scheduled."""


class TooLongError(Exception):
    """The scenario takes too many steps: something spins."""


class Process:
    """A simulated operating-system process.

    Args:
        name: Its name in the trace.
        host: The address that its connections come from.
    """

    def __init__(self, name: str, host: str) -> None:
        self.name = name
        self.host = host
        self.alive = True
        self.thawed_at = -1.0
        self.frozen: list[asyncio.Handle] | None = None  # while frozen: what it runs once thawed
        self.steps_left: int | None = None
        self._end: Callable[[], object] = lambda: None

    def end_after(self, steps: int, end: Callable[[], object]) -> None:
        """End it after so many steps, each of which is from one `await` to the next."""
        self.steps_left, self._end = steps, end

    def spare(self) -> None:
        """Undo `end_after`."""
        self.steps_left = None

    def count_down(self) -> None:
        """Count one step towards `end_after`."""
        if self.steps_left is not None and self.alive:
            self.steps_left -= 1
            if self.steps_left < 0:
                self.steps_left = None
                self._end()

    def may_end(self) -> bool:
        """Return whether it is dead, or may be before its next step."""
        return not self.alive or self.steps_left is not None


PROCESS: ContextVar[Process | None] = ContextVar("process", default=None)


# The order of a set of tasks or futures depends on their hashes, by default their addresses, which
# differ between runs. Here each hash is a number that the loop gives out.


class _Task(asyncio.Task[Any]):
    def __init__(self, coro: Any, *, loop: SimulatedLoop, **kwargs: Any) -> None:
        self.process = PROCESS.get()
        self._number = next(loop.numbers)
        super().__init__(coro, loop=loop, **kwargs)
        self._log_destroy_pending = False  # a killed process leaves pending tasks

    def __hash__(self) -> int:
        return self._number


class _Future(asyncio.Future[Any]):
    _number = 0

    def __hash__(self) -> int:
        if not self._number:
            self._number = next(self.get_loop().numbers)  # type: ignore[attr-defined]
        return self._number


class _Handle(asyncio.Handle):
    """asyncio's handle without its debugging."""

    def __init__(
        self,
        callback: Callable[..., Any],
        args: Sequence[Any],
        loop: asyncio.AbstractEventLoop,
        context: Context | None,
    ) -> None:
        self._context = copy_context() if context is None else context
        self._loop = loop
        self._callback = callback
        self._args = args
        self._cancelled = False
        self._repr = self._source_traceback = None

    def cancel(self) -> None:
        self._cancelled = True
        self._callback = self._args = None  # type: ignore[assignment]


class _Timer(_Handle, asyncio.TimerHandle):
    """asyncio's timer handle without its debugging."""

    def __init__(self, when: float, *of_handle: Any) -> None:
        _Handle.__init__(self, *of_handle)
        self._when = when
        self._scheduled = False


class SimulatedLoop(asyncio.BaseEventLoop):
    """The loop of one world.

    Args:
        seed: Decides the order of ready tasks, and how long each step takes.
        max_steps: The most steps of a scenario.
    """

    network: Network
    # Attributes of the base class:
    _ready: deque[asyncio.Handle]
    _scheduled: list[tuple[float, int, asyncio.TimerHandle]]
    _stopping: bool

    def __init__(self, seed: int, *, max_steps: int = 400_000) -> None:
        super().__init__()
        self.random = random.Random(f"loop {seed}")
        self.numbers = itertools.count(1)
        self.steps = 0
        self.errors: list[dict[str, Any]] = []
        self._max_steps = max_steps
        self._now = 0.0
        self._timers = 0
        self._batch: deque[asyncio.Handle] = deque()  # the rest of this round
        # All tasks are kept: collecting those of a killed process would run `finally` blocks.
        self.graveyard: list[object] = []
        self.on_thaw: Callable[[Process], object] = lambda _: None
        self.set_task_factory(_task)  # type: ignore[arg-type]  # only ever called by this loop
        self.set_exception_handler(self._note_error)

    # --- time and order -------------------------------------------------------------------------

    def time(self) -> float:
        return self._now

    def call_at(  # type: ignore[override]  # as in Python 3.11
        self,
        when: float,
        callback: Callable[..., Any],
        *args: Any,
        context: Context | None = None,
    ) -> asyncio.TimerHandle:
        timer = _Timer(when, callback, args, self, context)
        self._timers = number = self._timers + 1
        heapq.heappush(self._scheduled, (when, number, timer))
        return timer

    def call_soon(  # type: ignore[override]  # the same
        self, callback: Callable[..., Any], *args: Any, context: Context | None = None
    ) -> asyncio.Handle:
        handle = _Handle(callback, args, self, context)
        self._ready.append(handle)
        return handle

    async def pause(self, seconds: float) -> None:
        """Wait, without a step of the loop if nothing else happens meanwhile."""
        if not self.leap(seconds):
            await asyncio.sleep(seconds)

    def leap(self, seconds: float) -> bool:
        """Advance the clock at once, if nothing would happen meanwhile; return whether it did."""
        process = PROCESS.get()
        if self._ready or self._batch or (process is not None and process.may_end()):
            return False
        moment = self._now + seconds
        self._forget_cancelled()
        if (self._scheduled and self._scheduled[0][0] <= moment) or self.steps >= self._max_steps:
            return False
        self.steps += 1
        self._now = moment
        return True

    def _run_once(self) -> None:
        """Run batches of ready handles until stopped."""
        chance = self.random.random
        while not self._stopping:
            batch = self._next_batch()
            while batch:
                handle = batch.popleft()
                if handle._cancelled:
                    continue
                context = handle._context  # type: ignore[attr-defined]
                process = context.get(PROCESS)
                if process is not None:
                    if process.steps_left is not None:
                        process.count_down()
                    if not process.alive:
                        self.graveyard.append(handle)
                        continue
                    if process.frozen is not None:
                        process.frozen.append(handle)
                        continue
                self.steps += 1
                self._now += chance() * 2e-5
                try:
                    context.run(handle._callback, *handle._args)  # type: ignore[attr-defined]
                except (SystemExit, KeyboardInterrupt):
                    raise
                except BaseException as exc:  # noqa: BLE001  # every error is reported
                    said = f"Exception in callback {handle._callback!r}"  # type: ignore[attr-defined]
                    self.call_exception_handler({"message": said, "exception": exc})
            if self.steps > self._max_steps:
                raise TooLongError(f"{self.steps} steps at {self._now:.3f} s")

    def _next_batch(self) -> deque[asyncio.Handle]:
        """Return the ready handles in running order; leap to the next timer if there are none."""
        scheduled, ready = self._scheduled, self._ready
        if not ready:
            self._forget_cancelled()
            if not scheduled:
                raise NothingHappensError(f"at {self._now:.3f} s")
            self._now = max(self._now, scheduled[0][0])
        now = self._now
        while scheduled and (scheduled[0][0] <= now or scheduled[0][2]._cancelled):
            handle = heapq.heappop(scheduled)[2]
            if not handle._cancelled:
                ready.append(handle)
        if len(ready) > 1:
            self._shuffle(ready)
        self._batch, self._ready = ready, deque()
        return ready

    def _forget_cancelled(self) -> None:
        scheduled = self._scheduled
        while scheduled and scheduled[0][2]._cancelled:
            heapq.heappop(scheduled)

    def _shuffle(self, batch: deque[asyncio.Handle]) -> None:
        """Shuffle the steps of tasks among themselves; plain callbacks keep their positions."""
        positions = [
            index
            for index, handle in enumerate(batch)
            if isinstance(getattr(handle._callback, "__self__", None), asyncio.Task)  # type: ignore[attr-defined]
        ]
        if len(positions) > 1:
            steps = [batch[index] for index in positions]
            self.random.shuffle(steps)
            for index, handle in zip(positions, steps, strict=True):
                batch[index] = handle

    # Called for every handle; a built-in that returns False is quicker than a method.
    get_debug = bool

    def _write_to_self(self) -> None:
        pass  # nothing sleeps in a selector

    def _process_events(self, event_list: list[Any]) -> None:
        pass

    def create_future(self) -> asyncio.Future[Any]:
        return _Future(loop=self)

    def call_soon_threadsafe(  # type: ignore[override]  # as in Python 3.11
        self, callback: Callable[..., Any], *args: Any, context: Context | None = None
    ) -> asyncio.Handle:
        return self.call_soon(callback, *args, context=context)

    def run_in_executor(  # type: ignore[override]  # the same
        self, _executor: Any, func: Callable[..., Any], *args: Any
    ) -> asyncio.Future[Any]:
        """Run a thread's work at once, after a short delay."""
        future = self.create_future()

        def run() -> None:
            if future.done():
                return
            try:
                future.set_result(func(*args))
            except Exception as exc:  # noqa: BLE001  # the caller's, as from a thread
                future.set_exception(exc)

        delay = self.random.random() * 1e-3
        if self.leap(delay):
            run()
        else:
            self.call_later(delay, run)
        return future

    def kill(self, process: Process) -> None:
        """End a process as SIGKILL does: it never runs again."""
        process.alive = False

    def unretrieved_exceptions(self) -> Iterator[BaseException]:
        """Yield the exceptions of living processes' tasks that no code has retrieved."""
        for task in self.graveyard:
            if isinstance(task, _Task) and (task.process is None or task.process.alive):
                exception = task.exception() if task.done() and task._log_traceback else None
                if exception is not None and not _is_of_aiohttp(task, exception):
                    yield exception

    def live_tasks(self) -> Counter[str]:
        """Count the pending tasks of each living process."""
        return Counter(
            task.process.name
            for task in self.graveyard
            if isinstance(task, _Task)
            and not task.done()
            and task.process is not None
            and task.process.alive
        )

    def freeze(self, process: Process, seconds: float) -> None:
        """Freeze a process, as SIGSTOP or a paused machine does, for so many seconds."""
        if process.frozen is not None:
            return
        process.frozen = []
        self.call_later(seconds, self.thaw, process, context=Context())

    def thaw(self, process: Process) -> None:
        """Let a frozen process continue."""
        if process.frozen is None:
            return
        held, process.frozen = process.frozen, None
        process.thawed_at = self._now
        self.on_thaw(process)
        self._ready.extend(held)

    async def shutdown_default_executor(self, timeout: float | None = None) -> None:  # noqa: ASYNC109
        del timeout  # there is no executor

    def _note_error(self, _loop: asyncio.AbstractEventLoop, context: dict[str, Any]) -> None:
        self.errors.append(context)

    # --- network --------------------------------------------------------------------------------

    async def getaddrinfo(self, host: Any, port: Any, **_: Any) -> Any:
        return await self.network.getaddrinfo(host, port)

    async def sock_connect(self, sock: Any, address: Any) -> None:
        await self.network.connect(sock, address)

    async def create_connection(
        self,
        protocol_factory: Callable[[], asyncio.BaseProtocol],
        host: str | None = None,
        port: int | None = None,
        *,
        ssl: Any = None,
        sock: Any = None,
        server_hostname: str | None = None,
        **_: Any,
    ) -> Any:
        return await self.network.open_connection(
            protocol_factory, host, port, sock=sock, ssl=ssl, server_hostname=server_hostname
        )

    async def create_server(
        self,
        protocol_factory: Callable[[], asyncio.BaseProtocol],
        host: Any = None,
        port: int | None = None,
        *,
        ssl: Any = None,
        **_: Any,
    ) -> Any:
        return self.network.listen(protocol_factory, host, port, tls=ssl is not None)


def _is_of_aiohttp(task: _Task, exception: BaseException) -> bool:
    """Return whether aiohttp's server raised this because its connection was already lost.

    It asserts, before the first request, that it is not.
    """
    coro = task.get_coro()
    is_server = getattr(coro, "__qualname__", "") == "RequestHandler.start"
    return is_server and isinstance(exception, TypeError | AssertionError)


def _task(
    loop: SimulatedLoop, coro: Coroutine[Any, Any, Any] | Generator[Any, None, Any], **kwargs: Any
) -> asyncio.Task[Any]:
    task = _Task(coro, loop=loop, **kwargs)
    loop.graveyard.append(task)
    return task
