"""Doors, the ways into a receiver: the service, `app()` on aiohttp's server, and ASGI."""

from __future__ import annotations

import asyncio
import contextlib
import io
import json
import logging
import subprocess
import sys
from collections.abc import AsyncIterator, Awaitable, Callable, Iterator, MutableMapping
from contextlib import asynccontextmanager
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any, BinaryIO
from unittest import mock
from urllib.parse import unquote_to_bytes

from receiver import Receiver, refusals
from receiver.app import HideMalformedRequests
from receiver.asgi import AsgiApp
from receiver.settings import load_settings
from tests.eventually import DEADLINE, eventually
from tests.ports import free_port
from tests.served import served
from tests.verification.soak.fuzzing.exchange import Answer
from tests.verification.soak.fuzzing.making import Request
from tests.verification.soak.fuzzing.parties import configuration

__all__ = ["DOORS", "Door", "opened"]

ROOT = Path(__file__).resolve().parents[4]
DOORS = ("service", "app", "asgi")
# Every refusal is expected in the log, which otherwise limits those of strangers.
_UNBOUNDED = {"_OF_STRANGERS": 10**9, "_OF_A_SENDER": 10**9}
_SERVE = (
    f"import receiver.refusals as r; vars(r).update({_UNBOUNDED}); import receiver.cli as c;"
    " c.main()"
)


@dataclass(frozen=True)
class Door:
    """A receiver that can be reached."""

    # The receiver, or another one on its database, to expect tasks and read the inbox.
    receiver: Receiver
    send: Callable[[Request], Awaitable[Answer]]  # sends one request, and returns its answer
    log: Callable[[], list[str]]  # returns what was logged since the last time


@asynccontextmanager
async def opened(name: str, folder: Path) -> AsyncIterator[Door]:
    """Open a door of this name; its database is in the folder, which need not be there."""
    opening = {"service": _service, "app": _app, "asgi": _asgi}[name]
    with mock.patch.dict(vars(refusals), _UNBOUNDED):
        async with opening(folder) as door:
            yield door


# --- HTTP, byte by byte -------------------------------------------------------------------------


class _Connection:
    """A connection that is made again where the other end has closed it."""

    def __init__(self, port: int) -> None:
        self._port = port
        self._streams: tuple[asyncio.StreamReader, asyncio.StreamWriter] | None = None

    async def send(self, request: Request) -> Answer:
        raw = _raw(request)
        reused = self._streams is not None
        try:
            answer = await self._exchange(raw)
        except (asyncio.IncompleteReadError, ConnectionError):
            self.close()
            if not reused:
                return Answer(0, "", b"")
            return await self.send(request)  # closed after the answer before
        if request.wire is not Request.wire:  # what is left over would begin the next request
            self.close()
        return answer

    async def _exchange(self, raw: bytes) -> Answer:
        if self._streams is None:
            self._streams = await asyncio.open_connection("127.0.0.1", self._port)
        reader, writer = self._streams
        writer.write(raw)
        async with asyncio.timeout(DEADLINE):
            head = (await reader.readuntil(b"\r\n\r\n")).decode("latin-1")
            start, *fields = head.rstrip("\r\n").split("\r\n")
            headers = {
                name.lower(): value for name, _, value in (f.partition(": ") for f in fields)
            }
            answer_body = await reader.readexactly(int(headers.get("content-length", "0")))
        status = int(start.split(" ")[1])
        if headers.get("connection", "").lower() == "close" or status in {400, 413}:
            self.close()
        return Answer(status, head, answer_body)

    def close(self) -> None:
        if self._streams is not None:
            self._streams[1].transport.abort()
            self._streams = None


def _raw(request: Request) -> bytes:
    named = {name.lower() for name, _ in request.fields}
    host = [] if "host" in named else [("Host", "client.example.com")]
    length = ("Content-Length", str(len(request.body)))
    if request.chunked:
        length = ("Transfer-Encoding", "chunked")
    lines = [f"{request.method} {request.target} HTTP/1.1"]
    lines += [f"{name}: {value}" for name, value in (*host, *request.fields, length)]
    head = "\r\n".join([*lines, "", ""]).encode("latin-1")
    if not request.chunked:
        return request.wire(head + request.body)
    pieces = [piece for piece in (request.body[:7], request.body[7:]) if piece]
    chunks = b"".join(b"%x\r\n%s\r\n" % (len(piece), piece) for piece in [*pieces, b""])
    return request.wire(head + chunks)


# --- the service, a process ---------------------------------------------------------------------


@asynccontextmanager
async def _service(folder: Path) -> AsyncIterator[Door]:
    port = free_port()
    path, log = configuration(folder, port=port), folder / "service.log"
    options = ["--verbose", "--log-format", "json", "--config", str(path)]
    command = [sys.executable, "-c", _SERVE, "serve", *options]
    with (
        log.open("wb") as file,
        log.open("rb") as lines,
        subprocess.Popen(  # noqa: ASYNC220  # it waits for nothing
            command, stdout=file, stderr=file, cwd=ROOT
        ) as process,
    ):
        try:
            await eventually(lambda: _listens(port, process))
            receiver, connection = load_settings(path).build(), _Connection(port)
            await receiver.open()
            try:
                yield Door(receiver, connection.send, lambda: _unread(lines))
            finally:
                connection.close()
                await receiver.close()
        finally:
            process.terminate()


def _unread(log: BinaryIO) -> list[str]:
    whole, end, begun = log.read().rpartition(b"\n")
    log.seek(-len(begun), io.SEEK_CUR)  # the service is still writing it
    lines = (whole + end).decode().split("\n")
    read = (json.loads(line) for line in lines if line.startswith("{"))
    return [json.dumps(each, ensure_ascii=False) for each in read]


async def _listens(port: int, process: subprocess.Popen[bytes]) -> bool:
    assert process.poll() is None, "the service has ended"
    with contextlib.suppress(OSError):
        _, writer = await asyncio.open_connection("127.0.0.1", port)
        writer.close()
        return True
    return False


# --- in this process ----------------------------------------------------------------------------


class _Lines(logging.Handler):
    """Keeps all log records, with their attributes and tracebacks."""

    def __init__(self) -> None:
        super().__init__()
        self.lines: list[str] = []
        self.setFormatter(logging.Formatter("%(message)s"))

    def emit(self, record: logging.LogRecord) -> None:
        extra = {k: v for k, v in vars(record).items() if k in ("reason", "task", "delivery_id")}
        self.lines.append(f"{self.format(record)} {json.dumps(extra)}")

    def taken(self) -> list[str]:
        lines, self.lines = self.lines, []
        return lines


@contextlib.contextmanager
def _listening() -> Iterator[_Lines]:
    handler, root = _Lines(), logging.getLogger()
    listened_to = (root, logging.getLogger("receiver"), logging.getLogger("aiohttp.server"))
    levels = [(logger, logger.level) for logger in listened_to]
    for logger, _ in levels:
        logger.setLevel(logging.INFO)
    root.addHandler(handler)
    try:
        yield handler
    finally:
        root.removeHandler(handler)
        for logger, level in levels:
            logger.setLevel(level)


@contextlib.contextmanager
def _hiding_malformed_requests() -> Iterator[None]:
    """Do what the pages ask of who embeds a receiver in aiohttp."""
    log, hiding = logging.getLogger("aiohttp.server"), HideMalformedRequests()
    log.addFilter(hiding)
    try:
        yield
    finally:
        log.removeFilter(hiding)


@asynccontextmanager
async def _app(folder: Path) -> AsyncIterator[Door]:
    receiver = load_settings(configuration(folder)).build()
    with _listening() as lines, _hiding_malformed_requests():
        async with served(receiver.app()) as base:
            connection = _Connection(int(base.rpartition(":")[2]))
            yield Door(receiver, connection.send, lines.taken)
            connection.close()


async def _send_by_asgi(app: AsgiApp, request: Request) -> Answer:
    """Send a request to an application, without a server."""
    path, _, query = request.target.encode("latin-1").partition(b"?")
    fields = [(k.lower().encode("latin-1"), v.encode("latin-1")) for k, v in request.fields]
    scope = {
        "type": "http",
        "asgi": {"version": "3.0"},
        "http_version": "1.1",
        "method": request.method,
        "path": unquote_to_bytes(path).decode("utf-8", "surrogateescape"),
        "raw_path": path,
        "query_string": query,
        "root_path": "",
        "headers": [(k, v.strip(b" \t")) for k, v in fields],
        "client": ("127.0.0.1", 1),
    }
    pieces = [request.body[:7], request.body[7:]]
    sent: list[MutableMapping[str, Any]] = []

    async def receive() -> MutableMapping[str, Any]:
        piece = pieces.pop(0) if pieces else b""
        return {"type": "http.request", "body": piece, "more_body": bool(pieces)}

    async def send(message: MutableMapping[str, Any]) -> None:
        sent.append(message)

    await app(scope, receive, send)
    head = "\r\n".join(f"{k.decode()}: {v.decode()}" for k, v in sent[0]["headers"])
    return Answer(sent[0]["status"], head, b"".join(m.get("body", b"") for m in sent[1:]))


@asynccontextmanager
async def _asgi(folder: Path) -> AsyncIterator[Door]:
    receiver = load_settings(configuration(folder)).build()
    with _listening() as lines:
        async with receiver:
            yield Door(receiver, partial(_send_by_asgi, receiver.asgi()), lines.taken)
