"""Fuzz what stands between clients and an agent: both must read the same requests.

python -m tests.verification.soak.fuzz_gateway --cases 3000 [--agent aiohttp|uvicorn|node]
    [--seed 7]

Each case is a connection to the gateway with bytes that servers are known to read differently:
lengths and chunks that contradict each other, odd names, line ends and paths, bodies that look like
requests. Whatever the gateway makes of them, the agent must read exactly the requests that the
gateway sent to it: method, path and body, one after another.
"""

from __future__ import annotations

import asyncio
import contextlib
import hashlib
import json
import random
import shutil
import sys
import tempfile
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import aiohttp
from aiohttp import web
from starlette.requests import Request
from starlette.responses import Response
from starlette.types import Receive, Scope, Send

from pushkit import PushSender
from pushkit.cards.publishing import CARD_PATH
from pushkit.gateway.options import GatewayOptions
from pushkit.gateway.service import Service
from pushkit.keys.ring import KeyRing
from tests.asgi_server import serving
from tests.ports import free_port
from tests.served import answering, served
from tests.verification.soak.killing import options

_SILENCE = 0.1  # seconds
_HOSTILE = 0.4  # how many cases are odd in several ways
CARD = b'{"url":"http://127.0.0.1/","capabilities":{"streaming":true}}'
_NODE = """
const http = require("http"), crypto = require("crypto");
let seen = [];
http.createServer((request, response) => {
  const parts = [];
  request.on("data", part => parts.push(part));
  request.on("end", () => {
    let said = "{}";
    if (request.url === "/.well-known/agent-card.json") said = CARD;
    else if (request.url === "/__seen") { said = JSON.stringify(seen); seen = []; }
    else seen.push([request.method, request.url,
      crypto.createHash("sha256").update(Buffer.concat(parts)).digest("hex")]);
    response.setHeader("Content-Length", Buffer.byteLength(said));
    response.end(said);
  });
}).listen(Number(process.argv[1]), "127.0.0.1");
"""


def request_bytes(chance: random.Random) -> bytes:
    """Return the bytes of one case."""
    inner = b"GET /smuggled HTTP/1.1\r\nHost: x\r\n\r\n"
    body = chance.choice(
        [
            b"",
            b"abc",
            b"0\r\n\r\n" + inner,
            inner,
            b'{"jsonrpc":"2.0","method":"GetTask"}',
            b"x" * 70,
        ]
    )
    chunked = b"%x\r\n%b\r\n0\r\n\r\n" % (len(body), body) if body else b"0\r\n\r\n"
    lengths = [b"%d" % len(body), b"0", b"%d" % (len(body) + 1), b"+3", b"0x3", b" 3", b"3, 3", b""]
    encodings = [
        b"chunked", b"Chunked", b"chunked, identity", b"identity", b"gzip, chunked", b"xchunked",
        b"\x0bchunked", b"chunked\x00", b"chunked, chunked",
    ]  # fmt: skip
    end = chance.choice([b"\r\n"] * 24 + [b"\n", b"\r"])
    method = chance.choice(
        [b"POST"] * 4 + [b"GET", b"PUT", b"HEAD", b"OPTIONS", b"TRACE", b"get", b"P@"]
    )
    path = chance.choice(
        [b"/", b"/x", b"/x?q=%41", b"//x", b"/x/../y", b"/%2e%2e/y", b"/x%00", b"*", b"http://y/x",
         b"/x#y", b"/x y", b"/\xff", b"/a%2Fb", b"/message:send", b"/tasks/t"]
    )  # fmt: skip
    version = chance.choice(
        [b"HTTP/1.1"] * 24 + [b"HTTP/1.0", b"HTTP/2.0", b"HTTP/1.1 ", b"http/1.1"]
    )
    odd = [
        b"Content-Length: " + chance.choice(lengths),
        b"Content-Length: %d" % len(body),
        b"Transfer-Encoding: " + chance.choice(encodings),
        b"Transfer-Encoding: chunked",
        b"Transfer-Encoding : chunked",
        b" Transfer-Encoding: chunked",
        b"Transfer_Encoding: chunked",
        b"X: y\r\n Transfer-Encoding: chunked",
        b"Connection: close, Content-Length",
        b"Connection: Transfer-Encoding",
        b"Expect: 100-continue",
        b"Upgrade: h2c",
        b"Content-Encoding: gzip",
        b"X\x00Y: 1",
        b"X: \x80\xff",
    ]
    framing, framed = chance.choice(
        [(b"Content-Length: %d" % len(body), body), (b"Transfer-Encoding: chunked", chunked)]
    )
    if chance.random() < _HOSTILE:  # or else one thing at most is odd
        framed = chance.choice([body, chunked])
        fields = [b"Host: x", *chance.choices(odd, k=chance.choice([1, 2, 3]))]
    else:
        fields = [b"Host: x", framing, *chance.choices(odd, k=chance.choice([0, 1]))]
    chance.shuffle(fields)
    head = end.join([b" ".join([method, path, version]), *fields, b"", b""])
    return head + framed + chance.choice([b"", b"", inner])


class Agent:
    """Notes what it reads until it is asked for it."""

    def __init__(self) -> None:
        self._seen: list[list[str]] = []

    def _answer(self, method: str, path: str, body: bytes) -> bytes:
        if path == CARD_PATH:
            return CARD
        if path == "/__seen":
            seen = json.dumps(self._seen).encode()
            self._seen.clear()
            return seen
        self._seen.append([method, path, hashlib.sha256(body).hexdigest()])
        return b"{}"

    async def handle(self, request: web.Request) -> web.Response:
        """Answer behind aiohttp."""
        said = self._answer(request.method, request.raw_path, await request.read())
        return web.Response(body=said)

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Answer behind uvicorn."""
        if scope["type"] != "http":
            return
        request, query = Request(scope, receive), scope["query_string"]
        path = scope["raw_path"] + (b"?" + query if query else b"")
        said = self._answer(request.method, path.decode(), await request.body())
        await Response(said)(scope, receive, send)


@asynccontextmanager
async def agent_of(kind: str) -> AsyncIterator[str]:
    """Serve an agent that notes what it reads; yield its origin."""
    if kind != "node":
        agent = Agent()
        behind = serving(agent) if kind == "uvicorn" else served(answering(agent.handle))
        async with behind as origin:
            yield origin
        return
    port = free_port()
    process = await asyncio.create_subprocess_exec(
        shutil.which("node") or "node",
        *("-e", _NODE.replace("CARD", json.dumps(CARD.decode())), "--", str(port)),
    )
    try:
        yield f"http://127.0.0.1:{port}"
    finally:
        process.terminate()
        await process.wait()


async def fuzz(kind: str, cases: int, seed: int) -> int:
    """Run cases; return how many requests reached the agent, which read them as they were sent."""
    ring, passed = KeyRing.create(datetime.now(UTC)), 0
    options = GatewayOptions(shared_configs=True)
    with tempfile.TemporaryDirectory() as folder:
        sender = PushSender(issuer="https://a.example", keys=ring, database=Path(folder, "o.db"))
        async with agent_of(kind) as origin:
            service = Service(
                origin, sender=sender, ring=lambda: ring, public_url="https://a.example",
                options=options,
            )  # fmt: skip
            await sender.open()
            await service.open()
            sent: list[list[str]] = []
            ask = service.upstream.ask

            async def noted(
                method: str, path: str, body: bytes, fields: Any, **more: Any
            ) -> aiohttp.ClientResponse:
                if path != CARD_PATH:  # which it asks for by itself, from time to time
                    sent.append([method, path, hashlib.sha256(body).hexdigest()])
                return await ask(method, path, body, fields, **more)

            service.upstream.ask = noted  # type: ignore[method-assign]
            async with service.serving() as server, aiohttp.ClientSession() as client:
                runner = web.ServerRunner(server)
                await runner.setup()
                await web.TCPSite(runner, "127.0.0.1", 0).start()
                port = runner.addresses[0][1]
                async with client.get(f"{origin}/__seen") as forgotten:
                    await forgotten.read()
                sent.clear()
                for number in range(cases):
                    data = request_bytes(random.Random(f"{seed} {number}"))
                    await _exchange(port, data)
                    async with client.get(f"{origin}/__seen") as answer:
                        read = [tuple(each) for each in await answer.json(content_type=None)]
                    if read != [tuple(each) for each in sent]:
                        raise SystemExit(f"case {number}: {data!r}\nsent {sent}\nread {read}")
                    passed += len(sent)
                    sent.clear()
                await runner.cleanup()
            await sender.close()
    return passed


async def _exchange(port: int, data: bytes) -> None:
    """Send bytes, and read what the gateway answers, until it is silent for a moment."""
    reader, writer = await asyncio.open_connection("127.0.0.1", port)
    writer.write(data)
    with contextlib.suppress(TimeoutError, ConnectionError):
        while True:
            async with asyncio.timeout(_SILENCE):
                if not await reader.read(65536):
                    break
    writer.close()
    with contextlib.suppress(ConnectionError):
        await writer.wait_closed()


def main() -> int:
    """Run from a command line."""
    parser = options(__doc__, cases=1000, seed=7)
    parser.add_argument("--agent", choices=["aiohttp", "uvicorn", "node"], default="aiohttp")
    given = parser.parse_args()
    passed = asyncio.run(fuzz(given.agent, given.cases, given.seed))
    print(f"{given.cases} cases, {passed} requests reached {given.agent}, read as they were sent")
    return 0


if __name__ == "__main__":
    sys.exit(main())
