"""Gives an export its place: made out of sight, then there as a whole or not at all."""

import errno
import fcntl
import os
import shutil
import tempfile
from pathlib import Path
from types import TracebackType
from typing import Final

from slidepack.engine.contract.errors import SlidepackError
from slidepack.engine.contract.runfolder import fsync_folder
from slidepack.engine.importer.staging import fsync_tree, is_abandoned

__all__ = ["Place", "disk_error", "require_room"]

_FULL: Final = (errno.ENOSPC, errno.EDQUOT)
_TAKEN: Final = (errno.EEXIST, errno.ENOTEMPTY, errno.ENOTDIR, errno.EBUSY)


class Place:
    """A hidden folder beside the target, removed unless what it holds was moved into place.

    It is locked while its exporter lives, so that the leftovers of dead ones can be told from the
    work of live ones without trusting process ids, which are used again.
    """

    def __init__(self, target: Path) -> None:
        """Plan to create `target`; nothing is touched yet."""
        self.target = target
        self._hidden: Path | None = None
        self._lock: int | None = None

    def __enter__(self) -> Path:
        """Remove dead leftovers and return the path at which the export is to be made.

        The path does not exist yet; its parent does, on the target's file system.

        Raises:
            SlidepackError: DISK-UNWRITABLE where the target is there and not an empty folder.
            OSError: the disk refused.
        """
        _refuse_taken(self.target)
        self.target.parent.mkdir(parents=True, exist_ok=True)
        prefix = f".{self.target.name}.export-"
        for path in self.target.parent.iterdir():
            if path.name.startswith(prefix) and is_abandoned(path):
                shutil.rmtree(path, ignore_errors=True)
        self._hidden = Path(tempfile.mkdtemp(prefix=prefix, dir=self.target.parent))
        self._lock = os.open(self._hidden, os.O_RDONLY)
        fcntl.flock(self._lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
        return self._hidden / self.target.name

    def commit(self) -> None:
        """Make the export durable and give it its name.

        Raises:
            SlidepackError: DISK-UNWRITABLE where the target has been filled in the meantime.
            OSError: the disk refused.
        """
        self._move(self.target)

    def set_aside(self, suffix: str) -> Path:
        """Give the export another name, which says what is wrong with it, and return it.

        Raises:
            OSError: the disk refused.
        """
        number = 1
        while True:
            aside = self.target.with_name(f"{self.target.name}.{suffix}-{number}")
            if not aside.exists():
                self._move(aside)
                return aside
            number += 1

    def _move(self, target: Path) -> None:
        assert self._hidden is not None, "the place is entered before something is moved out of it"
        made = self._hidden / self.target.name
        fsync_tree(made)
        try:
            # An empty folder gives way; anything else stays as it is.
            made.rename(target)
        except OSError as error:
            if error.errno in _TAKEN:
                raise _taken(target) from error
            raise
        fsync_folder(target.parent)

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        """Remove what was not moved into place."""
        if self._hidden is not None:
            shutil.rmtree(self._hidden, ignore_errors=True)
        if self._lock is not None:
            os.close(self._lock)


def require_room(target: Path, needed: int) -> None:
    """Refuse to start what cannot fit on the disk that is to hold `target`.

    Args:
        target: need not exist.
        needed: bytes.

    Raises:
        SlidepackError: DISK-FULL, with both figures.
        OSError: the disk cannot be asked.
    """
    there = next(path for path in (target, *target.parents) if path.exists())
    free = shutil.disk_usage(there).free
    if free < needed:
        raise _disk_full(f"{there} has {_size(free)} free, the export needs {_size(needed)}")


def disk_error(error: OSError) -> SlidepackError:
    """Return the coded error of a disk that refused to be read or written."""
    where = error.filename or "the export's folder"
    if error.errno in _FULL:
        return _disk_full(f"{where}: {error.strerror}")
    return SlidepackError(
        "DISK-UNWRITABLE",
        "A file of the export could not be read or written.",
        why=f"{where}: {error.strerror or error}",
        fix="Check that you may use both folders and that the disk is healthy.",
    )


def _refuse_taken(target: Path) -> None:
    if target.is_symlink() or (target.exists() and not target.is_dir()):
        raise _taken(target)
    if target.is_dir() and any(target.iterdir()):
        raise _taken(target)


def _taken(target: Path) -> SlidepackError:
    return SlidepackError(
        "DISK-UNWRITABLE",
        "The target is there already, and is no empty folder.",
        why=str(target),
        fix="Name another folder with --to; nothing in this one was changed.",
    )


def _disk_full(why: str) -> SlidepackError:
    return SlidepackError(
        "DISK-FULL",
        "The disk has too little room for the export.",
        why=why,
        fix="Free some space, name a folder on another disk with --to, or choose --quant q8_0.",
    )


def _size(count: int) -> str:
    return f"{count / 1e9:.2f} GB" if count >= 10_000_000 else f"{count / 1e6:.3f} MB"
