"""The service's server on loopback."""

from __future__ import annotations

import contextlib
import socket
import ssl
from collections.abc import AsyncIterator, Awaitable, Callable
from typing import TYPE_CHECKING

import pytest

from pushkit.terminal.listening import accepting
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
            listener = socket.create_server(("127.0.0.1", 0), backlog=2048)
            site = Site(server=server, port=listener.getsockname()[1], clients=[])
            stack.push_async_callback(stop, site)
            await stack.enter_async_context(accepting(server.protocol_for, [listener]))
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


async def stop(site: Site) -> None:
    for client in site.clients:
        client.writer.transport.abort()
    await site.server.drain(1)
