"""Rows of hidden states and of their gradients, between the layers: on the card, or in host memory.

In host memory the card holds a few micro-batches at a time, whatever the batch.
"""

import itertools
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Final, Protocol, Self

import torch
from torch import Tensor

from slidepack.engine.sliding.slab import Slab
from slidepack.engine.sliding.streams import Streams

__all__ = ["GRADIENT", "DeviceRows", "HostRows", "Rows"]

GRADIENT: Final = -1
"""Level of the gradient."""

Key = tuple[int, int]
"""(level, micro-batch): level i is the input of layer i, level L the last layer's output, and
`GRADIENT` is the gradient, which takes the place of that output."""

_PUTS_TO_SETTLE: Final = 3
"""Passes that a copy to the host may take. To wait for a younger one would keep the walk from
running ahead of the card."""


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


@dataclass(slots=True, eq=False)
class _Buffer:
    rows: Tensor
    key: Key | None = None
    filled: torch.cuda.Event | None = None
    free: torch.cuda.Event | None = None
    used: bool = False


@dataclass(slots=True, eq=False)
class _Outgoing:
    """Rows as they were put, whose memory is not to be used again before their copy is done."""

    key: Key | None
    """None where they are not needed again."""
    rows: Tensor
    done: torch.cuda.Event | None
    number: int
    """Of the put."""
    read: bool = False
    """Whether no pass that comes soon is known to need them."""
    soon: bool = False
    """Whether one of the next passes is known to."""


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
        self._outgoing: list[_Outgoing] = []
        self._puts = 0

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
        while self._outgoing:
            self._settle(self._outgoing[0])
        for buffer in self._buffers:
            buffer.key, buffer.used = None, False
        self._bounds = bounds
        return self

    def put(self, key: Key, rows: Tensor) -> None:
        """Copy rows to the host, behind the pass that makes them."""
        self.drop(key)
        d2h = self._streams.rows_d2h
        d2h.wait(self._streams.compute.mark())
        with d2h.on():
            self._place(key).copy_(rows, non_blocking=True)
        self._puts += 1
        self._outgoing.append(_Outgoing(key, rows, d2h.mark(), self._puts))
        if len(self._outgoing) > len(self._buffers):
            self._settle(min(self._outgoing[:-1], key=self._rank))

    def prefetch(self, key: Key) -> None:
        """Begin to fill a buffer, where one is free; keep the rows as they were put if they are."""
        outgoing = self._find_outgoing(key)
        if outgoing is not None:
            outgoing.read, outgoing.soon = False, True
        elif self._find(key) is None:
            buffer = self._free_buffer()
            if buffer is not None:
                self._fill(buffer, key)

    def get(self, key: Key) -> Tensor:
        """Return the rows: as they were put, while those are here, or in a buffer."""
        outgoing = self._find_outgoing(key)
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
        outgoing = self._find_outgoing(key)
        if outgoing is not None:
            outgoing.read, outgoing.soon = True, False
        buffer = self._find(key)
        if buffer is not None:
            buffer.key, buffer.used = None, False
            buffer.free = self._streams.compute.mark()
            # To the end: what has been free for longest is filled next, as a fill waits for the
            # pass that read its buffer.
            self._buffers.remove(buffer)
            self._buffers.append(buffer)

    def drop(self, key: Key) -> None:
        """Free the buffer, and forget the rows as they were put."""
        self.rest(key)
        outgoing = self._find_outgoing(key)
        if outgoing is not None:
            outgoing.key = None

    def _find(self, key: Key) -> _Buffer | None:
        return next((buffer for buffer in self._buffers if buffer.key == key), None)

    def _find_outgoing(self, key: Key) -> _Outgoing | None:
        return next((one for one in self._outgoing if one.key == key), None)

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

    def _rank(self, one: _Outgoing) -> tuple[bool, bool, bool, int]:
        """Order what was put by how well the card can do without it."""
        young = self._puts - one.number < _PUTS_TO_SETTLE
        # A walk that turns at the end of a layer needs what was put first last.
        return one.soon, young, not one.read, one.number

    def _settle(self, one: _Outgoing) -> None:
        self._outgoing.remove(one)
        if one.done is not None:
            one.done.synchronize()

    def _place(self, key: Key) -> Tensor:
        level, micro = key
        return self._host[level, self._bounds[micro] : self._bounds[micro + 1]]
