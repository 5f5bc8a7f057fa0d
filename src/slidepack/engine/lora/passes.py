"""What a pack needs of the passes over its base, wherever base and lanes are kept."""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Protocol

import torch

from slidepack.engine.contract.job import LoraMethod, OptimSpec
from slidepack.engine.lora.arena import LoraArena
from slidepack.engine.lora.driver import LaneDriver
from slidepack.engine.lora.lanes import LaneAdapters, Serve
from slidepack.engine.lora.optimizer import lane_norms, optimizer_step, squared_norms
from slidepack.engine.lora.pool import LanePool
from slidepack.engine.lora.rows import LaneRow
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
        rows: Sequence[LaneRow],
        lanes: LaneAdapters,
        seeds: Sequence[int],
    ) -> tuple[list[float], list[float]]:
        """Run the micro-batches of a step; leave each lane's gradient for `update`.

        Args:
            rows: the micro-batches.
            lanes: in the order in which they are in the rows.
            seeds: of each lane's dropout in this step.

        Returns:
            Each lane's weighted loss, and the norm of its gradient.

        Raises:
            torch.OutOfMemoryError: a row does not fit; no lane has changed.
        """

    def update(self, updates: Sequence[LaneUpdate]) -> None:
        """Do the optimizer steps; they may still be under way when this returns."""

    def evaluate(self, rows: Sequence[LaneRow], lanes: LaneAdapters) -> list[float]:
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
        rows: Sequence[LaneRow],
        lanes: LaneAdapters,
        seeds: Sequence[int],
    ) -> tuple[list[float], list[float]]:
        """Run the micro-batches of a step, one after the other."""
        losses = torch.zeros(len(lanes), dtype=torch.float64, device=self._decoder.device)
        for number, row in enumerate(rows):
            passing = lanes.lane_pass(
                row.bounds, first=number == 0, dropout=lanes.dropout(row, seeds)
            )
            losses += self._driver.train(row, passing)
        squares = [squared_norms(one.grads.view(-1, one.layer_size)) for one in lanes.arenas]
        return losses.tolist(), lane_norms(torch.stack(squares))

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

    def evaluate(self, rows: Sequence[LaneRow], lanes: LaneAdapters) -> list[float]:
        """Return each lane's weighted loss, without gradients."""
        total = torch.zeros(len(lanes), dtype=torch.float64, device=self._decoder.device)
        for row in rows:
            total += self._driver.evaluate(row, lanes.lane_pass(row.bounds))
        losses: list[float] = total.tolist()
        return losses
