"""The folders that jobs and measurements have on drives: names, locks, how they go. Torch-free.

A user names a folder that may hold anything. Ours is one folder in it, and in that nothing is
touched but folders of the names that we give, with a lock that is there already. Nothing is removed
recursively, and no link is followed: we make files alone.
"""

import contextlib
import errno
import fcntl
import hashlib
import logging
import os
import re
import secrets
import stat
import time
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Final

__all__ = [
    "OURS",
    "bench_folder",
    "discard",
    "leave_folder",
    "named_twice",
    "remove_dead",
    "remove_if_dead",
    "take_folder",
    "tier_folder",
]

logger = logging.getLogger(__name__)

OURS: Final = "slidepack-state"
"""In the folder that a user names on a drive."""
_NAME: Final = re.compile(r"(?:run|bench)-[0-9a-f]{16}")
_LOCK: Final = "slidepack.lock"
_FOLDER: Final = os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW | os.O_CLOEXEC
_FILE: Final = os.O_RDWR | os.O_NOFOLLOW | os.O_CLOEXEC
_AGAIN_SECONDS: Final = 0.05


def named_twice(folders: Sequence[Path]) -> tuple[Path, Path] | None:
    """Return two names of one folder, which need not exist; None where there are none."""
    known: dict[str, Path] = {}
    for folder in folders:
        real = os.path.realpath(folder)
        if real in known:
            return known[real], folder
        known[real] = folder
    return None


def tier_folder(drive: Path, job: Path) -> Path:
    """Return the folder of a job on a drive.

    Args:
        drive: the folder there that its user named.
        job: the folder of its attempts, which names it.
    """
    digest = hashlib.sha256(os.fsencode(job.resolve())).hexdigest()
    return drive / OURS / f"run-{digest[:16]}"


def bench_folder(drive: Path) -> Path:
    """Return a folder for a measurement on a drive."""
    return drive / OURS / f"bench-{secrets.token_hex(8)}"


def take_folder(folder: Path, *, wait_seconds: float = 0.0) -> int:
    """Make a folder of ours, and take its lock for as long as the descriptor is open.

    Args:
        folder: of `tier_folder` or `bench_folder`; what that lies in must be there: where a drive
            is not mounted, what we made would be on another one.
        wait_seconds: for whoever removes what a killed process left in it.

    Raises:
        FileNotFoundError: the folder that the user named is not there.
        BlockingIOError: another process has it.
        OSError: the file system refused.
    """
    until = time.monotonic() + wait_seconds
    while True:
        try:
            lock = _try_to_take(folder)
        except BlockingIOError:
            if time.monotonic() >= until:
                raise
            time.sleep(_AGAIN_SECONDS)
            continue
        if lock is not None:
            return lock


def leave_folder(folder: Path, lock: int) -> None:
    """Remove a folder with the files in it, as far as the file system lets us, and its lock."""
    try:
        with _opened(folder) as here:
            if _is_there(lock, here):
                _remove_files(folder, here)
    except FileNotFoundError:
        # What held its files has removed it.
        pass
    except OSError as error:
        logger.warning("%s stays: %s", folder, error)
    finally:
        os.close(lock)


def remove_dead(drive: Path) -> None:
    """Remove what killed processes left on a drive; whoever lives keeps what is theirs."""
    try:
        with os.scandir(drive / OURS) as listed:
            found = [Path(entry.path) for entry in listed if _NAME.fullmatch(entry.name)]
    except FileNotFoundError:
        return
    except OSError as error:
        logger.warning("What lies in %s is not known: %s", drive / OURS, error)
        return
    for folder in found:
        remove_if_dead(folder)


def remove_if_dead(folder: Path) -> bool:
    """Remove what a process that was killed left; return False where it lives, or another does.

    A checkpoint has links of its own. What the file system refuses to remove stays until the next
    run that has state on that drive, which tries again.
    """
    if folder.parent.name != OURS or not _NAME.fullmatch(folder.name):
        return True
    try:
        with _opened(folder) as here:
            return _remove_if_free(folder, here)
    except FileNotFoundError:
        # It is gone; or it has no lock, and then only an empty one can be ours: of a process that
        # was killed before it had made it.
        _remove_empty(folder)
    except OSError as error:
        logger.warning("%s stays: %s", folder, error)
    return True


def discard(folder: Path) -> None:
    """Remove a folder of whose files none is left but the lock; any other stays as it is.

    Raises:
        OSError: the file system refused.
    """
    with contextlib.suppress(FileNotFoundError):
        if os.listdir(folder) == [_LOCK]:
            (folder / _LOCK).unlink()
    _remove_empty(folder)
    if folder.parent.name == OURS:
        _remove_empty(folder.parent)


def _try_to_take(folder: Path) -> int | None:
    """Return the lock's descriptor; None where others removed the folder meanwhile."""
    named = folder.parent.parent
    if not named.is_dir():
        raise FileNotFoundError(errno.ENOENT, os.strerror(errno.ENOENT), str(named))
    try:
        _make(folder.parent)
        _make(folder)
        with _opened(folder) as here:
            lock = os.open(_LOCK, _FILE | os.O_CREAT, 0o600, dir_fd=here)
            try:
                fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
                # Whoever had the lock before may have removed it, and the folder, before it let go.
                if _is_there(lock, here):
                    return lock
            except BaseException:
                os.close(lock)
                raise
            os.close(lock)
    except FileNotFoundError:
        pass
    return None


def _make(folder: Path) -> None:
    with contextlib.suppress(FileExistsError):
        folder.mkdir()
    if not stat.S_ISDIR(os.lstat(folder).st_mode):
        raise NotADirectoryError(errno.ENOTDIR, os.strerror(errno.ENOTDIR), str(folder))


@contextlib.contextmanager
def _opened(folder: Path) -> Iterator[int]:
    """Open a folder of ours; a link in its place, or of the one around it, is somebody else's."""
    around = os.open(folder.parent, _FOLDER)
    try:
        here = os.open(folder.name, _FOLDER, dir_fd=around)
    finally:
        os.close(around)
    try:
        yield here
    finally:
        os.close(here)


def _remove_if_free(folder: Path, here: int) -> bool:
    lock = os.open(_LOCK, _FILE, dir_fd=here)
    try:
        fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
        # Another that removed it may have been first, and a new process may have it since.
        if not _is_there(lock, here):
            return False
        _remove_files(folder, here)
    except BlockingIOError:
        return False
    finally:
        os.close(lock)
    return True


def _is_there(lock: int, here: int) -> bool:
    """Return whether a lock is the one that others find in the folder."""
    try:
        found = os.stat(_LOCK, dir_fd=here, follow_symlinks=False)
    except FileNotFoundError:
        return False
    return os.path.samestat(os.fstat(lock), found)


def _remove_files(folder: Path, here: int) -> None:
    """Remove the files of a folder whose lock the caller has; the lock goes last.

    So nobody takes the folder while there are others, and what could not be removed keeps the lock
    that says whose it is.
    """
    refused = [
        error
        for name in os.listdir(here)
        if name != _LOCK and (error := _unlink(name, here)) is not None
    ]
    if refused:
        raise refused[0]
    os.unlink(_LOCK, dir_fd=here)
    _remove_empty(folder)
    _remove_empty(folder.parent)


def _unlink(name: str, here: int) -> OSError | None:
    try:
        os.unlink(name, dir_fd=here)
    except FileNotFoundError:
        return None
    except OSError as error:
        return error
    return None


def _remove_empty(folder: Path) -> None:
    # It stays where it is not empty, or not ours: others are about to use it.
    with contextlib.suppress(OSError):
        folder.rmdir()
