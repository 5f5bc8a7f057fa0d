"""What users do to jobs: queue, cancel, pause, resume, retry, delete a model."""

import shutil
import time

from slidepack.daemon.changes import Changes
from slidepack.daemon.paths import DataPaths
from slidepack.daemon.requests import JobRequest, freeze_job
from slidepack.daemon.states import LIVE
from slidepack.daemon.store.catalogue import Catalogue
from slidepack.daemon.store.database import Database
from slidepack.daemon.store.jobs import JobRecord, JobStore
from slidepack.engine.contract.errors import SlidepackError


class Queue:
    """Commands of users; each one is a transaction, and the supervisor carries it out."""

    def __init__(
        self,
        database: Database,
        jobs: JobStore,
        catalogue: Catalogue,
        paths: DataPaths,
        changes: Changes,
    ) -> None:
        """Bind the stores."""
        self._db = database
        self._jobs = jobs
        self._catalogue = catalogue
        self._paths = paths
        self._changes = changes

    def add(self, request: JobRequest) -> JobRecord:
        """Freeze and queue a job.

        Raises:
            SlidepackError: as `freeze_job`.
        """
        spec = freeze_job(request, self._catalogue, self._paths)
        job = self._jobs.add(spec, time.time())
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

        Raises:
            SlidepackError: RUN-NOT-FOUND, RUN-STATE where it is not paused.
        """
        with self._db.transaction():
            job = self._jobs.get(job_id)
            if job.state != "paused":
                raise _wrong_state(job, "resumed")
            self._jobs.set_error(job_id, None)
            self._jobs.move(job_id, "queued", "resumed; waits for its turn", time.time())
        self._changes.bump()
        return self._jobs.get(job_id)

    def retry(self, job_id: int) -> JobRecord:
        """Queue a new job with the same specification as an ended one.

        Raises:
            SlidepackError: RUN-NOT-FOUND, RUN-STATE where it has not ended.
        """
        job = self._jobs.get(job_id)
        if not job.terminal:
            raise _wrong_state(job, "retried")
        again = self._jobs.add(self._jobs.spec(job_id), time.time())
        self._changes.bump()
        return again

    def forget_model(self, model_id: str) -> None:
        """Take a model off the list; what was converted or downloaded for it is deleted.

        A folder that the user added stays as it is.

        Raises:
            SlidepackError: MODEL-NOT-FOUND, RUN-STATE where a job still needs it.
        """
        with self._db.transaction():
            model = self._catalogue.model(model_id)
            uses = self._catalogue.uses_of_model(model_id)
            if uses:
                raise SlidepackError(
                    "RUN-STATE",
                    f"The model {model_id} is in use.",
                    why=f"{uses} jobs have not ended",
                    fix="Cancel them first.",
                )
            self._catalogue.delete_model(model.id)
        # What is still being imported is removed once its importer has ended.
        if model.kind != "folder" and model.state != "importing":
            shutil.rmtree(self._paths.models / model.id, ignore_errors=True)
        self._changes.bump()

    def _ask(self, job_id: int, wanted: str) -> JobRecord:
        now = time.time()
        with self._db.transaction():
            job = self._jobs.get(job_id)
            if job.terminal or (wanted == "pause" and job.state == "paused"):
                raise _wrong_state(job, "cancelled" if wanted == "cancel" else "paused")
            if job.state in LIVE:
                self._jobs.want(job_id, wanted, now)
            elif wanted == "cancel":
                self._jobs.move(job_id, "cancelled", "cancelled before it ran", now)
            else:
                self._jobs.move(job_id, "paused", "paused", now)
        self._changes.bump()
        return self._jobs.get(job_id)


def _wrong_state(job: JobRecord, verb: str) -> SlidepackError:
    return SlidepackError(
        "RUN-STATE",
        f"Job {job.id} cannot be {verb}.",
        why=f"it is {job.state}",
        fix="`slidepack jobs show` tells how it stands.",
    )
