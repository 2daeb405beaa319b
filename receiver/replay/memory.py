"""The memory of accepted ids: in the database of the inbox, or in Redis (`receiver.replay.redis`).

Ids are remembered independently of the inbox and its purges, for longer than a sender retries by
itself (90 h): 96 h by default. The inbox keeps sender and id unique, too: if the memory is lost,
there is no second callback while the notification is in the inbox.

In the database, one transaction remembers an id and stores its notification: a copy waits for it.
"""

from __future__ import annotations

from collections.abc import Sequence
from datetime import datetime, timedelta
from enum import StrEnum
from typing import TYPE_CHECKING, NamedTuple

from pushkit.errors import InboundError
from pushkit.lazy import from_extra
from pushkit.storage.script import (
    Script,
    Statement,
    filled,
    insert_rows,
    run_for_rows,
    to_micros,
)

if TYPE_CHECKING:
    from receiver.replay.redis import RedisReplay

MEMORY = timedelta(hours=96)


class ConflictError(InboundError, code="id_conflict", status=409):
    """The id was accepted before with another body."""


class BeingStoredError(InboundError, code="being_stored", status=503):
    """A copy with this id is being stored: its result decides about this one."""


class Seen(NamedTuple):
    """The id of a notification that arrived, with its sender and body hash."""

    sender: str
    delivery_id: str
    body_sha256: str
    holder: str = ""  # of the reservation in Redis


def redis_replay(url: str, *, namespace: str, remember_for: timedelta = MEMORY) -> RedisReplay:
    """Return the memory of ids in a Redis, unopened.

    Raises:
        ConfigError: The URL is not of a Redis, or the driver is not installed.
    """
    with from_extra("redis", "replay: Redis needs its driver"):
        from receiver.replay.redis import RedisReplay
    return RedisReplay(url, namespace=namespace, remember_for=remember_for)


# --- in the database ---------------------------------------------------------------------------


class Replay(StrEnum):
    """The state of an id in the memory."""

    FRESH = "fresh"
    DUPLICATE = "duplicate"
    """Accepted before, with the same body: a retry."""


def remember_ids(arrived: Sequence[Seen], now: datetime) -> Script[list[Replay | InboundError]]:
    """Remember ids in the transaction that stores their notifications.

    Callers pass them in one order: on PostgreSQL each waits for a transaction that stores the same
    id.

    Returns:
        For each, in order: that it is fresh, and remembered now; that it is a duplicate; or the
        refusal, if it was accepted with another body or is being forgotten.
    """
    accepted_at = to_micros(now)
    rows = yield from insert_rows(
        "INSERT INTO pushkit_replay (sender, delivery_id, body_sha256, accepted_at)"
        " VALUES $rows ON CONFLICT (sender, delivery_id) DO NOTHING RETURNING sender, delivery_id",
        filled([(*seen[:3], accepted_at) for seen in arrived]),
    )
    fresh = {(row["sender"], row["delivery_id"]) for row in rows}
    # Read anew: on PostgreSQL a row may have been committed while the insert waited.
    unknown = [key for seen in arrived if (key := seen[:2]) not in fresh]
    rows = yield from run_for_rows(
        "WITH asked (sender, delivery_id) AS (VALUES $rows)"
        " SELECT DISTINCT r.sender, r.delivery_id, r.body_sha256 FROM asked"
        " CROSS JOIN pushkit_replay r WHERE r.sender = asked.sender"
        " AND r.delivery_id = asked.delivery_id",
        unknown,
    )
    known = {(row["sender"], row["delivery_id"]): row["body_sha256"] for row in rows}
    return [
        Replay.FRESH if seen[:2] in fresh else _judge(seen, known.get(seen[:2])) for seen in arrived
    ]


def unremember_ids(refused: Sequence[Seen]) -> Script[None]:
    """Delete the ids of notifications that are refused in the same transaction."""
    for seen in refused:
        yield Statement(
            "DELETE FROM pushkit_replay WHERE sender = $1 AND delivery_id = $2", seen[:2]
        )


def forget_ids(accepted_before: datetime, *, limit: int = 1000) -> Script[int]:
    """Delete ids that were accepted before a moment, at most `limit`; return how many."""
    rows = yield Statement(
        "DELETE FROM pushkit_replay WHERE (sender, delivery_id) IN"
        " (SELECT sender, delivery_id FROM pushkit_replay WHERE accepted_at < $1"
        " ORDER BY accepted_at LIMIT CAST($2 AS BIGINT) FOR UPDATE SKIP LOCKED)"
        " RETURNING sender",
        (to_micros(accepted_before), limit),
    )
    return len(rows)


def _judge(seen: Seen, known: str | None) -> Replay | InboundError:
    if known is None:
        return BeingStoredError("this id is being forgotten")
    if known != seen.body_sha256:
        return ConflictError("this id was accepted before with another body")
    return Replay.DUPLICATE
