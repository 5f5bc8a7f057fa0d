"""Builds a model folder out of sight and shows it whole or not at all."""

import errno
import fcntl
import os
import shutil
import time
from pathlib import Path
from types import TracebackType
from typing import Final

from slidepack.engine.contract.errors import SlidepackError
from slidepack.engine.contract.runfolder import fsync_folder

_FULL: Final = (errno.ENOSPC, errno.EDQUOT)
_REMOVE_TRIES: Final = 20
_REMOVE_PAUSE_SECONDS: Final = 0.05


class Staging:
    """A temporary sibling of a target folder, removed unless it is committed.

    It is locked while its importer lives, so that the leftovers of dead imports can be told from
    the work of live ones without trusting process ids, which are used again.
    """

    def __init__(self, target: Path) -> None:
        """Plan to create `target`; nothing is touched yet."""
        self._target = target
        self._folder = target.with_name(f".{target.name}.tmp-{os.getpid()}")
        self._lock: int | None = None

    def __enter__(self) -> Path:
        """Remove dead leftovers and create the temporary folder, which is returned.

        Raises:
            SlidepackError: DISK-UNWRITABLE where the target exists already.
            OSError: the disk refused.
        """
        if self._target.exists():
            raise _target_exists(self._target)
        self._target.parent.mkdir(parents=True, exist_ok=True)
        _remove_leftovers(self._target)
        self._folder.mkdir()
        self._lock = os.open(self._folder, os.O_RDONLY)
        fcntl.flock(self._lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
        return self._folder

    def commit(self) -> None:
        """Make the folder durable and give it its name.

        Raises:
            SlidepackError: DISK-UNWRITABLE where the target has appeared in the meantime.
            OSError: the disk refused.
        """
        fsync_tree(self._folder)
        try:
            self._folder.rename(self._target)
        except OSError as error:
            if error.errno in (errno.EEXIST, errno.ENOTEMPTY, errno.ENOTDIR):
                raise _target_exists(self._target) from error
            raise
        fsync_folder(self._target.parent)

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        """Remove what was not committed."""
        _remove(self._folder)
        if self._lock is not None:
            os.close(self._lock)


def require_space(folder: Path, needed: int) -> None:
    """Refuse to start what cannot fit on the disk that holds `folder`.

    Raises:
        SlidepackError: DISK-FULL.
        OSError: the disk cannot be asked.
    """
    free = shutil.disk_usage(folder).free
    if free < needed:
        raise _disk_full(
            f"{folder.parent} has {_gigabytes(free)} free, {_gigabytes(needed)} needed"
        )


def disk_error(error: OSError) -> SlidepackError:
    """Return the coded error of a disk that refused to be written."""
    where = error.filename or "the model's folder"
    if error.errno in _FULL:
        return _disk_full(f"{where}: {error.strerror}")
    return SlidepackError(
        "DISK-UNWRITABLE",
        "The model's files could not be read or written.",
        why=f"{where}: {error.strerror or error}",
        fix="Check that you may use the folder and that the disk is healthy.",
    )


def _disk_full(why: str) -> SlidepackError:
    return SlidepackError(
        "DISK-FULL",
        "The disk has too little room for the model.",
        why=why,
        fix="Free some space or move the data directory (SLIDEPACK_HOME), then add it again.",
    )


def _target_exists(target: Path) -> SlidepackError:
    return SlidepackError(
        "DISK-UNWRITABLE",
        "The model's folder exists already.",
        why=str(target),
        fix="Remove that folder or add the model under another name.",
    )


def _remove_leftovers(target: Path) -> None:
    prefix = f".{target.name}.tmp-"
    for path in target.parent.iterdir():
        if path.name.startswith(prefix) and is_abandoned(path):
            _remove(path)


def is_abandoned(folder: Path) -> bool:
    """Return whether a folder is there and nobody who lives holds its lock."""
    try:
        descriptor = os.open(folder, os.O_RDONLY | os.O_DIRECTORY)
    except OSError:
        return False
    try:
        fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        return False
    finally:
        os.close(descriptor)
    return True


def fsync_tree(folder: Path) -> None:
    """Make a folder and all that is in it durable.

    Raises:
        OSError: the disk refused.
    """
    for root, _, names in os.walk(folder):
        for name in names:
            _fsync_file(Path(root, name))
        fsync_folder(Path(root))


def _remove(folder: Path) -> None:
    # Download threads that a stop left behind may write into the folder while it goes.
    for _ in range(_REMOVE_TRIES):
        shutil.rmtree(folder, ignore_errors=True)
        if not folder.exists():
            return
        time.sleep(_REMOVE_PAUSE_SECONDS)


def _fsync_file(path: Path) -> None:
    descriptor = os.open(path, os.O_RDONLY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)


def _gigabytes(size: int) -> str:
    return f"{size / 1e9:.2f} GB"
