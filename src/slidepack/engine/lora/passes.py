"""What a pack needs of the passes over its base, wherever base and lanes are kept."""

import contextlib
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Protocol, TypeVar

import torch
from torch import Tensor

from slidepack.engine.contract.job import LoraMethod, OptimSpec
from slidepack.engine.lora.arena import LoraArena
from slidepack.engine.lora.driver import LaneDriver
from slidepack.engine.lora.graphs import MOST_GRAPH_TOKENS, PassGraphs
from slidepack.engine.lora.lanes import LaneAdapters, LaneWork, MicroBatch, Serve
from slidepack.engine.lora.optimizer import (
    adamw_numbers,
    lane_norms,
    optimizer_step,
    squared_norms,
)
from slidepack.engine.lora.pool import LanePool
from slidepack.engine.lora.staging import StagedMicro, stage
from slidepack.engine.model.layers import Decoder
from slidepack.kernels import ADAMW_BLOCK, block_squares, lane_adamw, upload

__all__ = ["LaneUpdate", "Passes", "ResidentPasses"]

Ready = TypeVar("Ready")
"""What passes make of a micro-batch before it is its turn."""


@dataclass(frozen=True, kw_only=True, slots=True)
class LaneUpdate:
    """The optimizer step of a lane whose gradient is there."""

    arena: LoraArena
    optim: OptimSpec
    step: int
    """Steps done before it."""
    total_steps: int
    norm: float
    """Of the gradient, a finite number."""
    carried_steps: int = 0
    """That the moments had seen before the lane's first step."""


class Passes(Protocol[Ready]):
    """Forward and backward passes of rows, and the updates that follow."""

    @property
    def serve(self) -> Serve | None:
        """Brings the lanes to passes that are not these, where they do not stay there."""

    @property
    def recorded_passes(self) -> int:
        """How many kinds of passes are replayed as a whole."""

    def expect(self, layer_elements: int) -> None:
        """Make room for lanes that are about to come, where there is any.

        Args:
            layer_elements: that all of them take for each layer.
        """

    def new_lane(self, method: LoraMethod) -> LoraArena:
        """Make room for a lane, all zero.

        Raises:
            torch.OutOfMemoryError: there is none; nothing has changed.
        """

    def ready(self, work: LaneWork, adapters: LaneAdapters) -> Ready:
        """Lay out a micro-batch of a step."""

    def forget(self) -> None:
        """Let go of whatever says where lanes are: they are about to move."""

    def train(
        self,
        micros: Sequence[Ready],
        lanes: LaneAdapters,
        meanwhile: Callable[[], None],
    ) -> tuple[list[float], list[float]]:
        """Run the micro-batches of a step; leave each lane's gradient for `update`.

        Args:
            micros: the micro-batches.
            lanes: in the order in which they are in the rows.
            meanwhile: called once everything is launched, before the device is waited for.

        Returns:
            Each lane's weighted loss, and the norm of its gradient.

        Raises:
            torch.OutOfMemoryError: a row does not fit; no lane has changed.
        """

    def update(self, updates: Sequence[LaneUpdate]) -> None:
        """Do the optimizer steps; they may still be under way when this returns."""

    def evaluate(self, micros: Sequence[MicroBatch], lanes: LaneAdapters) -> list[float]:
        """Return each lane's weighted loss, without gradients."""


class ResidentPasses:
    """Base and lanes stay where the passes run."""

    def __init__(self, decoder: Decoder, driver: LaneDriver, *, record: bool = True) -> None:
        """Begin without a lane.

        Args:
            decoder: the frozen base.
            driver: walks its layers.
            record: record passes as CUDA graphs where that is possible.
        """
        self.pool = LanePool(decoder.device, decoder.dtype)
        self._decoder = decoder
        self._driver = driver
        self._graphs: PassGraphs | None = None
        if record and decoder.device.type == "cuda" and driver.can_be_recorded:
            self._graphs = PassGraphs(decoder, driver)

    @property
    def serve(self) -> None:
        """Nothing: the lanes stay where passes read them."""
        return None

    def expect(self, layer_elements: int) -> None:
        """Make room for lanes that are about to come, where there is any."""
        self.pool.reserve(self._decoder.shape.num_layers * layer_elements)

    def new_lane(self, method: LoraMethod) -> LoraArena:
        """Make room for a lane, all zero."""
        return LoraArena(self._decoder.shape, method, self.pool)

    def ready(self, work: LaneWork, adapters: LaneAdapters) -> MicroBatch | StagedMicro:
        """Lay out a micro-batch: in host memory where its pass is to be recorded."""
        tokens = sum(piece.tokens for piece in work.pieces if piece is not None)
        if self._graphs is None or max(tokens, work.exact_tokens) > MOST_GRAPH_TOKENS:
            return work.bind(adapters, self._decoder.shape, self._decoder.dtype)
        return stage(work, adapters, self._decoder.dtype)

    def forget(self) -> None:
        """Let go of the recorded passes."""
        if self._graphs is not None:
            self._graphs.clear()

    @property
    def recorded_passes(self) -> int:
        """How many kinds of passes are replayed as a whole."""
        return 0 if self._graphs is None else self._graphs.recorded

    def train(
        self,
        micros: Sequence[MicroBatch | StagedMicro],
        lanes: LaneAdapters,
        meanwhile: Callable[[], None],
    ) -> tuple[list[float], list[float]]:
        """Run the micro-batches of a step, one after the other."""
        losses = torch.zeros(len(lanes), dtype=torch.float64, device=self._decoder.device)
        for micro in micros:
            losses += self._train(micro)
        squares = self._squares(lanes.arenas)
        meanwhile()
        return losses.tolist(), lane_norms(squares)

    def _train(self, micro: MicroBatch | StagedMicro) -> Tensor:
        if isinstance(micro, MicroBatch):
            with self._room():
                return self._driver.train(micro.row, micro.lanes)
        assert self._graphs is not None
        return self._graphs.train(micro)

    def _room(self) -> contextlib.AbstractContextManager[None]:
        return contextlib.nullcontext() if self._graphs is None else self._graphs.room()

    def _squares(self, arenas: Sequence[LoraArena]) -> Tensor:
        """Return the squared norm of each layer of each lane's gradient, [N, L] fp64."""
        if self._decoder.device.type == "cpu":
            by_layer = [one.grads.view(-1, one.layer_size) for one in arenas]
            return torch.stack([squared_norms(grads) for grads in by_layer])
        blocks = block_squares(self.pool.grads).double()
        # A few launches for all lanes: the parts of each layer lie side by side.
        layers = self._decoder.shape.num_layers
        return torch.stack(
            [
                blocks[one.start // ADAMW_BLOCK : (one.start + one.size) // ADAMW_BLOCK]
                .view(layers, -1)
                .sum(1)
                for one in arenas
            ]
        )

    def update(self, updates: Sequence[LaneUpdate]) -> None:
        """Do the optimizer steps."""
        if self._decoder.device.type != "cpu":
            self._update_at_once(updates)
            return
        for one in updates:
            optimizer_step(
                one.arena.state,
                one.arena.grads,
                one.optim,
                one.step,
                one.total_steps,
                one.norm,
                one.carried_steps,
            )

    def _update_at_once(self, updates: Sequence[LaneUpdate]) -> None:
        """Do the optimizer steps in one launch."""
        device = self._decoder.device
        lanes = torch.full((self.pool.grads.numel() // ADAMW_BLOCK,), -1, dtype=torch.int32)
        for number, one in enumerate(updates):
            start = one.arena.start // ADAMW_BLOCK
            lanes[start : start + one.arena.size // ADAMW_BLOCK] = number
        numbers = [
            adamw_numbers(one.optim, one.step, one.total_steps, one.norm, one.carried_steps)
            for one in updates
        ]
        if numbers:
            lane_adamw(
                self.pool.grads,
                self.pool.state(0, self.pool.grads.numel()),
                upload(lanes, device),
                upload(torch.tensor(numbers, dtype=torch.float32), device),
            )

    def evaluate(self, micros: Sequence[MicroBatch], lanes: LaneAdapters) -> list[float]:
        """Return each lane's weighted loss, without gradients."""
        total = torch.zeros(len(lanes), dtype=torch.float64, device=self._decoder.device)
        for micro in micros:
            with self._room():
                losses = self._driver.evaluate(micro.row, micro.lanes)
            total += losses
        summed: list[float] = total.tolist()
        return summed
