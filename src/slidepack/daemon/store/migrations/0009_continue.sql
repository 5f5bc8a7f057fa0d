-- The job that a job continues, and the folder of what it takes from it.
ALTER TABLE jobs ADD COLUMN continues INTEGER REFERENCES jobs (id);
ALTER TABLE jobs ADD COLUMN origin TEXT NOT NULL DEFAULT '';
CREATE INDEX jobs_continues ON jobs (continues) WHERE continues IS NOT NULL;
