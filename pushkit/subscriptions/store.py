"""The subscriptions table, as scripts (see `pushkit.storage.script`)."""

from __future__ import annotations

import json
import uuid
from collections.abc import Sequence
from datetime import datetime

from pushkit.a2a import Authentication, PushConfig, WireVersion
from pushkit.storage import Migration, Row, Script, Statement, from_micros, to_micros
from pushkit.subscriptions.model import Profile, Subscription, SubscriptionKey

__all__ = ["MIGRATION", "SubscriptionStore"]

MIGRATION = Migration(
    1,
    (
        """
        CREATE TABLE pushkit_subscriptions (
            id TEXT PRIMARY KEY,
            tenant TEXT NOT NULL,
            task_id TEXT NOT NULL,
            owner TEXT NOT NULL,
            config_id TEXT NOT NULL,
            version TEXT NOT NULL,
            url TEXT NOT NULL,
            origin TEXT NOT NULL,
            token TEXT,
            schemes TEXT NOT NULL,
            credentials TEXT,
            profile TEXT NOT NULL,
            last_seq BIGINT NOT NULL DEFAULT 0,
            active INTEGER NOT NULL DEFAULT 1,
            created_at BIGINT NOT NULL,
            updated_at BIGINT NOT NULL,
            UNIQUE (tenant, task_id, owner, config_id)
        )
        """,
    ),
)

_BY_KEY = "tenant = $1 AND task_id = $2 AND owner = $3 AND config_id = $4"


class SubscriptionStore:
    """Scripts over `pushkit_subscriptions`."""

    def put(
        self,
        key: SubscriptionKey,
        config: PushConfig,
        *,
        version: WireVersion,
        origin: str,
        profile: Profile,
        now: datetime,
    ) -> Script[Subscription]:
        """Create a subscription, or change the one of this key, which keeps its id and `seq`."""
        schemes, credentials = _authentication_columns(config.authentication)
        rows = yield Statement(
            "INSERT INTO pushkit_subscriptions (tenant, task_id, owner, config_id, id, version,"
            " url, origin, token, schemes, credentials, profile, created_at, updated_at)"
            " VALUES ($1, $2, $3, $4, $5, $6, $7, $8, $9, $10, $11, $12, $13, $13)"
            " ON CONFLICT (tenant, task_id, owner, config_id) DO UPDATE SET"
            " version = excluded.version, url = excluded.url, origin = excluded.origin,"
            " token = excluded.token, schemes = excluded.schemes,"
            " credentials = excluded.credentials, profile = excluded.profile,"
            " active = 1, updated_at = excluded.updated_at RETURNING *",
            (
                *_key_columns(key),
                f"sub_{uuid.uuid4().hex}",
                version.value,
                config.url,
                origin,
                config.token,
                schemes,
                credentials,
                profile.value,
                to_micros(now),
            ),
        )
        return _subscription(rows[0])

    def remove(self, key: SubscriptionKey) -> Script[str | None]:
        """Remove a subscription and return its id, or None if there was none."""
        rows = yield Statement(
            f"DELETE FROM pushkit_subscriptions WHERE {_BY_KEY} RETURNING id",
            _key_columns(key),
        )
        return str(rows[0]["id"]) if rows else None

    def of_owner(self, *, tenant: str, task_id: str, owner: str) -> Script[list[Subscription]]:
        """Return one owner's subscriptions to a task, oldest first."""
        rows = yield Statement(
            "SELECT * FROM pushkit_subscriptions"
            " WHERE tenant = $1 AND task_id = $2 AND owner = $3 ORDER BY created_at, id",
            (tenant, task_id, owner),
        )
        return [_subscription(row) for row in rows]

    def active_of_task(self, *, tenant: str, task_id: str) -> Script[list[Subscription]]:
        """Return every owner's active subscriptions to a task, in id order."""
        rows = yield Statement(
            "SELECT * FROM pushkit_subscriptions"
            " WHERE tenant = $1 AND task_id = $2 AND active = 1 ORDER BY id",
            (tenant, task_id),
        )
        return [_subscription(row) for row in rows]

    def lock_active_of_task(self, *, tenant: str, task_id: str) -> Script[list[Subscription]]:
        """Return the same, and hold the rows until the transaction ends.

        In id order, like everybody who locks several: two callers cannot deadlock. Whoever adds to
        a subscription's deliveries, or finishes one, holds its row, so that between them the mark
        of the oldest is never lost.
        """
        rows = yield Statement(
            "SELECT * FROM pushkit_subscriptions"
            " WHERE tenant = $1 AND task_id = $2 AND active = 1 ORDER BY id FOR UPDATE",
            (tenant, task_id),
        )
        return [_subscription(row) for row in rows]

    def lock(self, subscription_id: str) -> Script[Subscription | None]:
        """Return one subscription, its row held until the transaction ends; None if it is gone."""
        rows = yield Statement(
            "SELECT * FROM pushkit_subscriptions WHERE id = $1 FOR UPDATE", (subscription_id,)
        )
        return _subscription(rows[0]) if rows else None

    def by_ids(self, ids: Sequence[str]) -> Script[dict[str, Subscription]]:
        """Return subscriptions by id; ids that are gone are left out."""
        found: dict[str, Subscription] = {}
        for subscription_id in dict.fromkeys(ids):
            rows = yield Statement(
                "SELECT * FROM pushkit_subscriptions WHERE id = $1", (subscription_id,)
            )
            if rows:
                found[subscription_id] = _subscription(rows[0])
        return found

    def take_seq(self, subscription_id: str) -> Script[int]:
        """Return the next `seq` of a subscription: 1, 2, 3… without gaps."""
        rows = yield Statement(
            "UPDATE pushkit_subscriptions SET last_seq = last_seq + 1 WHERE id = $1"
            " RETURNING last_seq",
            (subscription_id,),
        )
        return int(rows[0]["last_seq"])

    def disable(self, subscription_id: str, now: datetime) -> Script[None]:
        """Stop a subscription whose webhook answered 410 Gone; registering it again revives it."""
        yield Statement(
            "UPDATE pushkit_subscriptions SET active = 0, updated_at = $2 WHERE id = $1",
            (subscription_id, to_micros(now)),
        )


def _key_columns(key: SubscriptionKey) -> tuple[str, str, str, str]:
    return (key.tenant, key.task_id, key.owner, key.config_id)


def _authentication_columns(authentication: Authentication | None) -> tuple[str, str | None]:
    if authentication is None:
        return "[]", None
    return json.dumps(authentication.schemes), authentication.credentials


def _subscription(row: Row) -> Subscription:
    schemes = json.loads(row["schemes"])
    authentication = (
        Authentication(schemes=tuple(schemes), credentials=row["credentials"]) if schemes else None
    )
    return Subscription(
        id=row["id"],
        key=SubscriptionKey(
            tenant=row["tenant"],
            task_id=row["task_id"],
            owner=row["owner"],
            config_id=row["config_id"],
        ),
        version=WireVersion(row["version"]),
        config=PushConfig(
            url=row["url"], id=row["config_id"], token=row["token"], authentication=authentication
        ),
        origin=row["origin"],
        profile=Profile(row["profile"]),
        last_seq=row["last_seq"],
        active=bool(row["active"]),
        created_at=from_micros(row["created_at"]),
    )
