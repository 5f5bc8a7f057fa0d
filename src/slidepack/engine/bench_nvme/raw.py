"""What the drives do without us: threads in pread and pwrite with O_DIRECT, and nothing else."""

import os
import threading
import time
from collections.abc import Callable, Sequence

import torch

from slidepack.engine.nvme.files import ALIGNMENT, TierFile, part_bytes
from slidepack.engine.sliding.slab import Slab

__all__ = ["Raw"]

_Move = Callable[[int, Sequence[memoryview], int], int]


class Raw:
    """Threads that each take every so many requests of a file, with a buffer of their own."""

    def __init__(self, *, request_bytes: int, threads: int, pin: bool) -> None:
        """Allocate the buffers, in memory of the tier's kind.

        Args:
            request_bytes: of a call.
            threads: in each direction.
            pin: for the card.
        """
        self._request_bytes = request_bytes
        self._threads = threads
        self.slab = Slab(2 * threads * Slab.padded(request_bytes, ALIGNMENT), pin=pin)
        buffers = [
            self.slab.take(request_bytes, torch.uint8, alignment=ALIGNMENT)
            for _ in range(2 * threads)
        ]
        for buffer in buffers:
            # Noise, because some file systems compress.
            buffer.random_(0, 256)
        self._buffers = [buffer.numpy().data for buffer in buffers]

    def seconds(self, reads: TierFile | None, writes: TierFile | None) -> float:
        """Read one file and write the other, whole, both at once, and return the seconds.

        Raises:
            OSError: the drive refuses.
        """
        failed: list[OSError] = []
        lanes = []
        for file, move, buffers in (
            (reads, os.preadv, self._buffers[: self._threads]),
            (writes, os.pwritev, self._buffers[self._threads :]),
        ):
            for number, buffer in enumerate(buffers if file is not None else ()):
                arguments = (file, move, buffer, number, failed)
                lanes.append(threading.Thread(target=self._lane, args=arguments))
        begun = time.perf_counter()
        for lane in lanes:
            lane.start()
        for lane in lanes:
            lane.join()
        if writes is not None:
            writes.sync()
        seconds = time.perf_counter() - begun
        if failed:
            raise failed[0]
        return seconds

    def _lane(
        self, file: TierFile, move: _Move, buffer: memoryview, number: int, failed: list[OSError]
    ) -> None:
        size, parts = self._request_bytes, len(file.paths)
        try:
            for request in range(number, file.bytes // size, self._threads):
                turn, part = divmod(request, parts)
                offset = turn * size
                if offset + size > part_bytes(file.bytes, part, parts):
                    continue
                moved = move(file.descriptor(part), [buffer], offset)
                if moved != size:
                    failed.append(OSError(0, f"{moved} of {size} bytes were moved"))
        except OSError as error:
            failed.append(error)
