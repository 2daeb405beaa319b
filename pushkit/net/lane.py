"""One kept-alive connection to a webhook: a request at a time, and the answer to it.

llhttp (by `httptools`) reads what comes back. What is ours is when an answer counts: bounds on its
head and body, deadlines, and that no byte which came unasked is ever taken for the answer to the
next request. A connection that said too much, too little or something else is closed.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import cast

import httptools

from pushkit.net.deadlines import Deadlines
from pushkit.net.failures import BrokenAnswerError, ClosedEarlyError

__all__ = ["Lane", "Question", "Reply"]

_MAX_HEAD_BYTES = 64 * 1024
_MAX_INTERIM = 16
_JOINED_BYTES = 64 * 1024


@dataclass(frozen=True, slots=True)
class Question:
    """A request as it goes out, and how long its answer may be and take.

    Attributes:
        head: Request line and header fields, with the empty line.
        body: The body.
        until: When to give up, by the event loop's clock.
        body_within: How long the answer's body may take, in seconds.
        max_body_bytes: How much of it is kept.
    """

    head: bytes = field(repr=False)
    body: bytes = field(repr=False)
    until: float
    body_within: float | None
    max_body_bytes: int


@dataclass(frozen=True, slots=True)
class Reply:
    """An answer as it came.

    Attributes:
        status: The status code.
        fields: The header fields.
        body: The body, up to the bound.
        complete: False if it was longer, broke off or did not end in time.
        head_at: When its head was there, by `time.perf_counter`.
    """

    status: int
    fields: list[tuple[bytes, bytes]] = field(repr=False)
    body: bytes = field(repr=False)
    complete: bool
    head_at: float


class Lane(asyncio.Protocol):
    """One connection.

    Args:
        deadlines: The timer that it shares with others.
        on_closed: Told once, when the connection is gone.

    Attributes:
        peer: The address at its other end, and the port.
        asked: How many requests went over it.
        heard: Whether any byte has come back since the last one.
        idle_since: When its last answer was complete, by the event loop's clock.
    """

    def __init__(self, deadlines: Deadlines, on_closed: Callable[[Lane], None]) -> None:
        self.peer: tuple[str, int] = ("", 0)
        self.asked = 0
        self.heard = False
        self.idle_since = 0.0
        self._deadlines = deadlines
        self._on_closed = on_closed
        self._loop = asyncio.get_running_loop()
        self._transport: asyncio.Transport | None = None
        self._waiter: asyncio.Future[Reply] | None = None
        self._closed = False

    @property
    def is_open(self) -> bool:
        """Whether it may be asked again."""
        if self._closed or self._waiter is not None or self._transport is None:
            return False
        return not self._transport.is_closing()

    def fileno(self) -> int:
        """Return the socket's number, -1 if there is none."""
        sock = self._transport.get_extra_info("socket") if self._transport else None
        return -1 if sock is None else int(sock.fileno())

    def ask(self, question: Question) -> asyncio.Future[Reply]:
        """Send a request; the answer comes by the future.

        Returns:
            The answer, or `ClosedEarlyError`, `BrokenAnswerError`, `TimeoutError` or what the
            connection broke by. Whoever cancels it closes the lane.
        """
        assert self._transport is not None  # noqa: S101  # it was dialled
        waiter = self._waiter = self._loop.create_future()
        self.asked += 1
        self.heard = False
        self._question = question
        self._parser = httptools.HttpResponseParser(self)
        self._interim = 0
        self._head_bytes = 0
        self._status = 0
        self._fields: list[tuple[bytes, bytes]] = []
        self._body = bytearray()
        self._head_at: float | None = None
        self._keep = False
        self._deadline = self._deadlines.add(self, question.until, self._out_of_time)
        if len(question.body) <= _JOINED_BYTES:
            self._transport.write(question.head + question.body)
        else:
            self._transport.write(question.head)
            self._transport.write(question.body)
        return waiter

    def close(self) -> None:
        """End the connection at once: nothing that is still on its way matters."""
        self._closed = True
        if self._transport is not None:
            self._transport.abort()

    # --- what asyncio tells ---------------------------------------------------------------------

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        """Take the transport."""
        self._transport = cast(asyncio.Transport, transport)  # uvloop's are no subclass

    def data_received(self, data: bytes) -> None:
        """Read on, if there is a question; whatever comes unasked ends the connection."""
        if self._waiter is None:
            self.close()
            return
        self.heard = True
        if self._head_at is None:
            self._head_bytes += len(data)
        try:
            self._parser.feed_data(data)
        except (httptools.HttpParserError, httptools.HttpParserUpgrade) as exc:
            self._break(exc)
            return
        if self._waiter is None:
            if not self._keep or self._unsent():
                self.close()
        elif self._head_at is None and self._head_bytes > _MAX_HEAD_BYTES:
            self._break(_too_long())

    def connection_lost(self, exc: Exception | None) -> None:
        """Give the question its end, whatever that is."""
        self._closed = True
        if self._waiter is not None:
            if self._head_at is not None:
                self._answer(complete=exc is None and self._ends_by_closing())
            else:
                self._fail(exc or ClosedEarlyError("closed before an answer"))
        self._transport = None
        self._on_closed(self)

    # --- what the parser tells ------------------------------------------------------------------

    def on_message_begin(self) -> None:
        """Notice an answer that nobody asked for, right behind the one that was asked for."""
        if self._waiter is None:
            self._keep = False

    def on_header(self, name: bytes, value: bytes) -> None:
        """Keep a field of the head; what stands behind a chunked body is not wanted."""
        if self._head_at is None:
            self._fields.append((name, value))

    def on_headers_complete(self) -> None:
        """Begin with the body, which has its own deadline."""
        if self._waiter is None:
            return
        if self._head_bytes > _MAX_HEAD_BYTES:  # with what came behind it: count again
            size = sum(len(name) + len(value) + 4 for name, value in self._fields)
            if size > _MAX_HEAD_BYTES:
                self._fail(_too_long())
                return
        self._status = self._parser.get_status_code()
        if self._status == 101:
            self._fail(BrokenAnswerError("the answer changes to a protocol that nobody asked for"))
        if 100 <= self._status < 200:
            return
        self._head_at = time.perf_counter()
        if self._question.body_within is None:
            return
        until = self._loop.time() + self._question.body_within
        if until < self._question.until:
            self._deadlines.remove(self, self._deadline)
            self._deadline = self._deadlines.add(self, until, self._out_of_time)

    def on_body(self, chunk: bytes) -> None:
        """Keep a part of the body, up to the bound."""
        if self._waiter is None:
            return
        self._body += chunk
        if len(self._body) > self._question.max_body_bytes:
            del self._body[self._question.max_body_bytes :]
            self._answer(complete=False)

    def on_message_complete(self) -> None:
        """Answer, or go on after an interim answer (RFC 9110 §15.2)."""
        if self._waiter is None:
            return
        if self._head_at is None:
            self._interim += 1
            self._fields.clear()
            if self._interim > _MAX_INTERIM:
                self._fail(BrokenAnswerError(f"more than {_MAX_INTERIM} interim answers"))
            return
        self._keep = self._parser.should_keep_alive()
        self._answer(complete=True)

    # --- ends -----------------------------------------------------------------------------------

    def _answer(self, *, complete: bool) -> None:
        waiter, head_at = self._end(), self._head_at
        assert head_at is not None  # noqa: S101  # there is no answer without a head
        if waiter is not None and not waiter.done():
            body = bytes(self._body)
            waiter.set_result(Reply(self._status, self._fields, body, complete, head_at))

    def _fail(self, error: Exception) -> None:
        waiter = self._end()
        if waiter is not None and not waiter.done():
            waiter.set_exception(error)

    def _end(self) -> asyncio.Future[Reply] | None:
        self.idle_since = self._loop.time()
        self._deadlines.remove(self, self._deadline)
        waiter, self._waiter = self._waiter, None
        return waiter

    def _break(self, exc: Exception) -> None:
        """Close, because of what came; an answer that was whole before it stands."""
        self.close()
        if self._waiter is None:
            return
        if self._head_at is not None:
            self._answer(complete=False)
        elif isinstance(exc, BrokenAnswerError):
            self._fail(exc)
        else:
            self._fail(BrokenAnswerError(f"not an HTTP answer ({type(exc).__name__})"))

    def _out_of_time(self) -> None:
        self.close()
        if self._head_at is not None:
            self._answer(complete=False)
        else:
            self._fail(TimeoutError())

    def _unsent(self) -> bool:
        return self._transport is not None and self._transport.get_write_buffer_size() > 0

    def _ends_by_closing(self) -> bool:
        """Say whether the body has no other end than the connection's (RFC 9112 §6.3)."""
        names = {name.lower() for name, _ in self._fields}
        return names.isdisjoint({b"content-length", b"transfer-encoding"})


def _too_long() -> BrokenAnswerError:
    return BrokenAnswerError(f"the answer's head is longer than {_MAX_HEAD_BYTES} bytes")
