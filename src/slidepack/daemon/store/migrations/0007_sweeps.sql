-- Jobs that were made together to be compared.
CREATE TABLE sweeps (
    id INTEGER PRIMARY KEY AUTOINCREMENT,
    name TEXT NOT NULL,
    request TEXT NOT NULL,
    created_at REAL NOT NULL
);
ALTER TABLE jobs ADD COLUMN sweep_id INTEGER REFERENCES sweeps (id);
CREATE INDEX jobs_sweep ON jobs (sweep_id) WHERE sweep_id IS NOT NULL;
