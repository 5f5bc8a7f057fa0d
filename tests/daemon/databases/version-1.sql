BEGIN TRANSACTION;
CREATE TABLE attempts (
    job_id INTEGER NOT NULL REFERENCES jobs (id),
    number INTEGER NOT NULL,
    state TEXT NOT NULL,
    folder TEXT NOT NULL,
    nonce TEXT NOT NULL,
    pid INTEGER,
    events_offset INTEGER NOT NULL DEFAULT 0,
    first_step INTEGER,
    last_step INTEGER,
    started_at REAL NOT NULL,
    ended_at REAL,
    exit_code INTEGER,
    PRIMARY KEY (job_id, number)
);
INSERT INTO "attempts" VALUES(1,1,'completed','/nowhere/1-1','nonce-1-1',NULL,529,1,2,1.0,9.0,0);
INSERT INTO "attempts" VALUES(2,1,'live','/nowhere/2-1','nonce-2-1',NULL,0,NULL,NULL,1.0,NULL,NULL);
CREATE TABLE datasets (
    id INTEGER PRIMARY KEY AUTOINCREMENT,
    name TEXT NOT NULL,
    bytes INTEGER NOT NULL,
    source_hash TEXT NOT NULL,
    form TEXT NOT NULL,
    report TEXT NOT NULL,
    created_at REAL NOT NULL
);
CREATE TABLE evaluations (
    job_id INTEGER NOT NULL,
    step INTEGER NOT NULL,
    split TEXT NOT NULL,
    loss REAL,
    rows INTEGER NOT NULL,
    PRIMARY KEY (job_id, split, step)
) WITHOUT ROWID;
CREATE TABLE events (
    id INTEGER PRIMARY KEY AUTOINCREMENT,
    job_id INTEGER NOT NULL REFERENCES jobs (id),
    attempt INTEGER NOT NULL,
    type TEXT NOT NULL,
    body TEXT NOT NULL
);
INSERT INTO "events" VALUES(1,1,1,'started','{"type":"started","at":0.0,"pid":1,"device":"cpu","precision":"fp32","total_steps":200,"from_step":0,"train_rows":1,"eval_rows":1,"trainable_params":1,"attention":"","resumed_from":""}');
INSERT INTO "events" VALUES(2,1,1,'progress','{"type":"progress","at":1.0,"step":1,"total_steps":200,"loss":1.0,"grad_norm":1.0,"lr":0.001,"tokens":10,"supervised_tokens":5,"tokens_per_second":100.0,"eta_seconds":1.0}');
INSERT INTO "events" VALUES(3,1,1,'progress','{"type":"progress","at":2.0,"step":2,"total_steps":200,"loss":1.0,"grad_norm":1.0,"lr":0.001,"tokens":10,"supervised_tokens":5,"tokens_per_second":100.0,"eta_seconds":1.0}');
CREATE TABLE jobs (
    id INTEGER PRIMARY KEY AUTOINCREMENT,
    name TEXT NOT NULL,
    state TEXT NOT NULL,
    reason TEXT NOT NULL,
    position REAL NOT NULL,
    wanted TEXT CHECK (wanted IN ('pause', 'cancel', 'yield')),
    wanted_at REAL,
    spec TEXT NOT NULL,
    model_id TEXT NOT NULL,
    dataset_id INTEGER NOT NULL,
    step INTEGER NOT NULL DEFAULT 0,
    total_steps INTEGER NOT NULL DEFAULT 0,
    phase TEXT NOT NULL DEFAULT '',
    loss REAL,
    eta_seconds REAL,
    tokens_per_second REAL,
    result TEXT,
    error TEXT,
    created_at REAL NOT NULL,
    started_at REAL,
    ended_at REAL
);
INSERT INTO "jobs" VALUES(1,'job 1','completed','done',1.0,NULL,NULL,'{"name":"job 1","base":{"model_id":"tiny","path":"/nowhere","content_hash":"-","revision":"","name":""},"dataset":{"dataset_id":"1","path":"/nowhere/rows.jsonl","content_hash":"-","mapping":"auto"},"method":{"kind":"lora","rank":8,"alpha":16,"dropout":0.0,"targets":["q_proj","k_proj","v_proj","o_proj","gate_proj","up_proj","down_proj"],"rslora":false,"base_precision":"auto"},"optim":{"lr":0.0002,"schedule":"cosine","warmup_fraction":0.05,"beta1":0.9,"beta2":0.999,"eps":1e-8,"weight_decay":0.0,"clip_norm":1.0},"batch_size":8,"max_seq_len":1024,"too_long":"drop","epochs":0.0,"steps":10,"eval":{"selection":null,"selection_fraction":0.1,"test_fraction":0.0,"max_rows":64,"every_steps":0,"sample_prompts":[],"sample_tokens":64},"checkpoint_every_steps":0,"seed":0,"version":1}','tiny',1,2,200,'',1.0,1.0,100.0,'/nowhere/result',NULL,0.0,5.0,9.0);
INSERT INTO "jobs" VALUES(2,'job 2','running','its worker is running',2.0,NULL,NULL,'{"name":"job 2","base":{"model_id":"tiny","path":"/nowhere","content_hash":"-","revision":"","name":""},"dataset":{"dataset_id":"1","path":"/nowhere/rows.jsonl","content_hash":"-","mapping":"auto"},"method":{"kind":"lora","rank":8,"alpha":16,"dropout":0.0,"targets":["q_proj","k_proj","v_proj","o_proj","gate_proj","up_proj","down_proj"],"rslora":false,"base_precision":"auto"},"optim":{"lr":0.0002,"schedule":"cosine","warmup_fraction":0.05,"beta1":0.9,"beta2":0.999,"eps":1e-8,"weight_decay":0.0,"clip_norm":1.0},"batch_size":8,"max_seq_len":1024,"too_long":"drop","epochs":0.0,"steps":10,"eval":{"selection":null,"selection_fraction":0.1,"test_fraction":0.0,"max_rows":64,"every_steps":0,"sample_prompts":[],"sample_tokens":64},"checkpoint_every_steps":0,"seed":0,"version":1}','tiny',1,0,0,'',NULL,NULL,NULL,NULL,NULL,1.0,10.0,NULL);
INSERT INTO "jobs" VALUES(3,'job 3','paused','paused',3.0,NULL,NULL,'{"name":"job 3","base":{"model_id":"tiny","path":"/nowhere","content_hash":"-","revision":"","name":""},"dataset":{"dataset_id":"1","path":"/nowhere/rows.jsonl","content_hash":"-","mapping":"auto"},"method":{"kind":"lora","rank":8,"alpha":16,"dropout":0.0,"targets":["q_proj","k_proj","v_proj","o_proj","gate_proj","up_proj","down_proj"],"rslora":false,"base_precision":"auto"},"optim":{"lr":0.0002,"schedule":"cosine","warmup_fraction":0.05,"beta1":0.9,"beta2":0.999,"eps":1e-8,"weight_decay":0.0,"clip_norm":1.0},"batch_size":8,"max_seq_len":1024,"too_long":"drop","epochs":0.0,"steps":10,"eval":{"selection":null,"selection_fraction":0.1,"test_fraction":0.0,"max_rows":64,"every_steps":0,"sample_prompts":[],"sample_tokens":64},"checkpoint_every_steps":0,"seed":0,"version":1}','tiny',1,0,0,'',NULL,NULL,NULL,NULL,NULL,2.0,NULL,NULL);
INSERT INTO "jobs" VALUES(4,'job 4','queued','waits for its turn',4.0,NULL,NULL,'{"name":"job 4","base":{"model_id":"tiny","path":"/nowhere","content_hash":"-","revision":"","name":""},"dataset":{"dataset_id":"1","path":"/nowhere/rows.jsonl","content_hash":"-","mapping":"auto"},"method":{"kind":"lora","rank":8,"alpha":16,"dropout":0.0,"targets":["q_proj","k_proj","v_proj","o_proj","gate_proj","up_proj","down_proj"],"rslora":false,"base_precision":"auto"},"optim":{"lr":0.0002,"schedule":"cosine","warmup_fraction":0.05,"beta1":0.9,"beta2":0.999,"eps":1e-8,"weight_decay":0.0,"clip_norm":1.0},"batch_size":8,"max_seq_len":1024,"too_long":"drop","epochs":0.0,"steps":10,"eval":{"selection":null,"selection_fraction":0.1,"test_fraction":0.0,"max_rows":64,"every_steps":0,"sample_prompts":[],"sample_tokens":64},"checkpoint_every_steps":0,"seed":0,"version":1}','tiny',1,0,0,'',NULL,NULL,NULL,NULL,NULL,3.0,NULL,NULL);
CREATE TABLE models (
    id TEXT PRIMARY KEY,
    name TEXT NOT NULL,
    kind TEXT NOT NULL,
    source TEXT NOT NULL,
    state TEXT NOT NULL CHECK (state IN ('importing', 'ready', 'failed')),
    path TEXT NOT NULL DEFAULT '',
    content_hash TEXT NOT NULL DEFAULT '',
    stamp TEXT NOT NULL DEFAULT '',
    architecture TEXT NOT NULL DEFAULT '',
    params INTEGER NOT NULL DEFAULT 0,
    bytes INTEGER NOT NULL DEFAULT 0,
    license TEXT NOT NULL DEFAULT '',
    revision TEXT NOT NULL DEFAULT '',
    stage TEXT NOT NULL DEFAULT '',
    done INTEGER NOT NULL DEFAULT 0,
    total INTEGER NOT NULL DEFAULT 0,
    error TEXT,
    created_at REAL NOT NULL
);
INSERT INTO "models" VALUES('tiny','tiny','folder','/nowhere','ready','/nowhere','-','','',0,0,'','','',0,0,NULL,1.0);
CREATE TABLE progress (
    job_id INTEGER NOT NULL,
    step INTEGER NOT NULL,
    attempt INTEGER NOT NULL,
    at REAL NOT NULL,
    loss REAL,
    grad_norm REAL,
    lr REAL NOT NULL,
    tokens_per_second REAL NOT NULL,
    PRIMARY KEY (job_id, step)
) WITHOUT ROWID;
INSERT INTO "progress" VALUES(1,1,1,1.0,1.0,1.0,0.001,100.0);
INSERT INTO "progress" VALUES(1,2,1,2.0,1.0,1.0,0.001,100.0);
CREATE TABLE samples (
    job_id INTEGER NOT NULL,
    step INTEGER NOT NULL,
    prompt TEXT NOT NULL,
    answer TEXT NOT NULL,
    PRIMARY KEY (job_id, prompt, step)
) WITHOUT ROWID;
CREATE TABLE sessions (
    token_hash TEXT PRIMARY KEY,
    created_at REAL NOT NULL
);
CREATE TABLE transitions (
    id INTEGER PRIMARY KEY AUTOINCREMENT,
    job_id INTEGER NOT NULL REFERENCES jobs (id),
    at REAL NOT NULL,
    from_state TEXT NOT NULL,
    to_state TEXT NOT NULL,
    reason TEXT NOT NULL
);
INSERT INTO "transitions" VALUES(1,1,0.0,'draft','queued','waits for its turn');
INSERT INTO "transitions" VALUES(2,2,1.0,'draft','queued','waits for its turn');
INSERT INTO "transitions" VALUES(3,3,2.0,'draft','queued','waits for its turn');
INSERT INTO "transitions" VALUES(4,4,3.0,'draft','queued','waits for its turn');
INSERT INTO "transitions" VALUES(5,1,5.0,'queued','starting','planned');
INSERT INTO "transitions" VALUES(6,1,9.0,'starting','completed','done');
INSERT INTO "transitions" VALUES(7,2,10.0,'queued','starting','planned');
INSERT INTO "transitions" VALUES(8,2,11.0,'starting','running','its worker is running');
INSERT INTO "transitions" VALUES(9,3,12.0,'queued','paused','paused');
CREATE TABLE warnings (
    job_id INTEGER NOT NULL,
    attempt INTEGER NOT NULL,
    code TEXT NOT NULL,
    message TEXT NOT NULL,
    PRIMARY KEY (job_id, code, message)
) WITHOUT ROWID;
CREATE INDEX datasets_source ON datasets (source_hash);
CREATE INDEX jobs_state ON jobs (state, position);
CREATE INDEX transitions_job ON transitions (job_id);
CREATE INDEX events_job ON events (job_id, id);
DELETE FROM "sqlite_sequence";
INSERT INTO "sqlite_sequence" VALUES('jobs',4);
INSERT INTO "sqlite_sequence" VALUES('transitions',9);
INSERT INTO "sqlite_sequence" VALUES('events',3);
COMMIT;
PRAGMA user_version = 1;
