"""uvicorn on a port of its own, in the loop of the test."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import AsyncIterator, Awaitable, Callable
from typing import Any

import uvicorn

from tests.eventually import eventually

__all__ = ["answers_to_a_websocket", "serving"]


async def answers_to_a_websocket(app: Callable[..., Awaitable[Any]]) -> list[Any]:
    """Ask an ASGI application for a WebSocket; return what it says once it has heard of it."""
    heard, said = [], []

    async def receive() -> dict[str, Any]:
        heard.append("websocket.connect")
        return {"type": "websocket.connect"}

    async def send(message: Any) -> None:
        assert heard
        said.append(message)

    await app({"type": "websocket", "path": "/", "headers": []}, receive, send)
    return said


@contextlib.asynccontextmanager
async def serving(
    app: Callable[..., Awaitable[Any]], *, port: int = 0, root_path: str = ""
) -> AsyncIterator[str]:
    """Serve an ASGI application while the block runs; yield its base URL."""
    server = uvicorn.Server(
        uvicorn.Config(
            app,
            port=port,
            root_path=root_path,
            log_config=None,
            log_level="warning",
            lifespan="on",
            ws="none",
        )
    )
    running = asyncio.create_task(server.serve())

    async def started() -> bool:
        assert not running.done(), "the application did not start"
        return server.started

    await eventually(started)
    port = server.servers[0].sockets[0].getsockname()[1]
    try:
        yield f"http://127.0.0.1:{port}"
    finally:
        server.should_exit = True
        await running
