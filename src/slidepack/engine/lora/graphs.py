"""Training passes recorded as CUDA graphs: one launch for a whole pass.

A small pass takes as long as its two thousand launches take the host, whatever the card does. The
first row of a key passes launch by launch, which also compiles what it needs; from the second on
the pass is recorded and replayed.
"""

import contextlib
import logging
from collections import OrderedDict
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Final

import torch
from torch import Tensor

from slidepack.engine.lora.driver import LaneDriver
from slidepack.engine.lora.staging import StagedKey, StagedMicro, StagedRow, staged_on
from slidepack.engine.model.layers import Decoder
from slidepack.engine.model.rope import RopeFrequencies

logger = logging.getLogger("slidepack.worker")

__all__ = ["MOST_GRAPH_TOKENS", "PassGraphs"]

MOST_GRAPH_TOKENS: Final = 16384
"""Tokens of a row that is recorded at most: beyond, the host is always ahead of the card."""
_MOST_GRAPHS: Final = 32
"""A graph holds no tensors of its own but some megabytes of launches."""


@dataclass(slots=True)
class _Entry:
    """What is kept for the rows of a key."""

    block: Tensor
    """[bytes] uint8 on the device: the tensors of the row that passes."""
    staged: StagedRow
    """Views of it."""
    graph: torch.cuda.CUDAGraph | None = None
    losses: Tensor | None = None
    """[N] fp64, the graph's output."""


class PassGraphs:
    """Passes of staged rows. All of them share one pool of memory, as only one runs at a time."""

    def __init__(self, decoder: Decoder, driver: LaneDriver) -> None:
        """Begin without a graph.

        Args:
            decoder: the frozen base, on a GPU.
            driver: walks its layers.
        """
        self._decoder = decoder
        self._driver = driver
        self._frequencies = RopeFrequencies.of(decoder.shape, decoder.device)
        self._pool = torch.cuda.MemPool()
        # Memory that was freed on one stream is not given to another, so all share this one.
        self._stream = torch.cuda.Stream(decoder.device)  # type: ignore[no-untyped-call]  # torch has no types here
        self._entries: OrderedDict[StagedKey, _Entry] = OrderedDict()
        self._records = True
        self._failed: torch.cuda.CUDAGraph | None = None

    def train(self, micro: StagedMicro) -> Tensor:
        """Run a row forward and backward; the lanes' gradients are written to their pool.

        Returns:
            [N] fp64: each lane's weighted loss of the row, valid until the next pass.

        Raises:
            torch.OutOfMemoryError: it does not fit; nothing that was recorded is kept.
        """
        entry = self._entry(micro)
        entry.block.copy_(micro.block, non_blocking=True)
        try:
            with self.room():
                if entry.graph is None:
                    return self._walk(entry.staged)
                self._driver.check_stop()
                entry.graph.replay()
        except torch.OutOfMemoryError:
            self.clear()
            raise
        assert entry.losses is not None
        return entry.losses

    @contextlib.contextmanager
    def room(self) -> Iterator[None]:
        """Run passes of any kind in the memory of the recorded ones, which nobody else can use."""
        if not self._records:
            yield
            return
        current = torch.cuda.current_stream(self._decoder.device)
        self._stream.wait_stream(current)
        try:
            with (
                torch.cuda.stream(self._stream),
                torch.cuda.use_mem_pool(self._pool, self._decoder.device),
            ):
                yield
        finally:
            current.wait_stream(self._stream)

    def clear(self) -> None:
        """Forget everything, its memory too: lanes are about to move, or need it."""
        self._entries.clear()
        if self._failed is None:
            self._pool = torch.cuda.MemPool()

    @property
    def recorded(self) -> int:
        """How many keys have a graph."""
        return sum(entry.graph is not None for entry in self._entries.values())

    def _entry(self, micro: StagedMicro) -> _Entry:
        entry = self._entries.pop(micro.key, None)
        if entry is None:
            # A pool of its own cannot grow into what others hold and do not use.
            torch.cuda.empty_cache()
            block = torch.empty_like(micro.block, device=self._decoder.device)
            entry = _Entry(block, staged_on(micro, block))
            while len(self._entries) >= _MOST_GRAPHS:
                self._entries.popitem(last=False)
        elif entry.graph is None and self._records:
            self._record(entry)
        self._entries[micro.key] = entry
        return entry

    def _record(self, entry: _Entry) -> None:
        """Record the pass of an entry; its tensors hold another row by then, which is no matter.

        Where that does not work, passes go on launch by launch, with the same bits.
        """
        graph = torch.cuda.CUDAGraph()
        try:
            # Other threads of this process go on using the device. A recording that fails leaves
            # its stream current, so the outer block is what brings the old one back.
            with (
                torch.cuda.stream(torch.cuda.current_stream(self._decoder.device)),
                torch.cuda.graph(
                    graph,
                    pool=self._pool.id,  # type: ignore[arg-type]  # its own type for a handle is private
                    stream=self._stream,
                    capture_error_mode="thread_local",
                ),
            ):
                losses = self._walk(entry.staged)
        except RuntimeError as error:
            # Out of memory is one, and spoils the recording as anything else does.
            logger.warning("Passes are not recorded, which is slower: %s", error)
            self._give_up(graph)
            return
        entry.graph, entry.losses = graph, losses

    def _give_up(self, failed: torch.cuda.CUDAGraph) -> None:
        """Record nothing more, and clear away what a recording that failed left behind.

        Torch 2.11 does not end the allocator's part of a recording whose end the driver refuses:
        the next use of the pool is then refused, and its destruction aborts the process.
        """
        self._records = False
        # The allocators go on asking the graph whether a stream belongs to it.
        self._failed = failed
        self._entries.clear()
        device = self._decoder.device.index or 0
        try:
            torch._C._cuda_endAllocateToPool(device, self._pool.id)
        except RuntimeError:
            # It had come to an end by itself.
            return
        torch._C._cuda_releasePool(device, self._pool.id)
        # What it kept is for everyone again.
        self._pool = torch.cuda.MemPool()

    def _walk(self, staged: StagedRow) -> Tensor:
        decoder, laid = self._decoder, staged.row
        row = laid.bind(decoder.shape, decoder.device, decoder.dtype, self._frequencies)
        return self._driver.train(row, staged.lanes)
