"""The tables of the receiver's database. Moments are whole microseconds; yes is 1, no 0."""

from __future__ import annotations

from pushkit.queue.tables import QUEUE_COLUMNS
from pushkit.storage.migrations import Migration, statements
from receiver.inbox.mailboxes import MAILBOXES
from receiver.inbox.store import INBOX

_QUEUE = f"""
    id TEXT PRIMARY KEY,
    tenant TEXT NOT NULL,
    owner TEXT NOT NULL,                 -- the sender, or the mailbox
    origin TEXT NOT NULL,
    paused INTEGER NOT NULL DEFAULT 0,
    last_seq BIGINT NOT NULL DEFAULT 0,  -- the `place` of the newest one
{QUEUE_COLUMNS}
"""

SCHEMA = statements(f"""
CREATE TABLE pushkit_forgotten (  -- ids of notifications that were deleted: they were accepted
    sender TEXT NOT NULL,
    delivery_id TEXT NOT NULL,
    body_sha256 TEXT NOT NULL,
    accepted_at BIGINT NOT NULL,
    PRIMARY KEY (sender, delivery_id)
);
CREATE INDEX pushkit_forgotten_age ON pushkit_forgotten (accepted_at);

CREATE TABLE pushkit_expected (  -- tokens and credentials given to agents, and their tasks
    sender TEXT NOT NULL,
    token_sha256 TEXT,
    task_id TEXT,
    created_at BIGINT NOT NULL,
    expires_at BIGINT,
    withdrawn_at BIGINT,
    credentials_sha256 TEXT,
    expectation TEXT,  -- the id of the expectation: a token that replaces another inherits it
    static INTEGER NOT NULL DEFAULT 0  -- binds a token of the configuration: kept for ever
);
CREATE UNIQUE INDEX pushkit_expected_token
    ON pushkit_expected (sender, token_sha256) WHERE token_sha256 IS NOT NULL;
CREATE UNIQUE INDEX pushkit_expected_credentials
    ON pushkit_expected (sender, credentials_sha256) WHERE credentials_sha256 IS NOT NULL;
CREATE INDEX pushkit_expected_expectation
    ON pushkit_expected (expectation) WHERE expectation IS NOT NULL;
CREATE INDEX pushkit_expected_task ON pushkit_expected (sender, task_id);
CREATE INDEX pushkit_expected_ended
    ON pushkit_expected ((COALESCE(withdrawn_at, expires_at))) WHERE static = 0;

CREATE TABLE pushkit_inbox_queues ({_QUEUE});  -- receiver.inbox.store

CREATE TABLE pushkit_inbox (  -- accepted notifications
    id INTEGER PRIMARY KEY AUTOINCREMENT,
    queue_id TEXT NOT NULL,
    place BIGINT NOT NULL,              -- in its queue
    sender TEXT NOT NULL,
    delivery_id TEXT NOT NULL,
    task_id TEXT,
    config_id TEXT,
    seq BIGINT,
    missing BIGINT NOT NULL,            -- how many numbers before it had not arrived
    late INTEGER NOT NULL,              -- a higher number had arrived before it
    version TEXT NOT NULL,              -- of A2A: what the body was read as
    generation_before BIGINT,           -- of the task, if its own does not follow on that
    kid TEXT NOT NULL,
    issued_at BIGINT NOT NULL,
    received_at BIGINT NOT NULL,
    body BYTEA NOT NULL,
    body_bytes INTEGER NOT NULL,
    body_sha256 TEXT NOT NULL,
    traceparent TEXT,
    not_before BIGINT NOT NULL,
    scheduled_at BIGINT NOT NULL,       -- when that was set
    state TEXT NOT NULL DEFAULT 'pending',  -- receiver.inbox.store
    waits INTEGER NOT NULL DEFAULT 0,   -- redriven under a lease, and not fetched yet
    redrives INTEGER NOT NULL DEFAULT 0,  -- fences results of before off
    attempts INTEGER NOT NULL DEFAULT 0,
    finished_at BIGINT,
    redriven_at BIGINT,
    last_error TEXT,
    unmatched INTEGER NOT NULL DEFAULT 0,  -- done, because no callback wanted it
    UNIQUE (sender, delivery_id)
);
CREATE INDEX pushkit_inbox_task ON pushkit_inbox (task_id, id);
CREATE INDEX pushkit_inbox_unfinished ON pushkit_inbox (sender, id) WHERE state = 'pending';
CREATE INDEX pushkit_inbox_done ON pushkit_inbox (finished_at) WHERE state = 'done';
CREATE INDEX pushkit_inbox_buried ON pushkit_inbox (finished_at) WHERE state = 'dead';
CREATE INDEX pushkit_inbox_dead ON pushkit_inbox (id, sender) WHERE state = 'dead';
CREATE INDEX pushkit_inbox_unmatched ON pushkit_inbox (id, sender) WHERE unmatched = 1;
CREATE INDEX pushkit_inbox_gaps
    ON pushkit_inbox (sender, missing, late) WHERE missing > 0 OR late = 1;

CREATE TABLE pushkit_callbacks (  -- the outcome of each callback that was called
    notification_id BIGINT NOT NULL,
    callback TEXT NOT NULL,
    done INTEGER NOT NULL,
    attempts INTEGER NOT NULL,
    last_error TEXT,
    last_at BIGINT,
    PRIMARY KEY (notification_id, callback)
);

CREATE TABLE pushkit_sequences (  -- the highest numbers of each subscription
    sender TEXT NOT NULL,
    task_id TEXT NOT NULL,
    config_id TEXT NOT NULL,
    last_seq BIGINT NOT NULL,           -- 0 if its sender states none, like the next
    last_generation BIGINT NOT NULL,
    updated_at BIGINT NOT NULL DEFAULT 0,
    PRIMARY KEY (sender, task_id, config_id)
);
CREATE INDEX pushkit_sequences_age ON pushkit_sequences (updated_at);

{INBOX.indexes()}
""")

MAILBOX_SCHEMA = statements(f"""
CREATE TABLE pushkit_mailbox_queues ({_QUEUE});  -- the tasks of each: receiver.inbox.mailboxes

CREATE TABLE pushkit_mailbox (  -- notifications that clients fetch; their bodies are in the inbox
    id INTEGER PRIMARY KEY AUTOINCREMENT,
    queue_id TEXT NOT NULL,
    place BIGINT NOT NULL,              -- in its queue
    mailbox TEXT NOT NULL,
    notification_id BIGINT NOT NULL,
    body_bytes INTEGER NOT NULL,
    kept_at BIGINT NOT NULL,
    first_at BIGINT,                    -- when it was handed out first
    not_before BIGINT NOT NULL,
    scheduled_at BIGINT NOT NULL,       -- when that was set
    state TEXT NOT NULL DEFAULT 'pending',
    waits INTEGER NOT NULL DEFAULT 0,   -- redriven under a lease, and not fetched yet
    redrives INTEGER NOT NULL DEFAULT 0,
    attempts INTEGER NOT NULL DEFAULT 0,
    epoch BIGINT NOT NULL DEFAULT 0,    -- of the lease under which it was handed out last
    finished_at BIGINT,
    last_error TEXT,
    UNIQUE (notification_id, mailbox)
);
CREATE INDEX pushkit_mailbox_queue ON pushkit_mailbox (queue_id);
CREATE INDEX pushkit_mailbox_state ON pushkit_mailbox (mailbox, state, id)
    WHERE state IN ('pending', 'dead');

{MAILBOXES.indexes()}
""")

RECEIVER_MIGRATIONS = (Migration(1, SCHEMA), Migration(2, MAILBOX_SCHEMA, may_roll=True))
"""A released one is never changed."""
