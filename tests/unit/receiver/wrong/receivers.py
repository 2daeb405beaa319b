"""Ten receivers with one fault each, and the checks that have to catch it."""

from __future__ import annotations

import sqlite3
from collections.abc import Mapping

import aiohttp
from aiohttp import web

from pushkit.errors import InboundError, TokenError
from pushkit.keys.jwk import VerificationKey
from pushkit.keys.jwks import parse_jwks
from pushkit.signing.jose import protected_header
from pushkit.signing.notification_jwt import UnverifiedJwt, VerifiedJwt
from tests.unit.receiver.wrong.miniature import Miniature, Stored, compact_json

__all__ = [
    "CAUGHT_BY",
    "TOUCHED_TOO",
    "AnswersBeforeStoring",
    "CheckThenInsert",
    "MarksBeforeStoring",
    "NoReplayCheck",
]


class NoReplayCheck(Miniature):
    """Calls back every copy that verifies."""

    async def take(self, stored: Stored) -> int:
        return await self.write(self.store, stored)


class CheckThenInsert(Miniature):
    """Looks for the id, and marks it later: copies may arrive in between."""

    async def take(self, stored: Stored) -> int:
        known = await self.write(self.look, stored)
        return known or await self.write(self.insert, stored)

    def look(self, connection: sqlite3.Connection, stored: Stored) -> int:
        query = "SELECT 1 FROM marks WHERE id = ?"
        known = connection.execute(query, (stored.id,)).fetchone()
        return self.status_of_known(connection, stored) if known else 0

    def insert(self, connection: sqlite3.Connection, stored: Stored) -> int:
        self.mark(connection, stored)
        return self.store(connection, stored)


class MarksBeforeStoring(Miniature):
    """Marks in a transaction of its own: a crash before the next one loses the notification."""

    async def take(self, stored: Stored) -> int:
        status = await self.write(self.mark, stored)
        return await self.write(self.store, stored) if status == 202 else status


class AnswersBeforeStoring(Miniature):
    """Answers while it still stores; all that it asks of the storage is whether it knows the id."""

    async def take(self, stored: Stored) -> int:
        with sqlite3.connect(self._path) as connection:
            query = "SELECT 1 FROM marks WHERE id = ?"
            known = connection.execute(query, (stored.id,)).fetchone()
            status = self.status_of_known(connection, stored) if known else 202
        connection.close()
        self._spawn(self.write(self.mark_and_store, stored))
        return status


class VerifiesReserialisedJson(Miniature):
    """Hashes the parsed body."""

    def covered(self, body: bytes) -> bytes:
        return compact_json(body)


class IgnoresTheTimestamp(Miniature):
    """Accepts signatures of any age."""

    def check_time(self, claims: VerifiedJwt) -> None:
        del claims


class IgnoresTheAudience(Miniature):
    """Accepts what the agent signed for another webhook."""

    def check_audience(self, claims: VerifiedJwt) -> None:
        del claims


class ComparesAPrefixOfTheToken(Miniature):
    """Accepts a prefix of the token."""

    def check_token(self, token: str) -> None:
        if not token or not self.agent.token.startswith(token):
            raise TokenError("another token")


class TrustsJku(Miniature):
    """Fetches the key from the URL in the message."""

    async def key_of(self, unverified: UnverifiedJwt) -> VerificationKey:
        jku = protected_header(unverified.token.partition(".")[0]).get("jku")
        if not isinstance(jku, str):
            return await super().key_of(unverified)
        async with aiohttp.ClientSession() as session, session.get(jku) as response:
            keys = parse_jwks(await response.read()).keys
        return next(key for key in keys if key.kid == unverified.kid)


class LeaksTheReason(Miniature):
    """Says in its answer what was wrong."""

    def refuse(self, refusal: InboundError) -> web.Response:
        return web.json_response({"detail": str(refusal)}, status=refusal.status)


# Checks that a fault may also break, depending on timing.
TOUCHED_TOO: Mapping[type[Miniature], set[str]] = {
    # It has not stored what it answered: a later crash loses retries, too.
    AnswersBeforeStoring: {"conflict", "crash_before_answer"},
}

_REPLAYS = {"retry", "retry_after_restart", "concurrent_copies", "conflict"}

CAUGHT_BY: Mapping[type[Miniature], set[str]] = {
    NoReplayCheck: _REPLAYS,
    CheckThenInsert: {"concurrent_copies"},
    MarksBeforeStoring: {"crash_before_answer"},
    AnswersBeforeStoring: {"crash_after_answer"},
    VerifiesReserialisedJson: {"raw_body"},
    IgnoresTheTimestamp: {"timestamp"},
    IgnoresTheAudience: {"audience"},
    ComparesAPrefixOfTheToken: {"token"},
    TrustsJku: {"key_from_message"},
    LeaksTheReason: {"silence"},
}
