"""Host memory of an exact size, pinned for the GPU's copy engines where the system allows.

PyTorch's own pinned allocator rounds sizes up to powers of two, which at tens of gigabytes costs
up to half of the RAM.
"""

import mmap
import weakref
from typing import Any, Final

import torch
from torch import Tensor

__all__ = ["Slab", "pin_pages"]

_ALIGNMENT: Final = 256


class Slab:
    """One mapping, carved into tensors from the front."""

    def __init__(self, num_bytes: int, *, pin: bool) -> None:
        """Map memory, zero-filled.

        Args:
            num_bytes: size; room for alignment is added by `padded`.
            pin: register it with the CUDA driver. Where that is refused (WSL allows little), the
                slab stays pageable: copies are then correct but slower.

        Raises:
            OSError: the system has not so much memory.
        """
        self._map = mmap.mmap(
            -1, max(num_bytes, mmap.PAGESIZE), flags=mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS
        )
        self._map.madvise(mmap.MADV_HUGEPAGE)
        self._bytes = torch.frombuffer(self._map, dtype=torch.uint8)
        self._used = 0
        # Touched by all threads: pinning would touch page by page from one.
        self._bytes.zero_()
        self.pinned = pin and pin_pages(self._bytes)
        if self.pinned:
            # The next mapping may get these addresses, which the driver would still hold.
            self._unpin = weakref.finalize(self, _unregister, self._bytes.data_ptr())
            self._unpin.atexit = False

    @staticmethod
    def padded(num_bytes: int, alignment: int = _ALIGNMENT) -> int:
        """Return the bytes that a tensor of this size takes in a slab."""
        return -(-num_bytes // alignment) * alignment

    def take(self, elements: int, dtype: torch.dtype, *, alignment: int = _ALIGNMENT) -> Tensor:
        """Carve a flat tensor.

        Args:
            elements: its length.
            dtype: of an element.
            alignment: bytes, up to a page: its address is a multiple, and the next tensor begins
                at one. Where a slab mixes them, what is taken widest first wastes nothing.

        Raises:
            ValueError: the slab is used up.
        """
        size = elements * dtype.itemsize
        start = self.padded(self._used, alignment)
        if start + size > self._bytes.numel():
            raise ValueError(f"the slab of {self._bytes.numel()} bytes is used up at {start}")
        self._used = start + self.padded(size, alignment)
        # Not a view of the whole: autograd would take a write to one tensor for one to all.
        return torch.frombuffer(self._map, dtype=dtype, count=elements, offset=start)

    def close(self) -> None:
        """Give the pages back to the driver; the memory itself goes with the last tensor."""
        if self.pinned:
            self._unpin()
            self.pinned = False


def pin_pages(memory: Tensor) -> bool:
    """Register memory with the CUDA driver and return whether it let us."""
    if int(_runtime().cudaHostRegister(memory.data_ptr(), memory.numel(), 0)) == 0:
        return True
    try:
        # The refusal stays the thread's last error, and the next kernel's launch would be blamed.
        torch.zeros(1, device="cuda")
    except torch.AcceleratorError:
        return False
    return False


def _unregister(address: int) -> None:
    _runtime().cudaHostUnregister(address)


def _runtime() -> Any:
    return torch.cuda.cudart()  # type: ignore[no-untyped-call]  # torch has no types here
