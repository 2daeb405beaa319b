"""The migrations of the receiver's tables. A migration that was released is never changed.

The newest one also carries `SCHEMA`, which makes all tables in a new database.
"""

from __future__ import annotations

from pushkit.storage.migrations import Migration, statements
from receiver.inbox.schema import SCHEMA

RECEIVER_MIGRATIONS = (
    Migration(
        1,
        statements("""
CREATE TABLE pushkit_replay (
    sender TEXT NOT NULL,
    delivery_id TEXT NOT NULL,
    body_sha256 TEXT NOT NULL,
    accepted_at BIGINT NOT NULL,
    PRIMARY KEY (sender, delivery_id)
);
CREATE INDEX pushkit_replay_age ON pushkit_replay (accepted_at);
"""),
    ),
    Migration(
        2,
        statements("""
CREATE TABLE pushkit_expected (
    sender TEXT NOT NULL,
    token_sha256 TEXT,
    task_id TEXT,
    created_at BIGINT NOT NULL,
    expires_at BIGINT,
    withdrawn_at BIGINT
);
CREATE UNIQUE INDEX pushkit_expected_token
    ON pushkit_expected (sender, token_sha256) WHERE token_sha256 IS NOT NULL;
CREATE INDEX pushkit_expected_task ON pushkit_expected (sender, task_id);
"""),
    ),
    Migration(
        3,
        statements("""
CREATE TABLE pushkit_inbox (
    id INTEGER PRIMARY KEY AUTOINCREMENT,
    sender TEXT NOT NULL,
    delivery_id TEXT NOT NULL,
    task_id TEXT,
    config_id TEXT,
    seq BIGINT,
    missing BIGINT NOT NULL,
    late INTEGER NOT NULL,
    kid TEXT NOT NULL,
    issued_at BIGINT NOT NULL,
    received_at BIGINT NOT NULL,
    body BYTEA NOT NULL,
    status TEXT NOT NULL DEFAULT 'received',
    attempts INTEGER NOT NULL DEFAULT 0,
    not_before BIGINT NOT NULL,
    lease_worker TEXT,
    lease_until BIGINT,
    finished_at BIGINT,
    last_error TEXT,
    UNIQUE (sender, delivery_id)
);
CREATE INDEX pushkit_inbox_due ON pushkit_inbox (not_before) WHERE status = 'received';
CREATE INDEX pushkit_inbox_leased ON pushkit_inbox (lease_until) WHERE status = 'in_progress';
CREATE INDEX pushkit_inbox_unfinished
    ON pushkit_inbox (sender, task_id, id) WHERE status IN ('received', 'in_progress');
CREATE INDEX pushkit_inbox_task ON pushkit_inbox (task_id, id);
CREATE INDEX pushkit_inbox_done ON pushkit_inbox (finished_at) WHERE status = 'done';
CREATE TABLE pushkit_callbacks_done (
    notification_id BIGINT NOT NULL,
    callback TEXT NOT NULL,
    PRIMARY KEY (notification_id, callback)
);
CREATE TABLE pushkit_sequences (
    sender TEXT NOT NULL,
    task_id TEXT NOT NULL,
    config_id TEXT NOT NULL,
    last_seq BIGINT NOT NULL,
    PRIMARY KEY (sender, task_id, config_id)
);
"""),
    ),
    # A token's credentials; the expectation that tokens which replace each other share; and the
    # rows that bind a static token, which are kept: without one, another task could bind the token.
    Migration(
        4,
        statements("""
ALTER TABLE pushkit_expected ADD COLUMN credentials_sha256 TEXT;
ALTER TABLE pushkit_expected ADD COLUMN expectation TEXT;
ALTER TABLE pushkit_expected ADD COLUMN static INTEGER NOT NULL DEFAULT 0;
CREATE UNIQUE INDEX pushkit_expected_credentials
    ON pushkit_expected (sender, credentials_sha256) WHERE credentials_sha256 IS NOT NULL;
CREATE INDEX pushkit_expected_expectation
    ON pushkit_expected (expectation) WHERE expectation IS NOT NULL;
"""),
        may_roll=True,
    ),
    # A state for every callback, and indexes for admins and purges.
    Migration(
        5,
        statements("""
CREATE TABLE pushkit_callbacks (
    notification_id BIGINT NOT NULL,
    callback TEXT NOT NULL,
    done INTEGER NOT NULL,
    attempts INTEGER NOT NULL,
    last_error TEXT,
    last_at BIGINT,
    PRIMARY KEY (notification_id, callback)
);
INSERT INTO pushkit_callbacks (notification_id, callback, done, attempts)
    SELECT notification_id, callback, 1, 1 FROM pushkit_callbacks_done;
DROP TABLE pushkit_callbacks_done;
ALTER TABLE pushkit_inbox ADD COLUMN redriven_at BIGINT;
-- One of each task's unfinished notifications is the head; one without a task is always a head.
-- A process of the previous version that still runs knows no heads: what it accepts is a head by
-- default, as it would never be claimed otherwise.
ALTER TABLE pushkit_inbox ADD COLUMN head INTEGER NOT NULL DEFAULT 1;
UPDATE pushkit_inbox SET head = 0 WHERE status NOT IN ('received', 'in_progress')
    OR EXISTS (SELECT 1 FROM pushkit_inbox e WHERE e.sender = pushkit_inbox.sender
    AND e.task_id = pushkit_inbox.task_id AND e.id < pushkit_inbox.id
    AND e.status IN ('received', 'in_progress'));
DROP INDEX pushkit_inbox_due;
CREATE INDEX pushkit_inbox_heads
    ON pushkit_inbox (not_before) WHERE head = 1 AND status = 'received';
CREATE INDEX pushkit_inbox_dead ON pushkit_inbox (sender, id) WHERE status = 'dead';
CREATE INDEX pushkit_inbox_buried ON pushkit_inbox (finished_at) WHERE status = 'dead';
CREATE INDEX pushkit_inbox_gaps
    ON pushkit_inbox (sender, missing, late) WHERE missing > 0 OR late = 1;
ALTER TABLE pushkit_sequences ADD COLUMN updated_at BIGINT NOT NULL DEFAULT 0;
-- When a sequence last grew, or else when the newest id was accepted.
UPDATE pushkit_sequences SET updated_at = COALESCE(
    (SELECT MAX(i.received_at) FROM pushkit_inbox i
    WHERE i.sender = pushkit_sequences.sender AND i.task_id = pushkit_sequences.task_id),
    (SELECT MAX(accepted_at) FROM pushkit_replay), 0);
CREATE INDEX pushkit_sequences_age ON pushkit_sequences (updated_at);
"""),
    ),
    Migration(
        6,
        statements("""
-- Expectations that have ended are deleted by age.
CREATE INDEX pushkit_expected_ended
    ON pushkit_expected ((COALESCE(withdrawn_at, expires_at))) WHERE static = 0;
-- Done, because no callback wanted it: it may be redriven.
ALTER TABLE pushkit_inbox ADD COLUMN unmatched INTEGER NOT NULL DEFAULT 0;
CREATE INDEX pushkit_inbox_unmatched ON pushkit_inbox (sender, id) WHERE unmatched = 1;
-- By sender: what is due of one is found without reading the backlog of another.
DROP INDEX pushkit_inbox_heads;
CREATE INDEX pushkit_inbox_heads
    ON pushkit_inbox (sender, not_before) WHERE head = 1 AND status = 'received';
"""),
        may_roll=True,
    ),
    Migration(7, (), may_roll=True),  # since then, the database records which versions may write
    Migration(
        8,
        statements("""
ALTER TABLE pushkit_inbox ADD COLUMN traceparent TEXT;
"""),
        may_roll=True,
    ),
    # Indexes for operators' pages of any size, newest first, instead of by sender.
    Migration(
        9,
        statements("""
DROP INDEX pushkit_inbox_dead;
CREATE INDEX pushkit_inbox_dead ON pushkit_inbox (id, sender) WHERE status = 'dead';
DROP INDEX pushkit_inbox_unmatched;
CREATE INDEX pushkit_inbox_unmatched ON pushkit_inbox (id, sender) WHERE unmatched = 1;
"""),
        may_roll=True,
        anew=SCHEMA,
    ),
)
