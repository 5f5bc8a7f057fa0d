-- What a night's digest asks for, at each look at the first page.
CREATE INDEX transitions_yielding ON transitions (at) WHERE to_state = 'yielding';
CREATE INDEX attempts_ended ON attempts (ended_at, job_id, started_at);
