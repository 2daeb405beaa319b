"""Sends events of all processes of a service to the one that serves the dashboard.

They share the two ends of an unnamed socket, so no other process can write to it.
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
    """Return the receiving end, and the sending end for all other processes."""
    heard, told = socket.socketpair(socket.AF_UNIX, socket.SOCK_DGRAM)
    heard.setblocking(False)
    told.setblocking(False)
    return heard, told


def telling(told: socket.socket) -> Listener:
    """Return a listener that sends what a dashboard shows; events that do not fit are lost."""

    def tell(event: Event) -> None:
        if isinstance(event, SHOWN):
            message = pickle.dumps(event)
            with contextlib.suppress(OSError):  # full: nobody waits for a dashboard
                if len(message) <= _LARGEST:
                    told.send(message)

    return tell


@contextlib.contextmanager
def hearing(heard: socket.socket, listener: Listener) -> Iterator[None]:
    """Call a listener with the events that arrive; inside an event loop."""

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
