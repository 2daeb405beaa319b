"""The HTTP server: aiohttp's own, with the deadlines and bounds that it leaves to others.

aiohttp bounds a head's fields and the wait for the next request. Added here: a size and a deadline
of the head, whatever trickles in; a deadline of an answer that nobody reads; caps on connections,
from the moment that a socket is accepted; problem details in place of text where bytes are no HTTP.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
import ssl
from collections.abc import Awaitable, Callable, Coroutine
from typing import cast

from aiohttp import web

from pushkit.logs import RepeatedLog
from receiver.connections import ConnectionLimits, Connections
from receiver.refusals import Refusals
from receiver.serving.connection import HttpConnection

__all__ = ["HttpServer"]

_log = logging.getLogger("receiver")

_Handler = Callable[[web.BaseRequest], Awaitable[web.Response]]

# What was not read of a refused body is read for so long, so that the peer gets to its answer.
_LINGERING_SECONDS = 2.0
_MAX_FIELDS = 128
_MAX_FIELD_BYTES = 8190
_TLS_CLOSE_SECONDS = 5.0


class HttpServer(web.Server):
    """Makes a protocol for every connection.

    Args:
        handler: Answers one request, and raises nothing.
        limits: What a connection may take.
        is_proxy: Says whether an address is a trusted proxy's.
        max_head_bytes: The largest head.
        tls: The service's certificate; None for none.
        refusals: Logs and tells what is refused.
    """

    def __init__(
        self,
        handler: _Handler,
        *,
        limits: ConnectionLimits,
        is_proxy: Callable[[str], bool],
        max_head_bytes: int,
        tls: ssl.SSLContext | None = None,
        refusals: Refusals | None = None,
    ) -> None:
        super().__init__(self._answer)
        self.limits = limits
        self.open: Connections[HttpConnection] = Connections(limits, is_proxy)
        self._tls = tls
        self._shaking: set[asyncio.Task[None]] = set()
        self._handler = handler
        self.max_head_bytes = max_head_bytes
        self.refusals: Refusals = refusals or Refusals()
        self.repeated_log: RepeatedLog = RepeatedLog(_log)
        self._stopping = False
        self._answered = asyncio.Event()

    def __call__(self) -> asyncio.Protocol:  # type: ignore[override]  # the base says its own
        """Return the protocol of one connection."""
        return self.connection() if self._tls is None else _Accepted(self, self._tls)

    def run(self, handshake: Coroutine[None, None, None]) -> None:
        """Run a handshake beside everything else."""
        task = asyncio.create_task(handshake)
        self._shaking.add(task)
        task.add_done_callback(self._shaking.discard)

    def connection(self) -> HttpConnection:
        """Return the protocol of one connection, once it is encrypted if it has to be."""
        return HttpConnection(
            self,
            loop=asyncio.get_running_loop(),
            keepalive_timeout=self.limits.keep_alive.total_seconds(),
            lingering_time=_LINGERING_SECONDS,
            max_line_size=_MAX_FIELD_BYTES,
            max_field_size=_MAX_FIELD_BYTES,
            max_headers=_MAX_FIELDS,
            auto_decompress=False,  # what is compressed is refused, not unpacked
            access_log=None,
        )

    async def drain(self, timeout: float) -> None:  # noqa: ASYNC109  # a deadline, not an error
        """Answer what is in flight, then close every connection.

        Each answer is the last one of its connection; what is not answered in time is broken off.
        """
        self._stopping = True
        await asyncio.sleep(0)  # heads that are read become requests
        for connection in self.open.waiting():
            connection.force_close()
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(timeout):
                await self._until_quiet()
        await self.shutdown(timeout=_LAST_WORDS)

    async def _answer(self, request: web.BaseRequest) -> web.Response:
        connection = request.protocol
        assert isinstance(connection, HttpConnection)  # noqa: S101  # made above
        connection.begin()
        last = True
        try:
            found = await self._handler(request)
            unread = not request.content.is_eof()
            last = self._stopping or unread or connection.is_last()
            if last:
                found.force_close()
            return found
        finally:
            connection.end(last=last)
            self._answered.set()

    async def _until_quiet(self) -> None:
        while self.open.busy:
            self._answered.clear()
            await self._answered.wait()


_LAST_WORDS = 1.0  # seconds in which the last answers are sent


class _Accepted(asyncio.Protocol):
    """A connection in its TLS handshake: counted from the start, with a deadline."""

    def __init__(self, server: HttpServer, tls: ssl.SSLContext) -> None:
        self._server = server
        self._tls = tls

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        """Count the connection, and begin the handshake; or end it."""
        transport = cast(asyncio.Transport, transport)  # uvloop's are no subclass
        connection = self._server.connection()
        if connection.accept(transport):
            self._server.run(self._shake_hands(transport, connection))

    async def _shake_hands(self, transport: asyncio.Transport, connection: HttpConnection) -> None:
        try:
            encrypted = await asyncio.get_running_loop().start_tls(
                transport,
                connection,
                self._tls,
                server_side=True,
                ssl_handshake_timeout=self._server.limits.head_timeout.total_seconds(),
                ssl_shutdown_timeout=_TLS_CLOSE_SECONDS,
            )
        except OSError:  # no TLS, too slow, or gone
            encrypted = None
        if encrypted is None or encrypted.is_closing():
            transport.abort()
            self._server.open.forget(connection)
        else:
            connection.connection_made(encrypted)
