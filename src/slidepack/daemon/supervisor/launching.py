"""Puts attempts into the database and starts their workers, or takes them back."""

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from slidepack.daemon.paths import disk_error
from slidepack.daemon.states import JobState
from slidepack.daemon.store.attempts import AttemptStore
from slidepack.daemon.store.database import Database
from slidepack.daemon.store.jobs import JobRecord, JobStore
from slidepack.daemon.store.packs import PackRecord, PackStore
from slidepack.daemon.supervisor.outcomes import Outcomes
from slidepack.daemon.supervisor.worker_process import (
    WorkerProcess,
    current_boot_id,
    start_worker,
)
from slidepack.engine.contract.errors import SlidepackError
from slidepack.engine.contract.pack import PackFolder
from slidepack.engine.contract.plan import RunPlan
from slidepack.engine.contract.runfolder import RunFolder

__all__ = ["Launcher", "MadeAttempt", "StartedWorker", "Waits", "refused"]


@dataclass(frozen=True, slots=True)
class StartedWorker:
    """A worker, the nonce it is known by, and the jobs that it runs."""

    nonce: str
    process: WorkerProcess
    job_ids: tuple[int, ...]


@dataclass(frozen=True, slots=True)
class Waits:
    """Why a job was not started."""

    reason: str
    soon: bool
    """Whether what it waits for may come any moment, so that nothing overtakes it yet."""


@dataclass(frozen=True, slots=True)
class MadeAttempt:
    """An attempt whose run folder is there."""

    job: JobRecord
    number: int
    folder: RunFolder


class Launcher:
    """The part of a start that all kinds of runs have in common."""

    def __init__(
        self,
        *,
        database: Database,
        jobs: JobStore,
        attempts: AttemptStore,
        packs: PackStore,
        outcomes: Outcomes,
    ) -> None:
        """Bind the stores.

        Args:
            database: for transactions over several stores.
            jobs: the queue.
            attempts: the tries at its jobs.
            packs: the workers that run many jobs.
            outcomes: told of a job that fails before it starts.
        """
        self.database = database
        self.jobs = jobs
        self.attempts = attempts
        self.packs = packs
        self._outcomes = outcomes

    def begin(
        self,
        attempt: MadeAttempt,
        nonce: str,
        plan: RunPlan,
        why: str,
        now: float,
        *,
        pack_id: int | None,
    ) -> None:
        """Record, in the caller's transaction, that an attempt begins.

        Args:
            attempt: whose folder is there.
            nonce: of its worker.
            plan: how it runs.
            why: told to the user.
            now: unix time in seconds.
            pack_id: of the pack in which it is a lane.
        """
        job_id = attempt.job.id
        self.jobs.move(job_id, "starting", why, now)
        self.jobs.set_error(job_id, None)
        self.attempts.add(
            job_id,
            attempt.number,
            str(attempt.folder.root),
            nonce,
            now,
            device=plan.device,
            pack_id=pack_id,
        )

    def start(
        self,
        made: Sequence[MadeAttempt],
        folder: RunFolder | PackFolder,
        nonce: str,
        now: float,
        *,
        pack: PackRecord | None,
    ) -> StartedWorker | Waits:
        """Start the worker of attempts that have begun; without one they are taken back.

        Args:
            made: the attempts.
            folder: in which the worker finds what to do.
            nonce: by which it is known.
            now: unix time in seconds.
            pack: to be taken back, too.
        """
        try:
            process = start_worker(folder, nonce)
        except OSError as error:
            # No memory for a process, or no room for its log: that passes, and was no attempt.
            reason = f"waits: its worker could not be started ({error})"
            self.take_back(made, reason, now, pack)
            return Waits(reason, soon=True)
        for attempt in made:
            self.attempts.set_process(
                attempt.job.id,
                attempt.number,
                pid=process.pid,
                started=process.started_ticks,
                boot_id=current_boot_id(),
            )
        return StartedWorker(nonce, process, tuple(attempt.job.id for attempt in made))

    def take_back(
        self, made: Sequence[MadeAttempt], reason: str, now: float, pack: PackRecord | None
    ) -> None:
        """Put jobs back into the queue whose attempts came to nothing, and forget these."""
        with self.database.transaction():
            for attempt in made:
                job_id = attempt.job.id
                self.attempts.remove(job_id, attempt.number)
                wanted = self.jobs.get(job_id).wanted
                if wanted in ("cancel", "pause"):
                    asked: JobState = "cancelled" if wanted == "cancel" else "paused"
                    self.jobs.move(job_id, asked, asked, now)
                else:
                    self.jobs.move(job_id, "queued", reason, now)
            if pack is not None:
                self.packs.remove(pack.id)

    def is_queued(self, job_id: int) -> bool:
        """Return whether a job still waits: a user may have cancelled, paused or deleted it.

        Raises:
            SlidepackError: the database does not answer.
        """
        try:
            return self.jobs.get(job_id).state == "queued"
        except SlidepackError as error:
            if error.report.code != "RUN-NOT-FOUND":
                raise
            return False

    def fail(self, job: JobRecord, error: SlidepackError, now: float) -> None:
        """End a job that can never start.

        Raises:
            SlidepackError: the database cannot be written; the job waits, and is tried again.
        """
        if error.report.code.startswith("DISK-"):
            raise error
        with self.database.transaction():
            if self.is_queued(job.id):
                self.jobs.set_error(job.id, error.report)
                self.jobs.move(job.id, "failed", error.report.line(), now)
                self._outcomes.settled(job, "failed", error.report.line(), error.report, now)


def refused(error: OSError, path: Path) -> Waits:
    """Return that a job waits for a disk that refused a write below `path`."""
    return Waits(f"waits: {disk_error(error, path).report.line()}", soon=True)
