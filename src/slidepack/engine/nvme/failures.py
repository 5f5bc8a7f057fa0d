"""What a drive's refusal means to the user."""

import errno
import os
import re
from pathlib import Path
from typing import Final

from slidepack.engine.contract.errors import SlidepackError

_FULL: Final = (errno.ENOSPC, errno.EDQUOT, errno.EFBIG)
_CLOSED_TO_US: Final = (errno.EACCES, errno.EPERM, errno.EROFS, errno.EEXIST, errno.ENOTDIR)
_NUMBER: Final = re.compile(r"errno:? ?\(?(\d+)", re.IGNORECASE)


def disk_error(
    error: OSError, doing: str, path: Path, *, offset: int | None = None, size: int = 0
) -> SlidepackError:
    """Say what failed, where, and what to do.

    Args:
        error: as the system raised it.
        doing: a verb: read, write, allocate, open, sync.
        path: the file.
        offset: where in the file, in bytes.
        size: how many bytes were asked for; 0 where that says nothing.
    """
    name = errno.errorcode.get(error.errno or 0, "no number")
    much = f" {size} bytes" if size else ""
    where = f" at byte {offset}" if offset is not None else ""
    why = f"{doing}{much}{where} of {path}: {error.strerror} ({name})"
    what = "Training state on the drive could not be used."
    if error.errno in _FULL:
        return SlidepackError(
            "DISK-FULL",
            "The drive has no room for the training state.",
            why=why,
            fix="Free space there or name another folder in the setting `nvme_folders`; the last "
            "checkpoint is whole.",
        )
    if error.errno in _CLOSED_TO_US:
        return SlidepackError(
            "DISK-UNWRITABLE",
            what,
            why=why,
            fix="Check the folder's owner and rights, and whether its file system became read-only "
            "(`dmesg` says why); the last checkpoint is whole.",
        )
    return SlidepackError(
        "DISK-FAILED",
        what,
        why=why,
        fix="Look for I/O errors in `dmesg` and at the drive's health (`smartctl -a`), then resume "
        "from the last checkpoint, which is whole, or name another folder in the setting "
        "`nvme_folders`.",
    )


def number_in(message: str) -> int:
    """Return the system's number of an error that a library tells in a message only.

    EIO where it tells neither the number nor, at its end, the system's words for one.
    """
    found = _NUMBER.search(message)
    if found is not None and int(found[1]) in errno.errorcode:
        return int(found[1])
    told = [number for number in errno.errorcode if message.rstrip().endswith(os.strerror(number))]
    # The words for one may end those for another.
    return max(told, key=lambda number: len(os.strerror(number)), default=errno.EIO)


def folder_error(error: OSError, named: Path, folder: Path) -> SlidepackError:
    """Say why a folder of ours on a drive could not be had.

    Args:
        error: as `take_folder` raised it.
        named: the folder that the settings, or the job, name there.
        folder: ours in it.
    """
    if isinstance(error, BlockingIOError):
        return SlidepackError(
            "RUN-FOLDER-BUSY",
            "Another process has the folder of this run's state on a drive.",
            why=f"{folder} is locked",
            fix="Wait for it to end, then start the job again.",
        )
    if isinstance(error, FileNotFoundError):
        return SlidepackError(
            "DISK-UNWRITABLE",
            "The folder for training state on a drive is not there.",
            why=f"{named} does not exist; its drive may not be mounted",
            fix="Mount the drive, make the folder, or name another one in the setting "
            "`nvme_folders`, then resume the job.",
        )
    return disk_error(error, "open", folder)
