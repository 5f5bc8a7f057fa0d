-- Where notices go. `url` is a secret: it stays in this file, which only its owner can read.
CREATE TABLE notifiers (
    id INTEGER PRIMARY KEY AUTOINCREMENT,
    name TEXT NOT NULL,
    service TEXT NOT NULL,
    shown TEXT NOT NULL,
    url TEXT NOT NULL UNIQUE,
    created_at REAL NOT NULL
);

CREATE TABLE notices (
    id INTEGER PRIMARY KEY AUTOINCREMENT,
    kind TEXT NOT NULL
        CHECK (kind IN ('finished', 'failed', 'paused', 'needs_you', 'digest', 'test')),
    title TEXT NOT NULL,
    body TEXT NOT NULL,
    job_id INTEGER REFERENCES jobs (id),
    at REAL NOT NULL
);

-- One row a notice and address, so that one that is down keeps no other waiting.
CREATE TABLE deliveries (
    notice_id INTEGER NOT NULL REFERENCES notices (id),
    notifier_id INTEGER NOT NULL,
    state TEXT NOT NULL DEFAULT 'pending'
        CHECK (state IN ('pending', 'sent', 'failed', 'dropped')),
    tries INTEGER NOT NULL DEFAULT 0,
    next_at REAL NOT NULL,
    first_tried_at REAL,
    sent_at REAL,
    error TEXT NOT NULL DEFAULT '',
    PRIMARY KEY (notice_id, notifier_id)
) WITHOUT ROWID;
CREATE INDEX deliveries_state ON deliveries (state, next_at);

CREATE TABLE digests (
    day TEXT PRIMARY KEY,
    since REAL NOT NULL,
    until REAL NOT NULL,
    notice_id INTEGER REFERENCES notices (id)
) WITHOUT ROWID;

-- A quarter of an hour a row: `quarter` counts them from 1970. NULL is what nobody measured.
CREATE TABLE energy (
    job_id INTEGER NOT NULL,
    attempt INTEGER NOT NULL,
    quarter INTEGER NOT NULL,
    seconds REAL NOT NULL,
    cards INTEGER NOT NULL,
    card_joules REAL,
    card_seconds REAL NOT NULL,
    cpu_joules REAL,
    cpu_seconds REAL NOT NULL,
    PRIMARY KEY (job_id, attempt, quarter)
) WITHOUT ROWID;
CREATE INDEX energy_quarter ON energy (quarter);

-- Counts of jobs by state are read at every scrape of the metrics; rows of jobs are large.
CREATE INDEX jobs_by_state ON jobs (state);
