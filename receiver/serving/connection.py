"""A connection of the service: one request at a time, with a deadline for each step of the peer.

A head has a deadline and a largest size; the wait for the next request and the reading of an answer
have deadlines, too. The socket is not read while enough bytes wait to be processed.
"""

from __future__ import annotations

import asyncio
import contextlib
import functools
import re
import time
from collections import Counter, OrderedDict
from collections.abc import AsyncGenerator, Awaitable, Callable, Iterator
from dataclasses import KW_ONLY, dataclass, field
from datetime import timedelta
from email.utils import formatdate
from http import HTTPStatus
from typing import Final, cast
from urllib.parse import unquote

from pushkit.errors import InboundError
from pushkit.peers import rate_key
from pushkit.scheduling.event_loop import Deadlines
from receiver.limits import ConnectionLimits
from receiver.request import LARGE_BODY, Answer, BrokenBodyError, Handle, Request
from receiver.serving.http1 import RequestHead, RequestParser

_CONTINUE: Final = b"HTTP/1.1 100 Continue\r\n\r\n"
_BEFORE_PATH: Final = re.compile(r"[a-z][a-z0-9+.-]*://[^/?]*", re.IGNORECASE)
_MOST_HELD: Final = 128 * 1024
# For how long the rest of a refused request is read, so that the peer can read its answer.
_LINGERING: Final = timedelta(seconds=2)


@dataclass(eq=False)
class ServerState:
    """What the connections of one server share."""

    handle: Handle  # answers one request, and raises nothing
    _: KW_ONLY
    limits: ConnectionLimits
    is_proxy: Callable[[str], bool]  # returns whether an address is a trusted proxy's
    max_head_bytes: int  # the largest head
    # Reports bytes that are no request, by the code of the refusal, the reason and the address of
    # the peer; returns the answer.
    refuse: Callable[[str, str, str], Answer]
    connections: Connections = field(init=False)
    deadlines: Deadlines = field(default_factory=Deadlines, init=False)
    # Connections with a request in progress; it is completed even if the connection is lost.
    in_progress: set[HttpConnection] = field(default_factory=set, init=False)
    _is_answered: asyncio.Event = field(default_factory=asyncio.Event, init=False)

    def __post_init__(self) -> None:
        self.connections = Connections(self.limits, self.is_proxy)

    def answered(self, connection: HttpConnection) -> None:
        """Note that the request in progress is answered."""
        self.in_progress.discard(connection)
        if not self.in_progress:
            self._is_answered.set()

    async def until_answered(self) -> None:
        """Wait until no request is in progress."""
        while self.in_progress:
            self._is_answered.clear()
            await self._is_answered.wait()


class HttpConnection(asyncio.Protocol):
    """One connection of a server, from the moment that its socket is accepted."""

    def __init__(self, server: ServerState, peer: str) -> None:
        self._server = server
        self._peer = peer  # its address
        self._transport: asyncio.Transport | None = None
        self._is_made = False
        self._early = b""
        self._parser = RequestParser(server.max_head_bytes)
        self._is_busy = False  # a request is in progress
        self._has_turn = False  # the next request begins soon
        self.work: asyncio.Task[None] | None = None  # answers the request
        self._reader: asyncio.Future[None] | None = None
        self._drained: asyncio.Future[None] | None = None  # what a stream waits for
        self._is_paused = False
        # More than this always contains a head, or too much for one: it does not wait for more.
        self._most_held = max(_MOST_HELD, server.max_head_bytes)
        self._is_half_closed = False  # the peer has closed its half
        self._is_last = False  # no more requests are answered
        limits, deadlines = server.limits, server.deadlines
        self._head_deadline = _Deadline(deadlines, limits.head_timeout, self._head_is_late)
        self._idle_deadline = _Deadline(deadlines, limits.keep_alive, self._close)
        self._write_deadline = _Deadline(deadlines, limits.write_timeout, self.abort)
        self._lingering = _Deadline(deadlines, _LINGERING, self.abort)

    @property
    def busy(self) -> bool:
        """Whether a request is in progress."""
        return self._is_busy

    def attach(self, transport: asyncio.Transport) -> bool:
        """Take the transport; return False if the connection was ended before it had one."""
        self._transport = transport
        if self._is_last:
            transport.abort()
        return not self._is_last

    # --- called by the event loop --------------------------------------------------------------

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        """Begin to serve: called after the TLS handshake, if there is one."""
        transport = cast(asyncio.Transport, transport)  # uvloop's are no subclass
        if not self.attach(transport):
            return
        self._is_made = True
        # Any byte that stays unsent begins the deadline. (Over TLS, 0 would count an empty buffer.)
        transport.set_write_buffer_limits(high=1, low=0)
        self._head_deadline.begin()
        if self._early:
            self.data_received(self._early)

    def data_received(self, data: bytes) -> None:
        """Feed bytes to the parser; begin the next request, or wake the reader of a body."""
        if not self._is_made:  # they arrived with the last message of the handshake
            self._early += data
            return
        if self._is_last and not self._is_busy:
            return
        self._parser.feed(data)
        if not self._begin_next():
            _set(self._reader)
            if self._parser.is_whole and not self._is_last:
                self._look_at_next_head()
        if self._parser.held_bytes > self._most_held and self._transport is not None:
            self._is_paused = True
            self._transport.pause_reading()

    def eof_received(self) -> bool:
        """Keep the connection open for the answers to whole requests, if there are any."""
        self._is_half_closed = True
        whole = self._parser.is_whole
        owes = whole and (self._is_busy or self._parser.has_head)
        # Over TLS there is no half-close: asyncio ends the connection.
        is_tls = self._transport and self._transport.get_extra_info("sslcontext")
        return owes and not is_tls

    def pause_writing(self) -> None:
        """Begin the deadline of an answer that the peer does not read."""
        self._write_deadline.begin()

    def resume_writing(self) -> None:
        """End it, and continue a stream, or begin the next request, which waited for this."""
        self._write_deadline.end()
        _set(self._drained)
        self._begin_soon()

    def connection_lost(self, exc: BaseException | None) -> None:  # noqa: ARG002  # the interface
        """Stop counting the connection, unless a request is in progress: that continues."""
        self._is_last = True
        for deadline in (
            self._head_deadline,
            self._idle_deadline,
            self._write_deadline,
            self._lingering,
        ):
            deadline.cancel()
        _set(self._reader)
        if not self._is_busy:  # else once it is answered: a peer has no more at once
            self._server.connections.forget(self)
        self._transport = None  # with it, buffers are freed at once: there is no cycle
        _set(self._drained)

    # --- called by the server -------------------------------------------------------------------

    def wind_down(self) -> None:
        """Close the connection after the request in progress; at once, if there is none."""
        self._is_last = True
        if not self._is_busy:
            self._close()

    def abort(self) -> None:
        """Abort the connection; unsent bytes are lost."""
        self._is_last = True
        if self._transport is not None:
            self._transport.abort()

    # --- requests -------------------------------------------------------------------------------

    def _begin_soon(self) -> None:
        """Begin the next request after other connections' turns."""
        if not self._has_turn:
            self._has_turn = True
            asyncio.get_running_loop().call_soon(self._take_turn)

    def _take_turn(self) -> None:
        self._has_turn = False
        self._begin_next()

    def _begin_next(self) -> bool:
        """Begin the next request; return False if the answers before it are not on their way."""
        is_unsent = self._write_deadline.has_begun
        if self._is_busy or self._has_turn or is_unsent or self._is_last:
            return False
        try:
            head = self._parser.head()
        except InboundError as exc:
            self._refuse(exc.code, str(exc))
            return True
        if head is not None:
            self._head_deadline.end()
            self._idle_deadline.end()
            self._answer(head)
        elif self._parser.head_bytes:
            self._idle_deadline.end()
            self._head_deadline.begin()
        return True

    def _look_at_next_head(self) -> None:
        """Begin the deadline of a head that arrives in parts while a request is in progress."""
        if self._parser.head_bytes:
            self._head_deadline.begin()
        else:
            self._head_deadline.end()

    def _answer(self, head: RequestHead) -> None:
        self._is_busy = True
        self._server.in_progress.add(self)
        target, parser = head.target, self._parser
        if target[0] != "/" and (absolute := _BEFORE_PATH.match(target)):  # RFC 9112 §3.2.2
            target = target[absolute.end() :]
            target = target if target.startswith("/") else f"/{target}"
        path = target.partition("?")[0]
        is_at_hand = parser.is_whole and len(parser.body) <= LARGE_BODY
        request = Request(
            method=head.method,
            path=unquote(path) if "%" in path else path,
            target=target,
            headers=head.headers,
            peer=self._peer,
            body=bytes(parser.body) if is_at_hand else None,
            read=self._read,
            is_gone=self._is_gone,
        )
        handling = self._server.handle(request)
        self.work = asyncio.get_running_loop().create_task(self._respond(handling))

    async def _respond(self, handling: Awaitable[Answer]) -> None:
        try:
            answer = await handling
            if answer.stream is not None:
                await self._stream(answer, answer.stream)
        except BaseException:  # it was cancelled, or has a fault: there is no answer
            self._is_busy, self.work = False, None
            self._server.answered(self)
            if self._transport is None:
                self._server.connections.forget(self)
            self.abort()
            raise
        self._reply(answer)

    def _is_gone(self) -> bool:
        """Return whether the peer has closed the connection, or its half of it."""
        return self._transport is None or self._is_half_closed

    async def _stream(self, answer: Answer, stream: AsyncGenerator[bytes, None]) -> None:
        """Send a stream, each part when the one before has left; its end is the connection's.

        A peer that reads too slowly is aborted, as with every answer.
        """
        self._is_last = True
        async with contextlib.aclosing(stream) as chunks:
            if self._transport is not None:
                head = _head_of_answer(
                    answer.status, answer.headers, None, "close", int(time.time())
                )
                self._transport.write(head)
            async for chunk in chunks:
                if self._transport is None:
                    return
                self._transport.write(chunk)
                while self._write_deadline.has_begun and self._transport is not None:
                    self._drained = asyncio.get_running_loop().create_future()
                    await self._drained

    def _reply(self, answer: Answer) -> None:
        """Send the answer to the request in progress, and begin the next one."""
        assert self._is_busy  # noqa: S101  # answered once
        self._is_busy, self.work = False, None
        self._server.answered(self)
        parser = self._parser
        parser.body.clear()
        if self._transport is None:
            self._server.connections.forget(self)
            return
        unread = not parser.is_whole
        if (
            answer.close
            or unread
            or not parser.keep_alive
            or (self._is_half_closed and not parser.has_head)
        ):
            self._is_last = True
        if answer.stream is None:
            self._write(answer, has_body=parser.answer_has_body)
        self._server.connections.used(self)
        if not self._is_last:
            if self._is_paused:
                self._resume()
            self._idle_deadline.begin()
            if not parser.held_bytes:
                return
            self._begin_soon()  # other connections get their turn before this peer's next request
        elif unread or parser.held_bytes:
            self._linger()
        else:
            self._close()

    async def _read(self, limit: int) -> bytes | None:
        parser = self._parser
        is_unread = not (parser.is_whole or parser.held_bytes)
        if is_unread and parser.expects_continue and self._transport:
            self._transport.write(_CONTINUE)  # RFC 9110 §10.1.1: only now is the body wanted
        body = bytearray()
        while True:
            body += parser.body
            parser.body.clear()
            if len(body) > limit:
                return None
            if parser.is_whole:
                return bytes(body)
            if parser.error is not None or self._is_half_closed or self._transport is None:
                raise BrokenBodyError
            self._resume()
            self._reader = asyncio.get_running_loop().create_future()
            try:
                await self._reader
            finally:
                self._reader = None

    def _resume(self) -> None:
        """Read the socket again, unless pipelined requests still fill the buffer."""
        if self._is_paused and self._transport and self._parser.held_bytes <= self._most_held:
            self._is_paused = False
            self._transport.resume_reading()

    # --- answers --------------------------------------------------------------------------------

    def _write(self, answer: Answer, *, has_body: bool = True) -> None:
        connection = "close" if self._is_last else "" if self._parser.is_1_1 else "keep-alive"
        assert self._transport is not None  # noqa: S101  # it is made
        length, now = len(answer.body), int(time.time())
        written = _head_of_answer(answer.status, answer.headers, length, connection, now)
        self._transport.write(written + answer.body if has_body else written)

    def _head_is_late(self) -> None:
        if self._parser.head_bytes:
            self._refuse("head_timeout", "the head arrived too slowly")
        elif not self._is_busy:
            self._close()

    def _refuse(self, code: str, reason: str) -> None:
        """Refuse malformed bytes, and close; with a request in progress, close after its answer."""
        answer = self._server.refuse(code, reason, self._peer)
        self._is_last = True
        if not self._is_busy:
            self._write(answer)
            self._linger()

    def _linger(self) -> None:
        """Close our half of the connection, and for a moment drop what the peer still sends."""
        assert self._transport is not None  # noqa: S101  # it is made
        self._parser = RequestParser(self._server.max_head_bytes)  # bytes so far are not answered
        self._resume()
        if self._is_half_closed:
            self._close()
            return
        self._lingering.begin()
        if not self._transport.can_write_eof():  # over TLS that would end both halves
            return
        try:
            self._transport.write_eof()
        except OSError:  # it was reset, and the event loop has not read that yet
            self.abort()

    def _close(self) -> None:
        if not self._is_made:
            self.abort()  # in the TLS handshake: there is nothing to send
            return
        self._is_last = True
        if self._transport is not None:
            self._transport.close()


class Connections:
    """The open connections. At the limit, the one idle for longest is closed for a new one."""

    def __init__(self, limits: ConnectionLimits, is_proxy: Callable[[str], bool]) -> None:
        self._limits = limits
        self._is_proxy = is_proxy  # returns whether an address is a trusted proxy's
        # Ordered by when they were opened, or last answered.
        self._open: OrderedDict[HttpConnection, str] = OrderedDict()
        self._per_peer: Counter[str] = Counter()
        self._ended = asyncio.Event()

    def __len__(self) -> int:
        return len(self._open)

    def __iter__(self) -> Iterator[HttpConnection]:
        return iter(list(self._open))

    async def until_none(self) -> None:
        """Wait until none is open."""
        while self._open:
            self._ended.clear()
            await self._ended.wait()

    def add(self, connection: HttpConnection, peer: str) -> str | None:
        """Count a new connection; return the reason if it is refused."""
        key = rate_key(peer)
        limit = self._limits.max_connections_per_peer
        if self._per_peer[key] >= limit and not self._is_proxy(peer):
            return f"more than {limit} connections of one address"
        if len(self._open) >= self._limits.max_connections:
            oldest = next((other for other in self._open if not other.busy), None)
            if oldest is None:
                return f"{len(self._open)} connections, each with a request in progress"
            self.forget(oldest)
            oldest.abort()
        self._open[connection] = key
        self._per_peer[key] += 1
        return None

    def used(self, connection: HttpConnection) -> None:
        """Note that a connection was answered: it is now the last to be closed for a new one."""
        if connection in self._open:
            self._open.move_to_end(connection)

    def forget(self, connection: HttpConnection) -> None:
        """Stop counting a connection."""
        key = self._open.pop(connection, None)
        if key is None:
            return
        self._ended.set()
        self._per_peer[key] -= 1
        if not self._per_peer[key]:
            del self._per_peer[key]


@functools.lru_cache(maxsize=128)
def _head_of_answer(
    status: int,
    headers: tuple[tuple[str, str], ...],
    length: int | None,  # None for a body that the end of the connection ends
    connection: str,
    now: int,  # seconds since the epoch
) -> bytes:
    fields = [*headers, ("Server", "receiver")]
    if length is not None:
        fields.insert(-1, ("Content-Length", str(length)))
    if connection:
        fields.append(("Connection", connection))
    lines = [f"HTTP/1.1 {status} {HTTPStatus(status).phrase}"]
    lines += [f"{name}: {value}" for name, value in fields]
    return "\r\n".join([*lines, f"Date: {formatdate(now, usegmt=True)}\r\n\r\n"]).encode("latin-1")


def _set(waiting: asyncio.Future[None] | None) -> None:
    if waiting is not None and not waiting.done():
        waiting.set_result(None)


def _do_nothing() -> None:
    pass


class _Deadline:
    """Calls a function when it is due, unless it is ended before."""

    def __init__(self, deadlines: Deadlines, after: timedelta, then: Callable[[], None]) -> None:
        self._deadlines = deadlines
        self._seconds = after.total_seconds()
        self._then = then
        self.has_begun: bool = False  # and has not ended

    def begin(self) -> None:
        if not self.has_begun:
            self.has_begun = True
            self._deadlines.set(self, asyncio.get_running_loop().time() + self._seconds)

    def end(self) -> None:
        if self.has_begun:
            self.has_begun = False
            self._deadlines.clear(self)

    def cancel(self) -> None:
        """End it for good: without the function, it is in no cycle."""
        self.end()
        self._then = _do_nothing

    def expire(self) -> None:
        """Call the function, as `Deadlines` requires."""
        self.has_begun = False
        self._then()
