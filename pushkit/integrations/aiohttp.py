"""aiohttp: routes for the sender's public keys and health, the agent's card, and metrics."""

from __future__ import annotations

from aiohttp import web

from pushkit.cards.publishing import CARD_PATH, LEGACY_CARD_PATH, CardPublisher
from pushkit.delivery.sender import PushSender
from pushkit.integrations.asgi import (
    CardApp,
    DocumentApp,
    HealthApp,
    JwksApp,
    MetricsApp,
)
from pushkit.keys.jwks import JWKS_PATH
from pushkit.telemetry.endpoints import HasMetrics


def jwks_route(sender: PushSender, path: str = JWKS_PATH) -> web.RouteDef:
    """Return a route for `app.add_routes([...])`."""
    return _route(path, JwksApp(sender))


def card_routes(
    publisher: CardPublisher, legacy: CardPublisher | None = None
) -> list[web.RouteDef]:
    """Return the routes for `app.add_routes(...)`.

    Args:
        publisher: The card, served at `/.well-known/agent-card.json`.
        legacy: The card for clients of A2A 0.1 and 0.2, at `/.well-known/agent.json`; None for the
            same card.
    """
    earlier = _route(LEGACY_CARD_PATH, CardApp(legacy or publisher))
    return [_route(CARD_PATH, CardApp(publisher)), earlier]


def metrics_route(of: HasMetrics, path: str = "/metrics") -> web.RouteDef:
    """Return a route with metrics of a sender or a receiver, counted from now on; for operators."""
    return _route(path, MetricsApp(of))


def health_route(sender: PushSender, path: str = "/readyz") -> web.RouteDef:
    """Return a route with the health of a sender, as `HealthApp`; for operators."""
    return _route(path, HealthApp(sender))


def _route(path: str, app: DocumentApp) -> web.RouteDef:
    async def serve(request: web.Request) -> web.Response:
        wanted = ", ".join(request.headers.getall("If-None-Match", [])) or None
        answer = await app._document(wanted)
        return web.Response(status=answer.status, headers=answer.headers, body=answer.body)

    return web.get(path, serve)
