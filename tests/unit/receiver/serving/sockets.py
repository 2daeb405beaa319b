"""Connections byte by byte, and a server whose deadlines a test can wait for."""

from __future__ import annotations

import asyncio
import contextlib
import json
import socket
import ssl
from collections.abc import AsyncIterator, Awaitable, Callable
from dataclasses import dataclass
from datetime import timedelta

from receiver.limits import ConnectionLimits
from receiver.serving.connection import Connections
from receiver.serving.server import HttpServer
from receiver.testing import Draft
from tests.eventually import DEADLINE, eventually

__all__ = ["NEVER", "SOON", "Answer", "Client", "Serve", "Site", "connected", "limits", "raw"]

SOON = timedelta(milliseconds=150)
NEVER = timedelta(hours=1)


@dataclass(frozen=True)
class Answer:
    """One answer on a connection."""

    status: int
    headers: dict[str, str]
    body: bytes

    @property
    def code(self) -> str:
        code: str = json.loads(self.body)["code"]
        return code


class Client:
    """One connection, byte by byte."""

    def __init__(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self.reader = reader
        self.writer = writer

    async def send(self, data: bytes) -> None:
        self.writer.write(data)
        await self.writer.drain()

    async def answer(self) -> Answer:
        """Read one answer."""
        async with asyncio.timeout(DEADLINE):
            head = (await self.reader.readuntil(b"\r\n\r\n")).decode("latin-1").splitlines()
            fields = [line.partition(": ") for line in head[1:] if line]
            headers = {name.lower(): value for name, _, value in fields}
            body = await self.reader.readexactly(int(headers.get("content-length", "0")))
        return Answer(status=int(head[0].split(" ")[1]), headers=headers, body=body)

    async def ended(self) -> bytes:
        """Wait until the other end has closed; return what came before."""
        rest = b""
        async with asyncio.timeout(DEADLINE):
            with contextlib.suppress(ConnectionError):
                while piece := await self.reader.read(65536):
                    rest += piece
        return rest


@contextlib.asynccontextmanager
async def connected(port: int | None) -> AsyncIterator[Client]:
    reader, writer = await asyncio.open_connection("127.0.0.1", port)
    try:
        yield Client(reader, writer)
    finally:
        writer.close()


@dataclass
class Site:
    """A server that listens."""

    server: HttpServer
    port: int
    clients: list[Client]

    async def until(self, holds: Callable[[Connections], bool]) -> None:
        """Wait until this can be said of the open connections."""

        await eventually(lambda: holds(self.server.connections))

    async def connect(
        self, *, receive_buffer: int | None = None, tls: ssl.SSLContext | None = None
    ) -> Client:
        sock = socket.socket()
        if receive_buffer is not None:
            sock.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, receive_buffer)
        sock.setblocking(False)  # the socket's own signature
        await asyncio.get_running_loop().sock_connect(sock, ("127.0.0.1", self.port))
        name = "localhost" if tls else None
        client = Client(*await asyncio.open_connection(sock=sock, ssl=tls, server_hostname=name))
        self.clients.append(client)
        return client


Serve = Callable[..., Awaitable[Site]]


def limits(**changes: object) -> ConnectionLimits:
    """Return limits under which no connection times out, except for the given ones."""
    settings = {"head_timeout": NEVER, "keep_alive": NEVER, "write_timeout": NEVER, **changes}
    return ConnectionLimits(**settings)  # type: ignore[arg-type]  # the caller's types


def raw(draft: Draft, *lines: str, body: bool = True) -> bytes:
    """Write a request as it goes over the wire."""
    request = draft.request()
    fields = [f"{name}: {value}" for name, value in request.headers]
    length = [f"Content-Length: {len(request.body)}"] if body else []
    start = [f"POST {request.target} HTTP/1.1", "Host: client.example.com"]
    head = "\r\n".join([*start, *fields, *length, *lines, "", ""]).encode()
    return head + (request.body if body else b"")
