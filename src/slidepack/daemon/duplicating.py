"""A second job with the settings of another one, whatever became of that."""

import time

from slidepack.daemon.service import Service
from slidepack.daemon.store.jobs import JobRecord
from slidepack.daemon.store.timing import JobTiming

__all__ = ["duplicate"]


def duplicate(service: Service, job_id: int) -> JobRecord:
    """Queue a new job with the specification of another, at the end of the queue.

    Unlike a retry, the other one may still run, and nothing that waits for it waits for the new
    one. The new one belongs to no sweep, has no deadline and waits for no other job.

    Raises:
        SlidepackError: RUN-NOT-FOUND, RUN-ORIGIN-BROKEN where it continued another job, and what
            that left is gone.
    """
    with service.database.transaction():
        job = service.jobs.get(job_id)
        spec = service.jobs.spec(job_id)
        if spec.continues is not None:
            service.origins.require(spec.continues)
        timing = JobTiming(priority=job.priority, any_time=job.any_time)
        copy = service.jobs.add(spec, time.time(), timing)
    service.changes.bump()
    return copy
