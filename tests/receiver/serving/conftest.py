"""The service's server on loopback."""

from __future__ import annotations

import asyncio
import contextlib
import ssl
from collections.abc import AsyncIterator, Awaitable, Callable
from typing import TYPE_CHECKING

import pytest

from receiver.answers import Answer
from receiver.edge import Begin, ReadBody, Reply, Turns
from receiver.serving.server import HttpServer
from receiver.verification import Head
from tests.receiver.serving.sockets import Serve, Site, limits

if TYPE_CHECKING:
    from tests.receiver.conftest import World

Handler = Callable[[Head, ReadBody], Awaitable[Answer]]


@pytest.fixture
async def serve(world: World) -> AsyncIterator[Serve]:
    """Serve a receiver, or a handler of the test's own, under these limits."""
    async with contextlib.AsyncExitStack() as stack:

        async def start(
            of: World = world,
            *,
            own: Handler | None = None,
            max_head_bytes: int = 16384,
            tls: ssl.SSLContext | None = None,
            **changes: object,
        ) -> Site:
            receiver = await of.start()
            server = HttpServer(
                begun(own) if own else receiver.edge.begin,
                limits=limits(**changes),
                is_proxy=receiver.edge.peers.is_proxy,
                max_head_bytes=max_head_bytes,
                tls=tls,
            )
            accepting = await asyncio.get_running_loop().create_server(
                server, "127.0.0.1", 0, backlog=2048
            )
            site = Site(server=server, port=accepting.sockets[0].getsockname()[1], clients=[])
            stack.push_async_callback(stop, site, accepting)
            return site

        yield start


def begun(own: Handler) -> Begin:
    """Return what begins to answer as a handler does."""

    def begin(head: Head, read: ReadBody, reply: Reply) -> Turns:
        async def rest() -> None:
            reply(await own(head, read))

        yield
        return rest()

    return begin


async def stop(site: Site, accepting: asyncio.Server) -> None:
    accepting.close()
    for client in site.clients:
        client.writer.transport.abort()
    await site.server.drain(1)
