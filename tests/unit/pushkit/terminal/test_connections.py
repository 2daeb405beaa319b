"""Connections to the listeners for operators: they leave the process its other files."""

from __future__ import annotations

import asyncio
import contextlib
import resource
import socket

import pytest
from aiohttp import web

from pushkit.terminal.listening import accepting_few
from tests.eventually import eventually


async def handle(_: web.BaseRequest) -> web.Response:
    return web.Response(text="alive")


async def test_of_many_silent_connections_few_stay_open() -> None:
    server = web.Server(handle, access_log=None)
    listener = socket.create_server(("127.0.0.1", 0))
    port = listener.getsockname()[1]

    async with contextlib.AsyncExitStack() as stack:
        stack.push_async_callback(server.shutdown, 0)
        await stack.enter_async_context(accepting_few(server, [listener]))
        for _ in range(300):
            reader, writer = await asyncio.open_connection("127.0.0.1", port)
            stack.callback(writer.close)
        await eventually(lambda: len(server.connections) <= 128)
        writer.write(b"GET / HTTP/1.1\r\nHost: x\r\nConnection: close\r\n\r\n")
        assert (await reader.read()).endswith(b"alive")  # the newest is served


async def test_without_a_free_file_connections_wait_and_the_log_says_it_once(
    caplog: pytest.LogCaptureFixture,
) -> None:
    server = web.Server(handle, access_log=None)
    limit = resource.getrlimit(resource.RLIMIT_NOFILE)
    with contextlib.ExitStack() as stack:
        listener = socket.create_server(("127.0.0.1", 0))
        for _ in range(3):
            peer = socket.create_connection(listener.getsockname())
            stack.callback(peer.close)
        stack.callback(resource.setrlimit, resource.RLIMIT_NOFILE, limit)
        resource.setrlimit(resource.RLIMIT_NOFILE, (0, limit[1]))
        async with accepting_few(server, [listener]):
            await eventually(lambda: caplog.messages)
            assert not server.connections
            resource.setrlimit(resource.RLIMIT_NOFILE, limit)
            await eventually(lambda: len(server.connections) == 3)
    await eventually(lambda: not server.connections)  # they leave with their peers
    said = "cannot accept connections, tried again in a second: Too many open files"
    assert caplog.messages == [said]
