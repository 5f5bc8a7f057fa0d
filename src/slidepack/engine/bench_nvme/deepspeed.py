"""What DeepSpeed's NVMe offload does with the same files, where it is installed.

Its optimizer swapper moves whole sub-groups with one handle for each direction, and waits for one
before it begins the next; that is done here, without the optimizer. An installed package is built
for this machine at the first use, which takes minutes and needs a compiler and libaio.
"""

import importlib
import importlib.metadata
import subprocess
import sys
import time
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, Final, Protocol

import torch
from torch import Tensor

from slidepack.engine.bench_nvme.options import NvmeOptions
from slidepack.engine.nvme.files import TierFile

__all__ = ["AioSettings", "DeepSpeed", "Handle", "Swaps", "aio_settings", "open_deepspeed"]

_SWAP_BYTES: Final = 512 << 20
"""Of a sub-group's tensor: the handle needs so much memory in each direction."""
_BROKEN: Final = (ImportError, RuntimeError, OSError, AttributeError, subprocess.SubprocessError)
"""What its loading raises: not there, not compiled, or built for another torch."""


class Handle(Protocol):
    """What is used of DeepSpeed's `aio_handle`."""

    def async_pread(self, buffer: Tensor, filename: str, file_offset: int) -> int:
        """Begin to fill a buffer."""

    def async_pwrite(self, buffer: Tensor, filename: str, file_offset: int) -> int:
        """Begin to write a buffer."""

    def wait(self) -> int:
        """Wait for what was begun, and return how many buffers were."""

    def new_cpu_locked_tensor(self, num_elem: int, example: Tensor) -> Tensor:
        """Return memory that it moves without a copy."""

    def free_cpu_locked_tensor(self, tensor: Tensor) -> bool:
        """Give such memory back."""


@dataclass(frozen=True, kw_only=True, slots=True)
class AioSettings:
    """The block `aio` of its configuration."""

    block_size: int
    """Bytes of a request."""
    queue_depth: int
    threads: int
    """Its `intra_op_parallelism`."""


def aio_settings(options: NvmeOptions) -> dict[str, AioSettings]:
    """Return its defaults, and what gives it as many threads and as large requests as the tier."""
    return {
        "defaults": AioSettings(block_size=1 << 20, queue_depth=8, threads=1),
        "tuned": AioSettings(
            block_size=options.raw_request_bytes, queue_depth=32, threads=options.threads
        ),
    }


@dataclass(frozen=True, slots=True)
class DeepSpeed:
    """An installed DeepSpeed."""

    version: str
    make_handle: Callable[[AioSettings], Handle]


def open_deepspeed() -> DeepSpeed | str:
    """Load what is installed, building it where nobody has; return it, or why that fails."""
    sys.stderr.write(
        "DeepSpeed's drive engine is loaded; the first time it is built for minutes.\n"
    )
    try:
        version = importlib.metadata.version("deepspeed")
        builder: Any = importlib.import_module("deepspeed.ops.op_builder").AsyncIOBuilder()
        if not builder.is_compatible():
            return f"DeepSpeed {version} finds no libaio"
        engine: Any = builder.load(verbose=False)
    except _BROKEN as error:
        first, *_ = (*str(error).splitlines(), "")
        return f"{type(error).__name__}: {first}"

    def make(settings: AioSettings) -> Handle:
        handle: Handle = engine.aio_handle(
            block_size=settings.block_size,
            queue_depth=settings.queue_depth,
            single_submit=False,
            overlap_events=True,
            intra_op_parallelism=settings.threads,
        )
        return handle

    return DeepSpeed(version, make)


class Swaps:
    """A handle and a buffer in each direction, as its pipelined optimizer swapper has."""

    def __init__(self, found: DeepSpeed, settings: AioSettings, file_bytes: int) -> None:
        """Open the handles and allocate the buffers, in memory that they lock themselves.

        Args:
            found: what is installed.
            settings: of both handles.
            file_bytes: no buffer is larger.
        """
        size, example = min(_SWAP_BYTES, file_bytes), torch.empty(0, dtype=torch.uint8)
        self._reader, self._writer = found.make_handle(settings), found.make_handle(settings)
        # In other memory it copies everything once more.
        self._coming = self._reader.new_cpu_locked_tensor(size, example)
        self._going = self._writer.new_cpu_locked_tensor(size, example)
        # Noise, because some file systems compress.
        self._going.random_(0, 256)

    def close(self) -> None:
        """Give the memory back."""
        self._reader.free_cpu_locked_tensor(self._coming)
        self._writer.free_cpu_locked_tensor(self._going)

    def seconds(self, reads: TierFile | None, writes: TierFile | None) -> float:
        """Read one file and write the other, whole, both at once, and return the seconds.

        Each lies on one drive (`NvmeOptions`).

        Raises:
            OSError: the drive refuses.
        """
        begun = time.perf_counter()
        self._swap(reads, writes)
        if writes is not None:
            writes.sync()
        return time.perf_counter() - begun

    def _swap(self, reads: TierFile | None, writes: TierFile | None) -> None:
        num_bytes = next(file.bytes for file in (reads, writes) if file is not None)
        for offset in range(0, num_bytes, self._coming.numel()):
            size = min(self._coming.numel(), num_bytes - offset)
            begun = []
            if reads is not None:
                self._reader.async_pread(self._coming[:size], str(reads.paths[0]), offset)
                begun.append(self._reader)
            if writes is not None:
                self._writer.async_pwrite(self._going[:size], str(writes.paths[0]), offset)
                begun.append(self._writer)
            for handle in begun:
                if handle.wait() != 1:
                    raise OSError(0, f"DeepSpeed moved less than {size} bytes")
