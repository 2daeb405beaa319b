"""Webhooks that do their worst: every attempt ends in its time, and memory stays flat."""

from __future__ import annotations

import asyncio
import gzip
import socket
import struct
import time
import tracemalloc
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager, suppress
from datetime import timedelta
from pathlib import Path

import pytest

from pushkit.outbox.states import DeliveryState
from tests.eventually import PATIENT
from tests.system.faults.conftest import RETRY_AT_ONCE, Senders, numbered

TIMEOUT = 0.5
SLACK = 30  # of a machine that stood still; what has no end is later
ATTEMPTS = 8
MEBIBYTE = 1024 * 1024

Behaviour = Callable[[asyncio.StreamReader, asyncio.StreamWriter], Awaitable[None]]


async def never(_reader: asyncio.StreamReader, _writer: asyncio.StreamWriter) -> None:
    await asyncio.Event().wait()


async def too_late(_reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
    await asyncio.sleep(TIMEOUT * 3)
    writer.write(b"HTTP/1.1 202 Accepted\r\nContent-Length: 0\r\n\r\n")


async def byte_by_byte(_reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
    for byte in b"HTTP/1.1 202 Accepted\r\nContent-Length: 0\r\nX: " + b"y" * 1000:
        writer.write(bytes([byte]))
        await writer.drain()
        await asyncio.sleep(0.01)


async def endless_body(_reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
    writer.write(b"HTTP/1.1 202 Accepted\r\nTransfer-Encoding: chunked\r\n\r\n")
    while True:
        writer.write(b"10000\r\n" + b"x" * 65536 + b"\r\n")
        await writer.drain()


_BOMB = gzip.compress(b"\0" * 50 * MEBIBYTE)


async def gzip_bomb(_reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
    length = b"Content-Length: %d\r\n\r\n" % len(_BOMB)
    writer.write(b"HTTP/1.1 202 Accepted\r\nContent-Encoding: gzip\r\n" + length + _BOMB)


async def many_headers(_reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
    lines = b"".join(b"X-%d: %s\r\n" % (number, b"y" * 60) for number in range(10_000))
    writer.write(b"HTTP/1.1 202 Accepted\r\nContent-Length: 0\r\n" + lines + b"\r\n")


async def endless_header(_reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
    writer.write(b"HTTP/1.1 202 Accepted\r\nX: ")
    while True:
        writer.write(b"y" * 65536)
        await writer.drain()


async def endless_interim(_reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
    while True:
        writer.write(b"HTTP/1.1 102 Processing\r\n\r\n" * 10)
        await writer.drain()
        await asyncio.sleep(0.002)


async def reset(_reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
    found: socket.socket = writer.get_extra_info("socket")
    found.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))


@asynccontextmanager
async def serving(behaviour: Behaviour) -> AsyncIterator[str]:
    tasks: set[asyncio.Task[None]] = set()

    async def serve(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        with suppress(OSError, asyncio.IncompleteReadError, asyncio.CancelledError):
            await reader.readuntil(b"}}}")  # the end of the body
            await behaviour(reader, writer)
            await writer.drain()
        writer.close()

    def connected(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        task = asyncio.create_task(serve(reader, writer))
        tasks.add(task)
        task.add_done_callback(tasks.discard)

    server = await asyncio.start_server(connected, "127.0.0.1", 0)
    yield f"http://127.0.0.1:{server.sockets[0].getsockname()[1]}/hook"
    server.close()
    for task in tasks:
        task.cancel()
    await asyncio.gather(*tasks, return_exceptions=True)


@pytest.mark.parametrize(
    ("behaviour", "states"),
    [
        (never, {DeliveryState.PENDING}),
        (too_late, {DeliveryState.PENDING}),
        (byte_by_byte, {DeliveryState.PENDING}),
        # The head was an acknowledgement; what follows it is nobody's business.
        (endless_body, {DeliveryState.DELIVERED}),
        (gzip_bomb, {DeliveryState.DELIVERED}),
        (many_headers, {DeliveryState.PENDING, DeliveryState.DELIVERED}),
        (endless_header, {DeliveryState.PENDING}),
        (endless_interim, {DeliveryState.PENDING}),
        (reset, {DeliveryState.PENDING}),
    ],
)
async def test_every_attempt_ends_in_its_time_and_memory_stays_flat(
    tmp_path: Path, senders: Senders, behaviour: Behaviour, states: set[DeliveryState]
) -> None:
    waits = DeliveryState.PENDING in states  # the others end by their bounds
    sender = await senders.make(
        str(tmp_path / "outbox.db"),
        working=False,
        timeout=timedelta(seconds=TIMEOUT) if waits else PATIENT,
        lease_margin=PATIENT,  # what is stored in flight waits until all are stored
        retry=RETRY_AT_ONCE,
    )
    async with serving(behaviour) as url:
        for attempt in range(ATTEMPTS):
            await sender.subscribe(f"task-{attempt}", {"url": url}, version="1.0")
            await sender.notify(numbered(f"task-{attempt}", 1))
        tracemalloc.start()
        before, _ = tracemalloc.get_traced_memory()
        began = time.monotonic()
        assert await sender.worker.run_once() == ATTEMPTS
        taken = time.monotonic() - began
        _, peak = tracemalloc.get_traced_memory()
        tracemalloc.stop()
    found = [each for n in range(ATTEMPTS) for each in await sender.deliveries(f"task-{n}")]
    assert {each.state for each in found} <= states
    assert taken < TIMEOUT + SLACK
    assert peak - before < ATTEMPTS * 2 * MEBIBYTE
