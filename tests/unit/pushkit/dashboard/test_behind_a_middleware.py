"""Pages behind a middleware that has read the body of a request, and repeats it."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator
from typing import Any

from pushkit.webui.asgi import PageAnswer


async def test_live_events_leave_the_event_loop_to_others() -> None:
    sent: list[Any] = []

    async def receive() -> dict[str, Any]:
        return {"type": "http.request", "body": b"", "more_body": False}

    async def send(message: Any) -> None:
        sent.append(message)

    async def events() -> AsyncGenerator[bytes, None]:
        await asyncio.sleep(0)
        yield b"event: changed\ndata:\n\n"

    await PageAnswer(events=events()).send(receive, send)

    assert [each.get("body") for each in sent] == [None, b"event: changed\ndata:\n\n", b""]
