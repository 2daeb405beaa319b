"""Sockets that listen where a setting or `--listen host:port` says."""

from __future__ import annotations

import os
import socket
from typing import Final

from pushkit.errors import ConfigError
from pushkit.url import parse_host_and_port

LISTEN_BACKLOG: Final = 1024


def listen(address: str, *, setting: str) -> list[socket.socket]:
    """Bind every address of a name, before there are processes that accept on them.

    Args:
        address: `host:port`, an IPv6 address in brackets; without a host all of this machine.
        setting: Which setting says so, for the error.

    Raises:
        ConfigError: It is none, or cannot be had.
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
        raise ConfigError(f"{setting}: cannot listen on {address}: {_reason(exc)}") from exc


def listen_option(address: str) -> tuple[str, int]:
    """Return the host and the port that `--listen` names. Raises ConfigError: it names none."""
    found = parse_host_and_port(address)
    if found is None:
        raise ConfigError(f"--listen: found {address!r}, expected host:port")
    return found


def listening_at(address: str) -> socket.socket:
    """Return a socket that listens there; port 0 is any. Raises ConfigError: it cannot be had."""
    host, port = listen_option(address)
    try:
        family = socket.AF_INET6 if ":" in host else socket.AF_INET
        return socket.create_server((host, port), family=family)
    except OSError as exc:
        raise ConfigError(
            f"--listen: cannot listen on {address}: {_reason(exc)}; with port 0 a free one is taken"
        ) from exc


def _reason(exc: OSError) -> str:
    number = exc.errno or 0
    # `create_server` tells of a name that nobody knows as if the system had said so.
    is_of_name = isinstance(exc, socket.gaierror) or number < 0
    return str(exc.strerror).partition(" (while")[0] if is_of_name else os.strerror(number)
