"""The pool of kept-alive connections: idle ones, limits, and waiting requests."""

from __future__ import annotations

import asyncio
import ssl
from collections import deque
from dataclasses import dataclass, field
from functools import partial
from typing import NamedTuple

from pushkit.net.connection import Connection, write_requests
from pushkit.scheduling.event_loop import Deadlines, IterationBatches


class Endpoint(NamedTuple):
    """Where a connection leads: requests share one only if the policy judged them alike."""

    scheme: str
    host: str
    port: int
    allowed_by_name: bool
    tls: ssl.SSLContext | None


@dataclass(slots=True)
class _Connections:
    idle: list[Connection] = field(default_factory=list)
    open: set[Connection] = field(default_factory=set)


class ConnectionPool:
    """The connections of one client.

    Args:
        max_connections: How many may be open at once.
        max_per_endpoint: How many of them may lead to the same endpoint.
    """

    def __init__(self, max_connections: int, max_per_endpoint: int) -> None:
        self._max_connections = max_connections
        self._max_per_endpoint = max_per_endpoint
        self._deadlines, self._writes = Deadlines(), IterationBatches(write_requests)
        self._by_endpoint: dict[Endpoint, _Connections] = {}
        self._open = 0
        self._waiting: deque[tuple[Endpoint, asyncio.Future[None]]] = deque()
        self._loop: asyncio.AbstractEventLoop | None = None  # whose connections these are

    def acquire_idle(self, endpoint: Endpoint) -> Connection | None:
        """Return the idle connection that was used last; None if none is idle."""
        if self._loop is not (loop := asyncio.get_running_loop()):
            self.close()
            self._loop = loop
        same = self._by_endpoint.get(endpoint)
        while same is not None and same.idle:
            connection = same.idle.pop()
            if connection.is_reusable():
                return connection
            connection.close()
        return None

    async def acquire(self, endpoint: Endpoint, *, new: bool) -> Connection:
        """Return an idle connection or a new one, as soon as the limits allow.

        If `new`, the endpoint's idle connections are closed. The caller must dial a new one, which
        has sent no request yet, or close it.
        """
        while True:
            if new:
                self._close_idle(endpoint)
            elif (found := self.acquire_idle(endpoint)) is not None:
                return found
            if self._may_open(endpoint):
                return self._new(endpoint)
            await self._change(endpoint)

    def close(self) -> None:
        """Close all connections; also those of an event loop that has ended."""
        if self._loop is not None and self._loop.is_closed():
            self._waiting.clear()
        for connection in [each for same in self._by_endpoint.values() for each in same.open]:
            connection.close()
        self._deadlines.close()

    def _close_idle(self, endpoint: Endpoint) -> None:
        same = self._by_endpoint.get(endpoint)
        for connection in list(same.idle) if same else ():
            connection.close()

    def _new(self, endpoint: Endpoint) -> Connection:
        if self._open >= self._max_connections:
            idle = [each for same in self._by_endpoint.values() for each in same.idle]
            min(idle, key=lambda each: each.idle_since).close()
        connection = Connection(
            self._deadlines,
            self._writes,
            partial(self._on_idle, endpoint),
            partial(self._on_closed, endpoint),
        )
        self._by_endpoint.setdefault(endpoint, _Connections()).open.add(connection)
        self._open += 1
        return connection

    def _may_open(self, endpoint: Endpoint) -> bool:
        same = self._by_endpoint.get(endpoint)
        if same is not None and len(same.open) >= self._max_per_endpoint:
            return False
        return self._open < self._max_connections or any(
            same.idle for same in self._by_endpoint.values()
        )

    async def _change(self, endpoint: Endpoint) -> None:
        """Wait until an endpoint may have an idle connection, or may open one."""
        waiter = (endpoint, asyncio.get_running_loop().create_future())
        self._waiting.append(waiter)
        try:
            await waiter[1]
        except asyncio.CancelledError:
            if waiter in self._waiting:
                self._waiting.remove(waiter)
            else:  # it was woken already: wake the next one in its place
                self._wake()
            raise

    def _wake(self) -> None:
        """Wake the first waiter whose endpoint may have a connection now."""
        for waiter in self._waiting:
            endpoint, changed = waiter
            same = self._by_endpoint.get(endpoint)
            if (same is not None and same.idle) or self._may_open(endpoint):
                self._waiting.remove(waiter)
                if not changed.done():
                    changed.set_result(None)
                return

    def _on_idle(self, endpoint: Endpoint, connection: Connection) -> None:
        self._by_endpoint[endpoint].idle.append(connection)
        if self._waiting:
            self._wake()

    def _on_closed(self, endpoint: Endpoint, connection: Connection) -> None:
        same = self._by_endpoint[endpoint]
        same.open.remove(connection)
        self._open -= 1
        if connection in same.idle:
            same.idle.remove(connection)
        if not same.open:
            del self._by_endpoint[endpoint]
        self._wake()
