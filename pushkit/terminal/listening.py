"""Sockets that listen, bound before there are processes that accept on them."""

from __future__ import annotations

import os
import socket
from typing import Final

from pushkit.errors import ConfigError

__all__ = ["LISTEN_BACKLOG", "listen"]

LISTEN_BACKLOG: Final = 1024


def listen(address: str, *, setting: str) -> list[socket.socket]:
    """Bind every address of a name.

    Args:
        address: `host:port`, an IPv6 address in brackets; without a host all of this machine.
        setting: Which setting says so, for the error.

    Raises:
        ConfigError: It cannot be had.
    """
    name, _, port = address.rpartition(":")
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
        reason = exc.strerror if isinstance(exc, socket.gaierror) else os.strerror(exc.errno or 0)
        raise ConfigError(f"{setting}: cannot listen on {address}: {reason}") from exc
