"""The one HTTP client, for notifications, documents and tokens: as much of HTTP/1.1 as they need.

A request takes a connection from the pool, or has one dialled (`dialling.py`, under the guard of
`guard.py`), and is sent over it (`connection.py`). A failure becomes one `TransportError`
(`failures.py`).

The peer may have closed a kept-alive connection unnoticed. If a request fails on one before a byte
of the answer arrived, it is sent again over a new connection, within the same deadline, and counts
as one.
"""

from __future__ import annotations

import asyncio
import contextlib
import ssl
from collections import deque
from collections.abc import AsyncIterator, Awaitable, Callable, Sequence
from dataclasses import dataclass, field
from datetime import timedelta
from functools import partial
from pathlib import Path
from typing import Protocol, TypeVar

from pushkit.errors import PushkitError, TransportError
from pushkit.net.addresses import address_is_own
from pushkit.net.connection import (
    MAX_ANSWER_BYTES,
    Connection,
    HttpAnswer,
    HttpRequest,
    write_requests,
)
from pushkit.net.destination import Destination, DestinationPolicy
from pushkit.net.dialling import Dialler, EgressProxy, Endpoint
from pushkit.net.failures import Probe, current_probe, transport_error
from pushkit.net.guard import Guard, NameLookup, Resolver
from pushkit.net.tls import tls_context
from pushkit.scheduling.event_loop import Deadlines, IterationBatches
from pushkit.version import USER_AGENT


@dataclass(frozen=True, slots=True, kw_only=True)
class ConnectionOptions:
    """How a client connects.

    Attributes:
        max_connections: How many at once, over all destinations.
        max_connections_per_host: How many at once to one host and port.
        resolver: Looks names up; the system's name servers if None.
        proxy: An egress proxy, as `http://[user:password@]host:port`; hosts on this machine, and
            those named in `allow`, are reached without it.
        ca_file: Root certificates in PEM, trusted beside the system's.
        is_own: Returns whether an address is this machine's own.
    """

    max_connections: int = 256
    max_connections_per_host: int = 16
    resolver: Resolver | None = None
    proxy: str | None = field(default=None, repr=False)
    ca_file: Path | None = None
    is_own: Callable[[str], bool] = address_is_own


@dataclass(slots=True)
class _Connections:
    idle: list[Connection] = field(default_factory=list)
    open: set[Connection] = field(default_factory=set)


class ConnectionPool:
    """The connections of one client, within the limits of its options."""

    def __init__(self, options: ConnectionOptions) -> None:
        self._max_connections = options.max_connections
        self._max_per_endpoint = options.max_connections_per_host
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


class Transport:
    """An HTTP client under one destination policy, with a pool of kept-alive connections.

    It follows no redirect, takes no proxy from the environment, keeps no cookie, decompresses
    nothing, and reads answers up to a bound. One deadline covers a whole request, from the lookup
    of the name.

    Raises:
        ConfigError: The proxy's URL or the file of roots cannot be used.
    """

    def __init__(self, policy: DestinationPolicy, options: ConnectionOptions | None = None) -> None:
        options = options or ConnectionOptions()
        self.policy = policy
        self.options = options
        self._lookup = NameLookup(options.resolver)
        self._dialler = Dialler(
            Guard(policy, is_own=options.is_own),
            self._lookup,
            None if options.proxy is None else EgressProxy.parse(options.proxy),
        )
        self._tls = tls_context(ca_file=options.ca_file)
        self._pool = ConnectionPool(options)

    async def post(
        self,
        destination: Destination,
        headers: Sequence[tuple[str, str]],  # all but `Host` and `Content-Length`
        body: bytes,
        *,
        # For all of it, from the lookup of the name to the end of the answer.
        timeout: timedelta,  # noqa: ASYNC109  # enforced here
        # Roots and client certificate for this destination, from `tls_context`. Requests share
        # connections only under the same one.
        tls: ssl.SSLContext | None = None,
        # For the answer's body after its head; None for what is left of `timeout`. A body that is
        # late is cut off, and the connection closed.
        body_within: timedelta | None = None,
    ) -> HttpAnswer:
        """Send one POST and return the answer, whatever its status.

        Raises:
            TransportError: No complete answer head within the timeout.
        """
        request = HttpRequest(
            _head("POST", destination, [*headers, ("Content-Length", str(len(body)))]),
            body,
            asyncio.get_running_loop().time() + timeout.total_seconds(),
            None if body_within is None else body_within.total_seconds(),
        )
        del headers  # the request has them: fewer objects live until the answer
        return await self._send(destination, request, timeout, tls)

    async def get(
        self,
        destination: Destination,
        headers: Sequence[tuple[str, str]],  # all but `Host`
        *,
        timeout: timedelta,  # noqa: ASYNC109  # as for `post`
        max_body_bytes: int = MAX_ANSWER_BYTES,
        tls: ssl.SSLContext | None = None,
    ) -> HttpAnswer:
        """Send one GET and return the answer; parameters and errors are as for `post`."""
        deadline = asyncio.get_running_loop().time() + timeout.total_seconds()
        request = HttpRequest(
            _head("GET", destination, headers), b"", deadline, max_body_bytes=max_body_bytes
        )
        return await self._send(destination, request, timeout, tls)

    async def get_document(
        self,
        url: str,
        media_types: str,  # the value of `Accept`
        *headers: tuple[str, str],  # further fields
        timeout: timedelta,  # noqa: ASYNC109  # as for `post`
        max_body_bytes: int = MAX_ANSWER_BYTES,
        error: type[PushkitError],  # raised for an answer that cannot be read
    ) -> HttpAnswer:
        """Get a whole, uncompressed document, or an answer whose status is not 200.

        Raises:
            DestinationRefusedError: The policy refuses the URL.
            PushkitError: An `error`: the answer is compressed although `Accept-Encoding` forbids
                it, broke off, or is too large.
            TransportError: No complete answer head within the timeout.
        """
        fields = [("Accept", media_types), ("Accept-Encoding", "identity")]
        fields += [("User-Agent", USER_AGENT), *headers]
        answer = await self.get(
            self.policy.check(url), fields, timeout=timeout, max_body_bytes=max_body_bytes
        )
        if answer.status == 200:
            # Nothing is decompressed, so no decompression bomb can go off.
            encodings = answer.headers.all("Content-Encoding")
            if any(encoding.strip().lower() != "identity" for encoding in encodings):
                raise error("the answer is compressed, expected Content-Encoding identity")
            if not answer.complete:
                raise error(f"the answer broke off, or is longer than {max_body_bytes} bytes")
        return answer

    async def close(self) -> None:
        """Close all connections."""
        self._pool.close()
        await self._lookup.close()

    async def _send(
        self,
        destination: Destination,
        request: HttpRequest,
        timeout: timedelta,  # noqa: ASYNC109  # for the message; the request has the deadline
        tls: ssl.SSLContext | None,
    ) -> HttpAnswer:
        url = destination.url
        context = (tls or self._tls) if url.scheme == "https" else None
        endpoint = Endpoint(url.scheme, url.host, url.port, destination.allowed_by_name, context)
        probe = Probe()
        try:
            connection = self._pool.acquire_idle(endpoint)
            if connection is None:
                connection = await self._connection(endpoint, request, probe)
            try:
                return await connection.send(request, probe)
            except (ConnectionError, ssl.SSLError):
                if connection.requests_sent == 1 or connection.has_received:
                    raise
            connection = await self._connection(endpoint, request, probe, new=True)
            return await connection.send(request, probe)
        except Exception as exc:  # a hostile answer must not raise anything else
            seconds = timeout.total_seconds()
            raise transport_error(exc, destination, seconds=seconds, probe=probe) from exc

    async def _connection(
        self, endpoint: Endpoint, request: HttpRequest, probe: Probe, *, new: bool = False
    ) -> Connection:
        """Return an open connection before the request's deadline; if `new`, one just dialled."""
        probe.enter(None)
        async with asyncio.timeout_at(request.deadline):
            # If new: the other idle ones have been idle for as long, or longer.
            connection = await self._pool.acquire(endpoint, new=new)
            if connection.requests_sent:
                return connection
            probe.enter("connect")
            reset = current_probe.set(probe)
            try:
                await self._dialler.dial(endpoint, connection)
            except BaseException:
                connection.close()
                raise
            finally:
                current_probe.reset(reset)
        return connection


def _head(method: str, destination: Destination, headers: Sequence[tuple[str, str]]) -> bytes:
    """Return the request line and the header fields, with `Host`.

    Raises:
        TransportError: A field contains a line break or a zero byte.
    """
    url = destination.url
    fields = "".join([f"{name}: {value}\r\n" for name, value in headers])
    ends = len(headers)
    if fields.count("\r") != ends or fields.count("\n") != ends or "\0" in fields:
        raise TransportError(
            f"{destination.origin}: a header field holds a line break or a zero byte"
        )
    written = f"{method} {url.target} HTTP/1.1\r\nHost: {url.authority}\r\n{fields}\r\n"
    # An entity tag may hold bytes that are not UTF-8: they go back as they came.
    return written.encode("utf-8", "surrogateescape")


class Closable(Protocol):
    """An object that holds connections."""

    def close(self) -> Awaitable[None]:
        """Close the connections."""
        ...


_C = TypeVar("_C", bound=Closable)


@contextlib.asynccontextmanager
async def closing(client: _C) -> AsyncIterator[_C]:
    """Yield an object that holds connections, and close it at the end."""
    try:
        yield client
    finally:
        await client.close()
