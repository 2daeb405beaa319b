"""Idempotency keys, as scripts (see `pushkit.storage.script`): the same key stores nothing twice.

A key is the caller's own, unique within a task. It is remembered as long as the deliveries that it
made, those of subscriptions that have ended since included.
"""

from __future__ import annotations

from dataclasses import dataclass

from pushkit.errors import IdempotencyConflictError
from pushkit.storage import Migration, Script, Statement

__all__ = ["IDEMPOTENCY_MIGRATION", "IdempotencyKey", "find_enqueued"]

IDEMPOTENCY_MIGRATION = Migration(
    4,
    (
        "ALTER TABLE pushkit_deliveries ADD COLUMN update_sha256 TEXT",
        "DROP INDEX pushkit_deliveries_idempotency",
        (
            "CREATE UNIQUE INDEX pushkit_deliveries_key ON pushkit_deliveries"
            " (tenant, task_id, idempotency_key, subscription_id)"
            " WHERE idempotency_key IS NOT NULL"
        ),
    ),
)


@dataclass(frozen=True, slots=True, kw_only=True)
class IdempotencyKey:
    """A key, and the update that it stands for.

    Attributes:
        key: The caller's own.
        update_sha256: Tells two updates apart. Of the update and not of a body: the 0.3 body is
            the task as it is just then, and another one where the same update is repeated.
    """

    key: str
    update_sha256: str


def find_enqueued(key: IdempotencyKey, *, tenant: str, task_id: str) -> Script[dict[str, str]]:
    """Return the deliveries that a key made already: ids by subscription, in id order.

    Raises:
        IdempotencyConflictError: The key was used with another update.
    """
    rows = yield Statement(
        "SELECT id, subscription_id, update_sha256 FROM pushkit_deliveries"
        " WHERE tenant = $1 AND task_id = $2 AND idempotency_key = $3 ORDER BY subscription_id",
        (tenant, task_id, key.key),
    )
    # A worker of the version before this column stored none: then the key alone counts.
    if any(row["update_sha256"] not in {None, key.update_sha256} for row in rows):
        raise IdempotencyConflictError(
            f"idempotency key {key.key!r} was used before with another payload:"
            " use a new key for a new update"
        )
    return {row["subscription_id"]: row["id"] for row in rows}
