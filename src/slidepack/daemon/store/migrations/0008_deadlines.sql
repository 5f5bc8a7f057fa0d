-- When a job is to be done, and whether a plan has shown once that it would be.
ALTER TABLE jobs ADD COLUMN deadline REAL;
ALTER TABLE jobs ADD COLUMN promised INTEGER NOT NULL DEFAULT 0;
