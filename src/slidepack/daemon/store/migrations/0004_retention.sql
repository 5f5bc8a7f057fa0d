-- A run's ending and its checkpoints are found among hundreds of thousands of steps.
CREATE INDEX events_type ON events (job_id, type, id);

-- Folders of deleted jobs that are still to be removed from the disk.
CREATE TABLE job_leftovers (
    job_id INTEGER PRIMARY KEY
);
