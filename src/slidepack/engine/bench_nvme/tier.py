"""What the tier does with the same files, alone and beside work."""

import time
from collections import deque
from collections.abc import Callable
from typing import Final

import torch
from torch import Tensor

from slidepack.engine.nvme.files import ALIGNMENT, TierFile
from slidepack.engine.nvme.transport import Pending, Transport
from slidepack.engine.sliding.slab import Slab

__all__ = ["Stages", "Work", "tier_seconds", "update_seconds"]

_AHEAD: Final = 3
"""Chunks that are read before their turn, and chunks that may still be written."""
_MATRIX: Final = 2048


class Stages:
    """Chunks of memory for each direction."""

    def __init__(self, chunk_bytes: int, *, pin: bool) -> None:
        """Allocate them, filled with noise: some file systems compress."""
        count = 2 * _AHEAD + 1
        self.slab = Slab(count * Slab.padded(chunk_bytes, ALIGNMENT), pin=pin)
        self.chunks = [
            self.slab.take(chunk_bytes, torch.uint8, alignment=ALIGNMENT) for _ in range(count)
        ]
        for chunk in self.chunks:
            chunk.random_(0, 256)


class Work:
    """Products that take some time, on the CPU or on the card."""

    def __init__(self, device: torch.device, chunk_bytes: int) -> None:
        """Allocate what they need; `calibrate` sets how long they take."""
        self.device = device
        self.on_card = device.type == "cuda"
        size = 4 * _MATRIX if self.on_card else _MATRIX // 2
        dtype = torch.bfloat16 if self.on_card else torch.float32
        self._left = torch.randn(size, size, device=device, dtype=dtype)
        self._out = torch.empty_like(self._left)
        self._there = torch.empty(
            chunk_bytes if self.on_card else 0, dtype=torch.uint8, device=device
        )
        self._times = 1

    def calibrate(self, seconds: float) -> None:
        """Set how many products a chunk takes, so that they last about so long."""
        self.products(2)
        begun = time.perf_counter()
        self.products(4)
        self._times = max(1, round(4 * seconds / (time.perf_counter() - begun)))

    def products(self, times: int) -> None:
        """Do some, and wait for them."""
        for _ in range(times):
            torch.mm(self._left, self._left, out=self._out)
        self.wait()

    def on_chunk(self, chunk: Tensor | None) -> torch.cuda.Event | None:
        """Do the work of a chunk; with a card, launch it with the copies there and back.

        Returns:
            What a write of the chunk must wait for; None where the work is done already.
        """
        if not self.on_card:
            for _ in range(self._times):
                torch.mm(self._left, self._left, out=self._out)
            return None
        if chunk is not None:
            self._there.copy_(chunk, non_blocking=True)
        for _ in range(self._times):
            torch.mm(self._left, self._left, out=self._out)
        if chunk is not None:
            chunk.copy_(self._there, non_blocking=True)
        over = torch.cuda.Event()  # type: ignore[no-untyped-call]  # torch has no types here
        over.record()
        return over

    def wait(self) -> None:
        """Wait for the card."""
        if self.on_card:
            torch.cuda.synchronize(self.device)


def tier_seconds(
    transport: Transport, stages: Stages, reads: TierFile | None, writes: TierFile | None
) -> float:
    """Read one file and write the other, whole, both at once, and return the seconds."""
    chunk_bytes = stages.chunks[0].numel()
    half = len(stages.chunks) // 2
    lanes: list[tuple[Callable[..., Pending], TierFile, list[Tensor]]] = []
    if reads is not None:
        lanes.append((transport.read, reads, stages.chunks[:half]))
    if writes is not None:
        lanes.append((transport.write, writes, stages.chunks[half:]))
    pending: list[deque[Pending]] = [deque() for _ in lanes]
    begun = time.perf_counter()
    for chunk in range(next(file for _, file, _ in lanes).bytes // chunk_bytes):
        for (move, file, memory), under_way in zip(lanes, pending, strict=True):
            if len(under_way) == len(memory):
                under_way.popleft().wait()
            under_way.append(move(file, chunk * chunk_bytes, memory[chunk % len(memory)]))
    for under_way in pending:
        for one in under_way:
            one.wait()
    if writes is not None:
        writes.sync()
    return time.perf_counter() - begun


def update_seconds(
    transport: Transport, stages: Stages, reads: TierFile, writes: TierFile, work: Work
) -> float:
    """Read each chunk, work on it, and write it, as an update does; return the seconds."""
    chunk_bytes = stages.chunks[0].numel()
    count, memory = reads.bytes // chunk_bytes, stages.chunks
    coming: deque[Pending] = deque()
    going: dict[int, Pending] = {}

    def fetch(chunk: int) -> None:
        slot = chunk % len(memory)
        if slot in going:
            going.pop(slot).wait()
        coming.append(transport.read(reads, chunk * chunk_bytes, memory[slot]))

    begun = time.perf_counter()
    for chunk in range(min(_AHEAD, count)):
        fetch(chunk)
    for chunk in range(count):
        coming.popleft().wait()
        if chunk + _AHEAD < count:
            fetch(chunk + _AHEAD)
        slot = chunk % len(memory)
        over = work.on_chunk(memory[slot])
        going[slot] = transport.write(writes, chunk * chunk_bytes, memory[slot], over)
    for one in going.values():
        one.wait()
    writes.sync()
    return time.perf_counter() - begun
