-- A sender's SQLite file of schema version 9, as its code wrote it: one delivered, one dead, one that failed once
-- with one behind it, one in flight at a worker that died with one behind it.
BEGIN TRANSACTION;
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
INSERT INTO "pushkit_attempts" VALUES('dlv_019b76daa8004b9ab27781782be85f49',1,1767225600000000,8576,NULL,1287,5231,466,'127.0.0.1:8765','delivered',202,NULL,NULL);
INSERT INTO "pushkit_attempts" VALUES('dlv_019b76daa80068019daab85cb1ed3505',1,1767225600000000,1467,NULL,NULL,729,35,'127.0.0.1:8765','dead',400,'rejected',NULL);
INSERT INTO "pushkit_attempts" VALUES('dlv_019b76daa8004ec0ab68cf163e9869db',1,1767225600000000,1638,NULL,NULL,782,33,'127.0.0.1:8765','retry',500,'status_500',NULL);
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
        , update_sha256 TEXT, claims BIGINT NOT NULL DEFAULT 0, fruitless_claims INTEGER NOT NULL DEFAULT 0, cancelled_by TEXT);
INSERT INTO "pushkit_deliveries" VALUES('dlv_019b76daa8004b9ab27781782be85f49','sub_019b76daa8003511ad1534d3874a5c79','','alice','task-good','config-1',1,'http://127.0.0.1:8765','application/a2a+json',X'7B22737461747573557064617465223A7B227461736B4964223A227461736B2D676F6F64222C22636F6E746578744964223A2231222C22737461747573223A7B227374617465223A225441534B5F53544154455F574F524B494E47227D7D7D','key-1','bare','delivered',0,1,1767225600000000,1767225600000000,NULL,NULL,1767225600000000,NULL,202,NULL,'json-1:3a31b2865f46a39614831bb06c6432ead47520f0714edca9e8047ca14e518107',1,0,NULL);
INSERT INTO "pushkit_deliveries" VALUES('dlv_019b76daa80068019daab85cb1ed3505','sub_019b76daa8008d2b502b486bdbfb53e2','','alice','task-dead','config-1',1,'http://127.0.0.1:8765','application/a2a+json',X'7B22737461747573557064617465223A7B227461736B4964223A227461736B2D64656164222C22636F6E746578744964223A2231222C22737461747573223A7B227374617465223A225441534B5F53544154455F574F524B494E47227D7D7D',NULL,'bare','dead',0,1,1767225600000000,1767225600000000,NULL,NULL,1767225600000000,NULL,400,'rejected',NULL,1,0,NULL);
INSERT INTO "pushkit_deliveries" VALUES('dlv_019b76daa8004ec0ab68cf163e9869db','sub_019b76daa8003406b9aaa0d098a8c357','','alice','task-failing','config-1',1,'http://127.0.0.1:8765','application/a2a+json',X'7B22737461747573557064617465223A7B227461736B4964223A227461736B2D6661696C696E67222C22636F6E746578744964223A2231222C22737461747573223A7B227374617465223A225441534B5F53544154455F574F524B494E47227D7D7D',NULL,'bare','pending',1,1,1767225600000000,1767225604082954,NULL,NULL,NULL,NULL,500,'status_500',NULL,1,0,NULL);
INSERT INTO "pushkit_deliveries" VALUES('dlv_019b76daa8004c04b40a21f2f84a8910','sub_019b76daa8003406b9aaa0d098a8c357','','alice','task-failing','config-1',2,'http://127.0.0.1:8765','application/a2a+json',X'7B22737461747573557064617465223A7B227461736B4964223A227461736B2D6661696C696E67222C22636F6E746578744964223A2232222C22737461747573223A7B227374617465223A225441534B5F53544154455F574F524B494E47227D7D7D',NULL,'bare','pending',0,0,1767225600000000,1767225600000000,NULL,NULL,NULL,NULL,NULL,NULL,NULL,0,0,NULL);
INSERT INTO "pushkit_deliveries" VALUES('dlv_019b76daa80087f6169707d6dcf73650','sub_019b76daa800422081511de6d5e25a68','','alice','task-held','config-1',1,'http://127.0.0.1:8765','application/a2a+json',X'7B22737461747573557064617465223A7B227461736B4964223A227461736B2D68656C64222C22636F6E746578744964223A2231222C22737461747573223A7B227374617465223A225441534B5F53544154455F574F524B494E47227D7D7D','key-2','bare','in_flight',1,0,1767225600000000,1767225600000000,'worker_0f1395449a7bce19',1767225630160000,NULL,NULL,NULL,NULL,'json-1:6709110eb0057f72619ed526126354ca328512cd7619411b24365579c2fcef78',1,1,NULL);
INSERT INTO "pushkit_deliveries" VALUES('dlv_019b76daa800b160b28a6eabe9a4a37b','sub_019b76daa800422081511de6d5e25a68','','alice','task-held','config-1',2,'http://127.0.0.1:8765','application/a2a+json',X'7B22737461747573557064617465223A7B227461736B4964223A227461736B2D68656C64222C22636F6E746578744964223A2232222C22737461747573223A7B227374617465223A225441534B5F53544154455F574F524B494E47227D7D7D',NULL,'bare','pending',0,0,1767225600000000,1767225600000000,NULL,NULL,NULL,NULL,NULL,NULL,NULL,0,0,NULL);
CREATE TABLE pushkit_destinations (
        tenant TEXT NOT NULL,
        owner TEXT NOT NULL,
        origin TEXT NOT NULL,
        until BIGINT NOT NULL DEFAULT 0,
        failures INTEGER NOT NULL DEFAULT 0,
        PRIMARY KEY (tenant, owner, origin)
    );
INSERT INTO "pushkit_destinations" VALUES('','alice','http://127.0.0.1:8765',0,1);
CREATE TABLE pushkit_parked (
            tenant TEXT NOT NULL,
            owner TEXT NOT NULL,
            origin TEXT NOT NULL,
            again_at BIGINT NOT NULL,
            PRIMARY KEY (tenant, owner, origin)
        );
CREATE TABLE pushkit_proved_urls (
            tenant TEXT NOT NULL,
            owner TEXT NOT NULL,
            url_sha256 TEXT NOT NULL,
            proved_at BIGINT NOT NULL,
            PRIMARY KEY (tenant, owner, url_sha256)
        );
CREATE TABLE pushkit_schema (component TEXT PRIMARY KEY, version INTEGER NOT NULL);
INSERT INTO "pushkit_schema" VALUES('sender',9);
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
        , disabled_by TEXT, disabled_at BIGINT, revision INTEGER NOT NULL DEFAULT 0);
INSERT INTO "pushkit_subscriptions" VALUES('sub_019b76daa8003511ad1534d3874a5c79','','task-good','alice','config-1','1.0','http://127.0.0.1:8765/task-good','http://127.0.0.1:8765',NULL,'[]',NULL,'standard',1,'{"states": null, "kinds": null, "last_chunk_only": false}',1,0,0,NULL,1767225600000000,1767225600000000,NULL,NULL,NULL,0);
INSERT INTO "pushkit_subscriptions" VALUES('sub_019b76daa8008d2b502b486bdbfb53e2','','task-dead','alice','config-1','1.0','http://127.0.0.1:8765/task-dead','http://127.0.0.1:8765',NULL,'[]',NULL,'standard',1,'{"states": null, "kinds": null, "last_chunk_only": false}',1,0,0,1767225600000000,1767225600000000,1767225600000000,NULL,NULL,NULL,0);
INSERT INTO "pushkit_subscriptions" VALUES('sub_019b76daa8003406b9aaa0d098a8c357','','task-failing','alice','config-1','1.0','http://127.0.0.1:8765/task-failing','http://127.0.0.1:8765',NULL,'[]',NULL,'standard',2,'{"states": null, "kinds": null, "last_chunk_only": false}',1,0,0,1767225600000000,1767225600000000,1767225600000000,NULL,NULL,NULL,0);
INSERT INTO "pushkit_subscriptions" VALUES('sub_019b76daa800422081511de6d5e25a68','','task-held','alice','config-1','1.0','http://127.0.0.1:8765/task-held','http://127.0.0.1:8765',NULL,'[]',NULL,'standard',2,'{"states": null, "kinds": null, "last_chunk_only": false}',1,0,0,NULL,1767225600000000,1767225600000000,NULL,NULL,NULL,0);
CREATE TABLE pushkit_writers (component TEXT PRIMARY KEY, oldest INTEGER NOT NULL);
INSERT INTO "pushkit_writers" VALUES('sender',9);
CREATE UNIQUE INDEX pushkit_subscriptions_key ON pushkit_subscriptions (tenant, task_id, owner, config_id) WHERE removed_at IS NULL;
CREATE UNIQUE INDEX pushkit_deliveries_seq ON pushkit_deliveries (subscription_id, seq);
CREATE INDEX pushkit_deliveries_due ON pushkit_deliveries (not_before) WHERE head = 1 AND state = 'pending';
CREATE INDEX pushkit_deliveries_unfinished ON pushkit_deliveries (subscription_id, seq) WHERE state IN ('pending', 'in_flight');
CREATE INDEX pushkit_deliveries_finished ON pushkit_deliveries (finished_at) WHERE finished_at IS NOT NULL;
CREATE INDEX pushkit_deliveries_dead ON pushkit_deliveries (id) WHERE state = 'dead';
CREATE INDEX pushkit_deliveries_task ON pushkit_deliveries (tenant, task_id, seq);
CREATE UNIQUE INDEX pushkit_deliveries_key ON pushkit_deliveries (tenant, task_id, idempotency_key, subscription_id) WHERE idempotency_key IS NOT NULL;
CREATE INDEX pushkit_proved_urls_age ON pushkit_proved_urls (proved_at);
CREATE INDEX pushkit_deliveries_leased ON pushkit_deliveries (lease_until, lease_worker, tenant, owner, origin) WHERE state = 'in_flight';
CREATE INDEX pushkit_deliveries_heads ON pushkit_deliveries (tenant, owner, origin, not_before) WHERE head = 1 AND state = 'pending';
CREATE INDEX pushkit_deliveries_parked ON pushkit_deliveries (tenant, owner, origin, not_before) WHERE head = 2 AND state = 'pending';
CREATE INDEX pushkit_parked_again ON pushkit_parked (again_at);
CREATE INDEX pushkit_subscriptions_of_owner ON pushkit_subscriptions (owner) WHERE removed_at IS NULL;
COMMIT;
