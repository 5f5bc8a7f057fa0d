"""A few numbers on their way to the host, which no copy engine brings.

A copy would queue behind whatever its engine has been given: gradients and optimizer state, for
tens of milliseconds. The kernel writes to pinned host memory instead, which the device can address.
"""

import torch
import triton
import triton.language as tl
from torch import Tensor

__all__ = ["Readback"]

_BLOCK = 128


@triton.jit
def _readback_kernel(values_ptr, host_ptr, count, BLOCK: tl.constexpr):
    index = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
    inside = index < count
    tl.store(host_ptr + index, tl.load(values_ptr + index, mask=inside), mask=inside)


def readback_launch(values: Tensor, host: Tensor) -> None:
    """Launch the kernel; `host` has the values when the stream has come so far."""
    count = values.numel()
    _readback_kernel[(triton.cdiv(count, _BLOCK),)](values, host, count, BLOCK=_BLOCK, num_warps=4)


class Readback:
    """Reads numbers back, into pinned memory that is allocated once."""

    def __init__(self) -> None:
        """Begin without memory: on a CPU none is needed."""
        self._host: Tensor | None = None

    def read(self, values: Tensor) -> list[float]:
        """Wait for numbers that the current stream makes, and return them.

        Equivalent to `values.tolist()`.

        Args:
            values: [n] fp64.

        Raises:
            ValueError: shape or dtype do not fit.
        """
        if values.ndim != 1 or values.dtype != torch.float64:
            raise ValueError(f"values are {tuple(values.shape)} {values.dtype}, not [n] fp64")
        if not values.is_cuda or not values.numel():
            plain: list[float] = values.tolist()
            return plain
        host = self._room(values.numel())
        readback_launch(values.contiguous(), host)
        done = torch.cuda.Event()
        done.record()
        done.synchronize()
        read: list[float] = host.tolist()
        return read

    def _room(self, count: int) -> Tensor:
        if self._host is None or self._host.numel() < count:
            size = triton.cdiv(count, _BLOCK) * _BLOCK
            self._host = torch.empty(size, dtype=torch.float64, pin_memory=True)
        return self._host[:count]
