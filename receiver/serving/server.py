"""`HttpServer`: accepts connections, bounds their number, and ends them gracefully.

A connection is counted from the moment that its socket is accepted, and has deadlines. Bytes that
are no HTTP are answered with problem details, like every refusal.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
import ssl
from collections.abc import Callable, Coroutine
from typing import cast

from pushkit.logs import RepeatedLog
from pushkit.peers import rate_key
from pushkit.scheduling.event_loop import cancelled
from receiver.limits import ConnectionLimits
from receiver.request import Answer, Handle
from receiver.serving.connection import Connections, HttpConnection, ServerState

_log = logging.getLogger("receiver")

_TLS_CLOSE_SECONDS = 5.0
_LINES = 100  # of the log, in a minute, about refused connections
_LAST_WORDS = 1.0  # seconds for the sending of the last answers


class HttpServer:
    """Makes the protocol of every connection, and drains all of them at the end."""

    def __init__(
        self,
        handle: Handle,  # answers one request, and raises nothing
        *,
        limits: ConnectionLimits,
        is_proxy: Callable[[str], bool],  # returns whether an address is a trusted proxy's
        max_head_bytes: int,  # the largest head
        # Reports bytes that are no request, by the code of the refusal, the reason and the address
        # of the peer; returns the answer.
        refuse: Callable[[str, str, str], Answer],
        tls: ssl.SSLContext | None = None,  # None for plain HTTP
    ) -> None:
        self.state: ServerState = ServerState(handle, refuse, limits, is_proxy, max_head_bytes)
        self._tls = tls
        self._handshakes: set[asyncio.Task[None]] = set()
        self.repeated_log: RepeatedLog = RepeatedLog(_log, most=_LINES)

    @property
    def connections(self) -> Connections:
        """The open connections."""
        return self.state.connections

    @property
    def in_progress(self) -> set[HttpConnection]:
        """The connections with a request in progress."""
        return self.state.in_progress

    def protocol_for(self, peer: str) -> asyncio.Protocol | None:
        """Count an accepted connection, and return its protocol; None if it is refused."""
        connection = HttpConnection(self.state, peer)
        reason = self.connections.add(connection, peer)
        if reason is None:
            return connection if self._tls is None else _Handshake(self, connection, self._tls)
        cause = ("connection", rate_key(peer))
        said = "refused connection peer=%s: %s"
        self.repeated_log.log(cause, logging.WARNING, said, peer, reason)
        return None

    def run_handshake(self, handshake: Coroutine[None, None, None]) -> None:
        """Run a TLS handshake in a task."""
        task = asyncio.create_task(handshake)
        self._handshakes.add(task)
        task.add_done_callback(self._handshakes.discard)

    async def drain(self, timeout: float) -> None:  # noqa: ASYNC109  # a deadline, not an error
        """Answer the requests in progress, then close every connection; none may be new any more.

        Each answer is the last one of its connection; requests not answered in time are cancelled.
        """
        for connection in self.connections:
            connection.wind_down()
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(timeout):
                await self.state.until_answered()
        broken_off = [each.work for each in self.in_progress if each.work is not None]
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(0 if self.in_progress else _LAST_WORDS):
                await self.connections.until_none()
        for connection in self.connections:
            connection.abort()
            self.connections.forget(connection)
        for task in [*broken_off, *self._handshakes]:
            await cancelled(task)


class _Handshake(asyncio.Protocol):
    """A connection in its TLS handshake, which has a deadline."""

    def __init__(self, server: HttpServer, connection: HttpConnection, tls: ssl.SSLContext) -> None:
        self._server = server
        self._connection = connection
        self._tls = tls

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        """Begin the handshake; or end the connection."""
        transport = cast(asyncio.Transport, transport)  # uvloop's are no subclass
        if self._connection.attach(transport):
            self._server.run_handshake(self._shake_hands(transport))

    async def _shake_hands(self, transport: asyncio.Transport) -> None:
        connection, encrypted = self._connection, None
        try:
            if not transport.is_closing():  # else the handshake would wait for its deadline
                encrypted = await asyncio.get_running_loop().start_tls(
                    transport,
                    connection,
                    self._tls,
                    server_side=True,
                    ssl_handshake_timeout=self._server.state.limits.head_timeout.total_seconds(),
                    ssl_shutdown_timeout=_TLS_CLOSE_SECONDS,
                )
        except OSError as exc:  # no TLS, too slow, or gone
            exc.__traceback__ = None  # its frames hold the buffers of the handshake, and it them
        if encrypted is None or encrypted.is_closing():
            transport.abort()
            self._server.connections.forget(connection)
        else:
            connection.connection_made(encrypted)
