"""Proof that a destination wants notifications, before it gets the first one (wire profile §5).

It must answer `GET url?validationToken=<random>` with exactly that token. A client that registers
another's URL makes this sender request it once per attempt, and send it nothing.
"""

from __future__ import annotations

import asyncio
import functools
import hashlib
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
from pushkit.scheduling.renewing import CachedValue, Renewing, anew
from pushkit.storage.database import Database, read_now
from pushkit.storage.script import Script, Statement, from_micros, to_micros
from pushkit.subscriptions.model import Owner
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
        _held: CachedValue[bool] | None,
    ) -> CachedValue[bool]:
        url, now = str(destination.url), self._clock()
        valid_for = await read_now(
            self._database, lambda current: proof_remains_for(owner, url, now=current)
        )
        if valid_for is None:
            await self._ask(destination, tls)
            await self._database.write(self._note(owner, url))
        until = now + (valid_for or _VALID_FOR)
        return CachedValue(value=True, since=now, fresh_until=until, good_until=until)

    def _note(self, owner: Owner, url: str) -> Script[None]:
        yield from prove(owner, url, now=(yield from self._database.now()))

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


def proof_remains_for(owner: Owner, url: str, *, now: datetime) -> Script[timedelta | None]:
    """Return how long the proof that a URL is this owner's remains valid; None without one."""
    since = now - _VALID_FOR
    rows = yield Statement(
        "SELECT proved_at FROM pushkit_proved_urls"
        " WHERE tenant = $1 AND owner = $2 AND url_sha256 = $3 AND proved_at > $4",
        (*owner, _sha256(url), to_micros(since)),
    )
    return min(from_micros(rows[0]["proved_at"]) - since, _VALID_FOR) if rows else None


def prove(owner: Owner, url: str, *, now: datetime) -> Script[None]:
    """Store that a URL proved to be this owner's, and delete proofs that are valid no more."""
    ended = to_micros(now - _VALID_FOR)
    yield Statement("DELETE FROM pushkit_proved_urls WHERE proved_at <= $1", (ended,))
    yield Statement(
        "INSERT INTO pushkit_proved_urls (tenant, owner, url_sha256, proved_at)"
        " VALUES ($1, $2, $3, $4) ON CONFLICT (tenant, owner, url_sha256)"
        " DO UPDATE SET proved_at = excluded.proved_at",
        (*owner, _sha256(url), to_micros(now)),
    )


def _sha256(url: str) -> str:
    return hashlib.sha256(url.encode("utf-8")).hexdigest()
