"""The transport without dependencies: O_DIRECT, and threads in preadv and pwritev.

Enough threads that a drive always has several requests to work on; the calls release the
interpreter.
"""

import errno
import os
from collections.abc import Callable, Sequence

import torch
from torch import Tensor

from slidepack.engine.nvme.failures import disk_error
from slidepack.engine.nvme.files import ALIGNMENT, TierFile
from slidepack.engine.nvme.lanes import THREADS, Lanes, Task
from slidepack.engine.nvme.transport import Pending

Move = Callable[[int, Sequence[memoryview], int], int]
"""`os.preadv` or `os.pwritev`: descriptor, buffers, offset; the bytes moved."""


class RingTransport:
    """Moves between tier files and host memory."""

    name = "ring"
    takes_device_memory = False

    def __init__(
        self,
        *,
        threads: int = THREADS,
        why: str = "",
        preadv: Move = os.preadv,
        pwritev: Move = os.pwritev,
    ) -> None:
        """Start the threads.

        Args:
            threads: in each direction.
            why: why this transport and no other, for `reason`.
            preadv: the system's call for reading.
            pwritev: the system's call for writing.
        """
        self._threads = threads
        self._why = why
        self._refused = ""
        self._lanes = Lanes(
            lambda task: self._transfer("read", preadv, task),
            lambda task: self._transfer("write", pwritev, task),
            threads,
        )

    @property
    def reason(self) -> str:
        """Which way it works and why, as a phrase for the user."""
        way = f"through the page cache: {self._refused}" if self._refused else "O_DIRECT"
        said = f"{way}, {self._threads} threads a direction"
        return f"{said}; {self._why}" if self._why else said

    def read(
        self, file: TierFile, offset: int, into: Tensor, after: torch.cuda.Event | None = None
    ) -> Pending:
        """Fill a tensor from a file; see `Transport.read`."""
        return self._lanes.begin("read", file, offset, into, after)

    def write(
        self, file: TierFile, offset: int, source: Tensor, after: torch.cuda.Event | None = None
    ) -> Pending:
        """Put a tensor into a file; see `Transport.write`."""
        return self._lanes.begin("write", file, offset, source, after)

    def close(self) -> None:
        """End the threads; what has not begun is given up."""
        self._lanes.close()

    def _transfer(self, verb: str, move: Move, task: Task) -> None:
        piece = task.piece
        part = task.memory[piece.start : piece.start + piece.size]
        view = part.numpy().data
        done = 0
        while done < piece.size:
            done += self._some(verb, move, task, view[done:], piece.offset + done)
        self._refused = self._refused or task.file.direct_refused

    def _some(self, verb: str, move: Move, task: Task, view: memoryview, offset: int) -> int:
        file, part = task.file, task.piece.part
        # Asked first: another thread may meet the same refusal and settle it meanwhile.
        direct = file.direct
        try:
            moved = move(file.descriptor(part), [view], offset)
        except OSError as error:
            if error.errno == errno.EINVAL and direct:
                # Some file systems take the flag and refuse the request.
                file.use_page_cache("the file system refuses O_DIRECT (Invalid argument)")
                return 0
            raise disk_error(
                error, verb, file.paths[part], offset=offset, size=len(view)
            ) from error
        if moved <= 0:
            nothing = OSError(errno.EIO, "0 bytes were moved")
            raise disk_error(nothing, verb, file.paths[part], offset=offset, size=len(view))
        if moved % ALIGNMENT and direct:
            file.use_page_cache("a request was cut at an odd byte")
        return moved
