-- Whether a job's model is better than its base: the newest report of its workers.
CREATE TABLE judgements (
    job_id INTEGER PRIMARY KEY REFERENCES jobs (id),
    attempt INTEGER NOT NULL,
    report TEXT NOT NULL
);
