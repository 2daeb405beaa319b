"""The memory of ids in the database of the inbox: one transaction stores both."""

from __future__ import annotations

from datetime import datetime, timedelta

from pushkit.storage import Migration, Script, Statement, to_micros
from receiver.replay.memory import (
    MEMORY,
    BeingStoredError,
    ConflictError,
    Replay,
    Reservation,
    Seen,
)

__all__ = ["MIGRATION", "DatabaseReplay"]

MIGRATION = Migration(
    1,
    (
        """
        CREATE TABLE pushkit_replay (
            sender TEXT NOT NULL,
            delivery_id TEXT NOT NULL,
            body_sha256 TEXT NOT NULL,
            accepted_at BIGINT NOT NULL,
            PRIMARY KEY (sender, delivery_id)
        )
        """,
        "CREATE INDEX pushkit_replay_age ON pushkit_replay (accepted_at)",
    ),
)


class DatabaseReplay:
    """Scripts over `pushkit_replay`. Whoever comes second waits for the first one's transaction.

    Args:
        remember_for: How long ids are remembered.
    """

    def __init__(self, remember_for: timedelta = MEMORY) -> None:
        self._remember_for = remember_for

    async def open(self) -> None:
        """Do nothing: the database is the inbox's."""

    async def close(self) -> None:
        """Do nothing: the database is the inbox's."""

    async def reserve(self, seen: Seen) -> Reservation | None:
        """Say that it may be fresh: the transaction will tell."""
        return Reservation(seen=seen)

    def remember(self, reservation: Reservation, now: datetime) -> Script[Replay]:
        """Remember an id, if it is fresh.

        Raises:
            ConflictError: It was accepted with another body.
            BeingStoredError: It was forgotten at this very moment.
        """
        seen = reservation.seen
        fresh = yield Statement(
            "INSERT INTO pushkit_replay (sender, delivery_id, body_sha256, accepted_at)"
            " VALUES ($1, $2, $3, $4) ON CONFLICT (sender, delivery_id) DO NOTHING"
            " RETURNING sender",
            (seen.sender, seen.delivery_id, seen.body_sha256, to_micros(now)),
        )
        if fresh:
            return Replay.FRESH
        # Read anew: on PostgreSQL the row may have been committed while the insert waited.
        rows = yield Statement(
            "SELECT body_sha256 FROM pushkit_replay WHERE sender = $1 AND delivery_id = $2",
            (seen.sender, seen.delivery_id),
        )
        if not rows:
            raise BeingStoredError("this id is being forgotten")
        if rows[0]["body_sha256"] != seen.body_sha256:
            raise ConflictError("this id was accepted before with another body")
        return Replay.DUPLICATE

    async def commit(self, reservation: Reservation) -> None:
        """Do nothing: the transaction is committed."""

    async def release(self, reservation: Reservation) -> None:
        """Do nothing: the transaction was rolled back."""

    def forget(self, now: datetime, *, limit: int = 1000) -> Script[int]:
        """Forget ids past the memory, a bounded number at a time; return how many."""
        rows = yield Statement(
            "DELETE FROM pushkit_replay WHERE (sender, delivery_id) IN"
            " (SELECT sender, delivery_id FROM pushkit_replay WHERE accepted_at < $1"
            " ORDER BY accepted_at LIMIT CAST($2 AS BIGINT) FOR UPDATE SKIP LOCKED)"
            " RETURNING sender",
            (to_micros(now - self._remember_for), limit),
        )
        return len(rows)
