"""What users do to jobs: queue, cancel, pause, resume, retry, delete a model."""

import shutil
import time
from collections.abc import Callable
from typing import Final

from slidepack.daemon.changes import Changes
from slidepack.daemon.exports.record import ExportRecord
from slidepack.daemon.paths import DataPaths
from slidepack.daemon.requests import (
    JobRequest,
    MoveRequest,
    RetryRequest,
    freeze_job,
    timing_of,
    with_lr_factor,
)
from slidepack.daemon.states import LIVE
from slidepack.daemon.store.catalogue import Catalogue, ModelRecord
from slidepack.daemon.store.database import Database
from slidepack.daemon.store.jobs import JobRecord, JobStore
from slidepack.daemon.store.runlog import RunLog
from slidepack.daemon.store.timing import JobTiming
from slidepack.daemon.supervisor.choosing import is_held_by
from slidepack.daemon.supervisor.origins import Origins
from slidepack.daemon.supervisor.retention import Retention
from slidepack.engine.contract.errors import SlidepackError
from slidepack.engine.contract.job import JobSpec

_SHOWN_JOBS: Final = 5


class Queue:
    """Commands of users; each one is a transaction, and the supervisor carries it out."""

    def __init__(
        self,
        database: Database,
        jobs: JobStore,
        runlog: RunLog,
        retention: Retention,
        catalogue: Catalogue,
        paths: DataPaths,
        changes: Changes,
        tonight: Callable[[float], float],
        origins: Origins,
        exports_of: Callable[[int], list[ExportRecord]],
    ) -> None:
        """Bind the stores.

        Args:
            database: for transactions over several stores.
            jobs: the queue.
            runlog: what their workers reported.
            retention: deletes what nobody needs any more.
            catalogue: models and datasets.
            paths: the data directory.
            changes: told about every change.
            tonight: when the next window opens, for a moment; both unix time in seconds.
            origins: what jobs go on from.
            exports_of: what was exported of a job.
        """
        self._db = database
        self._jobs = jobs
        self._runlog = runlog
        self._retention = retention
        self._catalogue = catalogue
        self._paths = paths
        self._changes = changes
        self._tonight = tonight
        self._origins = origins
        self._exports_of = exports_of

    def add(self, request: JobRequest) -> JobRecord:
        """Freeze and queue a job.

        Raises:
            SlidepackError: as `freeze_job`, RUN-NOT-FOUND where it comes after no job.
        """
        spec = freeze_job(request, self._catalogue, self._paths)
        now = time.time()
        with self._db.transaction():
            # What was frozen outside of it may be deleted by now.
            self._catalogue.require_inputs(spec)
            job = self._jobs.add(spec, now, timing_of(request, self._tonight(now)))
        self._changes.bump()
        return job

    def cancel(self, job_id: int) -> JobRecord:
        """End a job for good; its last checkpoints stay in its folder.

        Raises:
            SlidepackError: RUN-NOT-FOUND, RUN-STATE where it has ended.
        """
        return self._ask(job_id, "cancel")

    def pause(self, job_id: int) -> JobRecord:
        """Checkpoint a job and keep it from running until it is resumed.

        Raises:
            SlidepackError: RUN-NOT-FOUND, RUN-STATE where it has ended or is paused.
        """
        return self._ask(job_id, "pause")

    def resume(self, job_id: int) -> JobRecord:
        """Put a paused job back where it stood in the queue.

        One that was paused because a job before it failed runs all the same.

        Raises:
            SlidepackError: RUN-NOT-FOUND, RUN-STATE where it is not paused.
        """
        with self._db.transaction():
            job = self._jobs.get(job_id)
            if job.state != "paused":
                raise _wrong_state(job, "resumed")
            before = self._jobs.states_of(job.after).values()
            if any(state in ("failed", "cancelled") for state in before):
                self._jobs.run_after_failure(job_id)
            self._jobs.set_error(job_id, None)
            self._jobs.move(job_id, "queued", "resumed; waits for its turn", time.time())
        self._changes.bump()
        return self._jobs.get(job_id)

    def retry(self, job_id: int, request: RetryRequest | None = None) -> JobRecord:
        """Queue a new job with the specification of an ended one.

        What waits for the ended job waits for the new one from now on.

        Raises:
            SlidepackError: RUN-NOT-FOUND, RUN-STATE where it has not ended, RUN-SPEC-INVALID,
                RUN-NO-CHECKPOINT where it is to go on from a checkpoint and has none,
                RUN-ORIGIN-BROKEN where it continued another job, and what that left is gone,
                MODEL-NOT-FOUND or DATA-NOT-FOUND where that was deleted.
        """
        how = request or RetryRequest()
        with self._db.transaction():
            job = self._require_ended(job_id)
            if how.resume and job.state == "completed":
                raise SlidepackError(
                    "RUN-NO-CHECKPOINT",
                    f"Job {job_id} has no checkpoint in its middle to go on from.",
                    why="it is completed",
                    fix=f"Train it further: `slidepack jobs continue {job_id}`.",
                )
            if how.resume and not can_go_on(self._jobs, self._runlog, job):
                raise SlidepackError(
                    "RUN-NO-CHECKPOINT",
                    f"Job {job_id} left no good checkpoint to go on from.",
                    why="it ended before its first one, or diverged before it",
                    fix="Retry it from the start.",
                )
            spec = with_lr_factor(self._jobs.spec(job_id), how.lr_factor)
            again = self._again(job, spec, adopts=job_id if how.resume else None)
        self._changes.bump()
        return again

    def retry_with(self, job_id: int, spec: JobSpec) -> JobRecord:
        """Queue a new job in the place of an ended one, with a specification of its own.

        Raises:
            SlidepackError: RUN-NOT-FOUND, RUN-STATE where it has not ended, RUN-ORIGIN-BROKEN,
                MODEL-NOT-FOUND, DATA-NOT-FOUND.
        """
        with self._db.transaction():
            again = self._again(self._require_ended(job_id), spec)
        self._changes.bump()
        return again

    def require_retryable(self, job_id: int) -> JobRecord:
        """Return a job that has ended, and all that it needs is still there.

        Raises:
            SlidepackError: RUN-NOT-FOUND, RUN-STATE where it has not ended, RUN-ORIGIN-BROKEN,
                MODEL-NOT-FOUND, DATA-NOT-FOUND.
        """
        job = self._require_ended(job_id)
        self._require_needs(self._jobs.spec(job_id))
        return job

    def _require_ended(self, job_id: int) -> JobRecord:
        job = self._jobs.get(job_id)
        if not job.terminal:
            raise _wrong_state(job, "retried")
        return job

    def _require_needs(self, spec: JobSpec) -> None:
        self._catalogue.require_inputs(spec)
        if spec.continues is not None:
            self._origins.require(spec.continues)

    def _again(self, job: JobRecord, spec: JobSpec, *, adopts: int | None = None) -> JobRecord:
        """Add a job in the place of an ended one; a transaction is open."""
        now = time.time()
        self._require_needs(spec)
        timing = JobTiming(
            priority=job.priority,
            not_before=job.not_before,
            deadline=None if job.deadline is None or job.deadline <= now else job.deadline,
            any_time=job.any_time,
            after=job.after,
            after_failure=job.after_failure,
            on_failure=job.on_failure,
        )
        again = self._jobs.add(spec, now, timing, adopts=adopts, sweep_id=job.sweep_id)
        if job.state != "completed":
            self._jobs.wait_for_instead(job.id, again.id)
            self._let_go(job.id, again.id, now)
        return again

    def _let_go(self, failed: int, again: int, now: float) -> None:
        """Queue what was held because a job failed: it waits for the new one now."""
        for held in self._jobs.paused():
            if again in held.after and is_held_by(held.reason, failed):
                self._jobs.move(held.id, "queued", f"waits for job {again}", now)

    def move(self, job_id: int, request: MoveRequest) -> JobRecord:
        """Give a job another place in the queue.

        Raises:
            SlidepackError: RUN-NOT-FOUND, RUN-STATE where one of both has ended.
        """
        with self._db.transaction():
            for moved in (job_id, request.before):
                if moved is not None and self._jobs.get(moved).terminal:
                    raise _wrong_state(self._jobs.get(moved), "moved")
            if job_id != request.before:
                self._jobs.place(job_id, request.before)
        self._changes.bump()
        return self._jobs.get(job_id)

    def remove(self, job_id: int) -> list[ExportRecord]:
        """Delete an ended job with its folder: chart, checkpoints, result.

        Returns:
            Its exports, which stay: they are copies.

        Raises:
            SlidepackError: RUN-NOT-FOUND, RUN-STATE where it has not ended or another needs it, or
                an export is being made of it.
        """
        with self._db.transaction():
            exports = self.require_removable(job_id)
            self._runlog.forget(job_id)
            self._jobs.remove(job_id)
            self._retention.remove_job_folder(job_id)
        self._changes.bump()
        return exports

    def require_removable(self, job_id: int) -> list[ExportRecord]:
        """Refuse a job that cannot be deleted now; return its exports, which would stay.

        Raises:
            SlidepackError: as `remove`.
        """
        job = self._jobs.get(job_id)
        if not job.terminal:
            raise _wrong_state(job, "deleted")
        users = self._jobs.needed_by(job_id)
        if users:
            raise SlidepackError(
                "RUN-STATE",
                f"Job {job_id} cannot be deleted.",
                why=f"job {users[0]} goes on from it, or comes after it",
                fix="Cancel that one first.",
            )
        exports = self._exports_of(job_id)
        if unended := [export for export in exports if not export.ended]:
            raise SlidepackError(
                "RUN-STATE",
                f"Job {job_id} cannot be deleted.",
                why=f"export {unended[0].id} is being made of it",
                fix=f"Wait for it, or `slidepack exports cancel {unended[0].id}`.",
            )
        return exports

    def require_forgettable(self, model_id: str) -> ModelRecord:
        """Refuse a model that cannot be deleted now.

        Raises:
            SlidepackError: as `forget_model`.
        """
        model = self._catalogue.model(model_id)
        jobs = self._catalogue.jobs_of_model(model_id)
        if needing := [job.job_id for job in jobs if not job.ended]:
            raise SlidepackError(
                "RUN-STATE",
                f"The model {model_id} is in use.",
                why=f"{counted_jobs(needing)} not ended",
                fix="Cancel them first.",
            )
        exports = [export for job in jobs for export in self._exports_of(job.job_id)]
        if unended := [export.id for export in exports if not export.ended]:
            raise SlidepackError(
                "RUN-STATE",
                f"The model {model_id} is in use.",
                why=f"export {unended[0]} is being made with it",
                fix=f"Wait for it, or `slidepack exports cancel {unended[0]}`.",
            )
        return model

    def forget_model(self, model_id: str) -> None:
        """Take a model off the list; what was converted or downloaded for it is deleted.

        A folder that the user added stays as it is.

        Raises:
            SlidepackError: MODEL-NOT-FOUND, RUN-STATE where a job still needs it.
        """
        with self._db.transaction():
            model = self.require_forgettable(model_id)
            self._catalogue.delete_model(model.id)
        # What is still being imported is removed once its importer has ended.
        if model.kind != "folder" and model.state != "importing":
            shutil.rmtree(self._paths.models / model.id, ignore_errors=True)
        self._changes.bump()

    def _ask(self, job_id: int, wanted: str) -> JobRecord:
        now = time.time()
        with self._db.transaction():
            job = self._jobs.get(job_id)
            # A full disk paused it, and it would go on by itself.
            stays = wanted == "pause" and job.state == "paused" and job.error is not None
            if job.terminal or (wanted == "pause" and job.state == "paused" and not stays):
                raise _wrong_state(job, "cancelled" if wanted == "cancel" else "paused")
            if stays:
                self._jobs.keep_paused(job_id)
            elif job.state in LIVE:
                self._jobs.want(job_id, wanted, now)
            elif wanted == "cancel":
                self._jobs.move(job_id, "cancelled", "cancelled while nothing ran", now)
                self._retention.after_end(job_id)
            else:
                self._jobs.move(job_id, "paused", "paused", now)
        self._changes.bump()
        return self._jobs.get(job_id)


def counted_jobs(job_ids: list[int]) -> str:
    """Return jobs as the start of a clause, as in `job 3 has` or `jobs 3, 5 and 2 more have`."""
    if len(job_ids) == 1:
        return f"job {job_ids[0]} has"
    more = f" and {len(job_ids) - _SHOWN_JOBS} more" if len(job_ids) > _SHOWN_JOBS else ""
    return f"jobs {', '.join(map(str, job_ids[:_SHOWN_JOBS]))}{more} have"


def can_go_on(jobs: JobStore, runlog: RunLog, job: JobRecord) -> bool:
    """Return whether a job, or one that it went on from, left a healthy checkpoint."""
    current: JobRecord | None = job
    while current is not None:
        if runlog.has_good_checkpoint(current.id):
            return True
        current = None if current.adopts is None else jobs.get(current.adopts)
    return False


def _wrong_state(job: JobRecord, verb: str) -> SlidepackError:
    return SlidepackError(
        "RUN-STATE",
        f"Job {job.id} cannot be {verb}.",
        why=f"it is {job.state}",
        fix="`slidepack jobs show` tells how it stands.",
    )
