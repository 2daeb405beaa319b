"""aiohttp: a route that serves the sender's public keys."""

from __future__ import annotations

from aiohttp import web

from pushkit.delivery.sender import PushSender

__all__ = ["JWKS_PATH", "jwks_route"]

JWKS_PATH = "/.well-known/jwks.json"


def jwks_route(sender: PushSender, path: str = JWKS_PATH) -> web.RouteDef:
    """Return a route for `app.add_routes([...])`."""

    async def serve(request: web.Request) -> web.Response:
        answer = sender.jwks(request.headers.get("If-None-Match"))
        return web.Response(status=answer.status, headers=answer.headers, body=answer.body)

    return web.get(path, serve)
