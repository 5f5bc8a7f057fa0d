"""Copies a file of a drive into a checkpoint, where the file system makes no link of it."""

import errno
import os
from collections.abc import Callable
from pathlib import Path
from typing import Final

from slidepack.engine.nvme.failures import disk_error
from slidepack.engine.sliding.steady_sync import SteadySync

__all__ = ["copy_durably"]

_PIECE: Final = 16 << 20
"""Bytes that the system is asked to move at once."""


def copy_durably(source: Path, target: Path, on_progress: Callable[[], None]) -> None:
    """Copy a file to a path that does not exist, in the kernel.

    Args:
        source: a file that nobody writes to.
        target: its copy.
        on_progress: called when the copy has got on.

    Raises:
        SlidepackError: DISK-FULL, DISK-UNWRITABLE or DISK-FAILED.
    """
    try:
        with source.open("rb") as file, target.open("xb") as other:
            size, done = os.fstat(file.fileno()).st_size, 0
            sync = SteadySync(other, on_progress)
            while done < size:
                piece = min(_PIECE, size - done)
                moved = os.sendfile(other.fileno(), file.fileno(), done, piece)
                if not moved:
                    raise OSError(errno.EIO, f"it ends at byte {done} of {size}")
                done += moved
                sync.wrote(moved)
            sync.finish()
    except OSError as error:
        raise disk_error(error, "write", target) from error
