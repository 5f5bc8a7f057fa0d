"""Queues the jobs again that a full disk paused, once there is room."""

import logging
from collections.abc import Callable
from typing import Final

from slidepack.daemon.store.attempts import AttemptStore
from slidepack.daemon.store.database import Database
from slidepack.daemon.store.jobs import JobRecord, JobStore
from slidepack.daemon.supervisor.backoff import fruitless, wait_seconds
from slidepack.daemon.supervisor.starting import Starter
from slidepack.engine.contract.errors import SlidepackError

__all__ = ["Waking"]

logger = logging.getLogger(__name__)

_FAILED: Final = frozenset({"failed"})


class Waking:
    """Looks at the paused jobs."""

    def __init__(
        self,
        *,
        database: Database,
        jobs: JobStore,
        attempts: AttemptStore,
        starter: Starter,
        may_try: Callable[[JobRecord], bool],
        retry_seconds: float,
    ) -> None:
        """Bind the stores.

        Args:
            database: for transactions.
            jobs: the queue.
            attempts: the tries at its jobs.
            starter: knows the room that a job needs.
            may_try: whether a job was not looked at just now.
            retry_seconds: before a disk that was full again is asked once more.
        """
        self._db = database
        self._jobs = jobs
        self._attempts = attempts
        self._starter = starter
        self._may_try = may_try
        self._retry_seconds = retry_seconds

    def wake(self, now: float) -> bool:
        """Queue the jobs again that a full disk paused, where there is room; say whether any."""
        woken = False
        for job in self._jobs.paused():
            if job.error is None or job.error.code != "DISK-FULL" or not self._may_wake(job, now):
                continue
            with self._db.transaction():
                # A user may have cancelled it meanwhile, or want it to stay.
                current = self._jobs.get(job.id)
                if current.state == "paused" and current.error is not None:
                    self._jobs.set_error(job.id, None)
                    self._jobs.move(job.id, "queued", "there is room on the disk again", now)
                    woken = True
        return woken

    def _may_wake(self, job: JobRecord, now: float) -> bool:
        if not self._may_try(job):
            return False
        attempts = self._attempts.of(job.id)
        ended = attempts[-1].ended_at if attempts else None
        # The first time at once: somebody has made room. A disk that is full again each time is
        # not asked every other second.
        wait = wait_seconds(fruitless(attempts, _FAILED) - 1, self._retry_seconds)
        if ended is not None and 0 <= now - ended < wait:
            return False
        try:
            return not self._starter.shortage(job)
        except (SlidepackError, OSError) as error:
            logger.warning("Job %d stays paused: %s", job.id, error)
            return False
