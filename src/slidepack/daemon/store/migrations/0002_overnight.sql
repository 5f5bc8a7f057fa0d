-- When a job may run, beside its place in the queue.
ALTER TABLE jobs ADD COLUMN priority INTEGER NOT NULL DEFAULT 0;
ALTER TABLE jobs ADD COLUMN not_before REAL;
ALTER TABLE jobs ADD COLUMN any_time INTEGER NOT NULL DEFAULT 0;
ALTER TABLE jobs ADD COLUMN after_failure TEXT NOT NULL DEFAULT 'hold'
    CHECK (after_failure IN ('hold', 'run'));
ALTER TABLE jobs ADD COLUMN on_failure TEXT NOT NULL DEFAULT 'continue'
    CHECK (on_failure IN ('continue', 'stop'));
-- The job whose last good checkpoint this one goes on from.
ALTER TABLE jobs ADD COLUMN adopts INTEGER REFERENCES jobs (id);
ALTER TABLE jobs ADD COLUMN wanted_why TEXT NOT NULL DEFAULT '';

CREATE TABLE job_dependencies (
    job_id INTEGER NOT NULL REFERENCES jobs (id),
    after_id INTEGER NOT NULL REFERENCES jobs (id),
    PRIMARY KEY (job_id, after_id)
) WITHOUT ROWID;

-- With pid and nonce: which process a worker is, whatever became of its number.
ALTER TABLE attempts ADD COLUMN process_started INTEGER;
ALTER TABLE attempts ADD COLUMN boot_id TEXT NOT NULL DEFAULT '';
-- From the request to leave until the process was gone.
ALTER TABLE attempts ADD COLUMN leave_seconds REAL;

CREATE TABLE documents (
    key TEXT PRIMARY KEY,
    body TEXT NOT NULL
) WITHOUT ROWID;

DROP INDEX jobs_state;
CREATE INDEX jobs_waiting ON jobs (priority DESC, position) WHERE ended_at IS NULL;
CREATE INDEX jobs_ended ON jobs (ended_at DESC) WHERE ended_at IS NOT NULL;
CREATE INDEX attempts_live ON attempts (job_id) WHERE state = 'live';
