"""What the kit may do with a receiver: post to it, count its callbacks, restart it."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Sequence
from dataclasses import dataclass, field
from datetime import timedelta

import aiohttp
from yarl import URL

from pushkit.webhook import WebhookRequest

_TIMEOUT = timedelta(seconds=30)


@dataclass(frozen=True, slots=True, kw_only=True)
class Answer:
    """What came back."""

    status: int
    body: bytes = field(repr=False)

    @property
    def accepted(self) -> bool:
        """Whether a sender would take it for delivered."""
        return 200 <= self.status < 300


class ReceiverUnderTest(ABC):
    """A receiver that runs, and that trusts the kit's agent.

    It expects every task of that agent, has a callback for every update, and limits rates no lower
    than some hundred requests a second.
    """

    async def post(self, request: WebhookRequest) -> Answer | None:
        """Send a request to its absolute `target`; return None if there was no answer.

        By default over HTTP, in a connection of its own.
        """
        try:
            async with (
                aiohttp.ClientSession(
                    timeout=aiohttp.ClientTimeout(total=_TIMEOUT.total_seconds())
                ) as session,
                session.post(
                    URL(request.target, encoded=True),
                    data=request.body,
                    headers=list(request.headers),
                    allow_redirects=False,
                ) as response,
            ):
                return Answer(status=response.status, body=await response.read())
        except (TimeoutError, aiohttp.ClientError, OSError):
            return None

    @abstractmethod
    async def callbacks(self) -> Sequence[str]:
        """Return the delivery ids with which callbacks were called so far, restarts included."""

    @abstractmethod
    async def restart(self) -> None:
        """End it at once, as a crash does, and start it again on the same state.

        Kill its process: what it has in work must not be finished. Return once it listens again.
        """
