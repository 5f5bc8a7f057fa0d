"""Records what became of a job when its attempt has ended."""

import logging
from pathlib import Path
from typing import Final

from slidepack.daemon.oom import OomKills, read_oom_kills
from slidepack.daemon.states import LIVE, TERMINAL
from slidepack.daemon.store.attempts import AttemptRecord, AttemptStore
from slidepack.daemon.store.database import Database
from slidepack.daemon.store.jobs import JobRecord, JobStore
from slidepack.daemon.store.runlog import RunLog
from slidepack.daemon.supervisor.backoff import fruitless
from slidepack.daemon.supervisor.ending import Ending, decide_ending
from slidepack.daemon.supervisor.outcomes import Outcomes
from slidepack.daemon.supervisor.pack_follow import PackFollower
from slidepack.daemon.supervisor.patience import Patience
from slidepack.daemon.supervisor.retention import Retention
from slidepack.daemon.supervisor.worker_process import WorkerProcess
from slidepack.engine.contract.events import Failed, Finished, Yielded
from slidepack.engine.contract.runfolder import RunFolder

__all__ = ["Settling", "last_log_line"]

logger = logging.getLogger(__name__)

_LOG_TAIL_BYTES: Final = 4096
_DYING: Final = frozenset({"live", "interrupted"})
"""An attempt that is being settled is live still."""


class Settling:
    """Moves jobs to where their attempts have brought them."""

    def __init__(
        self,
        *,
        database: Database,
        jobs: JobStore,
        attempts: AttemptStore,
        runlog: RunLog,
        packs: PackFollower,
        outcomes: Outcomes,
        retention: Retention,
        patience: Patience,
    ) -> None:
        """Bind the stores.

        Args:
            database: for transactions over several stores.
            jobs: the queue.
            attempts: the tries at its jobs.
            runlog: what workers reported.
            packs: follows the workers that run many jobs.
            outcomes: told what became of a job.
            retention: deletes the checkpoints that are of no use any more.
            patience: knows when runs were asked to leave.
        """
        self._db = database
        self._jobs = jobs
        self._attempts = attempts
        self._runlog = runlog
        self._packs = packs
        self._outcomes = outcomes
        self._retention = retention
        self._patience = patience

    def settle(
        self,
        attempt: AttemptRecord,
        worker: WorkerProcess | None,
        oom_before: OomKills | None,
        now: float,
    ) -> None:
        """Record what an attempt came to: its worker is gone, or its lane has left.

        Args:
            attempt: that was live.
            worker: its process; None where that is not to be found any more.
            oom_before: what the kernel had counted when the worker began.
            now: unix time in seconds.
        """
        exit_code = None if worker is None else worker.exit_code
        leave_seconds = None if worker is None else worker.leave_seconds()
        gone = worker is None or not worker.is_running()
        if attempt.pack_id is not None:
            # What it said last may be newer than this tick's look.
            while self._packs.ingest(attempt.pack_id, now):
                pass
        if leave_seconds is None:
            leave_seconds = self._patience.asked_for(Path(attempt.folder))
        oom_evidence = "" if oom_before is None else read_oom_kills().since(oom_before)
        folder = RunFolder(Path(attempt.folder))
        with self._db.transaction():
            # Read in the same transaction, so that a cancel that comes now is not lost.
            job = self._jobs.get(attempt.job_id)
            ending = decide_ending(
                self._last_word(attempt),
                exit_code=exit_code,
                wanted=job.wanted,
                wanted_why=job.wanted_why,
                leave_seconds=leave_seconds,
                fruitless_attempts=fruitless(self._attempts.of(job.id), _DYING),
                last_log_line=last_log_line(folder.log),
                oom_evidence=oom_evidence,
                result_on_disk=folder.result.is_dir(),
                shared=self._packs.is_shared(attempt),
                never_began=gone and self._packs.never_began(attempt),
            )
            self._attempts.end(attempt, ending.attempt_state, exit_code, now, leave_seconds)
            if ending.error is not None:
                self._jobs.set_error(job.id, ending.error)
            if ending.job_state == "completed":
                self._jobs.set_result(job.id, str(folder.result))
            if job.state in LIVE:
                self._jobs.move(job.id, ending.job_state, ending.reason, now)
                if ending.job_state == "queued":
                    # Half done, it goes on before what has not begun.
                    self._jobs.place_first(job.id)
                if not self._is_told_already(job, ending):
                    self._outcomes.settled(job, ending.job_state, ending.reason, ending.error, now)
        self._packs.forget(attempt)
        self._patience.forget(folder.root)
        logger.info("Job %d: %s (%s).", job.id, ending.job_state, ending.reason)
        if ending.job_state in TERMINAL:
            self._retention.after_end(job.id)

    def _last_word(self, attempt: AttemptRecord) -> Finished | Yielded | Failed | None:
        """Return how an attempt ended; a lane that says nothing failed with its pack."""
        own = self._runlog.ending(attempt.job_id, attempt.number)
        error = None if own is not None else self._packs.error_of(attempt)
        return own if error is None else Failed(at=0.0, error=error)

    def _is_told_already(self, job: JobRecord, ending: Ending) -> bool:
        """Return whether the disk was full again, with nothing new since it was last time."""
        failed = fruitless(self._attempts.of(job.id), frozenset({"failed"}))
        return ending.job_state == "paused" and ending.error is not None and failed > 1


def last_log_line(path: Path) -> str:
    """Return the last non-empty line of a log, clipped; empty where there is none."""
    try:
        with path.open("rb") as file:
            size = path.stat().st_size
            file.seek(max(0, size - _LOG_TAIL_BYTES))
            lines = file.read().decode("utf-8", "replace").strip().splitlines()
    except FileNotFoundError:
        return ""
    return lines[-1].strip()[:300] if lines else ""
