"""Ports for programs that are told where to listen."""

from __future__ import annotations

import itertools
import os
import random
import socket

__all__ = ["free_port"]

# Below what the kernel gives to sockets that name no port: nobody else takes one meanwhile.
_LOWEST, _BEYOND = 10_000, 32_000


def _share() -> list[int]:
    """Return this worker's ports: no two workers of a run of tests share one."""
    worker = int(os.environ.get("PYTEST_XDIST_WORKER", "gw0").removeprefix("gw"))
    workers = int(os.environ.get("PYTEST_XDIST_WORKER_COUNT", "1"))
    ports = list(range(_LOWEST + worker, _BEYOND, workers))
    begin = random.randrange(len(ports))  # noqa: S311  # elsewhere than other runs at this time
    return ports[begin:] + ports[:begin]


_ports = itertools.cycle(_share())


def free_port() -> int:
    """Return a port of 127.0.0.1 that nobody uses, and that nobody else is given."""
    for port in _ports:
        with socket.socket() as probe:
            # As servers do, so that a connection's remains do not count.
            probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
            try:
                probe.bind(("127.0.0.1", port))
            except OSError:
                continue
            return port
    raise AssertionError("the ports have no end")
