"""Which secret keys bodies are sealed with, and sealing them with another, as scripts.

Written row by row, and only where nobody holds the row: see `pushkit.subscriptions.resealing`.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass, field

from pushkit.secrets.sealing import SEALED, SEALED_HEAD_BYTES
from pushkit.storage import Script, Statement

__all__ = ["BodyResealing", "ResealedBody", "StoredBody"]


@dataclass(frozen=True, slots=True, kw_only=True)
class StoredBody:
    """A body as it is stored."""

    delivery_id: str
    body: bytes = field(repr=False)


@dataclass(frozen=True, slots=True, kw_only=True)
class ResealedBody:
    """A body as it was found, and as it is to be."""

    found: StoredBody
    sealed: bytes = field(repr=False)


class BodyResealing:
    """Scripts over the bodies of all deliveries, finished ones included."""

    def keys(self) -> Script[Counter[str | None]]:
        """Return with which keys how many bodies are sealed, by id; None for plain ones."""
        rows = yield Statement(
            f"SELECT CASE WHEN SUBSTR(body, 1, {len(SEALED)}) = $1"
            f" THEN SUBSTR(body, 1, {SEALED_HEAD_BYTES}) END AS head, COUNT(*) AS found"
            " FROM pushkit_deliveries GROUP BY 1",
            (SEALED,),
        )
        counted: Counter[str | None] = Counter()
        for row in rows:
            head = row["head"]
            counted[None if head is None else bytes(head)[len(SEALED) :].hex()] += row["found"]
        return counted

    def find(self, head: bytes, *, plain: bool, after: str, limit: int) -> Script[list[StoredBody]]:
        """Return a page of bodies that are sealed with another key.

        Args:
            head: How bodies begin that are sealed with the right one.
            plain: Return bodies that are not sealed, too.
            after: The last id of the page before.
            limit: How many at most.
        """
        rows = yield Statement(
            "SELECT id, body FROM pushkit_deliveries WHERE id > $2"
            f" AND SUBSTR(body, 1, {SEALED_HEAD_BYTES}) <> $1"
            f" AND (CAST($3 AS BIGINT) = 1 OR SUBSTR(body, 1, {len(SEALED)}) = $4)"
            " ORDER BY id LIMIT CAST($5 AS BIGINT)",
            (head, after, int(plain), SEALED, limit),
        )
        return [StoredBody(delivery_id=row["id"], body=bytes(row["body"])) for row in rows]

    def write(self, resealed: Sequence[ResealedBody]) -> Script[int]:
        """Write bodies; return how many rows were still as they were found."""
        written = 0
        for each in resealed:
            rows = yield Statement(
                "UPDATE pushkit_deliveries SET body = $2 WHERE id IN"
                " (SELECT id FROM pushkit_deliveries WHERE id = $1 AND body = $3"
                " FOR UPDATE SKIP LOCKED) RETURNING id",
                (each.found.delivery_id, each.sealed, each.found.body),
            )
            written += len(rows)
        return written
