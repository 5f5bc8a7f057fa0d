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

CREATE TABLE datasets (
    id INTEGER PRIMARY KEY AUTOINCREMENT,
    name TEXT NOT NULL,
    bytes INTEGER NOT NULL,
    source_hash TEXT NOT NULL,
    form TEXT NOT NULL,
    report TEXT NOT NULL,
    created_at REAL NOT NULL
);
CREATE INDEX datasets_source ON datasets (source_hash);

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
CREATE INDEX jobs_state ON jobs (state, position);

CREATE TABLE transitions (
    id INTEGER PRIMARY KEY AUTOINCREMENT,
    job_id INTEGER NOT NULL REFERENCES jobs (id),
    at REAL NOT NULL,
    from_state TEXT NOT NULL,
    to_state TEXT NOT NULL,
    reason TEXT NOT NULL
);
CREATE INDEX transitions_job ON transitions (job_id);

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

-- Every event once; `id` is the Last-Event-ID of the live stream.
CREATE TABLE events (
    id INTEGER PRIMARY KEY AUTOINCREMENT,
    job_id INTEGER NOT NULL REFERENCES jobs (id),
    attempt INTEGER NOT NULL,
    type TEXT NOT NULL,
    body TEXT NOT NULL
);
CREATE INDEX events_job ON events (job_id, id);

-- A step that a later attempt repeats replaces the earlier one, so a chart has no doubles.
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

CREATE TABLE evaluations (
    job_id INTEGER NOT NULL,
    step INTEGER NOT NULL,
    split TEXT NOT NULL,
    loss REAL,
    rows INTEGER NOT NULL,
    PRIMARY KEY (job_id, split, step)
) WITHOUT ROWID;

CREATE TABLE samples (
    job_id INTEGER NOT NULL,
    step INTEGER NOT NULL,
    prompt TEXT NOT NULL,
    answer TEXT NOT NULL,
    PRIMARY KEY (job_id, prompt, step)
) WITHOUT ROWID;

CREATE TABLE warnings (
    job_id INTEGER NOT NULL,
    attempt INTEGER NOT NULL,
    code TEXT NOT NULL,
    message TEXT NOT NULL,
    PRIMARY KEY (job_id, code, message)
) WITHOUT ROWID;

CREATE TABLE sessions (
    token_hash TEXT PRIMARY KEY,
    created_at REAL NOT NULL
);
