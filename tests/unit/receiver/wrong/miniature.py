"""A receiver in miniature, in one process with the tests, that keeps every promise.

The wrong ones beside it change one step each. Storage takes its time here, so that what may come
between two writes does.
"""

from __future__ import annotations

import asyncio
import json
import sqlite3
from collections.abc import Coroutine, Sequence
from contextlib import closing
from dataclasses import dataclass
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

from aiohttp import web

from pushkit.errors import InboundError, InvalidSignatureError, TokenError
from pushkit.keys.jwk import VerificationKey
from pushkit.signing.notification_jwt import (
    UnverifiedJwt,
    VerifiedJwt,
    body_sha256,
    check_audience,
    check_body,
    check_issuer,
    find_jwt,
    read_unverified,
    verify_signature,
)
from pushkit.signing.scheme import check_times
from pushkit.webhook import Headers, hash_token, read_token
from receiver.testing import ReceiverUnderTest, SigningAgent

__all__ = ["Miniature", "Stored"]

STORAGE_SECONDS = 0.02
TABLES = """
    CREATE TABLE IF NOT EXISTS marks (id TEXT PRIMARY KEY, body BLOB NOT NULL);
    CREATE TABLE IF NOT EXISTS inbox (place INTEGER PRIMARY KEY, id TEXT NOT NULL, done INTEGER);
"""


@dataclass(frozen=True)
class Stored:
    """The parts of a request that are stored."""

    id: str
    body: bytes


class Miniature(ReceiverUnderTest):
    """Verifies, marks and stores in one transaction, answers, calls back from the inbox."""

    def __init__(self, folder: Path, port: int) -> None:
        self.agent = SigningAgent(webhook_url=f"http://127.0.0.1:{port}/push")
        self._port = port
        self._path = folder / "inbox.db"
        self._called: list[str] = []
        self._tasks: set[asyncio.Task[Any]] = set()
        self._stored = asyncio.Event()
        self._runner: web.AppRunner | None = None

    # --- what the kit does with it ------------------------------------------------------------

    async def callbacks(self) -> Sequence[str]:
        return self._called

    async def restart(self) -> None:
        await self.stop()
        await self.start()

    async def start(self) -> None:
        with closing(sqlite3.connect(self._path)) as connection:
            connection.executescript(TABLES)
        app = web.Application()
        app.add_routes([web.post("/push", self._handle)])
        # A cancelled task has ended: there is nothing to wait for.
        self._runner = web.AppRunner(app, access_log=None, shutdown_timeout=0.001)
        await self._runner.setup()
        await web.TCPSite(self._runner, "127.0.0.1", self._port).start()
        self._stored.set()
        self._spawn(self._call_back())

    async def stop(self) -> None:
        """Cancel all tasks at any point: the closest equivalent of a kill."""
        assert self._runner is not None
        tasks, self._tasks = self._tasks, set()
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)
        await self._runner.cleanup()

    def _spawn(self, work: Coroutine[Any, Any, Any]) -> asyncio.Task[Any]:
        task = asyncio.create_task(work)
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)
        return task

    # --- the steps ------------------------------------------------------------------------------

    async def _handle(self, request: web.Request) -> web.Response:
        headers = Headers((name, value) for name, value in request.headers.items())
        answering: asyncio.Task[web.Response] = self._spawn(
            self.answer(headers, await request.read())
        )
        try:
            return await answering
        except asyncio.CancelledError:
            return web.Response(status=503)

    async def answer(self, headers: Headers, body: bytes) -> web.Response:
        try:
            claims = await self.verify(headers, body)
        except InboundError as refusal:
            return self.refuse(refusal)
        return web.Response(status=await self.take(Stored(claims.delivery_id or "", body)))

    async def verify(self, headers: Headers, body: bytes) -> VerifiedJwt:
        compact = find_jwt(headers)
        if compact is None:
            raise InvalidSignatureError("no JWT")
        unverified = read_unverified(compact)
        claims = verify_signature(unverified, await self.key_of(unverified))
        check_body(claims, body_sha256(self.covered(body)), len(body))
        self.check_time(claims)
        check_issuer(claims, self.agent.issuer)
        self.check_audience(claims)
        self.check_token(read_token(headers) or "")
        return claims

    async def key_of(self, unverified: UnverifiedJwt) -> VerificationKey:
        if unverified.kid != self.agent.key.kid:
            raise InvalidSignatureError(f"no key has the kid {unverified.kid}")
        return self.agent.key.to_verification_key()

    def covered(self, body: bytes) -> bytes:
        return body

    def check_time(self, claims: VerifiedJwt) -> None:
        check_times(claims.issued_at, claims.expires_at, datetime.now(UTC))

    def check_audience(self, claims: VerifiedJwt) -> None:
        check_audience(claims, [self.agent.webhook_url], "/push")

    def check_token(self, token: str) -> None:
        if hash_token(token) != hash_token(self.agent.token):
            raise TokenError("another token")

    def refuse(self, refusal: InboundError) -> web.Response:
        return web.json_response({"code": "refused"}, status=refusal.status)

    # --- storing --------------------------------------------------------------------------------

    async def take(self, stored: Stored) -> int:
        """Mark the id and store the notification, in one transaction; return the status."""
        return await self.write(self.mark_and_store, stored)

    async def write(self, transaction: Any, stored: Stored) -> int:
        await asyncio.sleep(STORAGE_SECONDS)
        with closing(sqlite3.connect(self._path)) as connection, connection:
            status: int = transaction(connection, stored)
        self._stored.set()
        return status

    def mark_and_store(self, connection: sqlite3.Connection, stored: Stored) -> int:
        status = self.mark(connection, stored)
        return self.store(connection, stored) if status == 202 else status

    def mark(self, connection: sqlite3.Connection, stored: Stored) -> int:
        """Return 202 for a new id, 200 for one with this body, 409 for one with another."""
        marked = connection.execute(
            "INSERT INTO marks VALUES (?, ?) ON CONFLICT DO NOTHING", (stored.id, stored.body)
        )
        return 202 if marked.rowcount else self.status_of_known(connection, stored)

    def status_of_known(self, connection: sqlite3.Connection, stored: Stored) -> int:
        query = "SELECT body FROM marks WHERE id = ?"
        [known] = connection.execute(query, (stored.id,)).fetchone()
        return 200 if known == stored.body else 409

    def store(self, connection: sqlite3.Connection, stored: Stored) -> int:
        connection.execute("INSERT INTO inbox (id, done) VALUES (?, 0)", (stored.id,))
        return 202

    # --- calling back ---------------------------------------------------------------------------

    async def _call_back(self) -> None:
        while True:
            await self._stored.wait()
            self._stored.clear()
            with closing(sqlite3.connect(self._path)) as connection, connection:
                waiting = connection.execute(
                    "SELECT place, id FROM inbox WHERE done = 0 ORDER BY place"
                ).fetchall()
                for place, delivery_id in waiting:
                    self._called.append(delivery_id)
                    connection.execute("UPDATE inbox SET done = 1 WHERE place = ?", (place,))


def compact_json(body: bytes) -> bytes:
    """Write JSON again, in its shortest form."""
    return json.dumps(json.loads(body), ensure_ascii=False, separators=(",", ":")).encode()
