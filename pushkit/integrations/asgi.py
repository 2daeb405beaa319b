"""ASGI: the sender's public keys as a small application, for Starlette, FastAPI and a2a-sdk agents.

Starlette(routes=[*agent_routes, Route("/.well-known/jwks.json", JwksApp(sender))])
"""

from __future__ import annotations

from collections.abc import Sequence

from pushkit.caching import DocumentResponse
from pushkit.delivery.sender import PushSender
from pushkit.integrations.asgi_document import DocumentApp

__all__ = ["JwksApp"]


class JwksApp(DocumentApp):
    """Answers every GET and HEAD with the public JWK Set.

    Args:
        sender: Whose keys.
    """

    def __init__(self, sender: PushSender) -> None:
        self._sender = sender

    async def document(self, if_none_match: Sequence[str]) -> DocumentResponse:
        """Return the JWK Set as it is now."""
        return self._sender.jwks(next(iter(if_none_match), None) or None)
