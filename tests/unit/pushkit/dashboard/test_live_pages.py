"""Pages that are live: the events that refresh them, until the client or the application ends."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator
from typing import Any

import aiohttp
from aiohttp import web

from pushkit.webui.aiohttp import application
from pushkit.webui.asgi import Message, PageAnswer, Receive, Send

CHANGED = b"event: changed\ndata:\n\n"


async def test_behind_a_middleware_that_repeats_the_body_others_have_their_turn() -> None:
    sent: list[Any] = []

    async def receive() -> dict[str, Any]:
        return {"type": "http.request", "body": b"", "more_body": False}

    async def send(message: Any) -> None:
        sent.append(message)

    async def events() -> AsyncGenerator[bytes, None]:
        await asyncio.sleep(0)
        yield CHANGED

    await PageAnswer(events=events()).send(receive, send)

    assert [each.get("body") for each in sent] == [None, CHANGED, b""]


async def test_an_aiohttp_application_ends_them_before_it_breaks_them_off() -> None:
    async def events() -> AsyncGenerator[bytes, None]:
        while True:
            yield CHANGED
            await asyncio.sleep(0.01)

    async def serve(_: Message, receive: Receive, send: Send) -> None:
        await PageAnswer(events=events()).send(receive, send)

    runner = web.AppRunner(application(serve), shutdown_timeout=5)
    await runner.setup()
    await web.TCPSite(runner, "127.0.0.1", 0).start()
    host, port = runner.addresses[0]
    async with (
        aiohttp.ClientSession() as session,
        session.get(f"http://{host}:{port}/live") as answer,
    ):
        await runner.cleanup()

        assert (await answer.read()).endswith(CHANGED)
