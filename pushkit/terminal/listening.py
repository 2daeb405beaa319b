"""Makes listening sockets for a setting or for `--listen host:port`."""

from __future__ import annotations

import asyncio
import contextlib
import os
import socket
from collections.abc import AsyncIterator, Sequence
from typing import TYPE_CHECKING, Final

from pushkit.errors import ConfigError
from pushkit.url import parse_host_and_port

if TYPE_CHECKING:
    from aiohttp import web

LISTEN_BACKLOG: Final = 1024
_MAX_CONNECTIONS: Final = 128


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
async def accepting(server: web.Server, sockets: Sequence[socket.socket]) -> AsyncIterator[None]:
    """Accept connections for operators on listening sockets in this context, at most 128 at once.

    At the limit the oldest connection is closed for a new one: aiohttp keeps one without a request
    open for ever, and the process needs its files for others.
    """

    def connect() -> asyncio.Protocol:
        still_open = [each for each in server.connections if each.transport is not None]
        if len(still_open) >= _MAX_CONNECTIONS:
            still_open[0].force_close()
        return server()

    loop = asyncio.get_running_loop()
    servers = [await loop.create_server(connect, sock=each) for each in sockets]
    try:
        yield
    finally:
        for each in servers:
            each.close()
