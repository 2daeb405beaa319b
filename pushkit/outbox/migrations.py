"""The migrations of the sender's tables. A released one is never changed.

The newest one carries `SCHEMA`, which makes all tables in an empty database.
"""

from __future__ import annotations

from pushkit.outbox.schema import SCHEMA
from pushkit.storage.migrations import Migration, statements

SENDER_MIGRATIONS = (
    Migration(
        1,
        statements("""
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
    filter TEXT NOT NULL,
    active INTEGER NOT NULL DEFAULT 1,
    paused INTEGER NOT NULL DEFAULT 0,
    ended INTEGER NOT NULL DEFAULT 0,
    failing_since BIGINT,
    created_at BIGINT NOT NULL,
    updated_at BIGINT NOT NULL,
    removed_at BIGINT
);
-- One that was removed after its task's end stays for its dead letters; its key is free.
CREATE UNIQUE INDEX pushkit_subscriptions_key
    ON pushkit_subscriptions (tenant, task_id, owner, config_id) WHERE removed_at IS NULL;
"""),
    ),
    Migration(
        2,
        statements("""
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
);
CREATE UNIQUE INDEX pushkit_deliveries_seq ON pushkit_deliveries (subscription_id, seq);
CREATE UNIQUE INDEX pushkit_deliveries_idempotency
    ON pushkit_deliveries (subscription_id, idempotency_key) WHERE idempotency_key IS NOT NULL;
CREATE INDEX pushkit_deliveries_due
    ON pushkit_deliveries (not_before) WHERE head = 1 AND state = 'pending';
CREATE INDEX pushkit_deliveries_heads
    ON pushkit_deliveries (tenant, owner, origin) WHERE head = 1 AND state = 'pending';
CREATE INDEX pushkit_deliveries_leased
    ON pushkit_deliveries (lease_until) WHERE state = 'in_flight';
CREATE INDEX pushkit_deliveries_unfinished
    ON pushkit_deliveries (subscription_id, seq) WHERE state IN ('pending', 'in_flight');
-- What was finished, oldest first, for retention; dead letters, for whoever looks at them.
CREATE INDEX pushkit_deliveries_finished
    ON pushkit_deliveries (finished_at) WHERE finished_at IS NOT NULL;
CREATE INDEX pushkit_deliveries_dead ON pushkit_deliveries (id) WHERE state = 'dead';
CREATE INDEX pushkit_deliveries_task ON pushkit_deliveries (tenant, task_id, seq);
CREATE TABLE pushkit_destinations (
    tenant TEXT NOT NULL,
    owner TEXT NOT NULL,
    origin TEXT NOT NULL,
    until BIGINT NOT NULL DEFAULT 0,
    failures INTEGER NOT NULL DEFAULT 0,
    PRIMARY KEY (tenant, owner, origin)
);
"""),
    ),
    Migration(
        3,
        statements("""
CREATE TABLE pushkit_attempts (
    delivery_id TEXT NOT NULL,
    number INTEGER NOT NULL,
    started_at BIGINT NOT NULL,
    duration BIGINT NOT NULL,
    resolve BIGINT,
    connect BIGINT,
    wait BIGINT,
    body BIGINT,
    address TEXT,
    outcome TEXT NOT NULL,
    status INTEGER,
    error TEXT,
    answer BYTEA,
    PRIMARY KEY (delivery_id, number)
);
"""),
        may_roll=True,
    ),
    Migration(
        4,
        statements("""
ALTER TABLE pushkit_deliveries ADD COLUMN update_sha256 TEXT;
DROP INDEX pushkit_deliveries_idempotency;
CREATE UNIQUE INDEX pushkit_deliveries_key
    ON pushkit_deliveries (tenant, task_id, idempotency_key, subscription_id)
    WHERE idempotency_key IS NOT NULL;
"""),
        may_roll=True,
    ),
    Migration(
        5,
        statements("""
CREATE INDEX pushkit_subscriptions_owner
    ON pushkit_subscriptions (tenant, owner) WHERE removed_at IS NULL;
-- The URL itself may be a secret: its hash is enough to know it again.
CREATE TABLE pushkit_proved_urls (
    tenant TEXT NOT NULL,
    owner TEXT NOT NULL,
    url_sha256 TEXT NOT NULL,
    proved_at BIGINT NOT NULL,
    PRIMARY KEY (tenant, owner, url_sha256)
);
CREATE INDEX pushkit_proved_urls_age ON pushkit_proved_urls (proved_at);
"""),
        may_roll=True,
    ),
    Migration(
        6,
        statements("""
-- Before, `attempts` counted claims: it was the fence, and used up the schedule, too.
ALTER TABLE pushkit_deliveries ADD COLUMN claims BIGINT NOT NULL DEFAULT 0;
ALTER TABLE pushkit_deliveries ADD COLUMN fruitless_claims INTEGER NOT NULL DEFAULT 0;
UPDATE pushkit_deliveries SET claims = attempts WHERE attempts > 0;
-- A claim whose process died left no attempt behind. The one in flight has none yet.
UPDATE pushkit_deliveries SET attempts =
    (SELECT COUNT(*) FROM pushkit_attempts a WHERE a.delivery_id = pushkit_deliveries.id)
    WHERE state IN ('pending', 'in_flight') AND attempts >
    (SELECT COUNT(*) FROM pushkit_attempts a WHERE a.delivery_id = pushkit_deliveries.id)
    + CASE WHEN state = 'in_flight' THEN 1 ELSE 0 END;
-- What is in flight is counted by owner, destination and worker, in every claim.
DROP INDEX pushkit_deliveries_leased;
CREATE INDEX pushkit_deliveries_leased
    ON pushkit_deliveries (lease_until, lease_worker, tenant, owner, origin)
    WHERE state = 'in_flight';
-- The oldest head of each destination, from one to the next.
DROP INDEX pushkit_deliveries_heads;
CREATE INDEX pushkit_deliveries_heads
    ON pushkit_deliveries (tenant, owner, origin, not_before) WHERE head = 1 AND state = 'pending';
-- Heads that are parked, and the destinations that have some (`pushkit.outbox.parking`).
CREATE INDEX pushkit_deliveries_parked
    ON pushkit_deliveries (tenant, owner, origin, not_before) WHERE head = 2 AND state = 'pending';
CREATE TABLE pushkit_parked (
    tenant TEXT NOT NULL,
    owner TEXT NOT NULL,
    origin TEXT NOT NULL,
    again_at BIGINT NOT NULL,
    PRIMARY KEY (tenant, owner, origin)
);
CREATE INDEX pushkit_parked_again ON pushkit_parked (again_at);
"""),
    ),
    Migration(
        7,
        statements("""
-- The tenant is the client's choice: what an owner has is counted over all of them.
CREATE INDEX pushkit_subscriptions_of_owner
    ON pushkit_subscriptions (owner) WHERE removed_at IS NULL;
DROP INDEX pushkit_subscriptions_owner;
"""),
        may_roll=True,
    ),
    Migration(
        8,
        statements("""
-- NULL for what was cancelled before there was this column.
ALTER TABLE pushkit_deliveries ADD COLUMN cancelled_by TEXT;
ALTER TABLE pushkit_subscriptions ADD COLUMN disabled_by TEXT;
ALTER TABLE pushkit_subscriptions ADD COLUMN disabled_at BIGINT;
"""),
        may_roll=True,
    ),
    Migration(
        9,
        statements("""
ALTER TABLE pushkit_subscriptions ADD COLUMN revision INTEGER NOT NULL DEFAULT 0;
"""),
    ),
    Migration(
        10,
        statements("""
ALTER TABLE pushkit_deliveries ADD COLUMN first_attempt TEXT;
"""),
    ),
    Migration(
        11,
        statements("""
-- Whether there is a key or not: a task's deliveries are found by this one, too.
DROP INDEX pushkit_deliveries_task;
DROP INDEX pushkit_deliveries_key;
CREATE UNIQUE INDEX pushkit_deliveries_key
    ON pushkit_deliveries (tenant, task_id, idempotency_key, subscription_id);
"""),
        may_roll=True,
    ),
    Migration(
        12,
        statements("""
-- A delivery changes its state twice at least, and SQLite writes the row anew each time.
CREATE TABLE pushkit_bodies (id TEXT PRIMARY KEY, body BYTEA NOT NULL);
INSERT INTO pushkit_bodies (id, body) SELECT id, body FROM pushkit_deliveries;
ALTER TABLE pushkit_deliveries DROP COLUMN body;
"""),
    ),
    # In the table of bodies: it is written once, and read with the body.
    Migration(
        13,
        statements("""
ALTER TABLE pushkit_bodies ADD COLUMN traceparent TEXT;
"""),
        may_roll=True,
    ),
    # For the deliveries with one error, newest first. Delivered ones are not in the index.
    Migration(
        14,
        statements("""
CREATE INDEX pushkit_deliveries_error
    ON pushkit_deliveries (last_error, id) WHERE last_error IS NOT NULL;
"""),
        may_roll=True,
    ),
    Migration(
        15,
        statements("""
DROP INDEX pushkit_deliveries_heads;
CREATE INDEX pushkit_deliveries_heads
    ON pushkit_deliveries (tenant, owner, origin, not_before)
    WHERE head >= 1 AND head <= 1 AND state = 'pending';
"""),
        may_roll=True,
    ),
    # A wait that was set by a clock that was ahead counts from when that is corrected.
    Migration(
        16,
        statements("""
ALTER TABLE pushkit_deliveries ADD COLUMN scheduled_at BIGINT;
ALTER TABLE pushkit_destinations ADD COLUMN set_at BIGINT NOT NULL DEFAULT 0;
"""),
        may_roll=True,
        anew=SCHEMA,
    ),
)
