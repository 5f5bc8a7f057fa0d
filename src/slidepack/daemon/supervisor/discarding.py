"""Deletes folders of jobs, and nothing else."""

import logging
import os
import shutil
from collections.abc import Iterable
from pathlib import Path
from typing import Final

logger = logging.getLogger(__name__)

GONE: Final = ".gone"
"""Ends the name of what was put aside."""


class Discarder:
    """Deletes in two steps: a rename that takes no time, then the work.

    A folder that is half deleted has a name under which nobody looks for it.
    """

    def __init__(self, jobs: Path) -> None:
        """Name the folder of all jobs; only what is below it is ever deleted."""
        self._jobs = jobs
        self._refusals: dict[Path, str] = {}

    def put_aside(self, folders: Iterable[Path]) -> bool:
        """Rename folders so that they no longer count; say whether all are out of the way."""
        aside = [self._put_aside(folder) for folder in folders]
        return all(aside)

    def delete(self, folders: Iterable[Path]) -> bool:
        """Delete folders, whether or not they were put aside; say whether all are gone."""
        # Each of them is tried, whatever became of the one before.
        gone = [self._delete(folder) for folder in folders]
        return all(gone)

    def refused(self, folder: Path, error: OSError) -> bool:
        """Log, once a reason, that a folder stays for now; return False."""
        if self._refusals.get(folder) != str(error):
            logger.warning("%s stays on the disk for now: %s", folder, error)
        self._refusals[folder] = str(error)
        return False

    def _put_aside(self, folder: Path) -> bool:
        try:
            self._check(folder)
            folder.rename(aside_of(folder))
        except FileNotFoundError:
            pass
        except OSError as error:
            return self.refused(folder, error)
        self._refusals.pop(folder, None)
        return True

    def _delete(self, folder: Path) -> bool:
        try:
            self._check(folder)
            shutil.rmtree(folder)
        except OSError as error:
            # Somebody else may have deleted it meanwhile, or only a file in it.
            if os.path.lexists(folder):
                return self.refused(folder, error)
        self._refusals.pop(folder, None)
        return True

    def _check(self, folder: Path) -> None:
        """Refuse what is not below the jobs' folder, and so what a link leads to outside of it."""
        top = self._jobs.resolve()
        found = folder.resolve()
        if found == top or not found.is_relative_to(top):
            raise OSError(f"it is not in {top}")


def aside_of(folder: Path) -> Path:
    """Return what `put_aside` names a folder."""
    return folder.with_name(f".{folder.name}{GONE}")


def remains(folder: Path) -> list[Path]:
    """Return what was put aside in a folder, and what a dead worker left in it half written.

    Raises:
        OSError: the disk does not tell.
    """
    try:
        names = sorted(os.listdir(folder))
    except FileNotFoundError:
        return []
    return [
        folder / name for name in names if name.startswith(".") and name.endswith((GONE, ".tmp"))
    ]
