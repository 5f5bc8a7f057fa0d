"""What a pack needs of the passes over its base, wherever base and lanes are kept."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Protocol

import torch

from slidepack.engine.contract.job import LoraMethod, OptimSpec
from slidepack.engine.lora.arena import LoraArena
from slidepack.engine.lora.driver import LaneDriver
from slidepack.engine.lora.lanes import LaneAdapters, MicroBatch, Serve
from slidepack.engine.lora.optimizer import lane_norms, optimizer_step, squared_norms
from slidepack.engine.lora.pool import LanePool
from slidepack.engine.model.layers import Decoder

__all__ = ["LaneUpdate", "Passes", "ResidentPasses"]


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


class Passes(Protocol):
    """Forward and backward passes of rows, and the updates that follow."""

    @property
    def serve(self) -> Serve | None:
        """Brings the lanes to passes that are not these, where they do not stay there."""

    def new_lane(self, method: LoraMethod) -> LoraArena:
        """Make room for a lane, all zero.

        Raises:
            torch.OutOfMemoryError: there is none; nothing has changed.
        """

    def train(
        self,
        micros: Sequence[MicroBatch],
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

    def __init__(self, decoder: Decoder, driver: LaneDriver) -> None:
        """Begin without a lane.

        Args:
            decoder: the frozen base.
            driver: walks its layers.
        """
        self.pool = LanePool(decoder.device, decoder.dtype)
        self._decoder = decoder
        self._driver = driver

    @property
    def serve(self) -> None:
        """Nothing: the lanes stay where passes read them."""
        return None

    def new_lane(self, method: LoraMethod) -> LoraArena:
        """Make room for a lane, all zero."""
        return LoraArena(self._decoder.shape, method, self.pool)

    def train(
        self,
        micros: Sequence[MicroBatch],
        lanes: LaneAdapters,
        meanwhile: Callable[[], None],
    ) -> tuple[list[float], list[float]]:
        """Run the micro-batches of a step, one after the other."""
        losses = torch.zeros(len(lanes), dtype=torch.float64, device=self._decoder.device)
        for micro in micros:
            losses += self._driver.train(micro.row, micro.lanes)
        squares = [squared_norms(one.grads.view(-1, one.layer_size)) for one in lanes.arenas]
        both = losses, torch.stack(squares)
        meanwhile()
        return both[0].tolist(), lane_norms(both[1])

    def update(self, updates: Sequence[LaneUpdate]) -> None:
        """Do the optimizer steps."""
        for one in updates:
            optimizer_step(
                one.arena.state,
                one.arena.grads,
                one.optim,
                one.step,
                one.total_steps,
                one.norm,
            )

    def evaluate(self, micros: Sequence[MicroBatch], lanes: LaneAdapters) -> list[float]:
        """Return each lane's weighted loss, without gradients."""
        total = torch.zeros(len(lanes), dtype=torch.float64, device=self._decoder.device)
        for micro in micros:
            total += self._driver.evaluate(micro.row, micro.lanes)
        losses: list[float] = total.tolist()
        return losses
