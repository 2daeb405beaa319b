"""Makes listening sockets for a setting or for `--listen host:port`."""

from __future__ import annotations

import asyncio
import contextlib
import logging
import os
import socket
from collections.abc import AsyncIterator, Callable, Sequence
from typing import TYPE_CHECKING, Final, TypeAlias

from pushkit.errors import ConfigError
from pushkit.logs import RepeatedLog
from pushkit.url import parse_host_and_port

if TYPE_CHECKING:
    from aiohttp import web

_log = logging.getLogger("pushkit.terminal")

LISTEN_BACKLOG: Final = 1024
_MAX_CONNECTIONS: Final = 128
_PER_ROUND: Final = 32
_RETRY_AFTER: Final = 1.0  # seconds

ProtocolFor: TypeAlias = Callable[[str], asyncio.BaseProtocol | None]
"""Returns the protocol of a connection from an address; None to close its socket at once."""


def listen(address: str, *, setting: str) -> list[socket.socket]:
    """Bind every address of a host, before the processes start that accept connections on them.

    Args:
        address: `host:port`, with brackets for IPv6; without a host all addresses of this machine.
        setting: The name of the setting, for errors.

    Raises:
        ConfigError: The address is malformed, or cannot be bound.
    """
    name, _, port = address.rpartition(":")
    if parse_host_and_port(f"*{address}" if address.startswith(":") else address) is None:
        raise ConfigError(f"{setting}: found {address!r}, expected host:port")
    try:
        found = socket.getaddrinfo(
            name.strip("[]") or None, port, type=socket.SOCK_STREAM, flags=socket.AI_PASSIVE
        )
        addresses = dict.fromkeys((family, address) for family, _, _, _, address in found)
        return [
            socket.create_server(each[:2], family=family, backlog=LISTEN_BACKLOG)
            for family, each in addresses
        ]
    except OSError as exc:
        raise ConfigError(f"{setting}: cannot listen on {address}: {reason_of(exc)}") from exc


def listen_option(address: str) -> tuple[str, int]:
    """Return host and port of a `--listen` option. Raises ConfigError: it is malformed."""
    found = parse_host_and_port(address)
    if found is None:
        raise ConfigError(f"--listen: found {address!r}, expected host:port")
    return found


def listening_at(address: str) -> socket.socket:
    """Return a socket that listens at an address; port 0 takes a free one. Raises ConfigError."""
    host, port = listen_option(address)
    try:
        family = socket.AF_INET6 if ":" in host else socket.AF_INET
        return socket.create_server((host, port), family=family)
    except OSError as exc:
        raise ConfigError(
            f"--listen: cannot listen on {address}: {reason_of(exc)}; port 0 takes a free one"
        ) from exc


def reason_of(exc: OSError) -> str:
    """Say why a socket could not listen or connect: in other texts, the address stands again."""
    number = exc.errno or 0
    # `create_server` reports an unknown name as a plain OSError with a negative number.
    if number > 0 and not isinstance(exc, socket.gaierror):
        return os.strerror(number)
    return (exc.strerror or str(exc)).partition(" (while")[0]


@contextlib.asynccontextmanager
async def accepting(
    protocol_for: ProtocolFor, sockets: Sequence[socket.socket]
) -> AsyncIterator[None]:
    """Accept connections on listening sockets in this context, a few in each round of the loop.

    An event loop of its own accord may accept a whole backlog in one round. All of them then have
    their files before the first can be refused, and a burst of connects takes all of the process.
    """
    acceptors = [_Acceptor(protocol_for, each) for each in sockets]
    try:
        yield
    finally:
        for each in acceptors:
            each.close()
        for each in acceptors:
            await each.until_connected()


@contextlib.asynccontextmanager
async def accepting_few(
    server: web.Server, sockets: Sequence[socket.socket]
) -> AsyncIterator[None]:
    """Accept connections for operators on listening sockets in this context, at most 128 at once.

    At the limit the oldest connection is closed for a new one: aiohttp keeps one without a request
    open for ever, and the process needs its files for others.
    """

    def protocol_for(_: str) -> asyncio.Protocol:
        still_open = [each for each in server.connections if each.transport is not None]
        if len(still_open) >= _MAX_CONNECTIONS:
            still_open[0].force_close()
        return server()

    async with accepting(protocol_for, sockets):
        yield


class _Acceptor:
    """Accepts the connections of one listening socket."""

    def __init__(self, protocol_for: ProtocolFor, listener: socket.socket) -> None:
        self._protocol_for = protocol_for
        self._listener = listener
        self._loop = asyncio.get_running_loop()
        self._retry: asyncio.TimerHandle | None = None
        self._connecting: set[asyncio.Task[object]] = set()
        self._repeated_log = RepeatedLog(_log)
        listener.setblocking(False)
        self._begin()

    def close(self) -> None:
        """Accept no more, and close the listening socket."""
        self._loop.remove_reader(self._listener)
        if self._retry is not None:
            self._retry.cancel()
        self._listener.close()

    async def until_connected(self) -> None:
        """Wait until the protocols of all accepted sockets have their transports."""
        await asyncio.gather(*self._connecting)

    def _begin(self) -> None:
        self._loop.add_reader(self._listener, self._accept)

    def _accept(self) -> None:
        for _ in range(_PER_ROUND):
            try:
                accepted, address = self._listener.accept()
            except (BlockingIOError, InterruptedError, ConnectionError):
                return  # another process was quicker, or the peer has gone
            except OSError as exc:
                # It stays readable: without a pause, this would be tried again in each round.
                said = "cannot accept connections, tried again in a second: %s"
                self._repeated_log.log("accept", logging.ERROR, said, reason_of(exc))
                self._loop.remove_reader(self._listener)
                self._retry = self._loop.call_later(_RETRY_AFTER, self._begin)
                return
            protocol = self._protocol_for(address[0] if isinstance(address, tuple) else "")
            if protocol is None:
                accepted.close()
                continue
            task = self._loop.create_task(self._connect(accepted, protocol))
            self._connecting.add(task)
            task.add_done_callback(self._connecting.discard)

    async def _connect(self, accepted: socket.socket, protocol: asyncio.BaseProtocol) -> None:
        accepted.setblocking(False)
        await self._loop.connect_accepted_socket(lambda: protocol, accepted)
