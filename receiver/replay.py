"""Replay: every id that was accepted is remembered, apart from the inbox and its purges.

The memory outlasts the sender's last automatic retry (90 h): 96 h by default.
"""

from __future__ import annotations

from datetime import datetime, timedelta
from enum import StrEnum

from pushkit.errors import InboundError
from pushkit.storage import Migration, Script, Statement, to_micros

__all__ = ["MEMORY", "MIGRATION", "ConflictError", "Replay", "ReplayStore"]

MEMORY = timedelta(hours=96)

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


class ConflictError(InboundError):
    """An id that was accepted before, with another body."""

    code = "id_conflict"
    status = 409


class Replay(StrEnum):
    """What the memory says of an id."""

    FRESH = "fresh"
    DUPLICATE = "duplicate"
    """Accepted before, with the same body: a retry."""


class ReplayStore:
    """Scripts over `pushkit_replay`."""

    def look_up(self, sender: str, delivery_id: str, body_sha256: str) -> Script[Replay]:
        """Say whether an id is fresh.

        Raises:
            ConflictError: It was accepted with another body.
        """
        rows = yield Statement(
            "SELECT body_sha256 FROM pushkit_replay WHERE sender = $1 AND delivery_id = $2",
            (sender, delivery_id),
        )
        if not rows:
            return Replay.FRESH
        if rows[0]["body_sha256"] != body_sha256:
            raise ConflictError("this id was accepted before with another body")
        return Replay.DUPLICATE

    def remember(
        self, sender: str, delivery_id: str, body_sha256: str, now: datetime
    ) -> Script[None]:
        """Remember an id that is being accepted in this transaction."""
        yield Statement(
            "INSERT INTO pushkit_replay (sender, delivery_id, body_sha256, accepted_at)"
            " VALUES ($1, $2, $3, $4)",
            (sender, delivery_id, body_sha256, to_micros(now)),
        )

    def forget(self, now: datetime, *, limit: int = 1000) -> Script[int]:
        """Forget ids past the memory, a bounded number at a time; return how many."""
        rows = yield Statement(
            "DELETE FROM pushkit_replay WHERE (sender, delivery_id) IN"
            " (SELECT sender, delivery_id FROM pushkit_replay WHERE accepted_at < $1 LIMIT $2)"
            " RETURNING sender",
            (to_micros(now - MEMORY), limit),
        )
        return len(rows)
