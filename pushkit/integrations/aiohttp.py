"""aiohttp: routes that serve the sender's public keys, the agent's card, signed, and metrics."""

from __future__ import annotations

from collections.abc import Awaitable, Callable

from aiohttp import web

from pushkit.caching import DocumentResponse
from pushkit.cards.publishing import CARD_PATH, LEGACY_CARD_PATH, CardPublisher
from pushkit.clock import utc_now
from pushkit.delivery.sender import PushSender
from pushkit.integrations.asgi import HasMetrics

JWKS_PATH = "/.well-known/jwks.json"


def jwks_route(sender: PushSender, path: str = JWKS_PATH) -> web.RouteDef:
    """Return a route for `app.add_routes([...])`."""

    async def document(if_none_match: str | None) -> DocumentResponse:
        return sender.jwks(if_none_match)

    return _route(path, document)


def card_routes(
    publisher: CardPublisher, legacy: CardPublisher | None = None
) -> list[web.RouteDef]:
    """Return the routes for `app.add_routes(...)`.

    Args:
        publisher: The card, served at `/.well-known/agent-card.json`.
        legacy: What clients of A2A 0.1 and 0.2 get at `/.well-known/agent.json`; the same card if
            None.
    """

    def route(path: str, card: CardPublisher) -> web.RouteDef:
        return _route(path, lambda if_none_match: card.response(utc_now(), if_none_match))

    return [route(CARD_PATH, publisher), route(LEGACY_CARD_PATH, legacy or publisher)]


def metrics_route(of: HasMetrics, path: str = "/metrics") -> web.RouteDef:
    """Return a route for an application that only operators get to.

    Args:
        of: The `PushSender`, or the `Receiver`; counted from here on.
        path: Where.
    """
    metrics = of.metrics

    async def serve(_: web.Request) -> web.Response:
        page = await metrics.page()
        return web.Response(body=page.body, headers={"Content-Type": page.content_type})

    return web.get(path, serve)


def _route(
    path: str, document: Callable[[str | None], Awaitable[DocumentResponse]]
) -> web.RouteDef:
    async def serve(request: web.Request) -> web.Response:
        wanted = ", ".join(request.headers.getall("If-None-Match", [])) or None
        answer = await document(wanted)
        return web.Response(status=answer.status, headers=answer.headers, body=answer.body)

    return web.get(path, serve)
