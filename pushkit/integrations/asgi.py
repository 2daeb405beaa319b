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
from collections.abc import Mapping

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


class DocumentApp:
    """Answers every GET and HEAD with a document, whatever the path."""

    async def _document(self, if_none_match: str | None) -> DocumentResponse:
        """Return the document, given the `If-None-Match` of a request."""
        raise NotImplementedError

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


class JwksApp(DocumentApp):
    """Answers every GET and HEAD with the public JWK Set of a sender."""

    def __init__(self, sender: PushSender) -> None:
        self._sender = sender

    async def _document(self, if_none_match: str | None) -> DocumentResponse:
        return self._sender.jwks(if_none_match)


class CardApp(DocumentApp):
    """Answers every GET and HEAD with the signed card, whatever the path.

    While it cannot be signed, that is an empty 503, which is logged.
    """

    def __init__(self, publisher: CardPublisher) -> None:
        self._publisher = publisher
        self._faults = RepeatedLog(_log)

    async def _document(self, if_none_match: str | None) -> DocumentResponse:
        try:
            return await self._publisher.response(utc_now(), if_none_match)
        except PushkitError as exc:
            self._faults.log(exc.code, logging.ERROR, "the agent card cannot be served: %s", exc)
            return DocumentResponse(status=503, headers={"Retry-After": "10"}, body=b"")


class MetricsApp(DocumentApp):
    """Answers every GET and HEAD with metrics of a `PushSender` or `Receiver`, for Prometheus."""

    def __init__(self, of: HasMetrics) -> None:
        self._metrics = of.metrics  # they are counted from now on

    async def _document(self, if_none_match: str | None) -> DocumentResponse:  # noqa: ARG002
        return await self._metrics.page()  # read at each request


class HealthApp(DocumentApp):
    """Answers every GET and HEAD with the health of a sender, as `/readyz` of `pushkit worker`.

    It is 200, or 503 with a line per fault: of the outbox, the worker in this process (unless the
    sender was opened without one, by `open()`), or the signing key.
    """

    def __init__(self, sender: HasHealth) -> None:
        self._sender = sender

    async def _document(self, if_none_match: str | None) -> DocumentResponse:  # noqa: ARG002
        return readiness(await self._sender.unready())
