-- The lists of the queue's page, by index alone: in their order, filtered and counted.
DROP INDEX jobs_waiting;
CREATE INDEX jobs_waiting ON jobs (priority DESC, position, state, sweep_id, name, model_id)
    WHERE ended_at IS NULL;
DROP INDEX jobs_ended;
CREATE INDEX jobs_ended ON jobs (ended_at DESC, id DESC, state, sweep_id, name, model_id)
    WHERE ended_at IS NOT NULL;
-- Who of a sweep stands for it in a list.
CREATE INDEX jobs_sweep_waiting ON jobs (sweep_id, priority DESC, position)
    WHERE ended_at IS NULL AND sweep_id IS NOT NULL;
CREATE INDEX jobs_sweep_ended ON jobs (sweep_id, ended_at DESC, id DESC)
    WHERE ended_at IS NOT NULL AND sweep_id IS NOT NULL;
