"""Makes a large file durable while it is written, so that no single wait is for all of it.

A worker that waits for a disk shows nothing meanwhile: who watches it must not take gigabytes that
are on their way for one that hangs.
"""

import os
from collections.abc import Callable
from typing import BinaryIO, Final

__all__ = ["SteadySync"]

_SYNC_BYTES: Final = 128 << 20
"""Between two waits: a second or two of a hard disk, and too much for the waits to cost speed."""


class SteadySync:
    """Told of each piece that goes into a file."""

    def __init__(self, file: BinaryIO, on_progress: Callable[[], None]) -> None:
        """Bind an open file, and what is called when it has got on."""
        self._file = file
        self._on_progress = on_progress
        self._waiting = 0

    def wrote(self, num_bytes: int) -> None:
        """Count a piece that was written; wait for the disk where enough has gathered.

        Raises:
            OSError: the disk refused.
        """
        self._waiting += num_bytes
        if self._waiting >= _SYNC_BYTES:
            self._file.flush()
            os.fdatasync(self._file.fileno())
            self._waiting = 0
        self._on_progress()

    def finish(self) -> None:
        """Wait until the disk has the whole file.

        Raises:
            OSError: the disk refused.
        """
        self._file.flush()
        os.fsync(self._file.fileno())
        self._on_progress()
