-- Whether the jobs that wait are as they were: counted by the database itself, whoever writes.
CREATE TABLE queue_changes (
    id INTEGER PRIMARY KEY CHECK (id = 0),
    number INTEGER NOT NULL
);
INSERT INTO queue_changes (id, number) VALUES (0, 0);
CREATE TRIGGER queue_job_added AFTER INSERT ON jobs
BEGIN
    UPDATE queue_changes SET number = number + 1;
END;
CREATE TRIGGER queue_job_removed AFTER DELETE ON jobs
BEGIN
    UPDATE queue_changes SET number = number + 1;
END;
-- A job's record names the jobs that continue it.
CREATE TRIGGER queue_job_changed AFTER UPDATE ON jobs
WHEN OLD.state = 'queued' OR NEW.state = 'queued' OR OLD.continues IS NOT NEW.continues
BEGIN
    UPDATE queue_changes SET number = number + 1;
END;
CREATE TRIGGER queue_order_added AFTER INSERT ON job_dependencies
BEGIN
    UPDATE queue_changes SET number = number + 1;
END;
CREATE TRIGGER queue_order_removed AFTER DELETE ON job_dependencies
BEGIN
    UPDATE queue_changes SET number = number + 1;
END;
CREATE TRIGGER queue_order_changed AFTER UPDATE ON job_dependencies
BEGIN
    UPDATE queue_changes SET number = number + 1;
END;
