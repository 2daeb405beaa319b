"""The hostile peers of `peers.py`: three tables of behaviours, and the process that plays them.

A behaviour is one connection's: it runs until it returns, the connection ends, or time is up; then
another connection begins. Over TLS, it begins after the handshake, except those of `RAW`.
"""

from __future__ import annotations

import asyncio
import contextlib
import json
import logging
import socket
import ssl
import struct
from collections import Counter
from collections.abc import Awaitable, Callable, Sequence
from dataclasses import dataclass, replace
from functools import cache
from pathlib import Path
from random import Random
from typing import TypeAlias

from pushkit.keys.jwk import Algorithm, generate_key, signing_key_from_pem
from receiver.testing import Draft, SigningAgent

__all__ = ["AT_RECEIVER", "AT_SENDER", "RAW", "Attack", "attack", "hostile_agent", "written"]

URL = "https://client.example.com/a2a/push"
GET = b"GET /healthz HTTP/1.1\r\nHost: x\r\n"
POST = b"POST /x HTTP/1.1\r\nHost: x\r\n"
REFUSED = b"GET /x HTTP/1.1\r\nHost: x\r\nX: " + b"y" * 1000 + b"\r\n\r\n"
CHUNKED = b"Transfer-Encoding: chunked\r\n\r\n"
OK = b"HTTP/1.1 202 Accepted\r\nContent-Length: 0\r\n\r\n"
HTTP2 = b"\x00\x00\x00\x04\x00\x00\x00\x00\x00" * 500  # SETTINGS
FOR_EVER = 3600.0  # seconds
_CLIENTS = 16  # addresses: 127.0.0.2 and so on
_END = b"\r\n\r\n"


@dataclass(frozen=True, slots=True, kw_only=True)
class Attack:
    """What hostile peers do for some seconds."""

    seed: str
    seconds: float
    ports: tuple[int, int]  # of the receivers: plain, and with TLS
    pem: bytes  # the key of `hostile_agent`
    # For both receivers: a behaviour for each connection.
    clients: tuple[Sequence[str], Sequence[str]]
    # For each port: whether it has TLS, and the behaviour of its connections.
    webhooks: dict[int, tuple[bool, str]]
    certificate: Path  # of the webhooks: a PEM file with its key


@dataclass(slots=True, eq=False)
class Wire:
    """One connection, for the peer that is hostile on it."""

    reader: asyncio.StreamReader
    writer: asyncio.StreamWriter
    chance: Random
    agent: SigningAgent
    sent: Counter[str]

    async def send(self, data: bytes) -> None:
        self.writer.write(data)
        self.sent["bytes"] += len(data)
        await self.writer.drain()

    async def drip(self, data: bytes, pause: float) -> None:
        for each in data:
            await self.send(bytes([each]))
            await asyncio.sleep(pause)

    async def flood(self, data: bytes) -> None:
        while True:
            await self.send(data)
            await asyncio.sleep(0)

    async def hold(self) -> None:
        """Keep the connection until the other side ends it, reading nothing."""
        self.writer.transport.pause_reading()  # type: ignore[attr-defined]
        await asyncio.sleep(FOR_EVER)

    async def message(self) -> None:
        """Read a whole request or answer. Raises EOFError: the connection has no more."""
        head = (await self.reader.readuntil(_END)).lower()
        await self.reader.readexactly(int(head.partition(b"content-length: ")[2].split(b"\r")[0]))
        if b"connection: close" in head:
            raise EOFError

    async def reset(self) -> None:
        sock: socket.socket | None = self.writer.get_extra_info("socket")
        if sock is not None:  # else it is closed
            sock.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
        self.writer.transport.abort()

    async def half_close(self) -> None:
        if self.writer.can_write_eof():  # not over TLS
            self.writer.write_eof()
        await self.chance.choice((self.hold, self.message))()

    def signed(self, task: str = "hostile", *fields: str, pad: int = 0) -> bytes:
        """Return a genuine notification of the trusted agent that is hostile."""
        draft = self.agent.draft(task, self.chance.randrange(1, 1 << 40))
        body = draft.body.replace(b"}}}", b',"pad":"%b"}}}' % (b"x" * pad))
        return written(replace(draft, body=body), *fields)


Behaviour: TypeAlias = Callable[[Wire], Awaitable[None]]
Make: TypeAlias = Callable[[Wire], bytes]


def written(draft: Draft, *fields: str) -> bytes:
    """Return the bytes of a notification."""
    made = draft.request()
    lines = ["POST /a2a/push HTTP/1.1", "Host: x", f"Content-Length: {len(made.body)}", *fields]
    lines += [f"{name}: {value}" for name, value in made.headers]
    return "\r\n".join([*lines, "", ""]).encode() + made.body


def hostile_agent(pem: bytes | None = None) -> SigningAgent:
    """Return an agent that the receivers trust, with this key, or a new one."""
    key = generate_key(Algorithm.ES256) if pem is None else signing_key_from_pem(pem)
    return SigningAgent(webhook_url=URL, issuer="https://bad.example.com", token="b" * 32, key=key)


# --- kinds of behaviours -----------------------------------------------------------------------


def flooding(first: bytes, *then: bytes) -> Behaviour:
    """Send something once, and something else for ever."""

    async def flood(wire: Wire) -> None:
        await wire.send(first)
        await wire.flood(wire.chance.choice(then))

    return flood


def repeating(*make: Make) -> Behaviour:
    """Send one request after another, and read the answers."""

    async def repeat(wire: Wire) -> None:
        while True:
            await wire.send(wire.chance.choice(make)(wire))
            await wire.message()

    return repeat


def sending(make: Make, *then: Behaviour) -> Behaviour:
    """Send something, and do one of some things."""

    async def send(wire: Wire) -> None:
        await wire.send(make(wire))
        await wire.chance.choice(then)(wire)

    return send


def asked(then: Behaviour) -> Behaviour:
    """Read a request before each answer."""

    async def answer(wire: Wire) -> None:
        while True:
            await wire.message()
            await then(wire)

    return answer


# --- at a receiver, as clients -----------------------------------------------------------------


async def _unread(wire: Wire) -> None:
    wire.writer.transport.pause_reading()  # type: ignore[attr-defined]
    await wire.flood(wire.chance.choice((REFUSED, GET + b"\r\n")) * 60)


async def _read_slowly(wire: Wire) -> None:
    await wire.send(REFUSED * 60)
    while await wire.reader.read(1):  # noqa: ASYNC110  # no event: it waits on purpose
        await asyncio.sleep(0.001)


async def _continue(wire: Wire) -> None:
    head, _, body = wire.signed("hostile", "Expect: 100-continue").partition(_END)
    await wire.send(head + _END)
    await wire.reader.readuntil(_END)
    await wire.send(wire.chance.choice((b"", body[:-1], body)))
    await wire.message()


async def _upgrade(wire: Wire) -> None:
    to = wire.chance.choice((b"websocket", b"h2c", b"TLS/1.2"))
    await wire.send(GET + b"Connection: Upgrade\r\nUpgrade: %b\r\n\r\n" % to)
    await wire.message()
    await wire.flood(b"\x82\xff" + wire.chance.randbytes(4000))


async def _small_records(wire: Wire) -> None:
    for each in REFUSED * 4:  # over TLS, a record for each byte
        wire.writer.write(bytes([each]))
    await wire.message()


def _chunks(wire: Wire) -> bytes:
    head, _, body = wire.signed(pad=50_000).partition(_END)
    fields = b"\r\n".join(e for e in head.split(b"\r\n") if not e.startswith(b"Content-Length"))
    size = wire.chance.choice((1, 7, 300))
    parts = [body[at : at + size] for at in range(0, len(body), size)]
    chunks = b"".join(b"%x\r\n%b\r\n" % (len(each), each) for each in parts)
    return fields + b"\r\n" + CHUNKED + chunks + b"0\r\n\r\n"


def _wide(wire: Wire) -> bytes:
    draft = wire.agent.draft("wide")
    body = draft.body.replace(b'"seq":1', b'"seq":1,"a":' + wire.chance.choice(_wide_values()))
    return written(replace(draft, body=body))


@cache
def _repeated(agent: SigningAgent) -> bytes:
    return written(agent.draft("repeated"))


@cache
def _wide_values() -> tuple[bytes, ...]:
    values: tuple[object, ...] = (
        [[]] * 60_000,
        {str(n): {} for n in range(15_000)},
        "\u20ac" * 40_000,
        10**4000,
    )
    return tuple(json.dumps(each, separators=(",", ":")).encode() for each in values)


def _stranger(wire: Wire) -> bytes:
    issuer = f"https://{wire.chance.getrandbits(60)}.example.com"
    return written(replace(wire.agent, issuer=issuer).draft("strange"))


def _part(data: bytes, wire: Wire) -> bytes:
    return data[: wire.chance.randrange(len(data))]


_WIDE_HEAD = GET + b"".join(b"a%d: %b\r\n" % (n, b" " * 90 + b"y") for n in range(110)) + b"\r\n"

AT_RECEIVER: dict[str, Behaviour] = {
    "silent": Wire.hold,
    "half_head": sending(lambda w: _part(REFUSED, w), Wire.hold),
    "dripped_head": lambda w: w.drip(w.signed(), 0.01),
    "garbage": lambda w: w.flood(w.chance.randbytes(20_000)),
    "unread": _unread,
    "read_slowly": _read_slowly,
    "pipelined": sending(
        lambda w: b"".join(w.signed(f"task-{n % 5}") for n in range(60)), Wire.message, Wire.hold
    ),
    "empty_lines": flooding(b"", b"\r\n" * 30_000),
    "tiny_chunks": flooding(POST + CHUNKED, b"1\r\nq\r\n" * 10_000),
    "trailers": flooding(POST + CHUNKED + b"0\r\n", b"a: b\r\n" * 100),
    "endless_body": flooding(POST + b"Content-Length: 999999999999\r\n\r\n", b"q" * 60_000),
    "chunked": repeating(_chunks),
    "almost_whole": sending(
        lambda w: w.signed(pad=w.chance.choice((0, 200_000)))[:-1], Wire.hold, Wire.half_close
    ),
    "large_bodies": repeating(lambda w: w.signed(pad=200_000)),
    "wide_bodies": repeating(_wide),
    "continue": _continue,
    "continues": flooding(b"", POST + b"Expect: 100-continue\r\nContent-Length: 0\r\n\r\n"),
    "upgrade": _upgrade,
    "http2": flooding(b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n", HTTP2),
    "proxy_protocol": repeating(
        lambda _: b"PROXY TCP4 10.0.0.1 10.0.0.2 1 2\r\n" + GET + b"\r\n",
        lambda _: b"\r\n\r\n\x00\r\nQUIT\n\x21\x11\xff\xff" + bytes(65_535),
    ),
    "alternating": repeating(
        Wire.signed,
        lambda _: REFUSED,
        lambda _: GET + b"\r\n",
        lambda _: POST + b"Content-Length: 0\r\n\r\n",
    ),
    "many_tasks": repeating(lambda w: w.signed(f"task-{w.chance.getrandbits(60)}" * 10)),
    "repeated": repeating(lambda w: _repeated(w.agent)),
    "forged": repeating(lambda w: written(w.agent.draft("forged").forged())),
    "strangers": repeating(_stranger),
    "wide_heads": repeating(lambda _: _WIDE_HEAD),
    "resets": sending(lambda w: _part(w.signed(pad=100_000), w), Wire.reset),
    "half_closes": sending(
        lambda w: w.chance.choice((w.signed(), REFUSED * 60, GET * 500, REFUSED[:99])),
        Wire.half_close,
    ),
    "leaves": sending(lambda _: GET + b"Connection: close\r\n\r\n", Wire.message),
    "small_records": _small_records,
}

# --- over TLS, at both: instead of a handshake, or in it -----------------------------------------


def _hello(wire: Wire) -> bytes:
    """Return the first message of a client's handshake."""
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
    context.check_hostname, context.verify_mode = False, ssl.CERT_NONE
    if wire.chance.random() < 0.5:
        context.set_alpn_protocols(["h2", *(f"p{n}" * 60 for n in range(100))])
    name = wire.chance.choice(("localhost", "x" * 63, "xn--80ak6aa92e.com", "a." * 126 + "b"))
    outgoing = ssl.MemoryBIO()
    tls = context.wrap_bio(ssl.MemoryBIO(), outgoing, server_hostname=name)
    with contextlib.suppress(ssl.SSLWantReadError):
        tls.do_handshake()
    return outgoing.read()


async def _garbled(wire: Wire) -> None:
    await wire.send(_hello(wire))
    await wire.flood(b"\x17\x03\x03\x40\x00" + wire.chance.randbytes(0x4000))


async def _reset_in_handshake(wire: Wire) -> None:
    await wire.reader.read(1)
    await wire.reset()


RAW: dict[str, Behaviour] = {
    "half_hello": sending(lambda w: _part(_hello(w), w), Wire.hold),
    "hello": sending(_hello, Wire.hold, _reset_in_handshake),
    "dripped_hello": lambda w: w.drip(_hello(w), 0.005),
    "garbled_hello": _garbled,
    "no_tls": flooding(b"", REFUSED, OK, b"\x16\x03\x01\xff\xff" + bytes(60_000)),
}

# --- at a sender, as webhooks ------------------------------------------------------------------


async def _read_little(wire: Wire) -> None:
    while await wire.reader.read(100):  # noqa: ASYNC110  # no event: it waits on purpose
        await asyncio.sleep(0.01)


async def _close_at_odds(wire: Wire) -> None:
    for _ in range(wire.chance.choice((1, 2, 5))):
        await wire.message()
        await wire.send(OK)
    await asyncio.sleep(wire.chance.choice((0, 0, 0.001, 0.02)))


_ODD = (
    *(b"101 X\r\nUpgrade: h2c\r\nConnection: Upgrade", b"301 X\r\nLocation: /", b"410 Gone"),
    *(b"429 X\r\nRetry-After: 99999999999999999999", b"503 X\r\nRetry-After: 0", b"099 X"),
    *(b"200 OK\r\nContent-Encoding: gzip", b"200 OK\r\nTransfer-Encoding: gzip"),
)
_OK = b"HTTP/1.1 200 OK\r\n"
_FIELDS = b"".join(b"a%d: %b\r\n" % (n, b"y" * 250) for n in range(200))
_LARGE = _OK + _FIELDS + b"Content-Length: 60000\r\n\r\n" + bytes(60_000)

AT_SENDER: dict[str, Behaviour] = {
    "never_answers": asked(Wire.hold),
    "never_reads": Wire.hold,
    "reads_little": _read_little,
    "closes": lambda w: asyncio.sleep(w.chance.choice((0, 0.01))),
    "resets": asked(sending(lambda w: _part(OK, w), Wire.reset)),
    "bytewise": asked(lambda w: w.drip(OK, 0)),
    "slow_fields": asked(lambda w: w.drip(_OK + b"X: " + b"y" * 9000, 0.01)),
    "fields": asked(flooding(_OK, b"a: b\r\n" * 50, b"x" * 9000, b"a:\r\n b\r\n" * 9)),
    "interim": asked(flooding(b"", b"HTTP/1.1 103 X\r\nLink: x\r\n\r\n", OK[:9] + b"100 X" + _END)),
    "answer": asked(flooding(_OK + b"Content-Length: 99999999999\r\n\r\n", bytes(60_000))),
    "chunks": asked(
        flooding(_OK + CHUNKED, b"1\r\nq\r\n" * 9000, b"1;" + b"e" * 9000 + b"\r\nq\r\n")
    ),
    "trailer": asked(flooding(_OK + CHUNKED + b"0\r\n", b"a: b\r\n" * 50, b"x" * 9000)),
    "large": asked(lambda w: w.send(_LARGE)),
    "twice": asked(lambda w: w.send(OK * w.chance.choice((2, 500)))),
    "early": sending(lambda _: OK, Wire.hold),
    "close_at_odds": _close_at_odds,
    "half_closes": asked(
        sending(
            lambda w: w.chance.choice((OK, OK[:30], OK.replace(b"0\r", b"9\r"), b"")),
            Wire.half_close,
        )
    ),
    "odd": asked(
        lambda w: w.send(b"HTTP/1.1 %b\r\nContent-Length: 0\r\n\r\n" % w.chance.choice(_ODD))
    ),
    "http2": flooding(HTTP2, HTTP2),
    "garbage": lambda w: w.flood(w.chance.randbytes(20_000)),
}


# --- the process -------------------------------------------------------------------------------


def attack(plan: Attack) -> Counter[str]:
    """Attack; return the bytes that were sent to each: `plain`, `tls`, `sender`."""
    logging.disable()  # of writes to connections that broke
    return asyncio.run(_attack(plan))


async def _attack(plan: Attack) -> Counter[str]:
    agent = hostile_agent(plan.pem)
    sent = {name: Counter[str]() for name in ("plain", "tls", "sender")}
    shown = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    shown.load_cert_chain(plan.certificate)
    blind = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
    blind.check_hostname, blind.verify_mode = False, ssl.CERT_NONE

    async def behave(
        opened: tuple[asyncio.StreamReader, asyncio.StreamWriter],
        side: str,
        name: str,
        chance: Random,
    ) -> None:
        wire = Wire(*opened, chance, agent, sent[side])
        table = RAW if name in RAW else AT_SENDER if side == "sender" else AT_RECEIVER
        with contextlib.suppress(OSError, EOFError):
            await table[name](wire)
        wire.writer.transport.abort()

    async def connect(side: str, number: int, name: str) -> None:
        chance = Random(f"{plan.seed} {side} {number}")
        here = f"127.0.0.{2 + number % _CLIENTS}", 0
        port, tls = plan.ports[side == "tls"], side == "tls" and name not in RAW
        while True:
            with contextlib.suppress(OSError):
                opened = await asyncio.open_connection(
                    "127.0.0.1", port, local_addr=here, ssl=blind if tls else None
                )
                await behave(opened, side, name, chance)
            await asyncio.sleep(0.001)

    async def serve(port: int, tls: bool, name: str) -> asyncio.Server:
        chance = Random(f"{plan.seed} {name}")
        context = shown if tls and name not in RAW else None
        return await asyncio.start_server(
            lambda *opened: behave(opened, "sender", name, chance), "127.0.0.1", port, ssl=context
        )

    serving = [await serve(port, *webhook) for port, webhook in plan.webhooks.items()]
    clients = [
        asyncio.create_task(connect(side, number, name))
        for side, names in zip(("plain", "tls"), plan.clients, strict=True)
        for number, name in enumerate(names)
    ]
    await asyncio.sleep(plan.seconds)
    for server in serving:
        server.close()
    for task in asyncio.all_tasks() - {asyncio.current_task()}:
        task.cancel()
    for client in clients:
        with contextlib.suppress(asyncio.CancelledError):
            await client
    return Counter({side: each["bytes"] for side, each in sent.items()})
