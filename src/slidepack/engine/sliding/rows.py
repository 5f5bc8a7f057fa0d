"""Rows of hidden states and of their gradients, between the layers: on the card, or in host memory.

In host memory the card holds a few micro-batches at a time, whatever the batch.
"""

import itertools
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Final, Protocol, Self

import torch
from torch import Tensor

from slidepack.engine.sliding.read_ahead import wait_over
from slidepack.engine.sliding.slab import Slab
from slidepack.engine.sliding.streams import Streams
from slidepack.engine.sliding.tier_rows import RowReading, TierRows

__all__ = ["GRADIENT", "ROW_BUFFERS", "DeviceRows", "HostRows", "Rows"]

GRADIENT: Final = -1
"""Level of the gradient."""

ROW_BUFFERS: Final = 6

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
    stage: Tensor | None = None
    """Where rows from a drive come first."""
    reading: RowReading | None = None
    """Rows that are not in the buffer yet."""


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
        buffers: int = ROW_BUFFERS,
        tier: TierRows | None = None,
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
            tier: keeps the inputs of some layers on a drive, with as many readers as there are
                buffers; closed with this. None keeps all in the slab.
        """
        self._tier = tier
        self._kept = True
        on_tier = {} if tier is None else tier.levels
        # The gradient takes the last place.
        kept = [level for level in range(levels + 1) if level not in on_tier]
        self._places = {level: place for place, level in enumerate(kept)} | {
            GRADIENT: len(kept) - 1
        }
        elements = len(kept) * max_tokens * width
        self.slab = Slab(Slab.padded(elements * dtype.itemsize), pin=device.type == "cuda")
        self._host = self.slab.take(elements, dtype).view(len(kept), max_tokens, width)
        self._bounds: tuple[int, ...] = (0,)
        self._buffers = [
            _Buffer(torch.empty((max_micro_tokens, width), dtype=dtype, device=device))
            for _ in range(buffers)
        ]
        if tier is not None:
            for buffer, stage in zip(self._buffers, tier.read_stages, strict=True):
                buffer.stage = stage
        self._streams = streams
        self._outgoing: list[_Outgoing] = []
        self._puts = 0

    def begin(self, micro_tokens: Sequence[int], *, kept: bool = True) -> Self:
        """Begin a step of micro-batches of these sizes; nothing of the last one is kept.

        Args:
            micro_tokens: of each.
            kept: a backward pass will come; else rows are read by the next layer alone, and a drive
                is spared them.

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
            self._empty(buffer)
        self._bounds = bounds
        self._kept = kept
        if self._tier is not None:
            self._tier.begin(bounds)
        return self

    def put(self, key: Key, rows: Tensor) -> None:
        """Copy rows to the host, behind the pass that makes them."""
        self.drop(key)
        d2h = self._streams.rows_d2h
        d2h.wait(self._streams.compute.mark())
        on_tier = self._is_on_tier(key)
        if on_tier and not self._kept:
            self._add_outgoing(key, rows, self._streams.compute.mark())
            return
        place = self._stage(rows) if on_tier else self._place(key)
        with d2h.on():
            place.copy_(rows, non_blocking=True)
        done = d2h.mark()
        if on_tier:
            assert self._tier is not None
            self._tier.put(*key, after=done)
        self._add_outgoing(key, rows, done)

    def _add_outgoing(self, key: Key, rows: Tensor, done: torch.cuda.Event | None) -> None:
        self._puts += 1
        self._outgoing.append(_Outgoing(key, rows, done, self._puts))
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
        if buffer.reading is not None:
            rows = buffer.reading.wait(buffer.rows.dtype, buffer.rows.shape[1])
            buffer.reading = None
            self._copy_in(buffer, rows)
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
            self._empty(buffer)
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
        if self._is_on_tier(key):
            assert self._tier is not None
            assert buffer.stage is not None
            # What was read there before is on the card then.
            buffer.reading = self._tier.read(*key, buffer.stage, after=buffer.filled)
        else:
            self._copy_in(buffer, self._place(key))
        buffer.key, buffer.used = key, False

    def _copy_in(self, buffer: _Buffer, rows: Tensor) -> None:
        h2d = self._streams.rows_h2d
        h2d.wait(buffer.free)
        with h2d.on():
            buffer.rows[: rows.shape[0]].copy_(rows, non_blocking=True)
        buffer.filled = h2d.mark()

    def _empty(self, buffer: _Buffer) -> None:
        """Let a buffer go; rows that nobody came for are read to their end first."""
        if buffer.reading is not None:
            wait_over([buffer.reading.pending])
        buffer.key, buffer.used, buffer.reading = None, False, None

    def close(self) -> None:
        """Give pinned memory back, once nothing is under way."""
        for buffer in self._buffers:
            self._empty(buffer)
        if self._tier is not None:
            self._tier.close()
        self.slab.close()

    def _is_on_tier(self, key: Key) -> bool:
        return self._tier is not None and key[0] in self._tier.levels

    def _stage(self, rows: Tensor) -> Tensor:
        assert self._tier is not None
        return self._tier.room()[: rows.nbytes].view(rows.dtype).view(rows.shape)

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
        return self._host[self._places[level], self._bounds[micro] : self._bounds[micro + 1]]
