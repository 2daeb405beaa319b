"""Reports the state of a service to systemd: ready, alive, stopping (sd_notify(3)).

`NOTIFY_SOCKET` is systemd's socket; without it nothing is reported. systemd listens to one process
of a service. If that process only supervises, the others report to it, and it reports ready when
all of them are, and alive as long as all of them do.
"""

from __future__ import annotations

import asyncio
import contextlib
import os
import shutil
import socket
import tempfile
from collections.abc import AsyncIterator, Iterator
from pathlib import Path
from typing import Final, Self

_SOCKET: Final = "NOTIFY_SOCKET"
_PERIOD: Final = "WATCHDOG_USEC"
_WATCHED: Final = "WATCHDOG_PID"
_READY, _ALIVE, _STOPPING = "READY=1", "WATCHDOG=1", "STOPPING=1"
_PROCESS: Final = "X_PROCESS"
_LONGEST: Final = 4096
_NAME: Final = "notify"


@contextlib.asynccontextmanager
async def reporting_to_systemd() -> AsyncIterator[None]:
    """Report this process as ready in this context, and alive while its event loop runs."""
    notify(_READY)
    period = _period()
    beating = None if period is None else asyncio.create_task(_beat(period / 2))
    try:
        yield
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
            self._listen(self._folder)
        return self

    def __exit__(self, *_: object) -> None:
        for channel in self.channels:
            channel.close()
        if self._folder is not None:
            shutil.rmtree(self._folder, ignore_errors=True)

    def _listen(self, folder: Path) -> None:
        channel = socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM)
        channel.setblocking(False)
        channel.bind(str(folder / _NAME))
        self.channels = [channel]

    def keep(self) -> None:
        """Make the socket again if it was removed, as whoever cleans `/tmp` does."""
        if self._folder is not None and not (self._folder / _NAME).exists():
            for channel in self.channels:
                channel.close()
            self._folder.mkdir(mode=0o700, exist_ok=True)
            self._listen(self._folder)

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

    def stopping(self) -> None:
        """Report that the service stops."""
        notify(_STOPPING)
