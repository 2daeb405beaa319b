"""The service's server on loopback."""

from __future__ import annotations

import contextlib
import socket
import ssl
from collections.abc import AsyncIterator
from typing import TYPE_CHECKING

import pytest

from pushkit.terminal.listening import accepting
from receiver.request import Handle
from receiver.serving.server import HttpServer
from tests.unit.receiver.serving.sockets import Serve, Site, limits

if TYPE_CHECKING:
    from tests.unit.receiver.conftest import World


@pytest.fixture
async def serve(world: World) -> AsyncIterator[Serve]:
    """Serve a receiver, or a handler of the test's own, under these limits."""
    async with contextlib.AsyncExitStack() as stack:

        async def start(
            of: World = world,
            *,
            own: Handle | None = None,
            max_head_bytes: int = 16384,
            tls: ssl.SSLContext | None = None,
            **changes: object,
        ) -> Site:
            receiver = await of.start()
            server = HttpServer(
                own or receiver.handler.handle,
                limits=limits(**changes),
                is_proxy=receiver.handler.peers.is_proxy,
                max_head_bytes=max_head_bytes,
                refuse=receiver.handler.refuse,
                tls=tls,
            )
            listener = socket.create_server(("127.0.0.1", 0), backlog=2048)
            site = Site(server=server, port=listener.getsockname()[1], clients=[])
            stack.push_async_callback(stop, site)
            await stack.enter_async_context(accepting(server.protocol_for, [listener]))
            return site

        yield start


async def stop(site: Site) -> None:
    for client in site.clients:
        client.writer.transport.abort()
    await site.server.drain(0)
