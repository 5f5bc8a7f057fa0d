"""What queued jobs go on from, kept for them: hard links that outlive the job that made it."""

import shutil
from pathlib import Path
from typing import Final

import msgspec

from slidepack.daemon.paths import disk_error
from slidepack.daemon.store.database import Database
from slidepack.daemon.store.retention import RetentionStore
from slidepack.daemon.supervisor.discarding import GONE, Discarder
from slidepack.engine.contract.errors import SlidepackError
from slidepack.engine.contract.job import ContinueRef
from slidepack.engine.contract.runfolder import fsync_folder

__all__ = ["Origins"]

_NAME_CHARACTERS: Final = 32
_HALF: Final = ".tmp"


class Origins:
    """A folder for each thing that is gone on from, named by its content."""

    def __init__(self, database: Database, folder: Path) -> None:
        """Bind the folder of all origins.

        Args:
            database: in which the jobs say what they need.
            folder: nothing outside it is ever deleted.
        """
        self._db = database
        self._store = RetentionStore(database)
        self._folder = folder
        self._discarder = Discarder(folder)

    def keep(self, origin: ContinueRef) -> ContinueRef:
        """Give an origin a home of its own, and return it from there.

        Within the transaction that queues the job, so that nothing deletes it in between. Files
        are linked, not copied: that takes no time and no room, and none of them ever changes.

        Raises:
            SlidepackError: RUN-ORIGIN-BROKEN: it is gone. DISK-FULL or DISK-UNWRITABLE.
        """
        target = self._home(origin)
        try:
            if not target.is_dir():
                _link_folder(Path(origin.path), target)
        except FileNotFoundError as error:
            raise SlidepackError(
                "RUN-ORIGIN-BROKEN",
                f"What job {origin.job} left is gone.",
                why=f"{origin.path}: {error.strerror}",
                fix="Try again: it may have left something else.",
            ) from error
        except OSError as error:
            raise disk_error(error, self._folder) from error
        return msgspec.structs.replace(origin, path=str(target))

    def require(self, origin: ContinueRef) -> None:
        """Check that an origin that was kept is still there, for a job that is tried again.

        Raises:
            SlidepackError: RUN-ORIGIN-BROKEN.
        """
        if not Path(origin.path).is_dir():
            raise SlidepackError(
                "RUN-ORIGIN-BROKEN",
                f"What job {origin.job} left is no longer kept for this job.",
                why=f"{origin.path} is gone: the job that went on from it was completed",
                fix=f"Continue job {origin.job} anew: `slidepack jobs continue {origin.job}`.",
            )

    def work(self) -> None:
        """Delete what no job needs any more.

        Raises:
            SlidepackError: DISK-UNWRITABLE or DISK-FULL: the database does not answer.
        """
        with self._db.transaction():
            # Whoever makes one holds the database too, so what is half made has no maker any more.
            needed = self._store.origins()
            self._discarder.put_aside(
                path
                for path in self._listed()
                if path.suffix == _HALF or not (path.name.startswith(".") or path.name in needed)
            )
        self._discarder.delete(path for path in self._listed() if path.suffix == GONE)

    def _listed(self) -> list[Path]:
        try:
            return sorted(self._folder.iterdir())
        except OSError as error:
            self._discarder.refused(self._folder, error)
            return []

    def _home(self, origin: ContinueRef) -> Path:
        return self._folder / f"{origin.kind}-{origin.digest[:_NAME_CHARACTERS]}"


def _link_folder(source: Path, target: Path) -> None:
    """Make a folder of links to another's files, whole or not at all.

    Raises:
        OSError: the source is gone, or the disk refused.
    """
    temporary = target.with_name(f".{target.name}{_HALF}")
    shutil.rmtree(temporary, ignore_errors=True)
    temporary.mkdir()
    for path in source.iterdir():
        _link(path, temporary / path.name)
    fsync_folder(temporary)
    temporary.rename(target)
    fsync_folder(target.parent)


def _link(source: Path, target: Path) -> None:
    try:
        target.hardlink_to(source)
    except FileNotFoundError:
        raise
    except OSError:
        # Not on every file system, nor from one to another.
        shutil.copy2(source, target)
