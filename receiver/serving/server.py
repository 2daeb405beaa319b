"""The HTTP server: aiohttp's own, with the deadlines and bounds that it leaves to others.

aiohttp bounds a head's fields and the wait for the next request. Added here: a size and a deadline
of the head, whatever trickles in; a deadline of an answer that nobody reads; caps on connections;
problem details in place of text where bytes are no HTTP.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
from collections.abc import Awaitable, Callable
from datetime import timedelta
from http import HTTPStatus
from typing import Any

from aiohttp import web
from aiohttp.http_exceptions import LineTooLong

from pushkit.repeated_log import RepeatedLog
from receiver.app import response
from receiver.connections import ConnectionLimits, Connections
from receiver.edge import problem
from receiver.peers import rate_key
from receiver.verdicts import Refusals, Verdict

__all__ = ["HttpServer"]

_log = logging.getLogger("receiver")

_Handler = Callable[[web.BaseRequest], Awaitable[web.Response]]

# What was not read of a refused body is read for so long, so that the peer gets to its answer.
_LINGERING_SECONDS = 2.0
_MAX_FIELDS = 128
_MAX_FIELD_BYTES = 8190
_END_OF_HEAD = b"\r\n\r\n"


class HttpServer(web.Server):
    """Makes a protocol for every connection.

    Args:
        handler: Answers one request, and raises nothing.
        limits: What a connection may take.
        is_proxy: Says whether an address is a trusted proxy's.
        max_head_bytes: The largest head.
    """

    def __init__(
        self,
        handler: _Handler,
        *,
        limits: ConnectionLimits,
        is_proxy: Callable[[str], bool],
        max_head_bytes: int,
    ) -> None:
        super().__init__(self._answer)
        self.limits = limits
        self.open: Connections[_Connection] = Connections(limits, is_proxy)
        self._handler = handler
        self.max_head_bytes = max_head_bytes
        self.refusals = Refusals()
        self.repeated_log = RepeatedLog(_log)
        self._stopping = False
        self._answered = asyncio.Event()

    def __call__(self) -> web.RequestHandler:
        """Return the protocol of one connection."""
        return _Connection(
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
        assert isinstance(connection, _Connection)  # noqa: S101  # made above
        connection.begin()
        last = True
        try:
            found = await self._handler(request)
            last = self._stopping or not request.content.is_eof()
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


class _Connection(web.RequestHandler):
    """One connection."""

    def __init__(self, server: HttpServer, **options: Any) -> None:
        super().__init__(server, **options)
        self.busy = False
        self._server = server
        self._peer = ""
        self._wire: asyncio.Transport | None = None
        self._closing = False
        self._head_bytes = 0
        self._head_tail = b""
        self._head_deadline = _Deadline(server.limits.head_timeout, self._head_is_late)
        self._write_deadline = _Deadline(server.limits.write_timeout, self.evict)

    # --- called by the event loop --------------------------------------------------------------

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        """Count the connection, or end it."""
        assert isinstance(transport, asyncio.Transport)  # noqa: S101  # a stream
        peer = transport.get_extra_info("peername")
        self._peer = str(peer[0]) if isinstance(peer, tuple) else ""
        reason = self._server.open.admit(self, self._peer)
        if reason is not None:
            cause = ("connection", rate_key(self._peer))
            said = "refused connection peer=%s: %s"
            self._server.repeated_log.say(cause, logging.WARNING, said, self._peer, reason)
            self._closing = True
            transport.abort()
            return
        super().connection_made(transport)
        self._wire = transport
        transport.set_write_buffer_limits(high=0)  # whatever is not taken begins a deadline
        self._head_deadline.begin()

    def data_received(self, data: bytes) -> None:
        """Begin the deadline of a head with its first byte, and count what there is of it."""
        if data and not (self.busy or self._closing):
            self._head_deadline.begin()
            if self._head_is_large(data):
                reason = f"more than {self._server.max_head_bytes} bytes of headers"
                self._refuse(Verdict(status=431, code="headers_too_large"), reason)
                return
        super().data_received(data)

    def pause_writing(self) -> None:
        """Begin the deadline of an answer that the peer does not read."""
        super().pause_writing()
        self._write_deadline.begin()

    def resume_writing(self) -> None:
        """End it."""
        super().resume_writing()
        self._write_deadline.end()

    def connection_lost(self, exc: BaseException | None) -> None:
        """Count the connection no longer."""
        self._head_deadline.end()
        self._write_deadline.end()
        self._server.open.forget(self)
        super().connection_lost(exc)

    # --- called by the server -------------------------------------------------------------------

    def begin(self) -> None:
        """Note that a request's head is complete, and its answer in work."""
        self.busy = True
        self._head_deadline.end()

    def end(self, *, last: bool) -> None:
        """Note that the answer is known, and whether it is this connection's last."""
        self.busy, self._closing = False, last
        self._head_bytes, self._head_tail = 0, b""
        self._server.open.used(self)

    def evict(self) -> None:
        """End the connection at once; what is not sent yet is lost."""
        self.force_close()
        if self._wire is not None:
            self._wire.abort()

    def handle_error(
        self,
        request: web.BaseRequest,
        status: int = 500,
        exc: BaseException | None = None,
        message: str | None = None,  # noqa: ARG002  # has the stranger's text in it
    ) -> web.StreamResponse:
        """Answer bytes that are no HTTP with problem details."""
        if request.writer.output_size > 0:
            raise ConnectionError("a part of the answer is sent already")
        verdict = _verdict(status, exc)
        if verdict.status == HTTPStatus.SERVICE_UNAVAILABLE:
            fault = "refused 503 internal peer=%s"
            cause = ("internal", type(exc))
            self._server.repeated_log.say(
                cause, logging.ERROR, fault, self._peer, exc_info=exc or True
            )
        else:
            self._note(verdict, f"no HTTP request: {type(exc).__name__}")
        return response(problem(verdict, close=True))

    # --- within ---------------------------------------------------------------------------------

    def _head_is_large(self, data: bytes) -> bool:
        """Count bytes until a head is complete; say whether they are too many for one."""
        if self._head_tail == _END_OF_HEAD:
            return False
        seen = self._head_tail + data
        if _END_OF_HEAD in seen:
            self._head_tail = _END_OF_HEAD
            return False
        self._head_tail = seen[-3:]
        self._head_bytes += len(data)
        return self._head_bytes > self._server.max_head_bytes

    def _head_is_late(self) -> None:
        if self.busy or self.transport is None:
            return
        if self._head_bytes:
            self._refuse(Verdict(status=408, code="head_timeout"), "the headers came too slowly")
        else:
            self.force_close()

    def _note(self, verdict: Verdict, reason: str) -> None:
        note = self._server.refusals.note
        note(verdict.status, verdict.code, peer=self._peer, reason=reason)

    def _refuse(self, verdict: Verdict, reason: str) -> None:
        """Answer what is no request yet, and close."""
        self._note(verdict, reason)
        body = problem(verdict).body
        head = (
            f"HTTP/1.1 {verdict.status} {HTTPStatus(verdict.status).phrase}\r\nServer: receiver\r\n"
            "Connection: close\r\nContent-Type: application/problem+json\r\n"
            f"Content-Length: {len(body)}\r\n\r\n"
        )
        if self.transport is not None:
            self.transport.write(head.encode("ascii") + body)
        self.force_close()


def _verdict(status: int, exc: BaseException | None) -> Verdict:
    if isinstance(exc, LineTooLong):
        return Verdict(status=431, code="headers_too_large")
    if status >= HTTPStatus.INTERNAL_SERVER_ERROR:
        return Verdict(status=503, code="internal")
    return Verdict(status=status, code="malformed_http")


class _Deadline:
    """Calls a function, unless it is ended before."""

    def __init__(self, after: timedelta, then: Callable[[], None]) -> None:
        self._seconds = after.total_seconds()
        self._then = then
        self._timer: asyncio.TimerHandle | None = None

    def begin(self) -> None:
        """Begin, if it has not begun."""
        if self._timer is None:
            self._timer = asyncio.get_running_loop().call_later(self._seconds, self._then)

    def end(self) -> None:
        """Call nothing."""
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None
