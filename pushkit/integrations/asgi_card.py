"""ASGI: the agent's card, signed, for Starlette, FastAPI and a2a-sdk agents.

Starlette(routes=[Route("/.well-known/agent-card.json", CardApp(publisher)), *agent_routes])
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable, MutableMapping
from typing import Any, TypeAlias

from pushkit.cards.publishing import CardPublisher, CardResponse
from pushkit.clock import utc_now

__all__ = ["CardApp"]

# The three names of the ASGI specification; its messages are loosely typed by design.
_Message: TypeAlias = MutableMapping[str, Any]
_Receive: TypeAlias = Callable[[], Awaitable[_Message]]
_Send: TypeAlias = Callable[[_Message], Awaitable[None]]


class CardApp:
    """Answers every GET and HEAD with the signed card, whatever the path.

    Put its route before those of the SDK, which serves the card unsigned at the same path.

    Args:
        publisher: The card and the keys.
    """

    def __init__(self, publisher: CardPublisher) -> None:
        self._publisher = publisher

    async def __call__(self, scope: _Message, receive: _Receive, send: _Send) -> None:  # noqa: ARG002  # the interface
        """Serve one request."""
        if scope["type"] != "http":
            return
        if scope["method"] not in ("GET", "HEAD"):
            refusal = CardResponse(status=405, headers={"Allow": "GET, HEAD"}, body=b"")
            await _answer(send, refusal, b"")
            return
        wanted = [value for name, value in scope["headers"] if name.lower() == b"if-none-match"]
        answer = self._publisher.response(utc_now(), b", ".join(wanted).decode("latin-1") or None)
        await _answer(send, answer, b"" if scope["method"] == "HEAD" else answer.body)


async def _answer(send: _Send, answer: CardResponse, body: bytes) -> None:
    fields = [(name.lower().encode(), value.encode()) for name, value in answer.headers.items()]
    await send({"type": "http.response.start", "status": answer.status, "headers": fields})
    await send({"type": "http.response.body", "body": body})
