"""The interface of the kit to a receiver: post to it, count its callbacks, restart it."""

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
    """A receiver's answer to a request."""

    status: int
    body: bytes = field(repr=False)

    @property
    def accepted(self) -> bool:
        """Whether a sender would count the notification as delivered."""
        return 200 <= self.status < 300


class ReceiverUnderTest(ABC):
    """A running receiver that trusts the kit's agent.

    It expects every task of that agent, has a callback for every update, and accepts at least some
    hundred requests a second.
    """

    async def post(self, request: WebhookRequest) -> Answer | None:
        """Send a request to its absolute `target`; return None if there was no answer.

        By default over HTTP, on a new connection.
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
        """Return the delivery ids that callbacks were called with so far, before restarts, too."""

    @abstractmethod
    async def restart(self) -> None:
        """Kill it, as a crash does, and start it again on the same state.

        It must not finish what it is doing. Return once it listens again.
        """
