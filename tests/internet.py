"""Servers with names, public addresses and real certificates, all of it on loopback."""

from __future__ import annotations

import asyncio
import base64
import ssl
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager, closing, suppress
from dataclasses import dataclass, field
from pathlib import Path

import trustme
from aiohttp import web

from tests.network import Network

__all__ = ["HOOKS", "HOOKS_ADDRESS", "Internet", "Proxy", "an_internet"]

HOOKS = "client.example.com"
HOOKS_ADDRESS = "93.184.216.34"

Handler = Callable[[web.Request], Awaitable[web.StreamResponse]]


@dataclass
class Proxy:
    """An HTTP proxy that knows CONNECT, and writes down what it was asked for."""

    network: Network
    credentials: str | None = None
    asked: list[str] = field(default_factory=list)
    unreachable: set[str] = field(default_factory=set)
    silent: set[str] = field(default_factory=set)  # what swallows whatever comes
    interim: bytes = b""  # what stands before its answer
    tunnels: set[asyncio.Task[None]] = field(default_factory=set)

    def met(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self.tunnels.add(asyncio.create_task(self._serve(reader, writer)))

    async def _serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        with closing(writer), suppress(OSError, asyncio.IncompleteReadError):
            head = (await reader.readuntil(b"\r\n\r\n")).decode()
            method, target, _ = head.split(" ", 2)
            self.asked.append(f"{method} {target}")
            await self._tunnel(head, target, reader, writer)

    async def _tunnel(
        self, head: str, target: str, reader: asyncio.StreamReader, writer: asyncio.StreamWriter
    ) -> None:
        if self.credentials is not None:
            expected = base64.b64encode(self.credentials.encode()).decode()
            if f"Proxy-Authorization: Basic {expected}\r\n" not in head:
                writer.write(
                    b"HTTP/1.1 407 Authenticate\r\nProxy-Authenticate: Basic realm=proxy\r\n"
                    b"Content-Length: 0\r\n\r\n"
                )
                return
        host, _, port = target.rpartition(":")
        if host in self.silent:
            await reader.read()
            return
        place = self.network.places.get((host.strip("[]"), int(port)))
        if place is None or host in self.unreachable:
            writer.write(b"HTTP/1.1 502 Bad Gateway\r\nContent-Length: 0\r\n\r\n")
            return
        there, out = await asyncio.open_connection("127.0.0.1", place)
        with closing(out):
            writer.write(self.interim + b"HTTP/1.1 200 Connected\r\n\r\n")
            await asyncio.gather(_pass_on(reader, out), _pass_on(there, writer))


async def _pass_on(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
    with suppress(OSError):
        while data := await reader.read(65536):
            writer.write(data)
    writer.close()


@dataclass
class Internet:
    """What stands behind public names."""

    network: Network  # leads to it
    authority: trustme.CA  # whom everybody trusts who trusts `ca_file`
    directory: Path  # where certificates lie
    _runners: list[web.AppRunner] = field(default_factory=list)
    _closing: list[Callable[[], Awaitable[None]]] = field(default_factory=list)

    @property
    def ca_file(self) -> Path:
        path = self.directory / "ca.pem"
        self.authority.cert_pem.write_to_path(path)
        return path

    async def serve(
        self,
        handler: Handler,  # answers every request
        *,
        name: str = HOOKS,
        address: str = HOOKS_ADDRESS,  # the name's address
        port: int = 443,  # the port at that address
        # What it shows; a good one for the name if None.
        certificate: trustme.LeafCert | None = None,
        clients_of: trustme.CA | None = None,  # demand a certificate that this authority issued
    ) -> int:
        """Let a handler answer at a name, over TLS; return its port on loopback."""
        context = ssl.create_default_context(ssl.Purpose.CLIENT_AUTH)
        (certificate or self.authority.issue_cert(name)).configure_cert(context)
        if clients_of is not None:
            clients_of.configure_trust(context)
            context.verify_mode = ssl.CERT_REQUIRED
        app = web.Application()
        app.router.add_route("*", "/{path:.*}", handler)
        runner = web.AppRunner(app, access_log=None, shutdown_timeout=0.1)
        await runner.setup()
        self._runners.append(runner)
        site = web.TCPSite(runner, "127.0.0.1", 0, ssl_context=context)
        await site.start()
        found: int = runner.addresses[0][1]
        self.network.leads(name, address, port, to=found)
        return found

    async def proxy(
        self, *, name: str = "proxy.corp.internal", address: str = "10.0.0.5", port: int = 3128
    ) -> Proxy:
        """Return a proxy that stands at a private address."""
        proxy = Proxy(self.network)
        server = await asyncio.start_server(proxy.met, "127.0.0.1", 0)
        self.network.leads(name, address, port, to=server.sockets[0].getsockname()[1])

        async def close() -> None:
            server.close()
            for tunnel in proxy.tunnels:
                tunnel.cancel()
            await asyncio.gather(*proxy.tunnels, return_exceptions=True)

        self._closing.append(close)
        return proxy

    async def close(self) -> None:
        for close in self._closing:
            await close()
        for runner in self._runners:
            await runner.cleanup()


@asynccontextmanager
async def an_internet(network: Network, directory: Path) -> AsyncIterator[Internet]:
    """Yield an internet that has nobody in it yet."""
    internet = Internet(network, trustme.CA(), directory)
    try:
        yield internet
    finally:
        await internet.close()
