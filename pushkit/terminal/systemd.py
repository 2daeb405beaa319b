"""What systemd is told of a service: ready, alive, stopping (sd_notify(3)).

`NOTIFY_SOCKET` says where; without it nothing is told. systemd listens to one process of a service.
Where that one only supervises, the others tell it, and it is ready once all of them are, and alive
for as long as none of them is silent.
"""

from __future__ import annotations

import asyncio
import contextlib
import os
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


@contextlib.asynccontextmanager
async def told_to_systemd() -> AsyncIterator[None]:
    """Say that this process serves, for as long as this lasts and its event loop turns."""
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
    """Tell systemd, if it listens; what goes wrong with that is nobody else's."""
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
    """Return how often systemd wants to hear from this process; None for never."""
    period, watched = os.environ.get(_PERIOD, ""), os.environ.get(_WATCHED)
    if not period.isdigit() or int(period) == 0 or watched not in {None, str(os.getpid())}:
        return None
    return int(period) / 1_000_000


class Relay:
    """Hears what processes would tell systemd, and tells it what is so of all of them."""

    def __init__(self, count: int) -> None:
        self._count = count
        self._ready: set[str] = set()
        self._alive: set[str] = set()
        self._is_ready = False
        self._folder: tempfile.TemporaryDirectory[str] | None = None
        self._channel: socket.socket | None = None

    def __enter__(self) -> Self:
        if _SOCKET in os.environ:
            self._folder = tempfile.TemporaryDirectory(prefix="pushkit-notify-")
            self._channel = socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM)
            self._channel.setblocking(False)
            self._channel.bind(self._path)
        return self

    def __exit__(self, *_: object) -> None:
        if self._channel is not None and self._folder is not None:
            self._channel.close()
            self._folder.cleanup()

    @property
    def channels(self) -> list[socket.socket]:
        """What to wait for, and then to `hear`."""
        return [] if self._channel is None else [self._channel]

    @contextlib.contextmanager
    def heard(self) -> Iterator[None]:
        """Let processes that are started within this tell this one."""
        if self._channel is None:
            yield
            return
        before = {name: os.environ.pop(name, None) for name in (_SOCKET, _WATCHED)}
        os.environ[_SOCKET] = self._path
        try:
            yield
        finally:
            del os.environ[_SOCKET]
            os.environ.update({name: value for name, value in before.items() if value is not None})

    def hear(self) -> None:
        """Take in what was told, and hand on what is so of all."""
        if self._channel is None:
            return
        with contextlib.suppress(BlockingIOError):
            while True:
                said = dict(
                    line.split("=", 1)
                    for line in self._channel.recv(_LONGEST).decode().splitlines()
                    if "=" in line
                )
                who = said.get(_PROCESS, "")
                if "READY" in said:
                    self._ready.add(who)
                if "WATCHDOG" in said:
                    self._alive.add(who)
        if not self._is_ready and len(self._ready) >= self._count:
            self._is_ready = True
            notify(_READY)
        if len(self._alive) >= self._count:
            self._alive.clear()
            notify(_ALIVE)

    def forget(self, process: int) -> None:
        """Let a process that died count no longer, for itself or for one that is silent."""
        self._ready.discard(str(process))
        self._alive.discard(str(process))

    def stopping(self) -> None:
        """Say that the service ends."""
        notify(_STOPPING)

    @property
    def _path(self) -> str:
        assert self._folder is not None  # noqa: S101  # entered
        return str(Path(self._folder.name) / "notify")
