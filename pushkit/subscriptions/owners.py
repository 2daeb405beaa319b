"""Owners, as scripts: how much each one has stored, and the URLs that it proved to own."""

from __future__ import annotations

import hashlib
from datetime import datetime
from typing import NamedTuple

from pushkit.storage.script import Script, Statement, count, from_micros, to_micros


class Owner(NamedTuple):
    """An owner; the same name in another tenant is another owner."""

    tenant: str
    name: str


class OwnerStore:
    """Scripts over the subscriptions, deliveries and proved URLs of an owner.

    Quotas count by the owner's name alone: a client that chooses the tenant would otherwise have
    the quota again in each.
    """

    def subscriptions(self, owner: str, limit: int) -> Script[int]:
        """Return how many subscriptions an owner has, at most `limit`."""
        rows = "pushkit_subscriptions WHERE owner = $1 AND removed_at IS NULL"
        return count(rows, owner, limit=limit)

    def backlog(self, owner: str, limit: int) -> Script[int]:
        """Return how many deliveries to an owner are unfinished, at most `limit`.

        It joins the subscriptions: an index of deliveries by owner would cost every delivery.
        """
        return count(
            "pushkit_subscriptions s JOIN pushkit_deliveries d"
            " ON d.subscription_id = s.id AND d.state = 'pending'"
            " WHERE s.owner = $1 AND s.removed_at IS NULL",
            owner,
            limit=limit,
        )

    def proved_at(self, owner: Owner, url: str, *, since: datetime) -> Script[datetime | None]:
        """Return when a URL proved to be this owner's, if it did so after `since`."""
        rows = yield Statement(
            "SELECT proved_at FROM pushkit_proved_urls"
            " WHERE tenant = $1 AND owner = $2 AND url_sha256 = $3 AND proved_at > $4",
            (owner.tenant, owner.name, _sha256(url), to_micros(since)),
        )
        return from_micros(rows[0]["proved_at"]) if rows else None

    def prove(self, owner: Owner, url: str, *, now: datetime, since: datetime) -> Script[None]:
        """Store that a URL proved to be this owner's, and delete proofs from before `since`."""
        yield Statement(
            "DELETE FROM pushkit_proved_urls WHERE proved_at <= $1", (to_micros(since),)
        )
        yield Statement(
            "INSERT INTO pushkit_proved_urls (tenant, owner, url_sha256, proved_at)"
            " VALUES ($1, $2, $3, $4) ON CONFLICT (tenant, owner, url_sha256)"
            " DO UPDATE SET proved_at = excluded.proved_at",
            (owner.tenant, owner.name, _sha256(url), to_micros(now)),
        )


def _sha256(url: str) -> str:
    return hashlib.sha256(url.encode("utf-8")).hexdigest()
