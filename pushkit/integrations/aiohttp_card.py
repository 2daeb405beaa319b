"""aiohttp: routes that serve the agent's card, signed."""

from __future__ import annotations

from aiohttp import web

from pushkit.cards.publishing import CARD_PATH, LEGACY_CARD_PATH, CardPublisher
from pushkit.clock import utc_now

__all__ = ["card_routes"]


def card_routes(
    publisher: CardPublisher, legacy: CardPublisher | None = None
) -> list[web.RouteDef]:
    """Return the routes for `app.add_routes(...)`.

    Args:
        publisher: The card, served at `/.well-known/agent-card.json`.
        legacy: What clients of A2A 0.1 and 0.2 get at `/.well-known/agent.json`; the same card if
            None.
    """
    return [
        _route(CARD_PATH, publisher),
        _route(LEGACY_CARD_PATH, publisher if legacy is None else legacy),
    ]


def _route(path: str, publisher: CardPublisher) -> web.RouteDef:
    async def serve(request: web.Request) -> web.Response:
        wanted = ", ".join(request.headers.getall("If-None-Match", [])) or None
        answer = await publisher.response(utc_now(), wanted)
        return web.Response(status=answer.status, headers=answer.headers, body=answer.body)

    return web.get(path, serve)
