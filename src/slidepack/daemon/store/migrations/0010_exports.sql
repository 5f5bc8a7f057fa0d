-- Results in forms that other programs take. `job_id` refers to nothing: an export is a copy, and
-- stays when its job is deleted.
CREATE TABLE exports (
    id INTEGER PRIMARY KEY AUTOINCREMENT,
    job_id INTEGER NOT NULL,
    job_name TEXT NOT NULL,
    wanted TEXT NOT NULL,
    state TEXT NOT NULL CHECK (state IN ('queued', 'running', 'done', 'failed', 'cancelled')),
    cancelling INTEGER NOT NULL DEFAULT 0,
    starts INTEGER NOT NULL DEFAULT 0,
    nonce TEXT NOT NULL DEFAULT '',
    bytes INTEGER NOT NULL DEFAULT 0,
    result TEXT,
    verification TEXT,
    error TEXT,
    created_at REAL NOT NULL,
    started_at REAL,
    ended_at REAL
);
CREATE INDEX exports_job ON exports (job_id);
