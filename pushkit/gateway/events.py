"""Streams of server-sent events, as agents answer with them; read within bounds."""

from __future__ import annotations

import asyncio
import contextlib
import logging
from collections import deque
from collections.abc import AsyncIterator, Callable
from typing import Final, NamedTuple

import aiohttp

from pushkit.a2a import TaskUpdate
from pushkit.errors import MalformedJsonError, UnrecognisedBodyError
from pushkit.gateway.calls import Place, read_answer, read_update
from pushkit.logs import RepeatedLog

_MOST_WAITING: Final = 16 * 2**20  # bytes of events that wait for the outbox
_MOST_UNSENT: Final = 4 * 2**20  # bytes that wait for a client that reads slowly


class EventLines:
    """Cuts a stream into the data of its events (HTML Living Standard §9.2.6)."""

    def __init__(self, max_event_bytes: int) -> None:
        self._most = max_event_bytes
        self._line = bytearray()  # that has not ended
        self._data: list[bytes] = []
        self._size = 0
        self._after_cr = False

    def feed(self, chunk: bytes) -> list[bytes]:
        """Take in a chunk; return the data of the events that it completes.

        Raises:
            MalformedJsonError: An event is longer than the bound.
        """
        if self._after_cr and chunk[:1] == b"\n":
            chunk = chunk[1:]
            self._after_cr = False
        if not chunk:
            return []
        self._after_cr = chunk[-1:] == b"\r"
        *lines, rest = chunk.replace(b"\r\n", b"\n").replace(b"\r", b"\n").split(b"\n")
        found: list[bytes] = []
        for line in lines:
            self._line += line
            self._take(bytes(self._line), found)
            self._line.clear()
        self._line += rest
        if self._size + len(self._line) > self._most:
            raise MalformedJsonError(f"an event is longer than {self._most} bytes")
        return found

    def _take(self, line: bytes, found: list[bytes]) -> None:
        if not line:
            if self._data:
                found.append(b"\n".join(self._data))
            self._data, self._size = [], 0
            return
        name, _, value = line.partition(b":")
        if name == b"data":
            self._data.append(value.removeprefix(b" "))
            self._size += len(line)


class StreamEvent(NamedTuple):
    """One event of a stream about a task."""

    data: bytes  # as the agent wrote it
    update: TaskUpdate | None  # None for an error, and for what could not be read


class EventStream:
    """An agent's stream, read once, as fast as it comes, for all who need it.

    A client gets its bytes; the watcher its events. Neither delays the other: a client that reads
    too slowly is cut off, and a watcher that is late compares the task instead.

    Args:
        answer: The agent's answer.
        place: How the agent was asked.
        max_event_bytes: The largest event.
        on_end: Called at its end.
        faults: Logs what is wrong with it.
        is_own: Whether the gateway subscribed to it: an agent may stop a message's task when
            nobody reads the message's stream, but not when nobody reads this one.

    Attributes:
        first: The first event; None if the stream ended without one.
        settled: Done once the task ended or waits for its client, or the stream ended.
        lost: Whether events were dropped since the watcher read the last one.
    """

    def __init__(
        self,
        answer: aiohttp.ClientResponse,
        place: Place,
        max_event_bytes: int,
        on_end: Callable[[EventStream], None],
        faults: RepeatedLog,
        *,
        is_own: bool,
    ) -> None:
        loop = asyncio.get_running_loop()
        self.answer: Final = answer
        self.first: Final[asyncio.Future[StreamEvent | None]] = loop.create_future()
        self.settled: Final[asyncio.Future[None]] = loop.create_future()
        self.lost = False
        self._place = place
        self._on_end = on_end
        self._lines = EventLines(max_event_bytes)
        self._events: deque[StreamEvent] = deque()
        self._waiting = 0
        self._is_watched = True
        self._is_own = is_own
        self._is_at_rest = self._is_over = False
        self._news = asyncio.Event()
        self._ended = False
        self._client: Unsent | None = None
        self._faults = faults
        self._reading = asyncio.create_task(self._read(), name="pushkit-gateway-stream")

    def for_client(self) -> Unsent:
        """Return the bytes for a client: call it before anything else is awaited."""
        self._client = Unsent(_MOST_UNSENT)
        return self._client

    async def close(self) -> None:
        """Read no further."""
        self._reading.cancel()
        with contextlib.suppress(asyncio.CancelledError):
            await self._reading

    @property
    def is_at_rest(self) -> bool:
        """Whether the last event said that the task ended, or waits for its client."""
        return self._is_at_rest

    def leave(self) -> None:
        """Keep no further events: nobody watches. It is read on, or the agent might stop."""
        self._is_watched = False
        self._news.set()

    def unwatch(self) -> None:
        """Keep no events, not those that wait either; read it on only if somebody needs that."""
        self.leave()
        self.skip()
        if self._client is None and (self._is_own or self._is_over):
            self._reading.cancel()

    def skip(self) -> None:
        """Drop the events that wait."""
        self._events.clear()
        self._waiting = 0

    async def events(self) -> AsyncIterator[StreamEvent]:
        """Yield the events, until the stream ends."""
        while True:
            while self._events:
                event = self._events.popleft()
                self._waiting -= len(event.data)
                yield event
            if self._ended or not self._is_watched:
                return
            self._news.clear()
            await self._news.wait()

    async def _read(self) -> None:
        is_whole = False
        try:
            async for chunk in self.answer.content.iter_any():
                if self._client is not None:
                    self._client.put(chunk)
                for data in self._lines.feed(chunk):
                    self._take(data)
            is_whole = True
        except (aiohttp.ClientError, TimeoutError, OSError, MalformedJsonError) as exc:
            self._faults.log(
                str(type(exc)), logging.WARNING, "a stream of the agent broke: %s", exc
            )
        finally:
            self.answer.close()
            self._ended = True
            self._on_end(self)
            self._news.set()
            if self._client is not None:
                self._client.end(is_whole=is_whole)
            if not self.first.done():
                self.first.set_result(None)
            if not self.settled.done():
                self.settled.set_result(None)

    def _take(self, data: bytes) -> None:
        update = None
        try:
            result = read_answer(data, self._place.binding).result
            update = read_update(result, self._place.version) if result is not None else None
        except (MalformedJsonError, UnrecognisedBodyError) as exc:
            self._faults.log(str(type(exc)), logging.WARNING, "an event of the agent: %s", exc)
        event = StreamEvent(data, update)
        if not self.first.done():
            self.first.set_result(event)
        state = update.state if update is not None else None
        self._is_over = self._is_over or (state is not None and state.terminal)
        self._is_at_rest = self._is_over or (state is not None and state.interrupted)
        if self._is_at_rest and not self.settled.done():
            self.settled.set_result(None)
        if not self._is_watched:
            return
        if self._waiting + len(data) > _MOST_WAITING:
            self.lost = True
            return
        self._events.append(event)
        self._waiting += len(data)
        self._news.set()


class Unsent:
    """The bytes of a stream that wait for a client."""

    def __init__(self, most: int) -> None:
        self._most = most
        self._chunks: deque[bytes] = deque()
        self._size = 0
        self._news = asyncio.Event()
        self._ended = False
        self.is_whole = True
        """Whether the client got, or will get, all of it."""

    def put(self, chunk: bytes) -> None:
        """Add bytes; drop all of them, and what comes, for a client that is too slow."""
        if self._ended:
            return
        self._chunks.append(chunk)
        self._size += len(chunk)
        self._news.set()
        if self._size > self._most:
            self.drop()

    def end(self, *, is_whole: bool) -> None:
        """Add no more."""
        if not self._ended:
            self._ended, self.is_whole = True, is_whole
        self._news.set()

    def drop(self) -> None:
        """Keep nothing: the client is gone, or too slow."""
        self._chunks.clear()
        self.end(is_whole=False)

    async def chunks(self) -> AsyncIterator[bytes]:
        """Yield the bytes, until the end."""
        while True:
            while self._chunks:
                chunk = self._chunks.popleft()
                self._size -= len(chunk)
                yield chunk
            if self._ended:
                return
            self._news.clear()
            await self._news.wait()
