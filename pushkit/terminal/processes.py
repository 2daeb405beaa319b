"""How services run: their event loop, several processes that do the same, who watches over them."""

from __future__ import annotations

import asyncio
import contextlib
import itertools
import multiprocessing
import os
import signal
import time
from collections.abc import Callable, Coroutine, Iterator, Sequence
from dataclasses import dataclass
from datetime import timedelta
from multiprocessing.connection import wait
from multiprocessing.context import SpawnProcess
from typing import Any

import click

from pushkit.scheduling.pump import cancelled
from pushkit.terminal.command import errors_told
from pushkit.terminal.systemd import Relay

STOP_SIGNALS = (signal.SIGTERM, signal.SIGINT)

_LONGEST_PAUSE = timedelta(seconds=30)


@dataclass(slots=True)
class _Child:
    process: SpawnProcess
    started: float  # monotonic
    pause: timedelta  # from its start until another one may be started in its place
    ended: float | None = None  # when its end was seen, and reported

    @property
    def dead(self) -> bool:
        return self.ended is not None

    @property
    def due(self) -> float:
        return self.started + self.pause.total_seconds()


class Supervisor:
    """Runs a function in so many processes, until a stop signal comes."""

    def __init__(
        self,
        target: Callable[..., None],  # what each of them runs; importable, and ends upon SIGTERM
        arguments: Sequence[object],  # its arguments; picklable, sockets included
        *,
        count: int,  # how many
        name: str,  # for lists of processes
        deadline: timedelta,  # how long they may take to end; then they are killed
        # How long after its own start a process that died is started again, at the earliest: longer
        # while it keeps dying (`next_pause`). None: one that dies takes the whole with it.
        restart_after: timedelta | None = None,
        # Signals to hand on. A process has them blocked when it starts, and lets them in with
        # `accept_signal`.
        forward: Sequence[signal.Signals] = (),
    ) -> None:
        self._context = multiprocessing.get_context("spawn")
        self._target = target
        self._arguments = tuple(arguments)
        self._count = count
        self._name = name
        self._deadline = deadline
        self._restarts = restart_after is not None
        self._first_pause = restart_after or timedelta()
        self._forward = tuple(forward)
        self._children: list[_Child] = []
        self._relay = Relay(count)

    def run(self) -> int:
        """Run them; return the exit status of the whole: 1 if one died for good or was killed."""
        with self._relay, _signals((*STOP_SIGNALS, *self._forward)) as came:
            self._children = [
                self._spawn(number, self._first_pause) for number in range(self._count)
            ]
            asked_to_stop = self._watch(came)
            self._relay.stopping()
            killed = self._stop()
        return 0 if asked_to_stop and not killed else 1

    def _watch(self, came: int) -> bool:
        """Return True once a stop signal came, False once a process died that stays dead."""
        while True:
            sentinels = [child.process.sentinel for child in self._children if not child.dead]
            channels = self._relay.channels
            ready = wait([came, *sentinels, *channels], self._until_restart())
            self._relay.hear()
            numbers = set(os.read(came, 4096)) if came in ready else set()
            if numbers & set(STOP_SIGNALS):
                return True
            for child, number in itertools.product(self._children, numbers):
                if child.process.pid is not None and not child.dead:
                    os.kill(child.process.pid, number)
            self._bury(ready)
            if not self._restarts and any(child.dead for child in self._children):
                return False
            self._restart_due()

    def _bury(self, ready: Sequence[object]) -> None:
        """Note and report the processes whose end was seen."""
        for child in self._children:
            if child.process.sentinel in ready:
                child.process.join()  # the sentinel may be a moment ahead of the exit status
                child.ended = time.monotonic()
                self._relay.forget(child.process.pid or 0)
                ended = f"process {child.process.pid} ended with {child.process.exitcode}"
                click.echo(f"error: {ended}", err=True)

    def _restart_due(self) -> None:
        now = time.monotonic()
        for number, child in enumerate(self._children):
            if child.ended is not None and child.due <= now:
                lived = timedelta(seconds=child.ended - child.started)
                pause = next_pause(child.pause, lived, first=self._first_pause)
                self._children[number] = self._spawn(number, pause)

    def _until_restart(self) -> float | None:
        """Return the seconds until a dead process is started again; None if none waits for it."""
        due = [child.due for child in self._children if child.dead]
        return max(min(due) - time.monotonic(), 0) if due else None

    def _spawn(self, number: int, pause: timedelta) -> _Child:
        process = self._context.Process(
            target=_run_child,
            args=(self._target, *self._arguments),
            name=f"{self._name}-{number + 1}",
        )
        # The mask is inherited: a signal that comes before its handler waits, and does not kill.
        signal.pthread_sigmask(signal.SIG_BLOCK, self._forward)
        try:
            with self._relay.heard():
                process.start()
        finally:
            signal.pthread_sigmask(signal.SIG_UNBLOCK, self._forward)
        return _Child(process=process, started=time.monotonic(), pause=pause)

    def _stop(self) -> int:
        """Let the processes end; return how many had to be killed."""
        for child in self._children:
            child.process.terminate()
        ends = time.monotonic() + self._deadline.total_seconds()
        killed = 0
        for process in [child.process for child in self._children]:
            process.join(max(ends - time.monotonic(), 0))
            if process.is_alive():
                ended = f"process {process.pid} did not end in time, and is killed"
                click.echo(f"error: {ended}", err=True)
                process.kill()
                process.join()
                killed += 1
        return killed


def next_pause(pause: timedelta, lived: timedelta, *, first: timedelta) -> timedelta:
    """Return the pause of what is started in the place of a process, after that one's and its life.

    One that lived for long died of something new; one that did not dies of the same again.
    """
    return first if lived >= _LONGEST_PAUSE else min(2 * pause, _LONGEST_PAUSE)


def _run_child(target: Callable[..., None], *arguments: object) -> None:
    with errors_told():
        target(*arguments)


def is_first_process() -> bool:
    """Say whether this is the only process, a supervisor's first, or one started in its place."""
    process = multiprocessing.current_process()
    return multiprocessing.parent_process() is None or process.name.endswith("-1")


def place_in_service() -> str | None:
    """Return in whose place a supervisor started this process: the same after each death."""
    supervisor = multiprocessing.parent_process()
    if supervisor is None:
        return None
    return f"{supervisor.pid}-{multiprocessing.current_process().name.rpartition('-')[2]}"


def run_service_loop(main: Coroutine[Any, Any, None], *, uvloop: bool = True) -> None:
    """Run a process of ours from start to end, on uvloop where it is installed, and may be used."""
    new_event_loop: Callable[[], asyncio.AbstractEventLoop] = asyncio.new_event_loop
    if uvloop:
        with contextlib.suppress(ImportError):
            from uvloop import new_event_loop
    with asyncio.Runner(loop_factory=new_event_loop) as runner:
        runner.run(main)


@contextlib.contextmanager
def until_stopped() -> Iterator[asyncio.Event]:
    """Yield an event that is set by a stop signal, or by the end of whatever supervises this.

    For the main thread of a process, inside its event loop.
    """
    stop = asyncio.Event()
    loop = asyncio.get_running_loop()
    for number in STOP_SIGNALS:
        loop.add_signal_handler(number, stop.set)
    parent = multiprocessing.parent_process()
    if parent is not None:
        loop.add_reader(parent.sentinel, stop.set)
    try:
        yield stop
    finally:
        if parent is not None:
            loop.remove_reader(parent.sentinel)


async def unless_stopped(stop: asyncio.Event, starting: Coroutine[Any, Any, None]) -> bool:
    """Do what a service starts with; break it off, and return False, if it is stopped meanwhile."""
    start, end = asyncio.create_task(starting), asyncio.create_task(stop.wait())
    await asyncio.wait([start, end], return_when=asyncio.FIRST_COMPLETED)
    end.cancel()
    if start.done():
        await start
        return True
    await cancelled(start)
    return False


def accept_signal(number: signal.Signals, handler: Callable[[], None]) -> None:
    """Let a signal in that the supervisor hands on; inside the event loop of the main thread."""
    asyncio.get_running_loop().add_signal_handler(number, handler)
    signal.pthread_sigmask(signal.SIG_UNBLOCK, [number])


@contextlib.contextmanager
def _signals(numbers: Sequence[signal.Signals]) -> Iterator[int]:
    """Yield a descriptor from which the numbers of the signals that came are read, a byte each."""
    read_end, write_end = os.pipe()
    os.set_blocking(write_end, False)

    def tell(number: int, _frame: object) -> None:
        with contextlib.suppress(BlockingIOError):
            os.write(write_end, bytes([number]))

    before = {number: signal.signal(number, tell) for number in numbers}
    try:
        yield read_end
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)
        os.close(read_end)
        os.close(write_end)
