"""ASGI: the sender's public keys as a small application, for Starlette, FastAPI and a2a-sdk agents.

Starlette(routes=[*agent_routes, Route("/.well-known/jwks.json", JwksApp(sender))])
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable, MutableMapping
from typing import Any, TypeAlias

from pushkit.delivery.sender import PushSender

__all__ = ["JwksApp"]

# The three names of the ASGI specification; its messages are loosely typed by design.
_Message: TypeAlias = MutableMapping[str, Any]
_Receive: TypeAlias = Callable[[], Awaitable[_Message]]
_Send: TypeAlias = Callable[[_Message], Awaitable[None]]


class JwksApp:
    """Answers every GET and HEAD with the public JWK Set.

    Args:
        sender: Whose keys.
    """

    def __init__(self, sender: PushSender) -> None:
        self._sender = sender

    async def __call__(self, scope: _Message, receive: _Receive, send: _Send) -> None:  # noqa: ARG002  # the interface
        """Serve one request."""
        if scope["type"] != "http":
            return
        if scope["method"] not in ("GET", "HEAD"):
            await _answer(send, 405, {"Allow": "GET, HEAD"}, b"")
            return
        wanted = next((v for k, v in scope["headers"] if k.lower() == b"if-none-match"), None)
        answer = self._sender.jwks(wanted.decode("latin-1") if wanted else None)
        body = b"" if scope["method"] == "HEAD" else answer.body
        await _answer(send, answer.status, answer.headers, body)


async def _answer(send: _Send, status: int, headers: MutableMapping[str, str], body: bytes) -> None:
    fields = [(name.lower().encode(), value.encode()) for name, value in headers.items()]
    await send({"type": "http.response.start", "status": status, "headers": fields})
    await send({"type": "http.response.body", "body": body})
