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


def event_sockets() -> tuple[socket.socket, socket.socket]:
    """Return the receiving end, and the sending end for all other processes."""
    incoming, outgoing = socket.socketpair(socket.AF_UNIX, socket.SOCK_DGRAM)
    incoming.setblocking(False)
    outgoing.setblocking(False)
    return incoming, outgoing


def sending(outgoing: socket.socket) -> Listener:
    """Return a listener that sends what a dashboard shows; events that do not fit are lost."""

    def send(event: Event) -> None:
        if isinstance(event, SHOWN):
            message = pickle.dumps(event)
            with contextlib.suppress(OSError):  # full: nobody waits for a dashboard
                if len(message) <= _LARGEST:
                    outgoing.send(message)

    return send


@contextlib.contextmanager
def receiving(incoming: socket.socket, listener: Listener) -> Iterator[None]:
    """Call a listener with the events that arrive; inside an event loop."""

    def read() -> None:
        with contextlib.suppress(BlockingIOError):
            for _ in range(_AT_ONCE):
                listener(pickle.loads(incoming.recv(_LARGEST)))  # noqa: S301  # from our own processes

    loop = asyncio.get_running_loop()
    loop.add_reader(incoming, read)
    try:
        yield
    finally:
        loop.remove_reader(incoming)
