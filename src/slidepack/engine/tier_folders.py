"""The folders that jobs have on drives: their names, their locks, and how they go. Torch-free."""

import fcntl
import hashlib
import os
import shutil
from pathlib import Path
from typing import Final

__all__ = ["TIER_PREFIX", "lock_folder", "remove_if_dead", "tier_folder"]

TIER_PREFIX: Final = "run-"
_LOCK: Final = "lock"


def tier_folder(drive: Path, job: Path) -> Path:
    """Return the folder of a job on a drive.

    Args:
        drive: a folder there.
        job: the folder of its attempts, which names it.
    """
    digest = hashlib.sha256(os.fsencode(job.resolve())).hexdigest()
    return drive / f"{TIER_PREFIX}{digest[:16]}"


def lock_folder(folder: Path) -> int:
    """Take the lock that a worker holds for as long as it lives; return its descriptor.

    Raises:
        OSError: a worker holds it, or the file system refused.
    """
    descriptor = os.open(folder / _LOCK, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)
    try:
        fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except OSError:
        os.close(descriptor)
        raise
    return descriptor


def remove_if_dead(folder: Path) -> bool:
    """Remove what a worker that was killed left; return False where its worker lives.

    A checkpoint has links of its own. What the file system refuses to remove stays until the next
    run that has state on that drive, which tries again.
    """
    try:
        lock = lock_folder(folder)
    except BlockingIOError:
        return False
    except OSError:
        # It is gone, or somebody else's.
        return True
    try:
        shutil.rmtree(folder, ignore_errors=True)
    finally:
        os.close(lock)
    return True
