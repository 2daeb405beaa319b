"""The memory of ids in the database of the inbox: one transaction stores both."""

from __future__ import annotations

import itertools
from collections.abc import Sequence
from datetime import datetime, timedelta

from pushkit.errors import InboundError
from pushkit.storage.script import (
    Script,
    Statement,
    chunks,
    filled,
    padded,
    rows_of_places,
    texts,
    to_micros,
)
from receiver.replay.memory import (
    MEMORY,
    BeingStoredError,
    ConflictError,
    Replay,
    Seen,
)


class DatabaseReplay:
    """Scripts over `pushkit_replay`. A copy waits for the transaction that stores the first one."""

    is_external: bool = False

    def __init__(self, remember_for: timedelta = MEMORY) -> None:
        self._remember_for = remember_for

    async def open(self) -> None:
        """Do nothing: the database is the inbox's."""

    async def close(self) -> None:
        """Do nothing: the database is the inbox's."""

    async def reserve(self, seen: Seen) -> Seen | None:
        """Return the same: only the transaction can find out whether the id is fresh."""
        return seen

    def remember(
        self, reserved: Sequence[Seen], now: datetime
    ) -> Script[list[Replay | InboundError]]:
        """Remember the fresh ids; return what each one is.

        Callers pass them in one order: on PostgreSQL each waits for a transaction that stores the
        same id.
        """
        fresh: set[tuple[str, ...]] = set()
        accepted_at = to_micros(now)
        for each in filled(reserved):
            rows = yield Statement(
                "INSERT INTO pushkit_replay (sender, delivery_id, body_sha256, accepted_at)"
                f" VALUES {rows_of_places(len(each), 4)}"
                " ON CONFLICT (sender, delivery_id) DO NOTHING RETURNING sender, delivery_id",
                tuple([value for seen in each for value in (*seen[:3], accepted_at)]),
            )
            fresh.update([(row["sender"], row["delivery_id"]) for row in rows])
        known: dict[tuple[str, ...], str] = {}
        # Read anew: on PostgreSQL a row may have been committed while the insert waited.
        unknown = [key for seen in reserved if (key := seen[:2]) not in fresh]
        for asked in map(padded, chunks(unknown)):
            rows = yield Statement(
                f"WITH asked (sender, delivery_id) AS (VALUES {texts(len(asked), 2)})"
                " SELECT DISTINCT r.sender, r.delivery_id, r.body_sha256 FROM asked"
                " JOIN pushkit_replay r ON r.sender = asked.sender"
                " AND r.delivery_id = asked.delivery_id",
                tuple(itertools.chain.from_iterable(asked)),
            )
            known.update(((row["sender"], row["delivery_id"]), row["body_sha256"]) for row in rows)
        return [
            Replay.FRESH if seen[:2] in fresh else _judge(seen, known.get(seen[:2]))
            for seen in reserved
        ]

    def unremember(self, reserved: Sequence[Seen]) -> Script[None]:
        """Delete the ids of notifications that are refused in the same transaction."""
        for seen in reserved:
            yield Statement(
                "DELETE FROM pushkit_replay WHERE sender = $1 AND delivery_id = $2", seen[:2]
            )

    async def commit(self, reserved: Seen) -> None:
        """Do nothing: the transaction is committed."""

    async def release(self, reserved: Seen) -> None:
        """Do nothing: the transaction was rolled back."""

    def forget(self, now: datetime, *, limit: int = 1000) -> Script[int]:
        """Delete ids past their retention, at most `limit`; return how many."""
        rows = yield Statement(
            "DELETE FROM pushkit_replay WHERE (sender, delivery_id) IN"
            " (SELECT sender, delivery_id FROM pushkit_replay WHERE accepted_at < $1"
            " ORDER BY accepted_at LIMIT CAST($2 AS BIGINT) FOR UPDATE SKIP LOCKED)"
            " RETURNING sender",
            (to_micros(now - self._remember_for), limit),
        )
        return len(rows)


def _judge(seen: Seen, known: str | None) -> Replay | InboundError:
    if known is None:
        return BeingStoredError("this id is being forgotten")
    if known != seen.body_sha256:
        return ConflictError("this id was accepted before with another body")
    return Replay.DUPLICATE
