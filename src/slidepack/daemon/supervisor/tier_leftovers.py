"""What jobs leave on drives: a worker takes its folders with it, one that was killed does not."""

import os
from pathlib import Path

from slidepack.engine.contract.errors import SlidepackError
from slidepack.engine.contract.plan import RunPlan
from slidepack.engine.contract.runfolder import RunFolder
from slidepack.engine.tier_folders import remove_if_dead, tier_folder

__all__ = ["remove_tier_folders", "tier_folders_of"]


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
    return [folder for folder in found if os.path.isdir(folder)]


def remove_tier_folders(job: Path) -> bool:
    """Remove an ended job's folders on drives; return False where a worker still has one.

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
