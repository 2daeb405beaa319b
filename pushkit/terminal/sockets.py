"""Where a command listens that was given `--listen host:port`."""

from __future__ import annotations

import os
import socket

from pushkit.errors import ConfigError

__all__ = ["listening_at"]


def listening_at(address: str) -> socket.socket:
    """Return a socket that listens at `host:port`; port 0 stands for any that is free.

    Raises:
        ConfigError: It is no address, or cannot be had.
    """
    host, colon, port = address.rpartition(":")
    if not colon or not host or not port.isdecimal() or int(port) > 65535:
        raise ConfigError(f"--listen: found {address!r}, expected host:port")
    host = host.strip("[]")
    try:
        family = socket.AF_INET6 if ":" in host else socket.AF_INET
        return socket.create_server((host, int(port)), family=family)
    except OSError as exc:
        reason = exc.strerror if isinstance(exc, socket.gaierror) else os.strerror(exc.errno or 0)
        raise ConfigError(
            f"--listen: cannot listen on {address}: {reason}; with port 0 a free one is taken"
        ) from exc
