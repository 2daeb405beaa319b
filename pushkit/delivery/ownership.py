"""Proof that a destination wants notifications, before it gets the first one (wire profile §5).

It must answer `GET url?validationToken=<random>` with exactly that token. A client that registers
another's URL makes this sender request it once per attempt, and send it nothing.
"""

from __future__ import annotations

import asyncio
import functools
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
from pushkit.scheduling.renewing import Held, Renewing, anew
from pushkit.storage.database import Database
from pushkit.storage.script import Script
from pushkit.subscriptions.owners import Owner, OwnerStore
from pushkit.version import USER_AGENT

_TIMEOUT: Final = timedelta(seconds=10)
_VALID_FOR: Final = timedelta(days=30)
_MAX_REMEMBERED: Final = 10_000
_HEADERS: Final = (
    ("Accept", "text/plain"),
    ("Accept-Encoding", "identity"),
    ("User-Agent", USER_AGENT),
)


class Ownership:
    """Asks destinations for their proof, which is valid for thirty days.

    Each owner needs its own proof: that a URL wants one owner's notifications says nothing about
    another's.
    """

    def __init__(
        self, database: Database, transport: Transport, clock: Callable[[], datetime]
    ) -> None:
        self._database = database
        self._transport = transport
        self._clock = clock
        self._owners = OwnerStore()
        self._proofs: dict[tuple[Owner, str], Renewing[bool]] = {}

    def has_proof(self, owner: Owner, destination: Destination) -> bool:
        """Return whether this process remembers a valid proof of a destination."""
        proof = self._proofs.get((owner, str(destination.url)))
        return proof is not None and proof.usable() is not None

    async def require(
        self, owner: Owner, destination: Destination, *, tls: ssl.SSLContext | None
    ) -> None:
        """Return once a destination has proved itself, now or before.

        Raises:
            OwnershipError: It answered something else, now or recently.
            TransportError: It did not answer.
        """
        key = (owner, str(destination.url))
        proof = self._proofs.get(key)
        if proof is None:
            if len(self._proofs) >= _MAX_REMEMBERED:  # they are in the database
                self._proofs = {key: each for key, each in self._proofs.items() if each.is_flying}
            prove = functools.partial(self._prove, owner, destination, tls)
            proof = self._proofs[key] = Renewing(prove, clock=self._clock)
        if not await proof.get():
            raise anew(proof.failure) if proof.failure else asyncio.CancelledError

    async def close(self) -> None:
        """Cancel running requests."""
        for proof in list(self._proofs.values()):
            await proof.close()

    async def _prove(
        self,
        owner: Owner,
        destination: Destination,
        tls: ssl.SSLContext | None,
        _held: Held[bool] | None,
    ) -> Held[bool]:
        url, now = str(destination.url), self._clock()
        valid_for = await self._database.read(self._proved_for(owner, url))
        if valid_for is None:
            await self._ask(destination, tls)
            await self._database.write(self._note(owner, url))
        until = now + (valid_for or _VALID_FOR)
        return Held(value=True, since=now, fresh_until=until, good_until=until)

    def _proved_for(self, owner: Owner, url: str) -> Script[timedelta | None]:
        """Return how long a stored proof remains valid; None if there is none."""
        now = yield from self._database.now()
        since = now - _VALID_FOR
        proved_at = yield from self._owners.proved_at(owner, url, since=since)
        return None if proved_at is None else min(proved_at - since, _VALID_FOR)

    def _note(self, owner: Owner, url: str) -> Script[None]:
        now = yield from self._database.now()
        yield from self._owners.prove(owner, url, now=now, since=now - _VALID_FOR)

    async def _ask(self, destination: Destination, tls: ssl.SSLContext | None) -> None:
        token = secrets.token_urlsafe(32)
        # Without credentials: a destination without proof gets none.
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
