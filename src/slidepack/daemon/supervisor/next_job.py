"""Starts the next job that may run, and says of every other one why it waits."""

import time
from collections.abc import Callable
from typing import Final

from slidepack.daemon.store.database import Database
from slidepack.daemon.store.jobs import JobRecord, JobStore
from slidepack.daemon.supervisor.choosing import Gate, dependence
from slidepack.daemon.supervisor.outcomes import Outcomes
from slidepack.daemon.supervisor.starting import StartedWorker, Starter

_AGAIN_SECONDS: Final = 2.0
"""Between two tries at a job that the hardware or the disk keeps waiting."""
_IN_LINE_SECONDS: Final = 30.0
"""For which nothing overtakes such a job."""


class NextJob:
    """Goes through the queue in its order."""

    def __init__(
        self,
        *,
        database: Database,
        jobs: JobStore,
        starter: Starter,
        gate: Gate,
        outcomes: Outcomes,
        monotonic: Callable[[], float] = time.monotonic,
    ) -> None:
        """Bind the queue, what starts its jobs or keeps them from running, and who is told."""
        self._db = database
        self._jobs = jobs
        self._starter = starter
        self._gate = gate
        self._outcomes = outcomes
        self._monotonic = monotonic
        self._tried: dict[int, float] = {}
        self._first_tried: dict[int, float] = {}

    def start(self, now: float) -> StartedWorker | None:
        """Start the first job that can run, where none runs; explain all others.

        A job that waits for its time, a window or another job does not keep those behind it from
        running. One that the hardware or the disk keeps waiting does so for a while: what the run
        before it held may be about to be freed.
        """
        queued = self._jobs.queued()
        live = self._jobs.live()
        taken = f"waits for job {live[0].id} to end" if live else ""
        states = self._jobs.states_of(earlier for job in queued for earlier in job.after)
        started = None
        for job in queued:
            depends = dependence(job, states)
            if depends.broken:
                self._hold(job, depends.broken, now)
                continue
            reason = self._gate.why_wait(job, now) or depends.waits or taken
            if reason:
                self._jobs.explain(job.id, reason)
                self._first_tried.pop(job.id, None)
                continue
            if self._may_try(job):
                started = self._starter.start(job, now)
            if started is not None:
                taken = f"waits for job {job.id} to end"
            elif self._is_first_in_line(job):
                taken = f"waits behind job {job.id}, which was tried just now"
        self._forget_all_but({job.id for job in queued})
        return started

    def wake_paused(self, now: float) -> bool:
        """Queue the jobs again that a full disk paused, where there is room; say whether any."""
        woken = False
        for job in self._jobs.paused():
            full = job.error is not None and job.error.code == "DISK-FULL"
            if not full or not self._may_try(job) or self._starter.shortage(job):
                continue
            with self._db.transaction():
                # A user may have cancelled it meanwhile.
                if self._jobs.get(job.id).state == "paused":
                    self._jobs.set_error(job.id, None)
                    self._jobs.move(job.id, "queued", "there is room on the disk again", now)
                    woken = True
        return woken

    def _hold(self, job: JobRecord, why: str, now: float) -> None:
        reason = f"{why}; resume it to run it anyway"
        with self._db.transaction():
            # Its user may have been faster.
            if self._jobs.get(job.id).state == "queued":
                self._jobs.move(job.id, "paused", reason, now)
                self._outcomes.settled(job, "paused", reason, None, now)

    def _may_try(self, job: JobRecord) -> bool:
        clock = self._monotonic()
        if clock - self._tried.get(job.id, float("-inf")) < _AGAIN_SECONDS:
            return False
        self._tried[job.id] = clock
        return True

    def _is_first_in_line(self, job: JobRecord) -> bool:
        """Return whether those behind a job that was tried in vain still wait for it."""
        clock = self._monotonic()
        return clock - self._first_tried.setdefault(job.id, clock) < _IN_LINE_SECONDS

    def _forget_all_but(self, job_ids: set[int]) -> None:
        paused = {job.id for job in self._jobs.paused()}
        self._tried = {job: at for job, at in self._tried.items() if job in job_ids | paused}
        self._first_tried = {job: at for job, at in self._first_tried.items() if job in job_ids}
