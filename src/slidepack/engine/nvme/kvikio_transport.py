"""The transport of the extra `gds`: between tier files and the memory of the card.

Where the driver offers GPUDirect Storage, the drive and the card exchange bytes without main
memory; else kvikio passes them through buffers of its own.
"""

import errno
from weakref import WeakKeyDictionary

import kvikio
import kvikio.cufile_driver
import kvikio.defaults
import torch
from torch import Tensor

from slidepack.engine.nvme.failures import disk_error, number_in
from slidepack.engine.nvme.files import TierFile
from slidepack.engine.nvme.lanes import THREADS, Lanes, Task
from slidepack.engine.nvme.transport import Pending

__all__ = ["KvikioTransport", "gds_refused"]


def gds_refused() -> str:
    """Return why files cannot go straight to the card; empty where they can."""
    try:
        if not kvikio.cufile_driver.properties.is_gds_available:
            return "the driver offers no GPUDirect Storage"
        if kvikio.defaults.is_compat_mode_preferred():
            return "kvikio is set to its POSIX mode"
    except (RuntimeError, AttributeError) as error:
        return f"kvikio finds no GPUDirect Storage ({str(error).splitlines()[0]})"
    return ""


class KvikioTransport:
    """Moves between tier files and the memory of the card, or of the host."""

    name = "kvikio"
    takes_device_memory = True

    def __init__(self, *, threads: int = THREADS) -> None:
        """Start `threads` threads in each direction, each with a request of its own under way."""
        refused = gds_refused()
        self.reason = f"kvikio {kvikio.__version__}, " + (
            f"its POSIX mode: {refused}" if refused else "GPUDirect Storage"
        )
        """Which way it works and why, as a phrase for the user."""
        self._handles: WeakKeyDictionary[TierFile, list[kvikio.CuFile]] = WeakKeyDictionary()
        self._lanes = Lanes(self._read, self._write, threads)
        kvikio.defaults.set("num_threads", 2 * threads)
        # What comes by once a step would push everything else out of the page cache.
        kvikio.defaults.set({"auto_direct_io_read": True, "auto_direct_io_write": True})

    def read(
        self, file: TierFile, offset: int, into: Tensor, after: torch.cuda.Event | None = None
    ) -> Pending:
        """Fill a tensor from a file; see `Transport.read`."""
        self._open(file)
        return self._lanes.begin("read", file, offset, into, after)

    def write(
        self, file: TierFile, offset: int, source: Tensor, after: torch.cuda.Event | None = None
    ) -> Pending:
        """Put a tensor into a file; see `Transport.write`."""
        self._open(file)
        return self._lanes.begin("write", file, offset, source, after)

    def close(self) -> None:
        """End the threads; what has not begun is given up."""
        self._lanes.close()
        for handles in self._handles.values():
            for handle in handles:
                handle.close()

    def _open(self, file: TierFile) -> None:
        if file not in self._handles:
            # By descriptor: a checkpoint may rename the path meanwhile.
            self._handles[file] = [
                kvikio.CuFile(f"/proc/self/fd/{file.descriptor(part)}", "r+")
                for part in range(len(file.paths))
            ]

    def _read(self, task: Task) -> None:
        self._transfer("read", task)

    def _write(self, task: Task) -> None:
        self._transfer("write", task)

    def _transfer(self, verb: str, task: Task) -> None:
        handle = self._handles[task.file][task.piece.part]
        move = handle.pread if verb == "read" else handle.pwrite
        path = task.file.paths[task.piece.part]
        done = 0
        while done < task.piece.size:
            start = task.piece.start + done
            part = task.memory[start : task.piece.start + task.piece.size]
            offset = task.piece.offset + done
            try:
                moved = move(part if part.is_cuda else part.numpy(), part.numel(), offset).get()
            except RuntimeError as error:
                failed = OSError(number_in(str(error)), str(error).splitlines()[0])
                raise disk_error(failed, verb, path, offset=offset, size=part.numel()) from error
            if moved <= 0:
                nothing = OSError(errno.EIO, "0 bytes were moved")
                raise disk_error(nothing, verb, path, offset=offset, size=part.numel())
            done += moved
