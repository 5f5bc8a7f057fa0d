-- What steps took, by kind of device and base, and what was learned from them.
CREATE TABLE step_samples (
    id INTEGER PRIMARY KEY AUTOINCREMENT,
    device TEXT NOT NULL,
    model TEXT NOT NULL,
    tokens INTEGER NOT NULL,
    lanes INTEGER NOT NULL,
    seconds REAL NOT NULL,
    at REAL NOT NULL
);
CREATE INDEX step_samples_of ON step_samples (device, model, id);
