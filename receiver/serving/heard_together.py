"""What several processes of one service tell, heard in the one that shows it.

They share two ends of a socket that has no name, so nobody else writes there.
"""

from __future__ import annotations

import asyncio
import contextlib
import pickle
import socket
from collections.abc import Iterator
from typing import Final

from pushkit.events.listeners import Listener
from pushkit.events.model import Event
from receiver.dashboard.memory import SHOWN

_LARGEST: Final = 65_536  # bytes
_AT_ONCE: Final = 100


def one_line() -> tuple[socket.socket, socket.socket]:
    """Return the end that is heard, and the end that all others tell at."""
    heard, told = socket.socketpair(socket.AF_UNIX, socket.SOCK_DGRAM)
    heard.setblocking(False)
    told.setblocking(False)
    return heard, told


def telling(told: socket.socket) -> Listener:
    """Return a listener that hands on what a dashboard shows; what there is no room for is lost."""

    def tell(event: Event) -> None:
        if isinstance(event, SHOWN):
            message = pickle.dumps(event)
            with contextlib.suppress(OSError):  # full: nobody waits for a dashboard
                if len(message) <= _LARGEST:
                    told.send(message)

    return tell


@contextlib.contextmanager
def hearing(heard: socket.socket, listener: Listener) -> Iterator[None]:
    """Let a listener hear what is handed on; inside an event loop."""

    def read() -> None:
        with contextlib.suppress(BlockingIOError):
            for _ in range(_AT_ONCE):
                listener(pickle.loads(heard.recv(_LARGEST)))  # noqa: S301  # from our own processes

    loop = asyncio.get_running_loop()
    loop.add_reader(heard, read)
    try:
        yield
    finally:
        loop.remove_reader(heard)
