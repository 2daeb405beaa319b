"""A webhook that misbehaves by a script, and records its requests: over plain sockets.

A web framework can neither reset a connection nor send an invalid answer.
"""

from __future__ import annotations

import asyncio
import contextlib
import socket
import struct
from collections import defaultdict
from collections.abc import AsyncIterator, Awaitable, Callable, Collection, Mapping, Sequence
from dataclasses import dataclass, field

from pushkit.errors import InboundError
from pushkit.webhook import WebhookRequest
from receiver.serving.http1 import RequestParser

_MAX_HEAD_BYTES = 64 * 1024
_MAX_BODY_BYTES = 16 * 1024 * 1024


@dataclass(slots=True, kw_only=True)
class Visit:
    """One request to the sink."""

    at: float  # seconds since the sink was opened
    request: WebhookRequest = field(repr=False)
    # Seconds from the request until its sender closed the connection, or was sent the whole answer;
    # None while the connection is open.
    stayed: float | None = None
    taken: int = 0  # bytes of the answer's body that were sent, if the script counts them


class VisitConnection:
    """The connection of a visit, for its script."""

    def __init__(
        self, visit: Visit, number: int, reader: asyncio.StreamReader, writer: asyncio.StreamWriter
    ) -> None:
        self.visit = visit
        self.number = number  # this is the n-th visit to its path, from 1
        self._reader = reader
        self._writer = writer

    async def answer(self, status: str, *fields: str, body: bytes = b"") -> None:
        """Send an answer with `Connection: close`."""
        length = f"Content-Length: {len(body)}"
        lines = [f"HTTP/1.1 {status}", *fields, length, "Connection: close", "", ""]
        await self.send("\r\n".join(lines).encode("ascii") + body)

    async def send(self, data: bytes) -> None:
        """Send bytes."""
        self._writer.write(data)
        await self._writer.drain()

    async def drip(self, every: float) -> None:
        """Send a body byte by byte, until the other end closes the connection."""
        left = asyncio.create_task(self._reader.read(1))
        try:
            while not left.done():
                await self.send(b".")
                self.visit.taken += 1
                await asyncio.wait([left], timeout=every)
        finally:
            left.cancel()

    async def flood(self, at_most: int) -> None:
        """Send a body as fast as it is read, up to a number of bytes."""
        chunk = b"." * 65536
        while self.visit.taken < at_most:
            await self.send(chunk)
            self.visit.taken += len(chunk)
            await asyncio.sleep(0)

    async def left(self) -> None:
        """Return once the other end has closed the connection."""
        await self._reader.read(1)

    async def reset(self) -> None:
        """Reset the connection, instead of closing it."""
        sock = self._writer.get_extra_info("socket")
        sock.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
        self._writer.transport.abort()


# Answers a visit.
Script = Callable[[VisitConnection], Awaitable[None]]


class Sink:
    """Records visits by path, and answers them by the path's script, or with 404."""

    def __init__(self, scripts: Mapping[str, Script]) -> None:
        self.visits: defaultdict[str, list[Visit]] = defaultdict(list)
        self.came: asyncio.Event = asyncio.Event()
        self._scripts = scripts
        self._loop = asyncio.get_running_loop()
        self._opened = self._loop.time()
        self._tasks: set[asyncio.Task[None]] = set()

    def accept(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        """Serve a connection."""
        task = asyncio.create_task(self._serve(reader, writer))
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)
        task.add_done_callback(lambda _: writer.close())  # also if the task never began

    def elapsed(self) -> float:
        """Return the seconds since it was opened."""
        return self._loop.time() - self._opened

    async def until_visited(self, paths: Collection[str]) -> None:
        """Return once each of these paths was visited."""
        while any(path not in self.visits for path in paths):
            self.came.clear()
            await self.came.wait()

    async def close(self) -> None:
        """Cancel all visits in progress."""
        for task in list(self._tasks):
            task.cancel()
        await asyncio.gather(*self._tasks, return_exceptions=True)

    async def _serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        with contextlib.suppress(OSError, InboundError, ValueError):
            request = await _read(reader)
            path = request.target.partition("?")[0]
            visit = Visit(at=self.elapsed(), request=request)
            self.visits[path].append(visit)
            self.came.set()
            began = self._loop.time()
            connection = VisitConnection(visit, len(self.visits[path]), reader, writer)
            try:
                if script := self._scripts.get(path):
                    await script(connection)
                else:
                    await connection.answer("404 Not Found")
            finally:
                if not asyncio.current_task().cancelling():  # type: ignore[union-attr]
                    visit.stayed = self._loop.time() - began


@contextlib.asynccontextmanager
async def sinking(
    scripts: Mapping[str, Script], listeners: Sequence[socket.socket]
) -> AsyncIterator[Sink]:
    """Yield a sink that serves while the block runs."""
    sink = Sink(scripts)
    servers = [await asyncio.start_server(sink.accept, sock=listener) for listener in listeners]
    try:
        yield sink
    finally:
        for server in servers:
            server.close()
        await sink.close()


async def _read(reader: asyncio.StreamReader) -> WebhookRequest:
    """Read a request.

    Raises:
        InboundError: It is not a valid request.
        ValueError: It is incomplete or too long.
    """
    messages, head = RequestParser(_MAX_HEAD_BYTES), None
    while head is None or not messages.is_whole:
        data = await reader.read(65536)
        if not data or messages.held_bytes > _MAX_BODY_BYTES:
            raise ValueError("it is incomplete, or too long")
        messages.feed(data)
        head = head or messages.head()
        if messages.error is not None:
            raise messages.error
    body = bytes(messages.body)
    return WebhookRequest(method=head.method, target=head.target, headers=head.headers, body=body)
