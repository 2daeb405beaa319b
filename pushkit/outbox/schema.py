"""The tables of the sender's database: subscriptions are queues, deliveries are their jobs.

Times and durations are whole microseconds; true is 1, false 0.
"""

from __future__ import annotations

from collections.abc import Callable
from datetime import datetime
from pathlib import Path

from pushkit.clock import utc_now
from pushkit.queue.tables import QUEUE_COLUMNS
from pushkit.storage.database import Database
from pushkit.storage.migrations import Migration, statements
from pushkit.storage.opening import open_location
from pushkit.subscriptions.model import OUTBOX

SCHEMA = statements(f"""
CREATE TABLE pushkit_subscriptions (
    id TEXT PRIMARY KEY,
    tenant TEXT NOT NULL,
    task_id TEXT NOT NULL,
    owner TEXT NOT NULL,
    config_id TEXT NOT NULL,
    version TEXT NOT NULL,             -- of A2A, for its bodies
    url TEXT NOT NULL,                 -- this, the token and the credentials may be sealed
    origin TEXT NOT NULL,
    token TEXT,
    schemes TEXT NOT NULL,
    credentials TEXT,
    profile TEXT NOT NULL,
    last_seq BIGINT NOT NULL DEFAULT 0,
    filter TEXT NOT NULL,
    active INTEGER NOT NULL DEFAULT 1,
    paused INTEGER NOT NULL DEFAULT 0,
    ended INTEGER NOT NULL DEFAULT 0,  -- its task has ended
    failing_since BIGINT,
    created_at BIGINT NOT NULL,
    updated_at BIGINT NOT NULL,
    removed_at BIGINT,                 -- withdrawn: it is kept for its dead letters
    disabled_by TEXT,
    disabled_at BIGINT,
    revision INTEGER NOT NULL DEFAULT 0,
{QUEUE_COLUMNS}
);
CREATE UNIQUE INDEX pushkit_subscriptions_key
    ON pushkit_subscriptions (tenant, task_id, owner, config_id) WHERE removed_at IS NULL;
CREATE INDEX pushkit_subscriptions_of_owner  -- over all tenants, which are the client's choice
    ON pushkit_subscriptions (owner) WHERE removed_at IS NULL;

CREATE TABLE pushkit_proved_urls (  -- URLs that proved to be their owner's
    tenant TEXT NOT NULL,
    owner TEXT NOT NULL,
    url_sha256 TEXT NOT NULL,       -- the URL itself may be a secret
    proved_at BIGINT NOT NULL,
    PRIMARY KEY (tenant, owner, url_sha256)
);
CREATE INDEX pushkit_proved_urls_age ON pushkit_proved_urls (proved_at);

CREATE TABLE pushkit_recovered (  -- how many deliveries an owner had sent again on its last day
    owner TEXT PRIMARY KEY,         -- over all tenants, which are the client's choice
    day BIGINT NOT NULL,            -- since the epoch, in UTC
    number BIGINT NOT NULL
);

CREATE TABLE pushkit_deliveries (  -- the columns that attempts change: narrow rows
    id TEXT PRIMARY KEY,
    subscription_id TEXT NOT NULL,
    tenant TEXT NOT NULL,
    owner TEXT NOT NULL,
    task_id TEXT NOT NULL,
    config_id TEXT NOT NULL,
    seq BIGINT NOT NULL,
    origin TEXT NOT NULL,
    version TEXT NOT NULL,               -- of A2A, of the body
    body_bytes INTEGER NOT NULL,
    idempotency_key TEXT,
    status TEXT,                         -- StatusContent: whether a newer status may supersede it
    state TEXT NOT NULL DEFAULT 'pending',  -- pushkit.outbox.states
    waits INTEGER NOT NULL DEFAULT 0,    -- not fetched yet: redriven under a lease, or gathers
    attempts INTEGER NOT NULL DEFAULT 0,
    redrives INTEGER NOT NULL DEFAULT 0, -- fences results of before off
    faults INTEGER NOT NULL DEFAULT 0,   -- of this side, in a row, without a request
    notified_at BIGINT NOT NULL,
    not_before BIGINT NOT NULL,
    scheduled_at BIGINT NOT NULL,        -- when that was set
    finished_at BIGINT,
    redriven_at BIGINT,
    last_status INTEGER,
    last_error TEXT,
    update_sha256 TEXT,                  -- detects another update under the same idempotency key
    cancelled_by TEXT,
    first_attempt TEXT                   -- the first attempt, if it delivered
);
CREATE UNIQUE INDEX pushkit_deliveries_seq ON pushkit_deliveries (subscription_id, seq);
CREATE UNIQUE INDEX pushkit_deliveries_key  -- finds a task's deliveries, too
    ON pushkit_deliveries (tenant, task_id, idempotency_key, subscription_id);
CREATE INDEX pushkit_deliveries_finished  -- for retention
    ON pushkit_deliveries (finished_at) WHERE finished_at IS NOT NULL;
CREATE INDEX pushkit_deliveries_dead ON pushkit_deliveries (id) WHERE state = 'dead';
CREATE INDEX pushkit_deliveries_error
    ON pushkit_deliveries (last_error, id) WHERE last_error IS NOT NULL;

CREATE TABLE pushkit_bodies (  -- of deliveries: written once
    id TEXT PRIMARY KEY,
    body BYTEA NOT NULL,
    traceparent TEXT
);

CREATE TABLE pushkit_attempts (  -- all but the first attempts that delivered
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

CREATE TABLE pushkit_destinations (  -- those that failed or asked to wait
    tenant TEXT NOT NULL,
    owner TEXT NOT NULL,
    origin TEXT NOT NULL,
    until BIGINT NOT NULL DEFAULT 0,
    failures INTEGER NOT NULL DEFAULT 0,  -- in a row
    set_at BIGINT NOT NULL DEFAULT 0,     -- when `until` was set
    PRIMARY KEY (tenant, owner, origin)
);

CREATE TABLE pushkit_watches (  -- tasks of an agent behind a gateway that are under way
    tenant TEXT NOT NULL,
    task_id TEXT NOT NULL,
    version TEXT NOT NULL,    -- of A2A, in which the agent is asked
    binding TEXT NOT NULL,
    path TEXT NOT NULL,       -- of the agent's endpoint
    credentials TEXT,         -- header fields of the caller, may be sealed
    told TEXT NOT NULL,       -- a digest of all updates that were stored
    view TEXT NOT NULL,       -- a digest of the task as the last one left it
    holder TEXT,              -- the gateway that watches it
    due_at BIGINT NOT NULL,   -- when another may take it: the end of the holder's lease
    created_at BIGINT NOT NULL,
    PRIMARY KEY (tenant, task_id)
);
CREATE INDEX pushkit_watches_due ON pushkit_watches (due_at);
CREATE INDEX pushkit_watches_held ON pushkit_watches (holder);

{OUTBOX.indexes()}
""")

SENDER_MIGRATIONS = (Migration(1, SCHEMA),)
"""A released one is never changed."""


def open_outbox(location: str | Path, *, clock: Callable[[], datetime] = utc_now) -> Database:
    """Return the sender's database at a location, not yet open.

    Raises:
        ConfigError: A DSN, and the driver is not installed.
    """
    return open_location(location, component="outbox", migrations=SENDER_MIGRATIONS, clock=clock)
