"""ASGI: the agent's card, signed, for Starlette, FastAPI and a2a-sdk agents.

Starlette(routes=[Route("/.well-known/agent-card.json", CardApp(publisher)), *agent_routes])
"""

from __future__ import annotations

from collections.abc import Sequence

from pushkit.caching import DocumentResponse
from pushkit.cards.publishing import CardPublisher
from pushkit.clock import utc_now
from pushkit.integrations.asgi_document import DocumentApp

__all__ = ["CardApp"]


class CardApp(DocumentApp):
    """Answers every GET and HEAD with the signed card, whatever the path.

    Put its route before those of the SDK, which serves the card unsigned at the same path.

    Args:
        publisher: The card and the keys.
    """

    def __init__(self, publisher: CardPublisher) -> None:
        self._publisher = publisher

    async def document(self, if_none_match: Sequence[str]) -> DocumentResponse:
        """Return the card as it is now."""
        return await self._publisher.response(utc_now(), ", ".join(if_none_match) or None)
