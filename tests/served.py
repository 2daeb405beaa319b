"""Serves aiohttp applications on loopback, as in production: with a runner, not a test server."""

from __future__ import annotations

from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager

from aiohttp import web

__all__ = ["answering", "served"]


def answering(handler: Callable[[web.Request], Awaitable[web.StreamResponse]]) -> web.Application:
    """Return an application whose every path is answered by one handler."""
    app = web.Application()
    app.router.add_route("*", "/{path:.*}", handler)
    return app


@asynccontextmanager
async def served(app: web.Application, port: int = 0) -> AsyncIterator[str]:
    """Serve an application while the block runs; yield its origin, such as `http://127.0.0.1:80`."""
    # Handlers that hang are not waited for.
    runner = web.AppRunner(app, access_log=None, shutdown_timeout=0.1)
    await runner.setup()
    try:
        await web.TCPSite(runner, "127.0.0.1", port).start()
        yield f"http://127.0.0.1:{runner.addresses[0][1]}"
    finally:
        await runner.cleanup()
