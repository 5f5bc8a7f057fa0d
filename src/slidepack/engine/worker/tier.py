"""What of a run's state is on drives, as its plan says, and the folders it has there."""

import fcntl
import hashlib
import os
import shutil
from collections.abc import Sequence
from pathlib import Path
from typing import Final

import torch

from slidepack.engine.contract.plan import RunPlan
from slidepack.engine.contract.runfolder import RunFolder
from slidepack.engine.nvme.choose import open_transport
from slidepack.engine.nvme.failures import disk_error
from slidepack.engine.sliding.tier_store import TierSetup
from slidepack.engine.worker.checkpoint import KEPT

__all__ = ["TierFolders", "tier_setup"]

_PREFIX: Final = "run-"
_LOCK: Final = "lock"


class TierFolders:
    """The folders of one job on its drives, held by a lock for as long as its worker lives."""

    def __init__(self, drives: Sequence[Path], job: Path) -> None:
        """Take them, and remove those of workers that were killed.

        Args:
            drives: a folder on each drive.
            job: the folder of its attempts, which names it.

        Raises:
            SlidepackError: DISK-UNWRITABLE or DISK-FAILED; or another worker has them.
        """
        name = _PREFIX + hashlib.sha256(os.fsencode(job.resolve())).hexdigest()[:16]
        self.paths = tuple(drive / name for drive in drives)
        self._locks: list[int] = []
        for drive, path in zip(drives, self.paths, strict=True):
            try:
                path.mkdir(parents=True, exist_ok=True)
                self._locks.append(_lock(path))
                for other in drive.glob(f"{_PREFIX}*"):
                    if other != path:
                        _remove_if_dead(other)
            except OSError as error:
                self.close()
                raise disk_error(error, "open", path) from error

    def close(self) -> None:
        """Let go, and remove the folders with all that is in them."""
        while self._locks:
            lock = self._locks.pop()
            shutil.rmtree(self.paths[len(self._locks)], ignore_errors=True)
            os.close(lock)


def _lock(folder: Path) -> int:
    descriptor = os.open(folder / _LOCK, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)
    try:
        fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except OSError:
        os.close(descriptor)
        raise
    return descriptor


def _remove_if_dead(folder: Path) -> None:
    """Remove what a worker that was killed left; a checkpoint has links of its own."""
    try:
        lock = _lock(folder)
    except OSError:
        # It lives, or is somebody else's, or is just being removed.
        return
    shutil.rmtree(folder, ignore_errors=True)
    os.close(lock)


def tier_setup(
    plan: RunPlan, device: torch.device, run: RunFolder, folders: TierFolders
) -> TierSetup:
    """Return what a run's state is told of its drives.

    Args:
        plan: of a full fine-tuning that has drives.
        device: where the passes run.
        run: whose checkpoints link to the files, where they are on the same file system.
        folders: on the drives.
    """
    assert plan.full is not None
    assert plan.full.nvme is not None
    nvme, on_card = plan.full.nvme, device.type == "cuda" and plan.full.engine == "gpu"
    return TierSetup(
        folders=folders.paths,
        moments=frozenset(nvme.moments),
        master=frozenset(nvme.master),
        transport=open_transport(device_memory=on_card),
        chunk=nvme.chunk_elements,
        sets=_sets(run, folders.paths),
    )


def _sets(run: RunFolder, folders: Sequence[Path]) -> int:
    """Return how many files of each unit to allocate.

    An attempt that goes on from a checkpoint finds the room of those taken by the checkpoints
    themselves; they become free one by one as it makes its own.
    """
    linked = all(os.stat(path).st_dev == os.stat(run.root).st_dev for path in folders)
    resumes = bool(run.read_identity().resume_from)
    return 1 + KEPT if linked and not resumes else 1
