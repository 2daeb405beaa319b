"""One kept-alive connection to a webhook: a request at a time, and the answer to it.

llhttp (by `httptools`) reads what comes back. What is ours is when an answer counts: bounds on its
head and body, deadlines, and that no byte which came unasked is ever taken for the answer to the
next request. A connection that said too much, too little or something else is closed.
"""

from __future__ import annotations

import asyncio
import select
from collections.abc import Callable
from typing import Final, NamedTuple, cast

import httptools

from pushkit.net.failures import BrokenAnswerError, ClosedEarlyError
from pushkit.net.posting import MAX_ANSWER_BYTES, Answer
from pushkit.net.timing import Probe
from pushkit.scheduling.deadlines import Deadlines
from pushkit.webhook import Headers

_KEPT_SECONDS: Final = 15.0
_MAX_HEAD_BYTES: Final = 64 * 1024
_MAX_INTERIM: Final = 16
_BUFFER_BYTES: Final = 16 * 1024
_JOINED_BYTES: Final = 64 * 1024


class Question(NamedTuple):
    """A request as it goes out, and how long its answer may be and take."""

    head: bytes  # request line and header fields, with the empty line
    body: bytes
    until: float  # when to give up, by the event loop's clock
    body_within: float | None = None  # how long the answer's body may take, in seconds
    max_body_bytes: int = MAX_ANSWER_BYTES  # how much of it is kept

    def __repr__(self) -> str:
        """Say nothing of what it holds: credentials, above all."""
        return "Question()"


class Lane(asyncio.BufferedProtocol):
    """One connection.

    Attributes:
        address: That of its other end, as `host:port`.
        asked: How many requests went over it.
        heard: Whether any byte has come back since the last one.
        idle_since: When its last answer ended, by the event loop's clock.
    """

    def __init__(
        self,
        deadlines: Deadlines,  # the timer that it shares with others
        # Told whenever an answer is complete and another request may follow.
        on_free: Callable[[Lane], None],
        on_closed: Callable[[Lane], None],  # told once, when none may any more
    ) -> None:
        self.address: str = ""
        self.asked: int = 0
        self.heard: bool = False
        self.idle_since: float = 0.0
        self._deadlines = deadlines
        self._on_free = on_free
        self._on_closed = on_closed
        self._loop = asyncio.get_running_loop()
        self._buffer = memoryview(bytearray(_BUFFER_BYTES))
        self._transport: asyncio.Transport | None = None
        self._poll: select.poll | None = None
        self._parser = httptools.HttpResponseParser(self)
        self._waiter: asyncio.Future[Answer] | None = None
        self._closed = False

    def is_quiet(self) -> bool:
        """Say whether it may be asked again: it is open, and nothing came that nobody asked for.

        What the kernel holds and the loop has not read yet, an end above all, must not become the
        next request's answer.
        """
        if self._closed or self._waiter is not None or self._transport is None:
            return False
        if self._transport.is_closing():
            return False
        return self._poll is None or not self._poll.poll(0)

    async def ask(self, question: Question, probe: Probe) -> Answer:
        """Send a request, and wait for the answer.

        Raises:
            ClosedEarlyError: The connection ended before the answer's head did.
            BrokenAnswerError: What came is no answer.
            TimeoutError: No head by the deadline.
            OSError: What the connection broke by.
        """
        assert self._transport is not None  # noqa: S101  # it was dialled
        if question.until <= self._loop.time():  # the process may have been stopped meanwhile
            self.close()
            raise TimeoutError
        waiter: asyncio.Future[Answer] = self._loop.create_future()
        self._waiter = waiter
        self.asked += 1
        self.heard = False
        self._until = question.until  # not the question: its body may be long
        self._body_within = question.body_within
        self._max_body_bytes = question.max_body_bytes
        self._probe = probe
        self._interim = 0
        self._head_bytes = 0
        self._status = 0
        self._fields: list[tuple[str, str]] = []
        self._body = bytearray()
        self._has_head = False
        self._keep = False
        self._deadlines.set(self, question.until)
        probe.enter("wait")
        if len(question.body) <= _JOINED_BYTES:
            self._transport.write(question.head + question.body)
        else:
            self._transport.write(question.head)
            self._transport.write(question.body)
        try:
            return await waiter
        finally:
            if self._waiter is waiter:  # cancelled: what may come yet is nobody's
                self.close()

    def close(self) -> None:
        """End the connection at once: nothing that is still on its way matters."""
        if self._transport is not None:
            self._transport.abort()
        self._gone()

    def expire(self) -> None:
        """Give up the question, or the connection that nobody needed for a while."""
        self.close()
        if self._waiter is not None:
            self._end_early(TimeoutError())

    # --- what asyncio tells ---------------------------------------------------------------------

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        """Take the transport."""
        self._transport = cast(asyncio.Transport, transport)  # uvloop's are no subclass
        sock = transport.get_extra_info("socket")
        if sock is not None:  # else the transport itself has told all that came
            self._poll = select.poll()
            self._poll.register(sock.fileno(), select.POLLIN)
        if self._closed:
            self._transport.abort()

    def get_buffer(self, sizehint: int) -> memoryview:  # noqa: ARG002  # the interface
        """Return where the next bytes go: one place for all, which costs less than a new one."""
        return self._buffer

    def buffer_updated(self, nbytes: int) -> None:
        """Read on, if there is a question; whatever comes unasked ends the connection."""
        if self._waiter is None:
            self.close()
            return
        self.heard = True
        if not self._has_head:
            self._head_bytes += nbytes
        try:
            self._parser.feed_data(self._buffer[:nbytes])
        except (httptools.HttpParserError, httptools.HttpParserUpgrade) as exc:
            self.close()
            if self._waiter is not None:  # else the answer was whole before it
                self._end_early(BrokenAnswerError(f"not an HTTP answer ({type(exc).__name__})"))
            return
        if self._waiter is None:
            assert self._transport is not None  # noqa: S101  # bytes came over it
            # Free for another request, if no more came, and no less went out, than belongs here.
            if self._keep and not self._closed and not self._transport.get_write_buffer_size():
                self._deadlines.set(self, self.idle_since + _KEPT_SECONDS)
                self._on_free(self)
            else:
                self.close()
        elif not self._has_head:
            if self._head_bytes > _MAX_HEAD_BYTES:
                self.close()
                self._end_early(_too_long())
        elif self._body_within is not None:
            until = self._loop.time() + self._body_within
            self._body_within = None  # it counts from the head
            self._deadlines.set(self, min(until, self._until))

    def connection_lost(self, exc: Exception | None) -> None:
        """Give the question its end, whatever that is."""
        self._gone()
        if self._waiter is None:
            return
        if self._has_head and exc is None and self._ends_by_closing():
            self._answer(complete=True)
        else:
            self._end_early(exc or ClosedEarlyError("closed before an answer"))

    # --- what the parser tells ------------------------------------------------------------------

    def on_message_begin(self) -> None:
        """Notice an answer that nobody asked for, right behind the one that was asked for."""
        if self._waiter is None:
            self._keep = False

    def on_header(self, name: bytes, value: bytes) -> None:
        """Keep a field of the head; what stands behind a chunked body is not wanted."""
        if not self._has_head:
            self._fields.append((name.decode("latin-1"), value.decode("utf-8", "surrogateescape")))

    def on_headers_complete(self) -> None:
        """Begin with the body."""
        if self._waiter is None:
            return
        if self._head_bytes > _MAX_HEAD_BYTES:  # with what came behind it: count again
            size = sum(len(name) + len(value) + 4 for name, value in self._fields)
            if size > _MAX_HEAD_BYTES:
                self._fail(_too_long())
                return
        self._status = self._parser.get_status_code()
        if self._status < 100:
            self._fail(BrokenAnswerError(f"not an HTTP answer (status {self._status:03})"))
        elif self._status == 101:
            self._fail(BrokenAnswerError("the answer changes to a protocol that nobody asked for"))
        elif self._status >= 200:
            self._has_head = True
            self._probe.enter("body")

    def on_body(self, chunk: bytes) -> None:
        """Keep a part of the body, up to the bound."""
        if self._waiter is None:
            return
        self._body += chunk
        if len(self._body) > self._max_body_bytes:
            del self._body[self._max_body_bytes :]
            self._answer(complete=False)

    def on_message_complete(self) -> None:
        """Answer, or go on after an interim answer (RFC 9110 §15.2)."""
        if self._waiter is None:
            return
        if not self._has_head:
            self._interim += 1
            self._fields.clear()
            if self._interim > _MAX_INTERIM:
                self._fail(BrokenAnswerError(f"more than {_MAX_INTERIM} interim answers"))
            return
        self._keep = self._parser.should_keep_alive()
        self._answer(complete=True)

    # --- ends -----------------------------------------------------------------------------------

    def _answer(self, *, complete: bool) -> None:
        waiter = self._end()
        if not waiter.done():
            self._probe.address = self.address
            waiter.set_result(
                Answer(
                    status=self._status,
                    headers=Headers(self._fields),
                    body=bytes(self._body),
                    complete=complete,
                    timing=self._probe.timing(),
                )
            )

    def _fail(self, error: Exception) -> None:
        waiter = self._end()
        if not waiter.done():
            waiter.set_exception(error)

    def _end(self) -> asyncio.Future[Answer]:
        waiter, self._waiter = self._waiter, None
        assert waiter is not None  # noqa: S101  # a question has one end
        self.idle_since = self._loop.time()
        return waiter

    def _end_early(self, error: Exception) -> None:
        """End the question where the answer broke off: its status stands if its head was there."""
        if self._has_head:
            self._answer(complete=False)
        else:
            self._fail(error)

    def _gone(self) -> None:
        if not self._closed:
            self._closed = True
            self._deadlines.clear(self)
            self._on_closed(self)

    def _ends_by_closing(self) -> bool:
        """Say whether the body has no other end than the connection's (RFC 9112 §6.3)."""
        names = {name.lower() for name, _ in self._fields}
        return names.isdisjoint({"content-length", "transfer-encoding"})


def _too_long() -> BrokenAnswerError:
    return BrokenAnswerError(f"the answer's head is longer than {_MAX_HEAD_BYTES} bytes")
