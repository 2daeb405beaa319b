"""Fuzz the HTTP client with answers on kept-alive connections.

A conversation is a few requests over one connection, for as long as the client reuses it. Each
answer is drawn from a grammar of valid and invalid answers, then truncated, changed in a byte,
split anywhere, or followed by more bytes, which arrive at once or wait in the socket. Every answer
contains a token of its request.

Checked: no request gets an answer with another request's token; a request without an answer ends in
one of the expected errors; a valid answer is returned unchanged.

    python -m tests.verification.soak.fuzz_answers --cases 1000000 [--seed 7]
"""

from __future__ import annotations

import asyncio
import random
import socket
import sys
from collections import Counter
from collections.abc import Sequence

from pushkit.net.connection import Connection, HttpAnswer, HttpRequest, write_requests
from pushkit.net.failures import BrokenAnswerError, ClosedEarlyError, Probe
from pushkit.scheduling.event_loop import Deadlines, IterationBatches
from tests.verification.soak.killing import options

__all__ = ["FuzzFailedError", "Wire", "fuzz", "hear"]

_EXPECTED = (BrokenAnswerError, ClosedEarlyError, TimeoutError, ConnectionResetError)
_MAX_BODY = 256
_ENDS = (b"\r\n",) * 12 + (b"\n", b"\r", b"\r\r\n", b"\n\n", b"")
_STATUS = (b"HTTP/1.1 200 OK",) * 8 + (
    b"HTTP/1.1 204 No Content",
    b"HTTP/1.1 304 Not Modified",
    b"HTTP/1.1 503 Away",
    b"HTTP/1.1 200",
    b"HTTP/1.1 200 ",
    b"HTTP/1.0 200 OK",
    b"HTTP/1.1  200 OK",
    b"HTTP/1.1 999 Odd",
    b"HTTP/1.1 000 Odd",
    b"HTTP/1.1 2000 OK",
    b"HTTP/1.1 101 Switching",
    b"HTTP/2 200 OK",
    b"http/1.1 200 ok",
    b"POST / HTTP/1.1",
)
_FIELDS = (
    b"Connection: close",
    b"Connection: keep-alive",
    b"Connection: upgrade\r\nUpgrade: h2c",
    b"Proxy-Connection: close",
    b"Keep-Alive: timeout=5",
    b"X-Folded: a\r\n %s",
    b"X-Folded: a\r\n\t%s",
    b" X-Leading: %s",
    b"X-Blank : %s",
    b"X-Zero: \0%s",
    b"X\x01Control: %s",
    b"no colon %s",
    b": %s",
    b"Trailer: X-Token",
    b"Content-Encoding: gzip",
    b"Set-Cookie: %s",
)
_LENGTHS = (b"%d",) * 6 + (
    b"+%d",
    b"-%d",
    b"0%d",
    b"0x%x",
    b"%d ",
    b"\t%d",
    b"%d, %d",
    b"%d,%d",
    b"%d;a",
    b"%d%d",
    b"%d\r\nContent-Length: %d",
    b"%d\r\nContent-Length: 0",
    b"%d\r\nContent-length: 4%d",
    b"99999999999999999999%d",
    b"18446744073709551616",
    b"",
)
_ENCODINGS = (b"chunked",) * 6 + (
    b"Chunked",
    b"gzip, chunked",
    b"chunked, chunked",
    b"chunked, identity",
    b"identity",
    b"xchunked",
    b"chunked;q=1",
    b"\x0bchunked",
    b"chunked\r\nTransfer-Encoding: identity",
    b"",
)
_SIZES = (b"%x",) * 8 + (
    b"%X",
    b"000%x",
    b"%x;%s",
    b'%x;a="%s"',
    b"%x ",
    b"-%x",
    b"+%x",
    b"0x%x",
    b"ffffffffffffffff",
    b"fffffffffffffffff%x",
    b"7fffffffffffffff",
    b"%d",
    b"",
    b"z",
)
_BEHIND = (b"",) * 6 + (
    b"\r\n",
    b"\r\n\r\n",
    b"\n",
    b"junk %s",
    b"HTTP/1.1 200 OK\r\nContent-Length: 18\r\n\r\n%s",
    b"HTTP/1.1 500 No\r\nX-Token: %s\r\nContent-Length: 0\r\n\r\n",
    b"HTTP/1.1 200 OK\r\nX-Token: %s",
    b"HTTP/1.1 103 Hints\r\nX-Token: %s\r\n\r\n",
    b"0\r\n\r\n",
    b"\0" * 9,
)


class FuzzFailedError(AssertionError):
    """Something that must hold does not."""


class Wire(asyncio.Transport):
    """The other end of a connection, in a test's hand."""

    def __init__(self, sock: socket.socket | None = None) -> None:
        super().__init__({"socket": sock})
        self.written = bytearray()
        self.is_aborted = False

    def write(self, data: bytes | bytearray | memoryview) -> None:
        self.written += data

    def get_write_buffer_size(self) -> int:
        return 0

    def is_closing(self) -> bool:
        return self.is_aborted

    def abort(self) -> None:
        self.is_aborted = True


def hear(connection: Connection, said: bytes) -> None:
    """Let a connection read some bytes, as a loop does."""
    buffer = connection.get_buffer(len(said))
    for at in range(0, len(said), len(buffer)):
        piece = said[at : at + len(buffer)]
        buffer[: len(piece)] = piece
        connection.buffer_updated(len(piece))


def _said(chance: random.Random, parts: tuple[bytes, ...], token: bytes, number: int = 0) -> bytes:
    """Return one of the parts, with the token or the number where it has a place for them."""
    part = chance.choice(parts)
    for place in (b"%d", b"%x", b"%X"):
        part = part.replace(place, (place % number))
    return part.replace(b"%s", token)


def _body(chance: random.Random, token: bytes) -> tuple[list[bytes], bytes]:
    """Return the fields that say how long a body is, and the body."""
    body = token * chance.choice((1, 1, 1, 2, 40))
    kind = chance.random()
    if kind < 0.1:
        return [], body
    length = b"Content-Length: " + _said(
        chance, _LENGTHS, token, len(body) + chance.choice((0,) * 9 + (1, -1, 7))
    )
    if kind < 0.55:
        return [length], body
    fields = [b"Transfer-Encoding: " + _said(chance, _ENCODINGS, token)]
    if chance.random() < 0.15:
        fields.insert(chance.randint(0, 1), length)
    chunks = b""
    while body:
        size = chance.randint(1, 30)
        piece, body = body[:size], body[size:]
        end = chance.choice(_ENDS)
        chunks += _said(chance, _SIZES, token, len(piece)) + end + piece + chance.choice(_ENDS)
    trailer = b"X-Token: " + token + b"\r\n" if chance.random() < 0.3 else b""
    return fields, chunks + chance.choice((b"0", b"0", b"0", b"00", b"0;a", b"")) + b"\r\n" + (
        trailer + chance.choice(_ENDS)
    )


def _answer(chance: random.Random, token: bytes) -> bytes:
    interim = b"HTTP/1.1 103 Hints\r\nX-Token: " + token + b"\r\n\r\n"
    before = interim * chance.choice((0,) * 12 + (1, 2, 16, 17, 60))
    lengths, body = _body(chance, token)
    fields = [b"X-Token: " + token, *lengths]
    for _ in range(chance.choice((0, 0, 0, 1, 2))):
        fields.insert(chance.randint(0, len(fields)), _said(chance, _FIELDS, token))
    lines = [chance.choice(_STATUS), *fields, b""]
    head = b"".join(line + chance.choice(_ENDS) for line in lines)
    said = bytearray(before + head + body + _said(chance, _BEHIND, token))
    for _ in range(chance.choice((0,) * 8 + (1, 3))):
        at = chance.randrange(len(said))
        said[at : at + chance.choice((0, 1))] = bytes([chance.randrange(256)])
    if chance.random() < 0.15:
        del said[chance.randrange(len(said)) :]
    return bytes(said)


def _split(chance: random.Random, said: bytes) -> list[bytes]:
    if chance.random() < 0.1:
        return [said[at : at + 1] for at in range(len(said))]
    cuts = sorted(chance.randint(0, len(said)) for _ in range(chance.choice((0, 0, 1, 2, 5))))
    return [said[a:b] for a, b in zip([0, *cuts], [*cuts, len(said)], strict=True) if a < b]


class _AtOnce(IterationBatches[tuple[Connection, Sequence[bytes]]]):
    """Each request has a round of its own, of an event loop that does not run here."""

    def add(self, item: tuple[Connection, Sequence[bytes]]) -> None:
        """Write a request."""
        write_requests([item])


def _converse(kind: type[Connection], chance: random.Random, seen: Counter[str]) -> None:
    """Play one conversation; needs a running loop.

    Args:
        kind: What asks.
        chance: Decides all of it.
        seen: How requests ended, counted.

    Raises:
        FuzzFailedError: Something does not hold.
    """
    near, far = socket.socketpair()
    with near, far:
        near.setblocking(False)
        wire = Wire(near)
        connection = kind(Deadlines(), _AtOnce(write_requests), lambda _: None, lambda _: None)
        connection.connection_made(wire)
        tokens: list[bytes] = []
        while connection.is_reusable() and len(tokens) < 6:
            tokens.append(b"<%016x>" % chance.getrandbits(64))
            said = b"HTTP/1.1 200 OK\r\nContent-Length: 18\r\n\r\n" + tokens[-1]
            is_right = chance.random() < 0.4
            if not is_right:
                said = _answer(chance, tokens[-1])
            pieces = _unread(near) + _split(chance, said)
            found = _asked(connection, wire, pieces, chance)
            if chance.random() < 0.5:
                far.sendall(b"".join(pieces))
            else:
                _hear_all(connection, wire, pieces)
            name = found if isinstance(found, str) else "whole" if found.complete else "broke off"
            seen[name] += 1
            seen["asked again"] += len(tokens) > 1
            if isinstance(found, HttpAnswer):
                _check(found, tokens)
            if is_right and (isinstance(found, str) or found.body != tokens[-1]):
                raise FuzzFailedError(f"a right answer was taken as {found!r}")
        connection.close()


def _unread(near: socket.socket) -> list[bytes]:
    try:
        return [near.recv(65536)]
    except BlockingIOError:
        return []


def _hear_all(connection: Connection, wire: Wire, pieces: list[bytes]) -> None:
    while pieces and not wire.is_aborted:
        hear(connection, pieces.pop(0))


def _asked(
    connection: Connection, wire: Wire, pieces: list[bytes], chance: random.Random
) -> HttpAnswer | str:
    """Ask, let the answer come, and return it, or the error's name; leave what is behind it."""
    until = asyncio.get_running_loop().time() + 1000
    asking = connection.send(HttpRequest(b"POST", b"", until, 1000, _MAX_BODY), Probe())
    waiter = asking.send(None)
    while pieces and not waiter.done() and not wire.is_aborted:
        hear(connection, pieces.pop(0))
    if not waiter.done():
        how = chance.choice((None, ConnectionResetError(), TimeoutError()))
        if isinstance(how, TimeoutError):
            connection.expire()
        else:
            connection.connection_lost(how)
    try:
        asking.send(None)
    except StopIteration as exc:
        answer: HttpAnswer = exc.value
        return answer
    except _EXPECTED as exc:
        return type(exc).__name__
    raise FuzzFailedError("it goes on waiting")


def _check(answer: HttpAnswer, tokens: list[bytes]) -> None:
    text = answer.body + b"".join(
        value.encode("utf-8", "surrogateescape") for _, value in answer.headers
    )
    for other in tokens[:-1]:
        if other in text:
            raise FuzzFailedError(f"answered by another's bytes: {answer.status} {text!r}")
    if len(answer.body) > _MAX_BODY or not 200 <= answer.status <= 999:
        raise FuzzFailedError(f"{len(answer.body)} bytes of {answer.status}")


async def fuzz(seed: int, cases: int, *, kind: type[Connection] = Connection) -> Counter[str]:
    """Play conversations, and return how their requests ended."""
    seen: Counter[str] = Counter()
    for case in range(cases):
        try:
            _converse(kind, random.Random(f"{seed} {case}"), seen)
        except Exception as exc:
            raise FuzzFailedError(f"seed {seed}, case {case}: {exc!r}") from exc
    return seen


def main() -> int:
    """Play conversations, and print how their requests ended."""
    args = options(__doc__, seed=0, cases=100_000).parse_args()
    for how, number in asyncio.run(fuzz(args.seed, args.cases)).most_common():
        print(f"{number:10} {how}")
    return 0


if __name__ == "__main__":
    sys.exit(main())
