"""One connection of the service: aiohttp's protocol, with the deadlines that it leaves out."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable
from datetime import timedelta
from http import HTTPStatus
from typing import TYPE_CHECKING, Any, cast

from aiohttp import web
from aiohttp.http_exceptions import LineTooLong

from receiver.app import response
from receiver.edge import problem
from receiver.peers import rate_key
from receiver.refusals import Verdict
from receiver.serving.framing import Framing

if TYPE_CHECKING:
    from receiver.serving.server import HttpServer

__all__ = ["HttpConnection"]


class HttpConnection(web.RequestHandler):
    """One connection, from the moment that its socket is accepted.

    Args:
        server: Counts it.
        options: Of aiohttp's protocol.
    """

    def __init__(self, server: HttpServer, **options: Any) -> None:
        super().__init__(server, **options)
        self.busy = False
        self._server = server
        self._peer = ""
        self._wire: asyncio.Transport | None = None
        self._is_made = False
        self._early = b""
        self._closing = False
        self._framing = Framing()
        self._answered = 0
        self._is_last = False
        self._head_deadline = _Deadline(server.limits.head_timeout, self._head_is_late)
        self._write_deadline = _Deadline(server.limits.write_timeout, self.evict)

    def accept(self, transport: asyncio.Transport) -> bool:
        """Count the connection of an accepted socket; or end it at once, and say False."""
        peer = transport.get_extra_info("peername")
        self._peer = str(peer[0]) if isinstance(peer, tuple) else ""
        self._wire = transport
        reason = self._server.open.admit(self, self._peer)
        if reason is None:
            return True
        self._server.repeated_log.say(
            ("connection", rate_key(self._peer)),
            logging.WARNING,
            "refused connection peer=%s: %s",
            self._peer,
            reason,
        )
        self._closing = True
        transport.abort()
        return False

    # --- called by the event loop --------------------------------------------------------------

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        """Begin to serve, once there is a handshake if there has to be one."""
        transport = cast(asyncio.Transport, transport)  # uvloop's are no subclass
        if self._wire is None and not self.accept(transport):
            return
        super().connection_made(transport)
        self._wire, self._is_made = transport, True
        transport.set_write_buffer_limits(high=0)  # whatever is not taken begins a deadline
        self._head_deadline.begin()
        if self._early:
            self.data_received(self._early)

    def data_received(self, data: bytes) -> None:
        """Begin the deadline of a head with its first byte, wherever that came."""
        if not self._is_made:  # with the last message of the handshake
            self._early += data
            return
        if data and not self._closing:
            heads = self._framing.heads
            self._framing.feed(data)
            if self._framing.heads != heads:
                self._head_deadline.end()
            if self._framing.head_bytes:
                self._head_deadline.begin()
            if self._framing.head_bytes > self._server.max_head_bytes:
                reason = f"more than {self._server.max_head_bytes} bytes of headers"
                self._refuse(Verdict.of("headers_too_large"), reason)
                return
        super().data_received(data)

    def eof_received(self) -> bool:  # type: ignore[override]  # the base says None
        """Answer what was asked for before a peer closed its half of the connection."""
        self._is_last = True
        owes = self._framing.heads > self._answered and not self._framing.in_body
        # Over TLS there is no half-close: asyncio ends the connection.
        return owes and self._wire is not None and self._wire.get_extra_info("sslcontext") is None

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
        """Note that a request is in work."""
        self.busy = True

    def is_last(self) -> bool:
        """Say whether nothing may come after the answer to the request in work."""
        return self._is_last and self._framing.heads <= self._answered + 1

    def end(self, *, last: bool) -> None:
        """Note that the answer is known, and whether it is this connection's last."""
        self.busy, self._closing = False, last
        self._answered += 1
        self._server.open.used(self)

    def force_close(self) -> None:
        """End the connection, once what is written is sent; in a handshake, at once."""
        super().force_close()
        if self._wire is not None and not self._is_made:
            self._wire.abort()

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
            self._server.repeated_log.say(
                ("internal", type(exc)),
                logging.ERROR,
                "refused 503 internal peer=%s",
                self._peer,
                exc_info=exc or True,
            )
        else:
            self._note(verdict, f"no HTTP request: {type(exc).__name__}")
        return response(problem(verdict, close=True))

    # --- within ---------------------------------------------------------------------------------

    def _head_is_late(self) -> None:
        if self._framing.head_bytes:
            verdict = Verdict.of("head_timeout")
            self._refuse(verdict, "the headers came too slowly")
        elif not self.busy:
            self.force_close()

    def _refuse(self, verdict: Verdict, reason: str) -> None:
        """Answer what is no request yet, and close; after the answer in work, if there is one."""
        self._note(verdict, reason)
        self._closing = True
        if self.busy:
            self._is_last = True
            return
        body = problem(verdict).body
        head = (
            f"HTTP/1.1 {verdict.status} {HTTPStatus(verdict.status).phrase}\r\nServer: receiver\r\n"
            "Connection: close\r\nContent-Type: application/problem+json\r\n"
            f"Content-Length: {len(body)}\r\n\r\n"
        )
        if self.transport is not None:
            self.transport.write(head.encode("ascii") + body)
        self.force_close()

    def _note(self, verdict: Verdict, reason: str) -> None:
        note = self._server.refusals.note
        note(verdict.status, verdict.code, peer=self._peer, reason=reason)


def _verdict(status: int, exc: BaseException | None) -> Verdict:
    if isinstance(exc, LineTooLong):
        return Verdict.of("headers_too_large")
    if status >= HTTPStatus.INTERNAL_SERVER_ERROR:
        return Verdict.of("internal")
    return Verdict.of("malformed_http", status=status)


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
