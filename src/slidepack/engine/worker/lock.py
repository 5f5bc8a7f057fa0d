"""One worker a folder: a lock that the kernel gives back when the process ends."""

import fcntl
import os
from pathlib import Path

from slidepack.engine.contract.errors import SlidepackError

__all__ = ["take_lock"]


def take_lock(path: Path) -> int:
    """Take a folder for this process; return the descriptor that holds it.

    Raises:
        SlidepackError: RUN-FOLDER-BROKEN or RUN-FOLDER-BUSY.
    """
    try:
        descriptor = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_CLOEXEC, 0o600)
    except OSError as error:
        raise _broken(path, error) from error
    try:
        fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError as error:
        os.close(descriptor)
        raise SlidepackError(
            "RUN-FOLDER-BUSY",
            "Another worker runs in this folder.",
            why=f"{path} is locked",
            fix="Wait for it to end.",
        ) from error
    except OSError as error:
        os.close(descriptor)
        raise _broken(path, error) from error
    return descriptor


def _broken(path: Path, error: OSError) -> SlidepackError:
    return SlidepackError(
        "RUN-FOLDER-BROKEN",
        "The run folder cannot be used.",
        why=f"{path}: {error.strerror}",
        fix="Start the job again; a retry gets a new run folder.",
    )
