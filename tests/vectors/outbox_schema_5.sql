-- A sender's SQLite file of schema version 5, as its code wrote it: one delivered, one dead, one that failed once
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
INSERT INTO "pushkit_attempts" VALUES('dlv_019b76daa8001c6c68f974dd5d398eb3',1,1767225600000000,23391,NULL,19212,1885,296,'127.0.0.1:8765','delivered',202,NULL,NULL);
INSERT INTO "pushkit_attempts" VALUES('dlv_019b76daa80030acfb25fba269339417',1,1767225600000000,33932,NULL,18417,14491,125,'127.0.0.1:8765','dead',400,'rejected',NULL);
INSERT INTO "pushkit_attempts" VALUES('dlv_019b76daa800131b0b94315ea345ebbe',1,1767225600000000,33180,NULL,6697,14895,34,'127.0.0.1:8765','retry',500,'status_500',NULL);
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
        , update_sha256 TEXT);
INSERT INTO "pushkit_deliveries" VALUES('dlv_019b76daa8001c6c68f974dd5d398eb3','sub_019b76daa800bec9fe80534e3d7d5445','','alice','task-good','config-1',1,'http://127.0.0.1:8765','application/a2a+json',X'7B22737461747573557064617465223A7B227461736B4964223A227461736B2D676F6F64222C22636F6E746578744964223A2231222C22737461747573223A7B227374617465223A225441534B5F53544154455F574F524B494E47227D7D7D','key-1','bare','delivered',0,1,1767225600000000,1767225600000000,NULL,NULL,1767225600000000,NULL,202,NULL,'ad3cc84db9dbe53ae6aef94e7063208f16ec72fd77a7577b2aeccb9a80d75cbe');
INSERT INTO "pushkit_deliveries" VALUES('dlv_019b76daa80030acfb25fba269339417','sub_019b76daa80079f6841709b4d32f826c','','alice','task-dead','config-1',1,'http://127.0.0.1:8765','application/a2a+json',X'7B22737461747573557064617465223A7B227461736B4964223A227461736B2D64656164222C22636F6E746578744964223A2231222C22737461747573223A7B227374617465223A225441534B5F53544154455F574F524B494E47227D7D7D',NULL,'bare','dead',0,1,1767225600000000,1767225600000000,NULL,NULL,1767225600000000,NULL,400,'rejected',NULL);
INSERT INTO "pushkit_deliveries" VALUES('dlv_019b76daa800131b0b94315ea345ebbe','sub_019b76daa800de75ea451de949b9e7af','','alice','task-failing','config-1',1,'http://127.0.0.1:8765','application/a2a+json',X'7B22737461747573557064617465223A7B227461736B4964223A227461736B2D6661696C696E67222C22636F6E746578744964223A2231222C22737461747573223A7B227374617465223A225441534B5F53544154455F574F524B494E47227D7D7D',NULL,'bare','pending',1,1,1767225600000000,1767225605979035,NULL,NULL,NULL,NULL,500,'status_500',NULL);
INSERT INTO "pushkit_deliveries" VALUES('dlv_019b76daa8003641c7e0a8c12b6d8ba6','sub_019b76daa800de75ea451de949b9e7af','','alice','task-failing','config-1',2,'http://127.0.0.1:8765','application/a2a+json',X'7B22737461747573557064617465223A7B227461736B4964223A227461736B2D6661696C696E67222C22636F6E746578744964223A2232222C22737461747573223A7B227374617465223A225441534B5F53544154455F574F524B494E47227D7D7D',NULL,'bare','pending',0,0,1767225600000000,1767225600000000,NULL,NULL,NULL,NULL,NULL,NULL,NULL);
INSERT INTO "pushkit_deliveries" VALUES('dlv_019b76daabe80f68da90e92fdcf78360','sub_019b76daa800f36bd9d4088fb977a1d2','','alice','task-held','config-1',1,'http://127.0.0.1:8765','application/a2a+json',X'7B22737461747573557064617465223A7B227461736B4964223A227461736B2D68656C64222C22636F6E746578744964223A2231222C22737461747573223A7B227374617465223A225441534B5F53544154455F574F524B494E47227D7D7D','key-2','bare','in_flight',1,1,1767225601000000,1767225601000000,'worker_efec27f281743b09',1767225631160000,NULL,NULL,NULL,NULL,'3408ab9b88cf079f5c5506abe13fc6123a87fdb3e50d028c03e525b1864681fa');
INSERT INTO "pushkit_deliveries" VALUES('dlv_019b76daabe852b4055bab7a04af1d37','sub_019b76daa800f36bd9d4088fb977a1d2','','alice','task-held','config-1',2,'http://127.0.0.1:8765','application/a2a+json',X'7B22737461747573557064617465223A7B227461736B4964223A227461736B2D68656C64222C22636F6E746578744964223A2232222C22737461747573223A7B227374617465223A225441534B5F53544154455F574F524B494E47227D7D7D',NULL,'bare','pending',0,0,1767225601000000,1767225601000000,NULL,NULL,NULL,NULL,NULL,NULL,NULL);
CREATE TABLE pushkit_destinations (
        tenant TEXT NOT NULL,
        owner TEXT NOT NULL,
        origin TEXT NOT NULL,
        until BIGINT NOT NULL DEFAULT 0,
        failures INTEGER NOT NULL DEFAULT 0,
        PRIMARY KEY (tenant, owner, origin)
    );
INSERT INTO "pushkit_destinations" VALUES('','alice','http://127.0.0.1:8765',0,1);
CREATE TABLE pushkit_proved_urls (
            tenant TEXT NOT NULL,
            owner TEXT NOT NULL,
            url_sha256 TEXT NOT NULL,
            proved_at BIGINT NOT NULL,
            PRIMARY KEY (tenant, owner, url_sha256)
        );
CREATE TABLE pushkit_schema (component TEXT PRIMARY KEY, version INTEGER NOT NULL);
INSERT INTO "pushkit_schema" VALUES('sender',5);
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
INSERT INTO "pushkit_subscriptions" VALUES('sub_019b76daa800bec9fe80534e3d7d5445','','task-good','alice','config-1','1.0','http://127.0.0.1:8765/good','http://127.0.0.1:8765','token-good','[]',NULL,'standard',1,'{"states": null, "kinds": null, "last_chunk_only": false}',1,0,0,NULL,1767225600000000,1767225600000000,NULL);
INSERT INTO "pushkit_subscriptions" VALUES('sub_019b76daa80079f6841709b4d32f826c','','task-dead','alice','config-1','1.0','http://127.0.0.1:8765/dead','http://127.0.0.1:8765','token-dead','[]',NULL,'standard',1,'{"states": null, "kinds": null, "last_chunk_only": false}',1,0,0,1767225600000000,1767225600000000,1767225600000000,NULL);
INSERT INTO "pushkit_subscriptions" VALUES('sub_019b76daa800de75ea451de949b9e7af','','task-failing','alice','config-1','1.0','http://127.0.0.1:8765/failing','http://127.0.0.1:8765','token-failing','[]',NULL,'standard',2,'{"states": null, "kinds": null, "last_chunk_only": false}',1,0,0,1767225600000000,1767225600000000,1767225600000000,NULL);
INSERT INTO "pushkit_subscriptions" VALUES('sub_019b76daa800f36bd9d4088fb977a1d2','','task-held','alice','config-1','1.0','http://127.0.0.1:8765/held','http://127.0.0.1:8765','token-held','[]',NULL,'standard',2,'{"states": null, "kinds": null, "last_chunk_only": false}',1,0,0,NULL,1767225600000000,1767225600000000,NULL);
CREATE UNIQUE INDEX pushkit_subscriptions_key ON pushkit_subscriptions (tenant, task_id, owner, config_id) WHERE removed_at IS NULL;
CREATE UNIQUE INDEX pushkit_deliveries_seq ON pushkit_deliveries (subscription_id, seq);
CREATE INDEX pushkit_deliveries_due ON pushkit_deliveries (not_before) WHERE head = 1 AND state = 'pending';
CREATE INDEX pushkit_deliveries_heads ON pushkit_deliveries (tenant, owner, origin) WHERE head = 1 AND state = 'pending';
CREATE INDEX pushkit_deliveries_leased ON pushkit_deliveries (lease_until) WHERE state = 'in_flight';
CREATE INDEX pushkit_deliveries_unfinished ON pushkit_deliveries (subscription_id, seq) WHERE state IN ('pending', 'in_flight');
CREATE INDEX pushkit_deliveries_finished ON pushkit_deliveries (finished_at) WHERE finished_at IS NOT NULL;
CREATE INDEX pushkit_deliveries_dead ON pushkit_deliveries (id) WHERE state = 'dead';
CREATE INDEX pushkit_deliveries_task ON pushkit_deliveries (tenant, task_id, seq);
CREATE UNIQUE INDEX pushkit_deliveries_key ON pushkit_deliveries (tenant, task_id, idempotency_key, subscription_id) WHERE idempotency_key IS NOT NULL;
CREATE INDEX pushkit_subscriptions_owner ON pushkit_subscriptions (tenant, owner) WHERE removed_at IS NULL;
CREATE INDEX pushkit_proved_urls_age ON pushkit_proved_urls (proved_at);
COMMIT;
