"""Bodies of requests that break off, behind either kind of server; and bodies that are shown."""

from __future__ import annotations

import asyncio
from collections.abc import MutableMapping
from typing import Any

from aiohttp import web

from pushkit.webui import aiohttp, asgi
from pushkit.webui.overview import shown_body
from tests.eventually import DEADLINE


async def test_a_body_that_breaks_off_is_none_for_aiohttp() -> None:
    found: asyncio.Future[bytes | None] = asyncio.get_running_loop().create_future()

    async def serve(_: asgi.Message, receive: asgi.Receive, __: asgi.Send) -> None:
        found.set_result(await asgi.read_body(receive, 100))

    runner = web.AppRunner(aiohttp.application(serve))  # that of tests cancels whoever reads
    await runner.setup()
    await web.TCPSite(runner, "127.0.0.1", 0).start()
    _, writer = await asyncio.open_connection(*runner.addresses[0])
    writer.write(b"POST / HTTP/1.1\r\nHost: x\r\nContent-Length: 20\r\n\r\nid=dlv_1&id=dl")
    writer.close()
    async with asyncio.timeout(DEADLINE):
        assert await found is None
    await runner.cleanup()


async def test_a_body_that_breaks_off_is_none_for_asgi() -> None:
    messages: list[MutableMapping[str, Any]] = [
        {"type": "http.request", "body": b"id=dlv_1&id=dl", "more_body": True},
        {"type": "http.disconnect"},
    ]

    async def receive() -> MutableMapping[str, Any]:
        return messages.pop(0)

    assert await asgi.read_body(receive, 100) is None


def test_a_long_body_is_shown_as_it_is_for_its_lines_would_be_many_times_as_long() -> None:
    def deep(values: int) -> bytes:
        return b"[" * 60 + b"1," * values + b"1" + b"]" * 60

    assert len(shown_body(deep(10)) or "") > 1000
    assert shown_body(deep(100_000)) == deep(100_000).decode()
