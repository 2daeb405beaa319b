"""A key set of the attacker's, on loopback: whoever fetches it was told to by a message."""

from __future__ import annotations

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import dataclass

from aiohttp import web

from pushkit.bounded_json import JsonObject

__all__ = ["KeyServer", "serving_keys"]


@dataclass(slots=True)
class KeyServer:
    """Where the set is, and how often it was fetched."""

    url: str = ""
    fetched: int = 0


@asynccontextmanager
async def serving_keys(jwks: JsonObject) -> AsyncIterator[KeyServer]:
    """Serve a JWK Set while the block runs."""
    server = KeyServer()

    async def answer(_: web.Request) -> web.Response:
        server.fetched += 1
        return web.json_response(jwks)

    app = web.Application()
    app.add_routes([web.get("/jwks.json", answer)])
    runner = web.AppRunner(app, access_log=None)
    await runner.setup()
    try:
        await web.TCPSite(runner, "127.0.0.1", 0).start()
        server.url = f"http://127.0.0.1:{runner.addresses[0][1]}/jwks.json"
        yield server
    finally:
        await runner.cleanup()
