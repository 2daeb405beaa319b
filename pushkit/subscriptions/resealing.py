"""Which secret keys subscriptions are sealed with, and sealing them with another, as scripts.

What is to be sealed is found by reading, and written row by row: only where it still is what was
read, and where nobody holds the row. Whoever enqueues or settles meanwhile waits for nothing.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass

from pushkit.storage import Script, Statement
from pushkit.subscriptions.store import stored_subscription
from pushkit.subscriptions.vault import (
    SEALED_PREFIX,
    SEALED_PREFIX_CHARS,
    Secrets,
    StoredSubscription,
    sealed_with,
)

__all__ = ["Resealed", "Resealing"]

_COLUMNS = ("token", "credentials")


@dataclass(frozen=True, slots=True, kw_only=True)
class Resealed:
    """A subscription's secrets as they were found, and as they are to be."""

    id: str
    found: Secrets
    sealed: Secrets


class Resealing:
    """Scripts over the secrets of all subscriptions."""

    def keys(self) -> Script[Counter[str | None]]:
        """Return with which keys how many secrets are sealed, by id; None for plain ones."""
        counted: Counter[str | None] = Counter()
        for column in _COLUMNS:
            # Of a plain secret nothing is read, not even its beginning.
            head = (
                f"CASE WHEN SUBSTR({column}, 1, {len(SEALED_PREFIX)}) = '{SEALED_PREFIX}'"
                f" THEN SUBSTR({column}, 1, {SEALED_PREFIX_CHARS}) END"
            )
            rows = yield Statement(
                f"SELECT {head} AS head, COUNT(*) AS found FROM pushkit_subscriptions"
                f" WHERE {column} IS NOT NULL GROUP BY 1"
            )
            for row in rows:
                counted[None if row["head"] is None else sealed_with(row["head"])] += row["found"]
        return counted

    def find(self, head: str, *, after: str, limit: int) -> Script[list[StoredSubscription]]:
        """Return a page of subscriptions with a secret that does not begin with `head`."""
        other = " OR ".join(
            f"({column} IS NOT NULL AND SUBSTR({column}, 1, {SEALED_PREFIX_CHARS}) <> $1)"
            for column in _COLUMNS
        )
        rows = yield Statement(
            f"SELECT * FROM pushkit_subscriptions WHERE id > $2 AND ({other})"
            " ORDER BY id LIMIT CAST($3 AS BIGINT)",
            (head, after, limit),
        )
        return [stored_subscription(row) for row in rows]

    def write(self, resealed: Sequence[Resealed]) -> Script[int]:
        """Write secrets, in id order; return how many rows were still as they were found."""
        written = 0
        for each in resealed:
            rows = yield Statement(
                "UPDATE pushkit_subscriptions SET token = $2, credentials = $3 WHERE id IN"
                " (SELECT id FROM pushkit_subscriptions WHERE id = $1"
                " AND COALESCE(token, '') = $4 AND COALESCE(credentials, '') = $5"
                " FOR UPDATE SKIP LOCKED) RETURNING id",
                (
                    each.id,
                    each.sealed.token,
                    each.sealed.credentials,
                    each.found.token or "",
                    each.found.credentials or "",
                ),
            )
            written += len(rows)
        return written
