"""One kept-alive connection: it sends a request at a time, and reads the answer.

llhttp (by `httptools`) parses the bytes. This module decides when an answer counts: it bounds head
and body, keeps deadlines, and never takes unsolicited bytes for the answer to the next request. A
connection that received too much, too little or no HTTP is closed.
"""

from __future__ import annotations

import asyncio
import re
import select
from collections.abc import Callable, Sequence
from typing import Final, NamedTuple, cast

import httptools

from pushkit.clock import Timing
from pushkit.net.failures import BrokenAnswerError, ClosedEarlyError, Probe
from pushkit.record import field, record
from pushkit.scheduling.event_loop import Deadlines, IterationBatches
from pushkit.webhook import Headers

MAX_ANSWER_BYTES: Final = 64 * 1024
_KEPT_SECONDS: Final = 15.0
_MAX_HEAD_BYTES: Final = 64 * 1024
_MAX_FIELDS: Final = 256
_MAX_INTERIM: Final = 16
_BUFFER_BYTES: Final = 16 * 1024
_JOINED_BYTES: Final = 64 * 1024
_STATUS_LINE: Final = re.compile(rb"HTTP/1\.[01] ([2-5][0-9]{2})(?: [^\r\n]*)?\r?\n")
_INTERIM_HEADS: Final = re.compile(rb"(?:HTTP/1\.[01] 1.*?\n\r?\n)*", re.DOTALL)
_END_OF_HEAD: Final = re.compile(rb"\n\r?\n")


class HttpRequest(NamedTuple):
    """The bytes of a request, and the bounds of its answer."""

    head: bytes  # request line and header fields, with the empty line
    body: bytes
    deadline: float  # for the answer, by the event loop's clock
    body_timeout: float | None = None  # for the answer's body after its head, in seconds
    max_body_bytes: int = MAX_ANSWER_BYTES  # how much of the answer's body is kept

    def __repr__(self) -> str:
        """Show none of the contents, which include credentials."""
        return "HttpRequest()"


@record(frozen=True, slots=True, kw_only=True)
class HttpAnswer:
    """A destination's answer."""

    status: int
    headers: Headers
    body: bytes = field(repr=False)  # up to the request's `max_body_bytes`
    # False if the body was longer, broke off, or did not end in time. The status is valid even so:
    # a 2xx was an acknowledgement when its head arrived.
    complete: bool = True
    # A code: what is wrong in the head, although it was read. None if nothing is.
    defect: str | None = None
    timing: Timing = field(default_factory=Timing)


def unexpected_status(status: int) -> str:
    """Return what to say of a document whose status is not 200."""
    hint = "; redirects are not followed" if 300 <= status < 400 else ""
    return f"expected HTTP status 200, found {status}{hint}"


def write_requests(requests: Sequence[tuple[Connection, Sequence[bytes]]]) -> None:
    """Write requests, each in its parts."""
    for connection, parts in requests:
        connection.write(parts)


class Connection(asyncio.BufferedProtocol):
    """One connection."""

    def __init__(
        self,
        deadlines: Deadlines,  # the timer that all connections share
        # Where requests are added to be written by `write_requests`, shared as well.
        writes: IterationBatches[tuple[Connection, Sequence[bytes]]],
        on_idle: Callable[[Connection], None],  # called when another request may be sent
        on_closed: Callable[[Connection], None],  # called once, when no more may be sent
    ) -> None:
        self.address: str = ""  # the peer's, as `host:port`
        self.requests_sent: int = 0
        self.has_received: bool = False  # whether any byte arrived since the last request
        self.idle_since: float = 0.0  # when the last answer ended, by the event loop's clock
        self._deadlines = deadlines
        self._writes = writes
        self._on_idle = on_idle
        self._on_closed = on_closed
        self._loop = asyncio.get_running_loop()
        self._buffer = memoryview(bytearray(_BUFFER_BYTES))
        self._transport: asyncio.Transport | None = None
        self._poll: select.poll | None = None
        self._parser = httptools.HttpResponseParser(self)
        self._waiter: asyncio.Future[HttpAnswer] | None = None
        self._is_written = False  # whether the request is, which waits for its round
        self._closed = False
        self._defect: str | None = None  # what is wrong in the head; the last one, it closes then

    def is_reusable(self) -> bool:
        """Return whether a request may be sent: the connection is open, and nothing waits unread.

        Bytes or an end that the kernel holds and the loop has not read yet must not become the next
        request's answer.
        """
        if self._closed or self._waiter is not None or self._transport is None:
            return False
        if self._transport.is_closing():
            return False
        return self._poll is None or not self._poll.poll(0)

    async def send(self, request: HttpRequest, probe: Probe) -> HttpAnswer:
        """Send a request, and return the answer.

        Raises:
            ClosedEarlyError: The connection ended before the answer's head did.
            BrokenAnswerError: The bytes that arrived are not an HTTP answer.
            TimeoutError: No head arrived by the deadline.
            OSError: The connection broke.
        """
        if self._transport is None:
            raise ClosedEarlyError("closed before the request")
        if request.deadline <= self._loop.time():  # the process may have been suspended
            self.close()
            raise TimeoutError
        waiter: asyncio.Future[HttpAnswer] = self._loop.create_future()
        self._waiter = waiter
        self._is_written = False
        self.requests_sent += 1
        self.has_received = False
        self._deadline = request.deadline  # not the request: its body may be long
        self._body_timeout = request.body_timeout
        self._max_body_bytes = request.max_body_bytes
        self._probe = probe
        self._interim = 0
        self._framing_bytes = 0  # received, without the body's
        self._status = 0
        self._head = bytearray()  # what arrived, until the head is complete
        self._fields: list[tuple[str, str]] = []
        self._body = bytearray()
        self._has_head = False
        self._keep = False
        self._deadlines.set(self, request.deadline)
        probe.enter("wait")
        is_joined = len(request.body) <= _JOINED_BYTES
        parts = (request.head + request.body,) if is_joined else (request.head, request.body)
        self._writes.add((self, parts))
        del parts  # a copy of the body, which would be kept until the answer
        try:
            return await waiter
        finally:
            if self._waiter is waiter:  # cancelled: a late answer belongs to no request
                self.close()
            del waiter  # with its exception it is a cycle, which would hold the request's body

    def write(self, parts: Sequence[bytes]) -> None:
        """Write a request that waited for its round, unless the connection was closed."""
        transport = self._transport
        if transport is None or transport.is_closing():
            return
        self._is_written = True
        try:
            for part in parts:
                transport.write(part)
        except Exception:  # noqa: BLE001  # this request ends with it, and no other one
            transport.abort()

    def close(self) -> None:
        """Close the connection at once, and drop unsent bytes."""
        if self._transport is not None and not self._loop.is_closed():
            self._transport.abort()
        self._set_closed()

    def expire(self) -> None:
        """Time out: end the request, or the connection that was idle for too long."""
        self.close()
        if self._waiter is not None:
            self._end_early(TimeoutError())

    # --- asyncio's calls ------------------------------------------------------------------------

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        """Take the transport."""
        self._transport = cast(asyncio.Transport, transport)  # uvloop's are no subclass
        sock = transport.get_extra_info("socket")
        if sock is not None:  # without one, the transport has passed on all bytes
            self._poll = select.poll()
            self._poll.register(sock.fileno(), select.POLLIN)
        if self._closed:
            self._transport.abort()

    def get_buffer(self, sizehint: int) -> memoryview:  # noqa: ARG002  # the interface
        """Return the buffer, the same for all reads: a new one each time costs more."""
        return self._buffer

    def buffer_updated(self, nbytes: int) -> None:
        """Parse the bytes of an answer; unsolicited bytes close the connection."""
        # In uvloop's rounds, the socket may be read before the request is written.
        if self._waiter is None or not self._is_written:
            self.close()
            return
        self.has_received = True
        self._framing_bytes += nbytes
        data = self._buffer[:nbytes]
        if not self._has_head:
            self._head += data
        try:
            self._parse(data)
        except (httptools.HttpParserError, httptools.HttpParserUpgrade) as exc:
            self.close()
            if self._waiter is not None:  # else the answer was complete before the error
                self._end_early(BrokenAnswerError(f"not an HTTP answer: {exc}"))
            return
        if self._waiter is None:
            assert self._transport is not None  # noqa: S101  # bytes came over it
            # Reusable only if nothing follows the answer, and all of the request was sent.
            if self._keep and not self._closed and not self._transport.get_write_buffer_size():
                self._deadlines.set(self, self.idle_since + _KEPT_SECONDS)
                self._on_idle(self)
            else:
                self.close()
        elif not self._has_head:
            if self._framing_bytes > _MAX_HEAD_BYTES:
                self.close()
                self._end_early(_too_long())
        elif self._framing_bytes > _MAX_HEAD_BYTES + self._max_body_bytes:
            self.close()  # llhttp collects an endless trailer field, slower and slower
            self._answer(complete=False)
        elif self._body_timeout is not None:
            deadline = self._loop.time() + self._body_timeout
            self._body_timeout = None  # it counts from the head
            self._deadlines.set(self, min(deadline, self._deadline))

    def _parse(self, data: bytes | memoryview) -> None:
        """Parse bytes. A head that breaks a rule is read again, more leniently.

        RFC 9112 §5.2 demands that of folded lines, and §2.2 permits it of bare line feeds. Of any
        other head with a sound status line, at least the status counts.
        """
        try:
            self._parser.feed_data(data)
        except httptools.HttpParserError:
            if self._waiter is None or self._has_head:
                raise
            if self._defect is None:
                self._defect = "malformed_header"
                self._parser = httptools.HttpResponseParser(self)
                self._parser.set_dangerous_leniencies(
                    lenient_headers=True, lenient_optional_cr_before_lf=True
                )
                self._fields.clear()
                self._interim = 0
                self._parse(bytes(self._head))
                return
            line = _STATUS_LINE.match(self._head)
            if line is None:
                raise
            if _END_OF_HEAD.search(self._head, max(len(self._head) - len(data) - 2, 0)):
                self._status = int(line[1])
                self._fields.clear()
                self._answer(complete=False)

    def connection_lost(self, exc: Exception | None) -> None:
        """End the request that waits, if any."""
        self._set_closed()
        self._transport = None  # with it, buffers are freed at once: there is no cycle
        if self._waiter is None:
            return
        if self._has_head and exc is None and self._ends_by_closing():
            self._answer(complete=True)
        else:
            self._end_early(exc or ClosedEarlyError("closed before an answer"))

    # --- the parser's calls ---------------------------------------------------------------------

    def on_message_begin(self) -> None:
        """Notice an unsolicited answer right after the expected one."""
        if self._waiter is None:
            self._keep = False

    def on_header(self, name: bytes, value: bytes) -> None:
        """Keep a field of the head; trailer fields are dropped."""
        if self._has_head or self._waiter is None or b"\0" in value:
            return
        if len(self._fields) == _MAX_FIELDS:
            self._fail(BrokenAnswerError(f"more than {_MAX_FIELDS} header fields"))
            return
        self._fields.append((name.decode("latin-1"), value.decode("utf-8", "surrogateescape")))

    def on_headers_complete(self) -> None:
        """Check the head, which the body follows."""
        if self._waiter is None:
            return
        if self._framing_bytes > _MAX_HEAD_BYTES:  # body bytes may be included: count exactly
            size = sum(len(name) + len(value) + 4 for name, value in self._fields)
            if size > _MAX_HEAD_BYTES:
                self._fail(_too_long())
                return
        self._status = self._parser.get_status_code()
        if self._status < 100:
            self._fail(BrokenAnswerError(f"not an HTTP answer (status {self._status:03})"))
        elif self._status == 101:
            self._fail(
                BrokenAnswerError("the answer switches to a protocol that was not requested")
            )
        elif self._status >= 200:
            self._has_head = True
            if self._defect is not None:
                self._defect = _defect_of(self._head)
            self._head.clear()
            self._probe.enter("body")

    def on_body(self, chunk: bytes) -> None:
        """Keep a part of the body, up to `max_body_bytes`."""
        if self._waiter is None:
            return
        self._framing_bytes -= len(chunk)
        self._body += chunk
        if len(self._body) > self._max_body_bytes:
            del self._body[self._max_body_bytes :]
            self._answer(complete=False)

    def on_message_complete(self) -> None:
        """Return the answer to the caller, unless it is an interim one (RFC 9110 §15.2)."""
        if self._waiter is None:
            return
        if not self._has_head:
            self._interim += 1
            self._fields.clear()
            if self._interim > _MAX_INTERIM:
                self._fail(BrokenAnswerError(f"more than {_MAX_INTERIM} interim answers"))
            return
        self._keep = self._defect is None and self._parser.should_keep_alive()
        self._answer(complete=True)

    # --- the request's end ----------------------------------------------------------------------

    def _answer(self, *, complete: bool) -> None:
        waiter = self._end()
        if not waiter.done():
            self._probe.address = self.address
            waiter.set_result(
                HttpAnswer(
                    status=self._status,
                    headers=Headers(self._fields),
                    body=bytes(self._body),
                    complete=complete,
                    defect=self._defect,
                    timing=self._probe.timing(),
                )
            )

    def _fail(self, error: Exception) -> None:
        waiter = self._end()
        if not waiter.done():
            waiter.set_exception(error)

    def _end(self) -> asyncio.Future[HttpAnswer]:
        waiter, self._waiter = self._waiter, None
        assert waiter is not None  # noqa: S101  # a request ends once
        self.idle_since = self._loop.time()
        return waiter

    def _end_early(self, error: Exception) -> None:
        """End the request where the answer broke off: its status is valid if its head arrived."""
        if self._has_head:
            self._answer(complete=False)
        else:
            self._fail(error)

    def _set_closed(self) -> None:
        if not self._closed:
            self._closed = True
            del self._parser  # it refers to this connection
            self._deadlines.clear(self)
            self._on_closed(self)

    def _ends_by_closing(self) -> bool:
        """Return whether the end of the connection ends the body (RFC 9112 §6.3)."""
        names = {name.lower() for name, _ in self._fields}
        return names.isdisjoint({"content-length", "transfer-encoding"})


def _defect_of(received: bytearray) -> str:
    """Return the code of what is wrong in a head that was only read leniently."""
    interim = _INTERIM_HEADS.match(received)
    start = interim.end() if interim else 0
    end = _END_OF_HEAD.search(received, start)
    head = received[start : end.end() if end else None]
    if re.search(rb"\n[ \t]", head):
        return "folded_header"
    return "bare_line_feed" if re.search(rb"(?<!\r)\n", head) else "malformed_header"


def _too_long() -> BrokenAnswerError:
    return BrokenAnswerError(f"the answer's head is longer than {_MAX_HEAD_BYTES} bytes")
