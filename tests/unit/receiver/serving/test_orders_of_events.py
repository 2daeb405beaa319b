"""Requests of one connection are all answered, in order, whatever the order of its events."""

from __future__ import annotations

import asyncio
from collections import deque
from datetime import timedelta
from typing import Any

from hypothesis import given, settings
from hypothesis import strategies as st

from receiver.limits import ConnectionLimits
from receiver.request import Answer, Request
from receiver.serving.connection import HttpConnection
from receiver.serving.server import HttpServer

MAX_HEAD = 150_000
LONG = timedelta(hours=1)
LIMITS = ConnectionLimits(head_timeout=LONG, keep_alive=LONG, write_timeout=LONG)
# Whether it is answered at once, without a body, and the size in bytes of its head or body.
REQUESTS = st.lists(
    st.sampled_from([(True, 0), (True, 140_000), (False, 0), (False, 300_000)]),
    min_size=1,
    max_size=6,
)
EVENTS = st.lists(
    st.sampled_from([500, 135_000, 160_000, 1_000_000, "turn", "full", "sent", "answer"]),
    max_size=20,
)


class Socket(asyncio.Transport):
    """A transport whose peer reads answers, or not, as the test says."""

    def __init__(self) -> None:
        super().__init__({"peername": ("192.0.2.1", 1)})
        self.written = b""
        self.is_read = True
        self.is_full = False
        self.is_paused = False
        self.protocol: HttpConnection | None = None

    def set_write_buffer_limits(self, high: int | None = None, low: int | None = None) -> None:
        pass

    def write(self, data: Any) -> None:
        self.written += data
        if self.is_full and not self.is_paused and self.protocol is not None:
            self.is_paused = True
            self.protocol.pause_writing()

    def sent(self) -> None:
        self.is_full = False
        if self.is_paused and self.protocol is not None:
            self.is_paused = False
            self.protocol.resume_writing()

    def pause_reading(self) -> None:
        self.is_read = False

    def resume_reading(self) -> None:
        self.is_read = True


def bytes_of(number: int, size: int, *, is_at_once: bool) -> bytes:
    line = f"POST /{number} HTTP/1.1\r\nHost: x\r\n".encode()
    if is_at_once:
        return line + b"X: " + b"x" * size + b"\r\n\r\n"
    return line + f"Content-Length: {size}\r\n\r\n".encode() + b"x" * size


async def answers(requests: list[tuple[bool, int]], events: list[int | str]) -> list[str]:
    """Send requests, with events in between; return the paths in the order of the answers."""
    later: deque[asyncio.Future[None]] = deque()

    async def handle(request: Request) -> Answer:
        is_at_once, size = requests[int(request.path[1:])]
        if not is_at_once:
            assert request.body is not None or await request.read(size) is not None
            later.append(asyncio.get_running_loop().create_future())
            await later[-1]
        return Answer(status=200, headers=(("Path", request.path),))

    server = HttpServer(
        handle,
        limits=LIMITS,
        is_proxy=lambda _: True,
        max_head_bytes=MAX_HEAD,
        refuse=lambda code, _reason, _peer: Answer(status=400, code=code),
    )
    connection, socket = HttpConnection(server, ""), Socket()
    socket.protocol = connection
    connection.connection_made(socket)
    unsent = b"".join(
        bytes_of(number, size, is_at_once=is_at_once)
        for number, (is_at_once, size) in enumerate(requests)
    )
    # In the end the peer reads all answers, sends the rest, and each request is answered.
    for event in [*events, *["sent", 300_000, "turn", "answer", "turn"] * 20]:
        if isinstance(event, int):
            data, unsent = (unsent[:event], unsent[event:]) if socket.is_read else (b"", unsent)
            if data:
                connection.data_received(data)
        elif event == "turn":
            for _ in range(3):
                await asyncio.sleep(0)
        elif event == "full":
            socket.is_full = True
        elif event == "sent":
            socket.sent()
        elif later:
            later.popleft().set_result(None)
    connection.connection_lost(None)
    lines = socket.written.decode().split("\r\n")
    return [line.removeprefix("Path: ") for line in lines if line.startswith("Path: ")]


@settings(max_examples=400)
@given(requests=REQUESTS, events=EVENTS)
def test_each_request_is_answered_whatever_the_order_of_events(
    requests: list[tuple[bool, int]], events: list[int | str]
) -> None:
    assert asyncio.run(answers(requests, events)) == [f"/{each}" for each in range(len(requests))]
