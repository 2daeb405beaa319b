"""ASGI: the sender's public keys and health, the agent's card, and metrics, as small applications.

For Starlette, FastAPI and a2a-sdk agents. Put the card's route before the SDK's, which serves the
unsigned card at the same path:

    Starlette(routes=[
        Route("/.well-known/jwks.json", JwksApp(sender)),
        Route("/.well-known/agent-card.json", CardApp(publisher)),
        Route("/metrics", MetricsApp(sender)),  # reachable by operators only, as is the next one
        Route("/readyz", HealthApp(sender)),
        *agent_routes,
    ])
"""

from __future__ import annotations

import logging
from collections.abc import Awaitable, Callable, Mapping
from typing import TypeAlias

from pushkit.cards.publishing import CardPublisher
from pushkit.clock import utc_now
from pushkit.delivery.sender import PushSender
from pushkit.errors import PushkitError
from pushkit.logs import RepeatedLog
from pushkit.telemetry.endpoints import HasHealth, HasMetrics, readiness
from pushkit.webhook import DocumentResponse
from pushkit.webui.asgi import Message, Receive, Send, refuse_websocket

_log = logging.getLogger("pushkit.integrations")


async def answer(send: Send, status: int, headers: Mapping[str, str], body: bytes) -> None:
    """Send a complete answer."""
    fields = [(name.lower().encode(), value.encode()) for name, value in headers.items()]
    if body:  # without its length, uvicorn sends chunks, also to HTTP/1.0 clients
        fields.append((b"content-length", str(len(body)).encode()))
    await send({"type": "http.response.start", "status": status, "headers": fields})
    await send({"type": "http.response.body", "body": body})


Document: TypeAlias = Callable[[str | None], Awaitable[DocumentResponse]]
"""Returns a cacheable document, given the `If-None-Match` of a request."""


def jwks_of(sender: PushSender) -> Document:
    """Return the public JWK Set of a sender."""

    async def document(if_none_match: str | None) -> DocumentResponse:
        return sender.jwks(if_none_match)

    return document


def card_of(publisher: CardPublisher) -> Document:
    """Return the signed card; an empty 503 while it cannot be signed, which is logged."""
    faults = RepeatedLog(_log)

    async def document(if_none_match: str | None) -> DocumentResponse:
        try:
            return await publisher.response(utc_now(), if_none_match)
        except PushkitError as exc:
            faults.log(exc.code, logging.ERROR, "the agent card cannot be served: %s", exc)
            return DocumentResponse(status=503, headers={"Retry-After": "10"}, body=b"")

    return document


def metrics_of(of: HasMetrics) -> Document:
    """Return metrics for Prometheus, read at each request; they are counted from now on."""
    metrics = of.metrics

    async def document(_: str | None) -> DocumentResponse:
        return await metrics.page()

    return document


def health_of(sender: HasHealth) -> Document:
    """Return whether a sender can store and deliver: 200, or 503 with a line per fault."""

    async def document(_: str | None) -> DocumentResponse:
        return readiness(await sender.unready())

    return document


class _DocumentApp:
    """Answers every GET and HEAD with a document, whatever the path."""

    def __init__(self, document: Document) -> None:
        self._document = document

    async def __call__(self, scope: Message, receive: Receive, send: Send) -> None:
        """Serve one request."""
        if scope["type"] == "websocket":
            await refuse_websocket(receive, send)
        if scope["type"] != "http":
            return
        if scope["method"] not in ("GET", "HEAD"):
            await answer(send, 405, {"Allow": "GET, HEAD"}, b"")
            return
        wanted = [v.decode("latin-1") for k, v in scope["headers"] if k.lower() == b"if-none-match"]
        found = await self._document(", ".join(wanted) or None)
        body = b"" if scope["method"] == "HEAD" else found.body
        await answer(send, found.status, found.headers, body)


class JwksApp(_DocumentApp):
    """Answers every GET and HEAD with the public JWK Set of a sender."""

    def __init__(self, sender: PushSender) -> None:
        super().__init__(jwks_of(sender))


class CardApp(_DocumentApp):
    """Answers every GET and HEAD with the signed card, whatever the path."""

    def __init__(self, publisher: CardPublisher) -> None:
        super().__init__(card_of(publisher))


class MetricsApp(_DocumentApp):
    """Answers every GET and HEAD with metrics of a `PushSender` or `Receiver`, for Prometheus."""

    def __init__(self, of: HasMetrics) -> None:
        super().__init__(metrics_of(of))


class HealthApp(_DocumentApp):
    """Answers every GET and HEAD with the health of a sender, as `/readyz` of `pushkit worker`.

    It is 200, or 503 with a line per fault: of the outbox, the worker in this process (unless the
    sender was opened without one, by `open()`), or the signing key.
    """

    def __init__(self, sender: HasHealth) -> None:
        super().__init__(health_of(sender))
