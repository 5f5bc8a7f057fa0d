"""Reads from drives ahead of whoever needs them, into a few stages of memory."""

import contextlib
import threading
from collections import deque
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from slidepack.engine.nvme.files import ALIGNMENT, TierFile
from slidepack.engine.nvme.transport import Pending, Transport
from slidepack.engine.sliding.slab import Slab
from slidepack.engine.sliding.tier_layout import Request

__all__ = ["Loaded", "ReadAhead", "Reading", "Stages", "make_stages", "wait_over"]


@dataclass(frozen=True, slots=True)
class Reading:
    """What is to be read into one stage."""

    file: TierFile
    requests: Sequence[Request]
    tag: Any
    """For who takes it."""


@dataclass(frozen=True, slots=True)
class Loaded:
    """A stage, and what was read into it."""

    reading: Reading
    stage: Tensor
    pending: tuple[Pending, ...]


@dataclass(frozen=True, slots=True)
class Stages:
    """Equal rooms for transfers, uint8."""

    rooms: tuple[Tensor, ...]
    slab: Slab | None
    """Their memory, where that is the host's."""


def make_stages(count: int, num_bytes: int, *, pin: bool, device: torch.device | None) -> Stages:
    """Allocate stages.

    Args:
        count: how many.
        num_bytes: of each, a multiple of `ALIGNMENT`.
        pin: a card copies to and from them.
        device: where they are; None for host memory.
    """
    if device is None:
        slab = Slab(count * num_bytes, pin=pin)
        rooms = [slab.take(num_bytes, torch.uint8, alignment=ALIGNMENT) for _ in range(count)]
        return Stages(tuple(rooms), slab)
    found = []
    for _ in range(count):
        room = torch.empty(num_bytes + ALIGNMENT, dtype=torch.uint8, device=device)
        first = -room.data_ptr() % ALIGNMENT
        found.append(room[first : first + num_bytes])
    return Stages(tuple(found), None)


class ReadAhead:
    """Fills stages in the order in which it was asked to, as soon as one is free."""

    def __init__(self, stages: Stages, transport: Transport) -> None:
        """Begin with every stage free."""
        self._transport = transport
        self._free: deque[tuple[Tensor, torch.cuda.Event | None]] = deque(
            (room, None) for room in stages.rooms
        )
        self._wanted: deque[Reading] = deque()
        self._under_way: deque[Loaded] = deque()
        self._changed = threading.Condition()
        self._error: BaseException | None = None
        self._closed = False

    def expect(self, readings: Sequence[Reading]) -> None:
        """Read these, after what was asked for before."""
        with self._changed:
            self._wanted.extend(readings)
            self._fill()

    def take(self) -> Loaded | None:
        """Wait for the next reading, in order; None after `close`.

        Raises:
            SlidepackError: the drive failed.
            BaseException: what `fail` was told.
        """
        with self._changed:
            self._changed.wait_for(
                lambda: self._error is not None or self._closed or bool(self._under_way)
            )
            if self._error is not None:
                raise self._error
            if not self._under_way:
                return None
            loaded = self._under_way.popleft()
        try:
            for pending in loaded.pending:
                pending.wait()
        except BaseException:
            # Nobody knows of the others any more, and they touch the stage.
            wait_over(loaded.pending)
            raise
        return loaded

    def give_back(self, stage: Tensor, after: torch.cuda.Event | None = None) -> None:
        """Free a stage, once an event is over."""
        with self._changed:
            self._free.append((stage, after))
            self._fill()

    def fail(self, error: BaseException) -> None:
        """Let whoever waits raise this."""
        with self._changed:
            self._error = error
            self._changed.notify_all()

    def close(self) -> None:
        """Let whoever waits go on with nothing, and wait until no read touches a stage."""
        with self._changed:
            self._closed = True
            self._wanted.clear()
            left = list(self._under_way)
            self._under_way.clear()
            self._changed.notify_all()
        for loaded in left:
            wait_over(loaded.pending)

    def _fill(self) -> None:
        while self._free and self._wanted and not self._closed:
            (stage, after), reading = self._free.popleft(), self._wanted.popleft()
            pending = tuple(
                self._transport.read(reading.file, offset, stage[start : start + size], after=after)
                for offset, start, size in reading.requests
            )
            self._under_way.append(Loaded(reading, stage, pending))
        self._changed.notify_all()


def wait_over(transfers: Sequence[Pending]) -> None:
    """Wait until none touches its memory any more, whatever became of it: somebody else is told.

    That is any error: a card that has failed is one of what a transfer may wait for.
    """
    for pending in transfers:
        with contextlib.suppress(Exception):
            pending.wait()
