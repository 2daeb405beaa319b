"""The deliveries table and the indexes that its scripts look at."""

from __future__ import annotations

from pushkit.outbox.destinations import DESTINATIONS_TABLE
from pushkit.storage.migrations import Migration

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

_LOGGED = "(SELECT COUNT(*) FROM pushkit_attempts a WHERE a.delivery_id = pushkit_deliveries.id)"

CLAIMS_MIGRATION = Migration(
    6,
    (
        # Before, `attempts` counted claims: it was the fence, and used up the schedule, too.
        "ALTER TABLE pushkit_deliveries ADD COLUMN claims BIGINT NOT NULL DEFAULT 0",
        "ALTER TABLE pushkit_deliveries ADD COLUMN fruitless_claims INTEGER NOT NULL DEFAULT 0",
        "UPDATE pushkit_deliveries SET claims = attempts WHERE attempts > 0",
        # A claim whose process died left no attempt behind. The one in flight has none yet.
        (
            f"UPDATE pushkit_deliveries SET attempts = {_LOGGED}"
            " WHERE state IN ('pending', 'in_flight') AND attempts >"
            f" {_LOGGED} + CASE WHEN state = 'in_flight' THEN 1 ELSE 0 END"
        ),
        # What is in flight is counted by owner, destination and worker, in every claim.
        "DROP INDEX pushkit_deliveries_leased",
        (
            "CREATE INDEX pushkit_deliveries_leased ON pushkit_deliveries"
            " (lease_until, lease_worker, tenant, owner, origin) WHERE state = 'in_flight'"
        ),
        # The oldest head of each destination, from one to the next.
        "DROP INDEX pushkit_deliveries_heads",
        (
            "CREATE INDEX pushkit_deliveries_heads ON pushkit_deliveries"
            " (tenant, owner, origin, not_before) WHERE head = 1 AND state = 'pending'"
        ),
        # Heads that are parked, and the destinations that have some (`pushkit.outbox.parking`).
        (
            "CREATE INDEX pushkit_deliveries_parked ON pushkit_deliveries"
            " (tenant, owner, origin, not_before) WHERE head = 2 AND state = 'pending'"
        ),
        """
        CREATE TABLE pushkit_parked (
            tenant TEXT NOT NULL,
            owner TEXT NOT NULL,
            origin TEXT NOT NULL,
            again_at BIGINT NOT NULL,
            PRIMARY KEY (tenant, owner, origin)
        )
        """,
        "CREATE INDEX pushkit_parked_again ON pushkit_parked (again_at)",
    ),
)

BODIES_MIGRATION = Migration(
    12,
    (
        # A delivery changes its state twice at least, and SQLite writes the row anew each time.
        "CREATE TABLE pushkit_bodies (id TEXT PRIMARY KEY, body BYTEA NOT NULL)",
        "INSERT INTO pushkit_bodies (id, body) SELECT id, body FROM pushkit_deliveries",
        "ALTER TABLE pushkit_deliveries DROP COLUMN body",
    ),
)

# Beside the body: written once, and read with it.
TRACES_MIGRATION = Migration(
    13, ("ALTER TABLE pushkit_bodies ADD COLUMN traceparent TEXT",), may_roll=True
)

# Of one error, newest first. What is delivered has none, and is in no such index.
PAGES_MIGRATION = Migration(
    14,
    (
        (
            "CREATE INDEX pushkit_deliveries_error ON pushkit_deliveries (last_error, id)"
            " WHERE last_error IS NOT NULL"
        ),
    ),
    may_roll=True,
)
