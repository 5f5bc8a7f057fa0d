"""Layers whose weights are on drives, on their way to the slots that the passes read."""

import contextlib
import threading
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Protocol

import torch
from torch import Tensor

from slidepack.engine.nvme.transport import Pending, padded
from slidepack.engine.sliding.read_ahead import ReadAhead, Reading, Stages, wait_over
from slidepack.engine.sliding.streams import Lane
from slidepack.engine.sliding.tier_layout import Request
from slidepack.engine.sliding.tier_store import TierStore

__all__ = ["Coming", "DirectWeights", "StagedWeights", "TierWeights", "weight_pieces"]


def weight_pieces(layer_bytes: int, chunk_bytes: int) -> tuple[int, int]:
    """Return how many pieces a layer's weights come in, and the bytes of a stage for one.

    As even as can be: whole chunks would take more RAM than the layers that a plan counts.
    """
    pieces = -(-layer_bytes // chunk_bytes)
    return pieces, padded(-(-layer_bytes // pieces))


class Coming(Protocol):
    """A layer that is being read into a slot."""

    def wait(self) -> torch.cuda.Event | None:
        """Wait until the slot has it, or will have after the event.

        Raises:
            SlidepackError: the drive failed.
        """


class TierWeights(Protocol):
    """Reads layers that are on drives."""

    def has(self, layer: int) -> bool:
        """Return whether a layer's weights are on a drive."""

    def fill(self, layer: int, slot: Tensor, free: torch.cuda.Event | None) -> Coming:
        """Begin to fill a slot, in the order of the calls.

        Args:
            layer: whose update is done, and written.
            slot: uint8, with room for the padding of a file.
            free: when nothing reads what the slot has.
        """

    def close(self) -> None:
        """End it, once nothing touches a slot."""


class DirectWeights:
    """Reads straight into slots: in RAM, or on a card that the transport reaches."""

    def __init__(self, tier: TierStore) -> None:
        """Bind the files."""
        self._tier = tier
        self._last: dict[int, _Direct] = {}

    def has(self, layer: int) -> bool:
        """Return whether a layer's weights are on a drive."""
        return _has(self._tier, layer)

    def fill(self, layer: int, slot: Tensor, free: torch.cuda.Event | None) -> Coming:
        """Begin to fill a slot."""
        plane = self._tier.layout(layer).plane_bytes
        pending = self._tier.transport.read(self._tier.source(layer), 0, slot[:plane], after=free)
        self._last[slot.data_ptr()] = _Direct(pending)
        return self._last[slot.data_ptr()]

    def close(self) -> None:
        """Wait until nothing touches a slot."""
        for one in self._last.values():
            wait_over([one.pending])


@dataclass(frozen=True, slots=True)
class _Direct:
    pending: Pending

    def wait(self) -> torch.cuda.Event | None:
        self.pending.wait()
        return None


@dataclass(slots=True, eq=False)
class _Fill:
    """A layer on its way through the stages."""

    slot: Tensor
    free: torch.cuda.Event | None
    over: threading.Event = field(default_factory=threading.Event)
    filled: torch.cuda.Event | None = None
    error: BaseException | None = None

    def end(self, filled: torch.cuda.Event | None, error: BaseException | None) -> None:
        self.filled, self.error = filled, error
        self.over.set()

    def wait(self) -> torch.cuda.Event | None:
        self.over.wait()
        if self.error is not None:
            raise self.error
        return self.filled


@dataclass(frozen=True, slots=True)
class _Piece:
    fill: _Fill
    start: int
    size: int
    last: bool


class StagedWeights:
    """Reads through pinned stages of RAM, and copies from there to the card, in a thread."""

    def __init__(
        self,
        tier: TierStore,
        stages: Stages,
        h2d: Lane,
        fail: Callable[[BaseException], None],
        device: torch.device,
    ) -> None:
        """Start the thread.

        Args:
            tier: the files.
            stages: of equal size, a multiple of a page; closed with this.
            h2d: brings weights to the card.
            fail: told of an error that no layer's `wait` raises.
            device: of the slots.
        """
        self._tier = tier
        self._stages = stages
        self._piece_bytes = stages.rooms[0].numel()
        self._ahead = ReadAhead(stages, tier.transport)
        self._h2d = h2d
        self._fail = fail
        self._device = device
        self._lock = threading.Lock()
        self._fills: list[_Fill] = []
        self._error: BaseException | None = None
        self._thread = threading.Thread(target=self._run, name="tier-weights", daemon=True)
        self._thread.start()

    def has(self, layer: int) -> bool:
        """Return whether a layer's weights are on a drive."""
        return _has(self._tier, layer)

    def fill(self, layer: int, slot: Tensor, free: torch.cuda.Event | None) -> Coming:
        """Begin to fill a slot."""
        plane, file = self._tier.layout(layer).plane_bytes, self._tier.source(layer)
        fill = _Fill(slot, free)
        with self._lock:
            if self._error is not None:
                fill.end(None, self._error)
                return fill
            self._fills.append(fill)
        starts = range(0, plane, self._piece_bytes)
        readings = []
        for start in starts:
            size = min(self._piece_bytes, plane - start)
            piece = _Piece(fill, start, size, start == starts[-1])
            readings.append(Reading(file, [Request(start, 0, size)], piece))
        self._ahead.expect(readings)
        return fill

    def close(self) -> None:
        """End the thread, and give the stages' memory back."""
        self._ahead.close()
        self._thread.join()
        # A card that has failed copies nothing more, and the walk was told.
        with contextlib.suppress(RuntimeError):
            last = self._h2d.mark()
            if last is not None:
                last.synchronize()
        if self._stages.slab is not None:
            self._stages.slab.close()

    def _run(self) -> None:
        try:
            if self._device.type == "cuda":
                torch.cuda.set_device(self._device)
            while (loaded := self._ahead.take()) is not None:
                self._land(loaded.reading.tag, loaded.stage)
        except BaseException as error:  # noqa: BLE001 - handed to the walk, which raises it
            with self._lock:
                self._error = error
                for fill in self._fills:
                    fill.end(None, error)
            self._fail(error)

    def _land(self, piece: _Piece, stage: Tensor) -> None:
        fill = piece.fill
        if piece.start == 0:
            self._h2d.wait(fill.free)
        with self._h2d.on():
            fill.slot[piece.start : piece.start + piece.size].copy_(
                stage[: piece.size], non_blocking=True
            )
        copied = self._h2d.mark()
        self._ahead.give_back(stage, copied)
        if piece.last:
            with self._lock:
                self._fills.remove(fill)
            fill.end(copied, None)


def _has(tier: TierStore, layer: int) -> bool:
    return tier.has(layer) and tier.layout(layer).parts.master
