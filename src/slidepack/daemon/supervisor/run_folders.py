"""Makes the run folders of attempts."""

import secrets
import shutil
from collections.abc import Callable, Sequence
from pathlib import Path

from slidepack.daemon.paths import DataPaths
from slidepack.daemon.store.attempts import AttemptRecord, AttemptStore
from slidepack.daemon.store.jobs import JobRecord
from slidepack.daemon.supervisor.run_plans import RunPlans
from slidepack.engine.contract.job import JobSpec
from slidepack.engine.contract.plan import RunPlan
from slidepack.engine.contract.runfolder import RunFolder, RunIdentity

__all__ = ["RunFolders", "new_nonce"]


def new_nonce() -> str:
    """Return a name for a worker that nobody can guess."""
    return secrets.token_hex(16)


class RunFolders:
    """Names a job's next attempt, and gives it what it goes on from."""

    def __init__(
        self,
        *,
        attempts: AttemptStore,
        plans: RunPlans,
        paths: DataPaths,
        disk_floor_bytes: int,
        also: Callable[[int, RunFolder], None] = lambda _job_id, _folder: None,
    ) -> None:
        """Bind what a folder is made from.

        Args:
            attempts: the tries at the jobs.
            plans: knows the jobs that a job goes on from.
            paths: the data directory.
            disk_floor_bytes: what runs leave free on the disk.
            also: puts whatever else the worker of a job should find into its folder.
        """
        self._attempts = attempts
        self._plans = plans
        self._paths = paths
        self._floor = disk_floor_bytes
        self._also = also

    def make(
        self, job: JobRecord, spec: JobSpec, plan: RunPlan, nonce: str, log: Path | None = None
    ) -> tuple[int, RunFolder]:
        """Make the folder of the next attempt; return its number and the folder.

        Args:
            job: whose attempt it is.
            spec: what the job asks for.
            plan: how it runs.
            nonce: of its worker.
            log: the log of the pack that it joins, to which its own leads; None for one of its own.

        Raises:
            OSError: the disk refused.
            SlidepackError: DISK-UNWRITABLE or DISK-FULL: the database does not answer.
        """
        attempts = self._attempts.of(job.id)
        number = len(attempts) + 1
        folder = RunFolder(self._paths.attempt(job.id, number))
        identity = RunIdentity(
            job_id=str(job.id),
            attempt=number,
            nonce=nonce,
            resume_from=_checkpoints_of(attempts),
            adopt_from=tuple(
                path
                for ancestor in self._plans.ancestors(job)
                for path in _checkpoints_of(self._attempts.of(ancestor))
            ),
            disk_floor_bytes=self._floor,
        )
        # Left by a daemon that died between making the folder and recording the attempt.
        shutil.rmtree(folder.root, ignore_errors=True)
        folder.create(spec, plan, identity)
        self._also(job.id, folder)
        if log is not None:
            folder.log.symlink_to(log)
        return number, folder


def _checkpoints_of(attempts: Sequence[AttemptRecord]) -> tuple[str, ...]:
    """Return the checkpoints of a job's attempts, newest first."""
    return tuple(
        str(checkpoint)
        for attempt in reversed(attempts)
        for checkpoint in RunFolder(Path(attempt.folder)).list_checkpoints()
    )
