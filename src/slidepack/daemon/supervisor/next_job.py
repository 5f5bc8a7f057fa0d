"""Starts the next job that may run, and says of every other one why it waits."""

import logging
import time
from collections.abc import Callable
from typing import Final

from slidepack.daemon.store.attempts import AttemptStore
from slidepack.daemon.store.database import Database
from slidepack.daemon.store.jobs import JobRecord, JobStore
from slidepack.daemon.supervisor.backoff import fruitless, wait_seconds
from slidepack.daemon.supervisor.choosing import Gate, dependence, held_reason
from slidepack.daemon.supervisor.outcomes import Outcomes
from slidepack.daemon.supervisor.starting import StartedWorker, Starter, Waits
from slidepack.engine.contract.errors import SlidepackError

logger = logging.getLogger(__name__)

_AGAIN_SECONDS: Final = 2.0
"""Between two tries at a job that the hardware or the disk keeps waiting."""
_IN_LINE_SECONDS: Final = 30.0
"""After a run, for which nothing overtakes a job that may find room any moment."""
_DIED: Final = frozenset({"interrupted"})
_FAILED: Final = frozenset({"failed"})


class NextJob:
    """Goes through the queue in its order."""

    def __init__(
        self,
        *,
        database: Database,
        jobs: JobStore,
        attempts: AttemptStore,
        starter: Starter,
        gate: Gate,
        outcomes: Outcomes,
        retry_seconds: float,
        monotonic: Callable[[], float] = time.monotonic,
    ) -> None:
        """Bind the queue, what starts its jobs or keeps them from running, and who is told.

        Args:
            database: for transactions.
            jobs: the queue.
            attempts: the tries at its jobs.
            starter: starts a job.
            gate: says why one may not start.
            outcomes: told of a job that is held.
            retry_seconds: before a job is tried again whose worker died without a step.
            monotonic: seconds by a clock that only goes forward.
        """
        self._db = database
        self._jobs = jobs
        self._attempts = attempts
        self._starter = starter
        self._gate = gate
        self._outcomes = outcomes
        self._retry_seconds = retry_seconds
        self._monotonic = monotonic
        self._tried: dict[int, float] = {}
        self._waits: dict[int, Waits] = {}
        """What each job that was tried in vain waits for."""
        self._free_since: float | None = None
        """When the last run was seen to have ended."""
        self._unexpected: dict[int, str] = {}

    def start(self, now: float) -> StartedWorker | None:
        """Start the first job that can run, where none runs; explain all others.

        A job that waits for its time, a window or another job does not keep those behind it from
        running. One that waits for memory or the disk does so for a while after a run has ended:
        what that run held may be about to be freed.
        """
        queued = self._jobs.queued()
        live = self._jobs.live()
        taken = f"waits for job {live[0].id} to end" if live else ""
        in_line = self._is_just_free(running=bool(live))
        states = self._jobs.states_of(earlier for job in queued for earlier in job.after)
        started = None
        why: dict[int, str] = {}
        for job in queued:
            depends = dependence(job, states)
            if depends.broken:
                self._hold(job, depends.broken, now)
                continue
            reason = self._gate.why_wait(job, now) or depends.waits or taken
            # Asked last: it reads the job's attempts, and a queue may be long.
            reason = reason or self._why_not_yet(job, now)
            if not reason:
                outcome = self._try(job, now)
                if isinstance(outcome, StartedWorker):
                    started, taken = outcome, f"waits for job {job.id} to end"
                    continue
                reason = "" if outcome is None else outcome.reason
                if outcome is not None and outcome.soon and in_line:
                    taken = f"waits behind job {job.id}, which was tried just now"
            why[job.id] = reason
        self._explain(queued, why)
        self._forget_all_but({job.id for job in queued})
        return started

    def wake_paused(self, now: float) -> bool:
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

    def _why_not_yet(self, job: JobRecord, now: float) -> str:
        attempts = self._attempts.of(job.id)
        if not attempts or attempts[-1].ended_at is None:
            return ""
        died = fruitless(attempts, _DIED)
        left = attempts[-1].ended_at + wait_seconds(died, self._retry_seconds) - now
        # A clock that was set back must not make minutes of seconds.
        if died and 0 < left <= wait_seconds(died, self._retry_seconds):
            return f"its worker died {died} times without a step; it is tried again soon"
        return ""

    def _try(self, job: JobRecord, now: float) -> StartedWorker | Waits | None:
        """Start a job; what is wrong with one must not keep the others from running."""
        if not self._may_try(job):
            return self._waits.get(job.id)
        try:
            outcome = self._starter.start(job, now)
        except SlidepackError:
            # The database cannot be written: nothing can be started.
            raise
        except Exception as error:
            if self._unexpected.get(job.id) != repr(error):
                logger.error("Job %d cannot be started", job.id, exc_info=error)
            self._unexpected[job.id] = repr(error)
            outcome = Waits(f"waits: {error!r}; the daemon's log has the details", soon=False)
        if isinstance(outcome, Waits):
            self._waits[job.id] = outcome
        return outcome

    def _is_just_free(self, *, running: bool) -> bool:
        if running:
            self._free_since = None
            return False
        clock = self._monotonic()
        if self._free_since is None:
            self._free_since = clock
        return clock - self._free_since < _IN_LINE_SECONDS

    def _explain(self, queued: list[JobRecord], why: dict[int, str]) -> None:
        changed = [job for job in queued if why.get(job.id) and why[job.id] != job.reason]
        if not changed:
            return
        with self._db.transaction():
            for job in changed:
                self._jobs.explain(job.id, why[job.id])

    def _hold(self, job: JobRecord, why: str, now: float) -> None:
        reason = held_reason(why)
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

    def _forget_all_but(self, queued: set[int]) -> None:
        kept = queued | {job.id for job in self._jobs.paused()}
        for known in (self._tried, self._waits, self._unexpected):
            for job_id in known.keys() - kept:
                del known[job_id]
