"""Rows of hidden states and of their gradients, between the layers: on the card, or in host memory.

In host memory the card holds a few micro-batches at a time, whatever the batch.
"""

import itertools
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Protocol, Self

import torch
from torch import Tensor

from slidepack.engine.sliding.slab import Slab
from slidepack.engine.sliding.streams import Streams

__all__ = ["DeviceRows", "HostRows", "Rows"]

Key = tuple[int, int]
"""(level, micro-batch): level i is the input of layer i, level L the last layer's output, and
level -1 the gradient, which takes the place of that output."""


class Rows(Protocol):
    """Where the rows of a step are kept."""

    def put(self, key: Key, rows: Tensor) -> None:
        """Keep rows; the tensor is not to be changed afterwards."""

    def prefetch(self, key: Key) -> None:
        """Begin to bring rows to the card, where that takes time."""

    def get(self, key: Key) -> Tensor:
        """Return rows on the card; what is launched next on the compute lane may read them."""

    def rest(self, key: Key) -> None:
        """Say that rows are not needed before the backward pass; what reads them is launched."""

    def drop(self, key: Key) -> None:
        """Say that rows are not needed again; what reads them is launched."""


class DeviceRows:
    """Rows that stay on the card."""

    def __init__(self) -> None:
        """Begin empty."""
        self._rows: dict[Key, Tensor] = {}

    def put(self, key: Key, rows: Tensor) -> None:
        """Keep a reference."""
        self._rows[key] = rows

    def prefetch(self, key: Key) -> None:
        """Do nothing: the rows are there."""

    def get(self, key: Key) -> Tensor:
        """Return the rows."""
        return self._rows[key]

    def rest(self, key: Key) -> None:
        """Do nothing: the rows stay."""

    def drop(self, key: Key) -> None:
        """Let go of the rows."""
        del self._rows[key]


@dataclass(slots=True)
class _Buffer:
    rows: Tensor
    key: Key | None = None
    filled: torch.cuda.Event | None = None
    free: torch.cuda.Event | None = None
    used: bool = False


@dataclass(slots=True)
class _Outgoing:
    rows: Tensor
    done: torch.cuda.Event | None


class HostRows:
    """Rows in a host slab, one place for each level and micro-batch."""

    def __init__(
        self,
        *,
        levels: int,
        max_tokens: int,
        max_micro_tokens: int,
        width: int,
        dtype: torch.dtype,
        device: torch.device,
        streams: Streams,
        buffers: int = 6,
    ) -> None:
        """Allocate the slab and the buffers on the card.

        Args:
            levels: layers of the model.
            max_tokens: most tokens of a step.
            max_micro_tokens: most tokens of a micro-batch.
            width: of a row.
            dtype: of the rows.
            device: where the passes run.
            streams: of the run.
            buffers: micro-batches on their way to the card or being read there.
        """
        elements = (levels + 1) * max_tokens * width
        self.slab = Slab(Slab.padded(elements * dtype.itemsize), pin=device.type == "cuda")
        self._host = self.slab.take(elements, dtype).view(levels + 1, max_tokens, width)
        self._bounds: tuple[int, ...] = (0,)
        self._buffers = [
            _Buffer(torch.empty((max_micro_tokens, width), dtype=dtype, device=device))
            for _ in range(buffers)
        ]
        self._streams = streams
        self._outgoing: dict[Key, _Outgoing] = {}

    def begin(self, micro_tokens: Sequence[int]) -> Self:
        """Begin a step of micro-batches of these sizes; nothing of the last one is kept.

        Raises:
            ValueError: they do not fit.
        """
        bounds = tuple(itertools.accumulate(micro_tokens, initial=0))
        if bounds[-1] > self._host.shape[1] or max(micro_tokens) > self._buffers[0].rows.shape[0]:
            raise ValueError(
                f"micro-batches of {tuple(micro_tokens)} tokens do not fit {self._host.shape[1]} "
                f"tokens, {self._buffers[0].rows.shape[0]} at a time"
            )
        for key in list(self._outgoing):
            self._settle(key)
        for buffer in self._buffers:
            buffer.key, buffer.used = None, False
        self._bounds = bounds
        return self

    def put(self, key: Key, rows: Tensor) -> None:
        """Copy rows to the host, behind the pass that makes them."""
        if key in self._outgoing:
            self._settle(key)
        buffer = self._find(key)
        if buffer is not None:
            buffer.key = None
        d2h = self._streams.rows_d2h
        d2h.wait(self._streams.compute.mark())
        with d2h.on():
            self._place(key).copy_(rows, non_blocking=True)
        # The rows' memory is not to be used again before the copy is done.
        self._outgoing[key] = _Outgoing(rows, d2h.mark())
        while len(self._outgoing) > len(self._buffers):
            self._settle(next(iter(self._outgoing)))

    def prefetch(self, key: Key) -> None:
        """Begin to fill a buffer, where one is free."""
        if key not in self._outgoing and self._find(key) is None:
            buffer = self._free_buffer()
            if buffer is not None:
                self._fill(buffer, key)

    def get(self, key: Key) -> Tensor:
        """Return the rows: as they were put, while that copy is here, or in a buffer."""
        outgoing = self._outgoing.get(key)
        if outgoing is not None:
            return outgoing.rows
        buffer = self._find(key)
        if buffer is None:
            buffer = self._free_buffer() or next((b for b in self._buffers if not b.used), None)
            assert buffer is not None, "every buffer is being read"
            self._fill(buffer, key)
        buffer.used = True
        self._streams.compute.wait(buffer.filled)
        start, stop = self._bounds[key[1]], self._bounds[key[1] + 1]
        return buffer.rows[: stop - start]

    def rest(self, key: Key) -> None:
        """Free the buffer; the host's copy stays until it is overwritten."""
        self.drop(key)

    def drop(self, key: Key) -> None:
        """Free the buffer."""
        buffer = self._find(key)
        if buffer is not None:
            buffer.key, buffer.used = None, False
            buffer.free = self._streams.compute.mark()

    def _find(self, key: Key) -> _Buffer | None:
        return next((buffer for buffer in self._buffers if buffer.key == key), None)

    def _free_buffer(self) -> _Buffer | None:
        return next((buffer for buffer in self._buffers if buffer.key is None), None)

    def _fill(self, buffer: _Buffer, key: Key) -> None:
        h2d = self._streams.rows_h2d
        h2d.wait(buffer.free)
        place = self._place(key)
        with h2d.on():
            buffer.rows[: place.shape[0]].copy_(place, non_blocking=True)
        buffer.filled = h2d.mark()
        buffer.key, buffer.used = key, False

    def _settle(self, key: Key) -> None:
        outgoing = self._outgoing.pop(key)
        if outgoing.done is not None:
            outgoing.done.synchronize()

    def _place(self, key: Key) -> Tensor:
        level, micro = key
        return self._host[level, self._bounds[micro] : self._bounds[micro + 1]]
