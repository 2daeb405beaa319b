"""The deliveries table and the indexes that its scripts look at."""

from __future__ import annotations

from pushkit.outbox.destinations import DESTINATIONS_TABLE
from pushkit.storage import Migration

__all__ = ["MIGRATION"]

MIGRATION = Migration(
    2,
    (
        """
        CREATE TABLE pushkit_deliveries (
            id TEXT PRIMARY KEY,
            subscription_id TEXT NOT NULL,
            tenant TEXT NOT NULL,
            owner TEXT NOT NULL,
            task_id TEXT NOT NULL,
            config_id TEXT NOT NULL,
            seq BIGINT NOT NULL,
            origin TEXT NOT NULL,
            content_type TEXT NOT NULL,
            body BYTEA NOT NULL,
            idempotency_key TEXT,
            status TEXT,
            state TEXT NOT NULL DEFAULT 'pending',
            head INTEGER NOT NULL,
            attempts INTEGER NOT NULL DEFAULT 0,
            notified_at BIGINT NOT NULL,
            not_before BIGINT NOT NULL,
            lease_worker TEXT,
            lease_until BIGINT,
            finished_at BIGINT,
            redriven_at BIGINT,
            last_status INTEGER,
            last_error TEXT
        )
        """,
        "CREATE UNIQUE INDEX pushkit_deliveries_seq ON pushkit_deliveries (subscription_id, seq)",
        (
            "CREATE UNIQUE INDEX pushkit_deliveries_idempotency ON pushkit_deliveries"
            " (subscription_id, idempotency_key) WHERE idempotency_key IS NOT NULL"
        ),
        (
            "CREATE INDEX pushkit_deliveries_due ON pushkit_deliveries (not_before)"
            " WHERE head = 1 AND state = 'pending'"
        ),
        (
            "CREATE INDEX pushkit_deliveries_heads ON pushkit_deliveries (tenant, owner, origin)"
            " WHERE head = 1 AND state = 'pending'"
        ),
        (
            "CREATE INDEX pushkit_deliveries_leased ON pushkit_deliveries (lease_until)"
            " WHERE state = 'in_flight'"
        ),
        (
            "CREATE INDEX pushkit_deliveries_unfinished ON pushkit_deliveries"
            " (subscription_id, seq) WHERE state IN ('pending', 'in_flight')"
        ),
        # What was finished, oldest first, for retention; dead letters, for whoever looks at them.
        (
            "CREATE INDEX pushkit_deliveries_finished ON pushkit_deliveries (finished_at)"
            " WHERE finished_at IS NOT NULL"
        ),
        "CREATE INDEX pushkit_deliveries_dead ON pushkit_deliveries (id) WHERE state = 'dead'",
        "CREATE INDEX pushkit_deliveries_task ON pushkit_deliveries (tenant, task_id, seq)",
        DESTINATIONS_TABLE,
    ),
)
