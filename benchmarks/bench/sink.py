"""The webhook of every side: it answers 204 as cheaply as Python can, and keeps what it saw.

python -m benchmarks.bench.sink --ports 100 [--hang 1] [--delay 0.1]

It prints its ports. `GET /stats` on the first of them returns what arrived since the last time, as
JSON: how many requests, how old each was by the `sent` in its body (ns, this machine's monotonic
clock), and the moment of the first and the last; `GET /count` how many these are so far.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import re
import time

ANSWER = b"HTTP/1.1 204 No Content\r\n\r\n"
_LENGTH = re.compile(rb"\r\ncontent-length: *(\d+)", re.IGNORECASE)
_CHUNKED = b"transfer-encoding: chunked"
_SENT = re.compile(rb'"sent": ?"(\d+)"')


class Seen:
    """What arrived since the last request for statistics."""

    def __init__(self) -> None:
        self.ages: list[int] = []
        self.first = self.last = 0

    def note(self, body: bytes) -> None:
        """Record one request."""
        now = time.monotonic_ns()
        self.first = self.first or now
        self.last = now
        match = _SENT.search(body)
        self.ages.append(now - int(match[1]) if match else 0)

    def taken(self) -> bytes:
        """Return the statistics as JSON, and reset them."""
        said = json.dumps({"first": self.first, "last": self.last, "ages": self.ages}).encode()
        self.__init__()  # type: ignore[misc]
        return said


class Webhook(asyncio.Protocol):
    """One connection."""

    def __init__(self, seen: Seen, *, hangs: bool, delay: float) -> None:
        self._seen = seen
        self._hangs = hangs
        self._delay = delay
        self._held = b""

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        """Take the transport."""
        self._transport = transport

    def data_received(self, data: bytes) -> None:
        """Answer every complete request."""
        self._held += data
        while (end := self._held.find(b"\r\n\r\n")) >= 0:
            head = self._held[: end + 2]
            if head.startswith(b"GET "):
                self._held = self._held[end + 4 :]
                is_count = head.startswith(b"GET /count")
                said = b"%d" % len(self._seen.ages) if is_count else self._seen.taken()
                length = f"HTTP/1.1 200 OK\r\nContent-Length: {len(said)}\r\n\r\n".encode()
                self._transport.write(length + said)  # type: ignore[attr-defined]
                continue
            match = _LENGTH.search(head)
            if match is None and _CHUNKED in head.lower():
                raise ValueError("a chunked request: none of the senders makes one")
            whole = end + 4 + (int(match[1]) if match else 0)
            if len(self._held) < whole:
                return
            body, self._held = self._held[end + 4 : whole], self._held[whole:]
            if self._hangs:
                return
            self._seen.note(body)
            if self._delay:
                asyncio.get_running_loop().call_later(self._delay, self._answer)
            else:
                self._answer()

    def _answer(self) -> None:
        if not self._transport.is_closing():
            self._transport.write(ANSWER)  # type: ignore[attr-defined]


async def main() -> None:
    """Serve until killed."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--ports", type=int, default=1)
    parser.add_argument("--hang", type=int, default=0, help="How many of the ports never answer.")
    parser.add_argument("--delay", type=float, default=0.0, help="Before each answer, in seconds.")
    given = parser.parse_args()
    seen, loop, ports = Seen(), asyncio.get_running_loop(), []
    for number in range(given.ports):
        hangs = number >= given.ports - given.hang
        server = await loop.create_server(
            lambda hangs=hangs: Webhook(seen, hangs=hangs, delay=given.delay),  # type: ignore[misc]
            *("127.0.0.1", 0),
        )
        ports.append(server.sockets[0].getsockname()[1])
    print(json.dumps(ports), flush=True)
    await asyncio.Event().wait()


if __name__ == "__main__":
    import uvloop

    uvloop.run(main())
