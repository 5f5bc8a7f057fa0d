-- What steps took, by the name of the device and by the base; a fit is made of them when it is
-- asked for.
CREATE TABLE step_samples (
    id INTEGER PRIMARY KEY AUTOINCREMENT,
    device TEXT NOT NULL,
    model TEXT NOT NULL,
    tokens INTEGER NOT NULL,
    lanes INTEGER NOT NULL,
    seconds REAL NOT NULL,
    at REAL NOT NULL
);
CREATE INDEX step_samples_of ON step_samples (device, model, lanes, id);

-- How long workers took until their first step.
CREATE TABLE worker_starts (
    id INTEGER PRIMARY KEY AUTOINCREMENT,
    device TEXT NOT NULL,
    model TEXT NOT NULL,
    seconds REAL NOT NULL,
    at REAL NOT NULL
);
CREATE INDEX worker_starts_of ON worker_starts (device, model, id);

-- For how long packs made no step because of one of their lanes, from its joining to its end.
CREATE TABLE lanes_held_up (
    id INTEGER PRIMARY KEY AUTOINCREMENT,
    device TEXT NOT NULL,
    model TEXT NOT NULL,
    seconds REAL NOT NULL,
    at REAL NOT NULL
);
CREATE INDEX lanes_held_up_of ON lanes_held_up (device, model, id);

-- What the rows of a dataset came to with a base: tokens of a row, and the share of the rows that
-- is trained.
CREATE TABLE row_lengths (
    dataset TEXT NOT NULL,
    base TEXT NOT NULL,
    max_seq_len INTEGER NOT NULL,
    too_long TEXT NOT NULL,
    tokens REAL NOT NULL,
    kept REAL NOT NULL,
    steps INTEGER NOT NULL,
    PRIMARY KEY (dataset, base, max_seq_len, too_long)
) WITHOUT ROWID;

-- When a job was predicted to end, and when it did. They stay when the job is deleted.
CREATE TABLE promises (
    job_id INTEGER PRIMARY KEY,
    device TEXT NOT NULL,
    model TEXT NOT NULL,
    seat TEXT NOT NULL,
    made_at REAL NOT NULL,
    end_at REAL NOT NULL,
    ended_at REAL,
    undisturbed INTEGER
);
CREATE INDEX promises_open ON promises (job_id) WHERE ended_at IS NULL;
