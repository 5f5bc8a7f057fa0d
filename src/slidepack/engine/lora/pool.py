"""Flat memory of all lanes that are resident on a device; lanes come and go at step boundaries."""

import contextlib

import torch
from torch import Tensor

from slidepack.kernels import AdamWState

__all__ = ["LanePool"]


class LanePool:
    """Weights, gradients and moments, each one tensor; a lane owns the same range of all."""

    def __init__(self, device: torch.device, dtype: torch.dtype) -> None:
        """Begin empty.

        Args:
            device: where it lives.
            dtype: of the weights as the passes read them. Under bf16 the fp32 master is split into
                them and a 16-bit remainder; fp32 (and fp64, for a judge) is its own master.
        """
        self.device = device
        self.dtype = dtype
        wide = torch.promote_types(dtype, torch.float32)
        self._dtypes = {
            "weights": dtype,
            "remainder": torch.int16,
            "grads": wide,
            "exp_avg": wide,
            "exp_avg_sq": wide,
        }
        if dtype != torch.bfloat16:
            del self._dtypes["remainder"]
        self._tensors = {name: self._empty(name, 0) for name in self._dtypes}
        self._taken: dict[int, int] = {}

    @property
    def weights(self) -> Tensor:
        """What the passes read; wants a gradient, so that a pass over a bare input is recorded."""
        return self._tensors["weights"]

    @property
    def grads(self) -> Tensor:
        """Gradients, fp32 (fp64 beside fp64 weights)."""
        return self._tensors["grads"]

    @property
    def num_bytes(self) -> int:
        """Memory that the pool holds."""
        return sum(tensor.nbytes for tensor in self._tensors.values())

    def reserve(self, size: int) -> None:
        """Make room behind the ranges that are taken, where there is any to be had.

        Ranges that are then taken one by one do not move what is here each time. It is room that
        nobody owns: the next range that is given back may let go of it.
        """
        end = self._end()
        if end + size > self.grads.numel():
            with contextlib.suppress(torch.OutOfMemoryError, OSError):
                self._resize(end + size)

    def take(self, size: int) -> int:
        """Return the start of a range of zeros; the pool grows where no gap is large enough.

        Tensors that were read from the pool before are no longer its own after it has grown.

        Raises:
            torch.OutOfMemoryError: the device has no room; nothing has changed.
        """
        start = self._gap(size)
        if start + size > self.grads.numel():
            self._resize(start + size)
        for tensor in self._tensors.values():
            tensor.detach()[start : start + size].zero_()
        self._taken[start] = size
        return start

    def give_back(self, start: int) -> None:
        """Free a range; the pool shrinks where it was the last one, and there is room to."""
        del self._taken[start]
        end = self._end()
        if end < self.grads.numel():
            # Leaving never fails: what is too large is used again, or given back later.
            with contextlib.suppress(torch.OutOfMemoryError):
                self._resize(end)

    def state(self, start: int, size: int) -> AdamWState:
        """Return a range's master and moments, as views."""
        parts = {name: t.detach()[start : start + size] for name, t in self._tensors.items()}
        return AdamWState(
            parts["weights"], parts.get("remainder"), parts["exp_avg"], parts["exp_avg_sq"]
        )

    def _end(self) -> int:
        return max((at + size for at, size in self._taken.items()), default=0)

    def _gap(self, size: int) -> int:
        taken = sorted(self._taken.items())
        ends = [0, *(start + length for start, length in taken)]
        for end, (start, _) in zip(ends, taken, strict=False):
            if start - end >= size:
                return end
        return ends[-1]

    def _resize(self, elements: int) -> None:
        """Move everything, one tensor after the other: two pools at once may not fit."""
        before = self.grads.numel()
        moved: list[str] = []
        try:
            for name in self._tensors:
                self._move(name, elements)
                moved.append(name)
        except BaseException:
            # What was there fits where it was.
            for name in moved:
                self._move(name, before)
            raise

    @torch.no_grad()
    def _move(self, name: str, elements: int) -> None:
        old = self._tensors[name]
        new = self._empty(name, elements)
        kept = min(elements, old.numel())
        new.detach()[:kept].copy_(old.detach()[:kept])
        self._tensors[name] = new

    def _new(self, elements: int, dtype: torch.dtype) -> Tensor:
        return torch.empty(elements, dtype=dtype, device=self.device)

    def _empty(self, name: str, elements: int) -> Tensor:
        tensor = self._new(elements, self._dtypes[name])
        return tensor.requires_grad_() if name == "weights" else tensor
