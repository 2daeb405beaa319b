"""Proof that a destination wants notifications, before it gets the first one (wire profile §5).

`GET url?validationToken=<random>` has to be answered with exactly that token. Whoever registers
somebody else's URL makes this sender ask it once per attempt, and send it nothing.
"""

from __future__ import annotations

import hmac
import secrets
import ssl
from collections.abc import Callable
from dataclasses import replace
from datetime import datetime, timedelta
from typing import Final

from pushkit.errors import OwnershipError
from pushkit.net.destination import Destination
from pushkit.net.transport import Transport
from pushkit.storage import Database, Script
from pushkit.subscriptions import Owner, OwnerStore
from pushkit.version import USER_AGENT
from pushkit.work import Flight

__all__ = ["Ownership"]

_TIMEOUT: Final = timedelta(seconds=10)
_VALID_FOR: Final = timedelta(days=30)
_MAX_REMEMBERED: Final = 10_000
_HEADERS: Final = (
    ("Accept", "text/plain"),
    ("Accept-Encoding", "identity"),
    ("User-Agent", USER_AGENT),
)


class Ownership:
    """Asks destinations for their proof, and remembers it for thirty days.

    A proof is one owner's: that a URL echoes for one says nothing about another's wish.

    Args:
        database: Where proofs are kept.
        transport: How destinations are asked.
        clock: Returns now, aware, in UTC.
    """

    def __init__(
        self, database: Database, transport: Transport, clock: Callable[[], datetime]
    ) -> None:
        self._database = database
        self._transport = transport
        self._clock = clock
        self._owners = OwnerStore()
        self._proved: dict[tuple[Owner, str], datetime] = {}
        self._flights: dict[tuple[Owner, str], Flight[None]] = {}

    async def require(
        self, owner: Owner, destination: Destination, *, tls: ssl.SSLContext | None
    ) -> None:
        """Return once a destination has proved itself, now or before.

        Raises:
            OwnershipError: It answered something else.
            TransportError: It did not answer.
        """
        key = (owner, str(destination.url))
        proved_at = self._proved.get(key)
        if proved_at is not None and self._clock() - proved_at < _VALID_FOR:
            return
        flight = self._flights.setdefault(key, Flight())
        await flight.join(lambda: self._prove_and_land(owner, destination, tls))

    async def close(self) -> None:
        """End what is under way."""
        for flight in list(self._flights.values()):
            await flight.close()

    async def _prove_and_land(
        self, owner: Owner, destination: Destination, tls: ssl.SSLContext | None
    ) -> None:
        try:
            await self._prove(owner, destination, tls)
        finally:  # here, as whoever waited may have given up
            self._flights.pop((owner, str(destination.url)), None)

    async def _prove(
        self, owner: Owner, destination: Destination, tls: ssl.SSLContext | None
    ) -> None:
        url = str(destination.url)
        if not await self._database.read(self._is_proved(owner, url)):
            await self._ask(destination, tls)
            await self._database.write(self._note(owner, url))
        if len(self._proved) >= _MAX_REMEMBERED:
            self._proved.clear()  # the database knows
        self._proved[owner, url] = self._clock()

    def _is_proved(self, owner: Owner, url: str) -> Script[bool]:
        now = yield from self._database.now()
        return (yield from self._owners.has_proved(owner, url, since=now - _VALID_FOR))

    def _note(self, owner: Owner, url: str) -> Script[None]:
        now = yield from self._database.now()
        yield from self._owners.prove(owner, url, now=now, since=now - _VALID_FOR)

    async def _ask(self, destination: Destination, tls: ssl.SSLContext | None) -> None:
        token = secrets.token_urlsafe(32)
        # No credentials yet: a destination that has not proved itself gets nothing.
        asked = replace(destination, url=destination.url.with_query(f"validationToken={token}"))
        answer = await self._transport.get(asked, _HEADERS, timeout=_TIMEOUT, tls=tls)
        echoed = answer.complete and hmac.compare_digest(answer.body, token.encode("ascii"))
        if answer.status // 100 != 2 or not echoed:
            raise OwnershipError(
                f"{destination.origin}: expected the validationToken as the body of a 2xx answer,"
                f" found status {answer.status} and "
                + ("another body" if answer.status // 100 == 2 else "no proof"),
                status=answer.status,
            )
