"""What jobs leave on drives: a worker takes its folders with it, one that was killed does not."""

import os
from pathlib import Path

from slidepack.daemon.store.database import Database
from slidepack.engine.contract.errors import SlidepackError
from slidepack.engine.contract.plan import RunPlan
from slidepack.engine.contract.runfolder import RunFolder
from slidepack.engine.tier_folders import remove_if_dead, tier_folder

__all__ = ["TierLeftovers", "remove_tier_folders", "tier_folders_of"]


class TierLeftovers:
    """Frees the drives of jobs that wait: till the next worker, nobody else would."""

    def __init__(self, database: Database, jobs: Path) -> None:
        """Bind the database, and the folder of all jobs."""
        self._db = database
        self._folder = jobs
        self._done: dict[int, int] = {}
        """Jobs whose folders are gone, and how many attempts they had then."""

    def work(self) -> None:
        """Remove what attempts that have ended left there; in a thread of its own.

        Raises:
            SlidepackError: DISK-UNWRITABLE: the database cannot be read.
        """
        waiting = self._waiting()
        self._done = {job: at for job, at in self._done.items() if waiting.get(job) == at}
        for job_id, attempts in waiting.items():
            if job_id not in self._done and remove_tier_folders(self._folder / str(job_id)):
                self._done[job_id] = attempts

    def _waiting(self) -> dict[int, int]:
        """Return the jobs that have been tried and have no worker, and how often they were."""
        rows = self._db.query(
            "SELECT job_id, MAX(number) AS newest FROM attempts WHERE job_id IN (SELECT id FROM "
            "jobs WHERE ended_at IS NULL AND state IN ('queued', 'paused')) "
            "GROUP BY job_id HAVING SUM(state = 'live') = 0"
        )
        return {int(row["job_id"]): int(row["newest"]) for row in rows}


def tier_folders_of(job: Path) -> list[Path]:
    """Return the folders that a job has on drives, by the plans of its attempts.

    Args:
        job: the folder of its attempts.
    """
    drives = {
        Path(drive): None
        for plan in map(_plan_of, sorted(job.glob("*/plan.json")))
        if plan is not None and plan.full is not None and plan.full.nvme is not None
        for drive in plan.full.nvme.folders
    }
    found = (tier_folder(drive, job) for drive in drives)
    # Of a drive that does not answer, or is away, nothing is said.
    return [folder for folder in found if os.path.isdir(folder) and not folder.is_symlink()]


def remove_tier_folders(job: Path) -> bool:
    """Remove a job's folders on drives; return False where a worker still has one.

    Its checkpoints have links of their own.
    """
    dead = [remove_if_dead(folder) for folder in tier_folders_of(job)]
    return all(dead)


def _plan_of(path: Path) -> RunPlan | None:
    try:
        return RunFolder(path.parent).read_plan()
    except SlidepackError:
        # An attempt without a plan has never begun.
        return None
