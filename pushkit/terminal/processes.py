"""Running services: their event loop, their processes, the supervisor of these, and systemd."""

from __future__ import annotations

import asyncio
import contextlib
import gc
import itertools
import multiprocessing
import os
import shutil
import signal
import socket
import tempfile
import time
from collections.abc import Callable, Coroutine, Iterator, Sequence
from dataclasses import dataclass, field
from datetime import timedelta
from multiprocessing import resource_tracker
from multiprocessing.connection import wait
from multiprocessing.context import SpawnProcess
from pathlib import Path
from typing import Any, Final, Self

import click

from pushkit.scheduling.event_loop import cancelled
from pushkit.terminal.command import errors_reported

STOP_SIGNALS = (signal.SIGTERM, signal.SIGINT)

_LONGEST_PAUSE = timedelta(seconds=30)
# More new objects than a full house of requests holds. By default it is 700: 14 notifications.
_COLLECT_AFTER = 10_000
_RELAY_SECONDS = 1.0  # between two looks at the relay's socket
_SPAWN = multiprocessing.get_context("spawn")


@dataclass(slots=True)
class _Child:
    process: SpawnProcess
    started: float  # monotonic
    pause: timedelta  # from its start until it may be replaced
    ended: float | None = None  # when its end was noticed

    @property
    def dead(self) -> bool:
        return self.ended is not None

    @property
    def due(self) -> float:
        return self.started + self.pause.total_seconds()


@dataclass(slots=True, kw_only=True)
class Supervisor:
    """Runs a function in several processes until a stop signal comes."""

    target: Callable[..., None]  # run by each process; importable, and ends upon SIGTERM
    arguments: Sequence[object]  # its arguments; picklable, may include sockets
    count: int  # of processes
    name: str  # for lists of processes
    deadline: timedelta  # how long they may take to end; then they are killed
    # How long after its start a process that died is restarted at the earliest; longer if it
    # keeps dying (`next_pause`). None: when one process dies, the others are stopped.
    restart_after: timedelta | None = None
    # Signals to forward. They are blocked when a process starts, until it calls `accept_signal`;
    # so is Ctrl-C, which a terminal sends to all processes, until `until_stopped`.
    forward: Sequence[signal.Signals] = ()
    _children: list[_Child] = field(init=False, default_factory=list)
    _relay: Relay = field(init=False)

    def run(self) -> int:
        """Run the processes; return the exit status: 1 if one died for good or was killed."""
        self._relay = Relay(self.count)
        pause = self.restart_after or timedelta()
        with self._relay, _signals((*STOP_SIGNALS, *self.forward)) as signals:
            self._children = [self._spawn(number, pause) for number in range(self.count)]
            asked_to_stop = self._watch(signals)
            notify(_STOPPING)
            killed = self._stop()
        return 0 if asked_to_stop and not killed else 1

    def _watch(self, signals: int) -> bool:
        """Return True when a stop signal came, False when a process died and is not restarted."""
        while True:
            sentinels = [child.process.sentinel for child in self._children if not child.dead]
            channels = self._relay.channels
            ready = wait([signals, *sentinels, *channels], self._until_restart())
            self._relay.forward()
            self._relay.keep()
            numbers = set(os.read(signals, 4096)) if signals in ready else set()
            if numbers & set(STOP_SIGNALS):
                return True
            for child, number in itertools.product(self._children, numbers):
                if child.process.pid is not None and not child.dead:
                    os.kill(child.process.pid, number)
            self._report_ended(ready)
            if self.restart_after is not None:
                self._restart_due(self.restart_after)
            elif any(child.dead for child in self._children):
                return False

    def _report_ended(self, ready: Sequence[object]) -> None:
        """Record and report the processes that ended."""
        for child in self._children:
            if child.process.sentinel in ready:
                child.process.join()  # the sentinel may be ready before the exit status
                child.ended = time.monotonic()
                self._relay.forget(child.process.pid or 0)
                ended = f"process {child.process.pid} ended with {child.process.exitcode}"
                say(f"error: {ended}", err=True)

    def _restart_due(self, first: timedelta) -> None:
        now = time.monotonic()
        for number, child in enumerate(self._children):
            if child.ended is not None and child.due <= now:
                lived = timedelta(seconds=child.ended - child.started)
                pause = next_pause(child.pause, lived, first=first)
                self._children[number] = self._spawn(number, pause)

    def _until_restart(self) -> float | None:
        """Return the seconds until a dead process is restarted or the relay looked at, if any."""
        now = time.monotonic()
        waits = [max(child.due - now, 0) for child in self._children if child.dead]
        return min([*waits, *([_RELAY_SECONDS] if self._relay.channels else [])], default=None)

    def _spawn(self, number: int, pause: timedelta) -> _Child:
        process = _SPAWN.Process(
            target=_run_child,
            args=(self.target, *self.arguments),
            name=f"{self.name}-{number + 1}",
        )
        # The process inherits the mask: a signal before it has a handler is held, and does not
        # kill it.
        held = [*self.forward, signal.SIGINT]
        resource_tracker.ensure_running()  # its start, with the first process, would unblock SIGINT
        signal.pthread_sigmask(signal.SIG_BLOCK, held)
        try:
            with self._relay.receiving():
                process.start()
        finally:
            signal.pthread_sigmask(signal.SIG_UNBLOCK, held)
        return _Child(process=process, started=time.monotonic(), pause=pause)

    def _stop(self) -> int:
        """Terminate the processes; return how many had to be killed."""
        for child in self._children:
            child.process.terminate()
        ends = time.monotonic() + self.deadline.total_seconds()
        killed = 0
        for process in [child.process for child in self._children]:
            process.join(max(ends - time.monotonic(), 0))
            if process.is_alive():
                ended = f"process {process.pid} did not end in time, and is killed"
                say(f"error: {ended}", err=True)
                process.kill()
                process.join()
                killed += 1
        return killed


def next_pause(pause: timedelta, lived: timedelta, *, first: timedelta) -> timedelta:
    """Return the pause of a process's replacement, by the process's own pause and life.

    The pause doubles, up to 30 s, unless the process lived for that long: then it is the first one.
    """
    return first if lived >= _LONGEST_PAUSE else min(2 * pause, _LONGEST_PAUSE)


def _run_child(target: Callable[..., None], *arguments: object) -> None:
    with errors_reported():
        target(*arguments)


def is_first_process() -> bool:
    """Return whether this is the only process, a supervisor's first, or a replacement of that."""
    process = multiprocessing.current_process()
    return multiprocessing.parent_process() is None or process.name.endswith("-1")


def say(line: str, *, err: bool = False) -> None:
    """Print a line about a running service, which a full disk or a closed pipe must not end."""
    with contextlib.suppress(OSError):
        click.echo(line, err=err)


def collect_rarely() -> None:
    """Let the garbage collector look less often, and not at what was loaded.

    For services whose process is their own. The objects of a request or a delivery are in no
    cycles, so each is freed when nothing uses it; but the collector would visit those of everything
    in progress again and again.
    """
    gc.collect()
    gc.freeze()
    gc.set_threshold(_COLLECT_AFTER)


def run_service_loop(main: Coroutine[Any, Any, None], *, uvloop: bool = True) -> None:
    """Run the coroutine of a service, on uvloop if that is installed and allowed."""
    new_event_loop: Callable[[], asyncio.AbstractEventLoop] = asyncio.new_event_loop
    if uvloop:
        with contextlib.suppress(ImportError):
            from uvloop import new_event_loop
    with asyncio.Runner(loop_factory=new_event_loop) as runner:
        runner.run(main)


@contextlib.contextmanager
def until_stopped() -> Iterator[asyncio.Event]:
    """Yield an event that is set by a stop signal or by the end of the supervisor.

    Only for the main thread of a process, inside its event loop.
    """
    stop = asyncio.Event()
    loop = asyncio.get_running_loop()
    for number in STOP_SIGNALS:
        loop.add_signal_handler(number, stop.set)
    signal.pthread_sigmask(signal.SIG_UNBLOCK, STOP_SIGNALS)
    parent = multiprocessing.parent_process()
    if parent is not None:
        loop.add_reader(parent.sentinel, stop.set)
    try:
        yield stop
    finally:
        if parent is not None:
            loop.remove_reader(parent.sentinel)


async def unless_stopped(stop: asyncio.Event, starting: Coroutine[Any, Any, None]) -> bool:
    """Await the start of a service; if it is stopped meanwhile, cancel that and return False."""
    start, end = asyncio.create_task(starting), asyncio.create_task(stop.wait())
    await asyncio.wait([start, end], return_when=asyncio.FIRST_COMPLETED)
    end.cancel()
    if start.done():
        await start
        return True
    await cancelled(start)
    return False


def accept_signal(number: signal.Signals, handler: Callable[[], None]) -> None:
    """Accept a signal that the supervisor forwards; inside the event loop of the main thread."""
    asyncio.get_running_loop().add_signal_handler(number, handler)
    signal.pthread_sigmask(signal.SIG_UNBLOCK, [number])


@contextlib.contextmanager
def _signals(numbers: Sequence[signal.Signals]) -> Iterator[int]:
    """Yield a descriptor from which the numbers of received signals are read, one byte each."""
    read_end, write_end = os.pipe()
    os.set_blocking(write_end, False)

    def write(number: int, _frame: object) -> None:
        with contextlib.suppress(BlockingIOError):
            os.write(write_end, bytes([number]))

    before = {number: signal.signal(number, write) for number in numbers}
    try:
        yield read_end
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)
        os.close(read_end)
        os.close(write_end)


# --- systemd --------------------------------------------------------------------------------------


_SOCKET: Final = "NOTIFY_SOCKET"
_PERIOD: Final = "WATCHDOG_USEC"
_WATCHED: Final = "WATCHDOG_PID"
_READY, _ALIVE, _STOPPING = "READY=1", "WATCHDOG=1", "STOPPING=1"
_PROCESS: Final = "X_PROCESS"
_LONGEST: Final = 4096
_NAME: Final = "notify"


async def serve_until(stop: asyncio.Event, *, serving: str, ending: str = "drains") -> None:
    """Print that this process serves, wait until it is stopped, and print that it ends.

    Meanwhile systemd hears that it is ready, and alive while its event loop runs.
    """
    notify(_READY)
    collect_rarely()
    say(f"process {os.getpid()} {serving}")
    period = _period()
    beating = None if period is None else asyncio.create_task(_beat(period / 2))
    try:
        await stop.wait()
        say(f"process {os.getpid()} {ending}")
    finally:
        notify(_STOPPING)
        if beating is not None:
            beating.cancel()


def notify(state: str) -> None:
    """Send a state to systemd, if it listens; errors are ignored."""
    address = os.environ.get(_SOCKET, "")
    if not address.startswith(("/", "@")):
        return
    message = f"{state}\n{_PROCESS}={os.getpid()}\n".encode()
    with contextlib.suppress(OSError), socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM) as channel:
        channel.setblocking(False)
        channel.sendto(message, address.replace("@", "\0", 1) if address[0] == "@" else address)


async def _beat(every: float) -> None:
    while True:
        notify(_ALIVE)
        await asyncio.sleep(every)


def _period() -> float | None:
    """Return the watchdog's period in seconds; None if systemd does not watch this process."""
    period, watched = os.environ.get(_PERIOD, ""), os.environ.get(_WATCHED)
    if not period.isdigit() or int(period) == 0 or watched not in {None, str(os.getpid())}:
        return None
    return int(period) / 1_000_000


class Relay:
    """Receives what processes report to systemd, and reports what holds for all of them."""

    def __init__(self, count: int) -> None:
        self._count = count
        self._ready: set[str] = set()
        self._alive: set[str] = set()
        self._is_ready = False
        self._folder: Path | None = None  # of the socket
        self.channels: list[socket.socket] = []  # the socket to wait for before `forward`, if any

    def __enter__(self) -> Self:
        if _SOCKET in os.environ:
            self._folder = Path(tempfile.mkdtemp(prefix="pushkit-notify-"))
            self.keep()
        return self

    def __exit__(self, *_: object) -> None:
        for channel in self.channels:
            channel.close()
        if self._folder is not None:
            shutil.rmtree(self._folder, ignore_errors=True)

    def keep(self) -> None:
        """Make the socket, again if it was removed, as whoever cleans `/tmp` does."""
        if self._folder is None or (self._folder / _NAME).exists():
            return
        for channel in self.channels:
            channel.close()
        self._folder.mkdir(mode=0o700, exist_ok=True)
        channel = socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM)
        channel.setblocking(False)
        channel.bind(str(self._folder / _NAME))
        self.channels = [channel]

    @contextlib.contextmanager
    def receiving(self) -> Iterator[None]:
        """Let processes started in this context report to this one."""
        if not self.channels:
            yield
            return
        before = {name: os.environ.pop(name, None) for name in (_SOCKET, _WATCHED)}
        os.environ[_SOCKET] = self.channels[0].getsockname()
        try:
            yield
        finally:
            del os.environ[_SOCKET]
            os.environ.update({name: value for name, value in before.items() if value is not None})

    def forward(self) -> None:
        """Read the reports of processes, and report to systemd what holds for all of them."""
        if not self.channels:
            return
        with contextlib.suppress(BlockingIOError):
            while True:
                report = dict(
                    line.split("=", 1)
                    for line in self.channels[0].recv(_LONGEST).decode().splitlines()
                    if "=" in line
                )
                process = report.get(_PROCESS, "")
                if "READY" in report:
                    self._ready.add(process)
                if "WATCHDOG" in report:
                    self._alive.add(process)
        if not self._is_ready and len(self._ready) >= self._count:
            self._is_ready = True
            notify(_READY)
        if len(self._alive) >= self._count:
            self._alive.clear()
            notify(_ALIVE)

    def forget(self, process: int) -> None:
        """Forget the reports of a process that died, so that they cannot stand for another."""
        self._ready.discard(str(process))
        self._alive.discard(str(process))
