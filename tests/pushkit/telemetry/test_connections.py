"""Connections to the listeners for operators: they leave the process its other files."""

from __future__ import annotations

import asyncio
import contextlib
import socket

from aiohttp import web

from pushkit.terminal.listening import accepting
from tests.eventually import eventually


async def test_of_many_silent_connections_few_stay_open() -> None:
    async def handle(_: web.BaseRequest) -> web.Response:
        return web.Response(text="alive")

    server = web.Server(handle, access_log=None)
    listener = socket.create_server(("127.0.0.1", 0))
    port = listener.getsockname()[1]

    async with contextlib.AsyncExitStack() as stack:
        stack.push_async_callback(server.shutdown, 0)
        await stack.enter_async_context(accepting(server, [listener]))
        for _ in range(300):
            reader, writer = await asyncio.open_connection("127.0.0.1", port)
            stack.callback(writer.close)
        await eventually(lambda: len(server.connections) <= 128)
        writer.write(b"GET / HTTP/1.1\r\nHost: x\r\nConnection: close\r\n\r\n")
        assert (await reader.read()).endswith(b"alive")  # the newest is served
