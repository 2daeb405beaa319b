-- A receiver's SQLite file of schema version 3, as its code wrote it: one done, one dead, one retried, one behind it.
BEGIN TRANSACTION;
CREATE TABLE pushkit_callbacks_done (
            notification_id BIGINT NOT NULL,
            callback TEXT NOT NULL,
            PRIMARY KEY (notification_id, callback)
        );
INSERT INTO "pushkit_callbacks_done" VALUES(1,'good');
INSERT INTO "pushkit_callbacks_done" VALUES(2,'good');
INSERT INTO "pushkit_callbacks_done" VALUES(1,'bad');
INSERT INTO "pushkit_callbacks_done" VALUES(3,'good');
CREATE TABLE pushkit_expected (
            sender TEXT NOT NULL,
            token_sha256 TEXT,
            task_id TEXT,
            created_at BIGINT NOT NULL,
            expires_at BIGINT,
            withdrawn_at BIGINT
        );
INSERT INTO "pushkit_expected" VALUES('agent','1f6076e3a47ba1ded08025ffe06e57af217c14f9407f33fba50f99b1c7019387','task-1',1767225610000000,NULL,NULL);
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
INSERT INTO "pushkit_inbox" VALUES(1,'agent','task-done#1','task-done','config-1',1,0,0,'key-1',1767225600000000,1767225600000000,X'7B22737461747573557064617465223A7B227461736B4964223A227461736B2D646F6E65222C22636F6E746578744964223A2263222C22737461747573223A7B227374617465223A225441534B5F53544154455F574F524B494E47227D7D7D','done',1,1767225600000000,NULL,NULL,1767225600000000,NULL);
INSERT INTO "pushkit_inbox" VALUES(2,'agent','task-dead#1','task-dead','config-1',1,0,0,'key-1',1767225600000000,1767225600000000,X'7B22737461747573557064617465223A7B227461736B4964223A227461736B2D64656164222C22636F6E746578744964223A2263222C22737461747573223A7B227374617465223A225441534B5F53544154455F574F524B494E47227D7D7D','dead',2,1767225610000000,NULL,NULL,1767225610000000,'bad: RuntimeError');
INSERT INTO "pushkit_inbox" VALUES(3,'agent','task-retried#1','task-retried','config-1',1,0,0,'key-1',1767225610000000,1767225610000000,X'7B22737461747573557064617465223A7B227461736B4964223A227461736B2D72657472696564222C22636F6E746578744964223A2263222C22737461747573223A7B227374617465223A225441534B5F53544154455F574F524B494E47227D7D7D','received',1,1767225620000000,NULL,NULL,NULL,'bad: RuntimeError');
INSERT INTO "pushkit_inbox" VALUES(4,'agent','task-retried#4','task-retried','config-1',4,2,0,'key-1',1767225610000000,1767225610000000,X'7B22737461747573557064617465223A7B227461736B4964223A227461736B2D72657472696564222C22636F6E746578744964223A2263222C22737461747573223A7B227374617465223A225441534B5F53544154455F574F524B494E47227D7D7D','received',0,1767225610000000,NULL,NULL,NULL,NULL);
CREATE TABLE pushkit_replay (
            sender TEXT NOT NULL,
            delivery_id TEXT NOT NULL,
            body_sha256 TEXT NOT NULL,
            accepted_at BIGINT NOT NULL,
            PRIMARY KEY (sender, delivery_id)
        );
INSERT INTO "pushkit_replay" VALUES('agent','task-done#1','7726fc35cb5e2008ed1d2d8d999140b0676124be4b8d4b49b92a6b1703c9fc85',1767225600000000);
INSERT INTO "pushkit_replay" VALUES('agent','task-dead#1','58d189d2ed753575ad2714c61ebec6ae05aa63255a3eed7768fce193fa2b6da0',1767225600000000);
INSERT INTO "pushkit_replay" VALUES('agent','task-retried#1','5b75b4b9e05bccfdbc1141a173a76696a053b2d31f5a93526a02939308e4eca1',1767225610000000);
INSERT INTO "pushkit_replay" VALUES('agent','task-retried#4','5b75b4b9e05bccfdbc1141a173a76696a053b2d31f5a93526a02939308e4eca1',1767225610000000);
CREATE TABLE pushkit_schema (component TEXT PRIMARY KEY, version INTEGER NOT NULL);
INSERT INTO "pushkit_schema" VALUES('receiver',3);
CREATE TABLE pushkit_sequences (
            sender TEXT NOT NULL,
            task_id TEXT NOT NULL,
            config_id TEXT NOT NULL,
            last_seq BIGINT NOT NULL,
            PRIMARY KEY (sender, task_id, config_id)
        );
INSERT INTO "pushkit_sequences" VALUES('agent','task-done','config-1',1);
INSERT INTO "pushkit_sequences" VALUES('agent','task-dead','config-1',1);
INSERT INTO "pushkit_sequences" VALUES('agent','task-retried','config-1',4);
CREATE INDEX pushkit_replay_age ON pushkit_replay (accepted_at);
CREATE UNIQUE INDEX pushkit_expected_token ON pushkit_expected (sender, token_sha256) WHERE token_sha256 IS NOT NULL;
CREATE INDEX pushkit_expected_task ON pushkit_expected (sender, task_id);
CREATE INDEX pushkit_inbox_due ON pushkit_inbox (not_before) WHERE status = 'received';
CREATE INDEX pushkit_inbox_leased ON pushkit_inbox (lease_until) WHERE status = 'in_progress';
CREATE INDEX pushkit_inbox_unfinished ON pushkit_inbox (sender, task_id, id) WHERE status IN ('received', 'in_progress');
CREATE INDEX pushkit_inbox_task ON pushkit_inbox (task_id, id);
CREATE INDEX pushkit_inbox_done ON pushkit_inbox (finished_at) WHERE status = 'done';
DELETE FROM "sqlite_sequence";
INSERT INTO "sqlite_sequence" VALUES('pushkit_inbox',4);
COMMIT;
