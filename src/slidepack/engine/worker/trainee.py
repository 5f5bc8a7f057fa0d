"""What a run trains: adapters on a frozen base, or every weight."""

from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Final, Protocol

import torch

from slidepack.engine.contract.job import LoraMethod, OptimSpec
from slidepack.engine.contract.plan import RunPlan
from slidepack.engine.data.masking import EncodedRow
from slidepack.engine.export.peft import write_peft_folder
from slidepack.engine.lora.pack import LaneStep
from slidepack.engine.model.generate import generate_greedy
from slidepack.engine.model.layer_attention import LayerAttention
from slidepack.engine.model.loss import LossSum
from slidepack.engine.shape import ModelShape
from slidepack.engine.worker.base import Base, open_base
from slidepack.engine.worker.lane_file import lane_bytes, load_lane, save_lane
from slidepack.engine.worker.learning import Change

__all__ = ["LoraTrainee", "Trainee", "load_lora"]

_LANE: Final = "lane"


class Trainee(Protocol):
    """The model of a run, with what is trained of it."""

    shape: ModelShape
    device: torch.device
    dtype: torch.dtype
    """Of weights and activations in the passes."""
    attention: LayerAttention
    trainable_params: int
    checkpoint_bytes: int
    """What `save` writes."""
    result_bytes: int
    """What `write_result` writes, but for small files."""
    applies_bad_steps: bool
    """Whether a step whose gradient is no number changes weights all the same."""

    def train_step(
        self, rows: Sequence[EncodedRow], step: int, total_steps: int
    ) -> tuple[LossSum, float]:
        """Do one optimizer step; return the summed loss and the gradient's norm.

        Args:
            rows: of the step.
            step: steps done before this one.
            total_steps: of the run.
        """

    def evaluate(self, rows: Sequence[EncodedRow]) -> LossSum:
        """Return the summed loss of the rows."""

    def answer(
        self,
        prompts: Sequence[Sequence[int]],
        max_new_tokens: int,
        stop_ids: frozenset[int],
        *,
        tuned: bool,
    ) -> list[list[int]]:
        """Continue prompts greedily, by the tuned model or, where that is kept, by its base."""

    def save(self, folder: Path) -> str:
        """Write what is trained into a checkpoint folder; return the digest of the files."""

    def load(self, folder: Path, digest: str) -> None:
        """Read a checkpoint's tensors; nothing is changed where that fails.

        Raises:
            ValueError: a file is missing, damaged, or not this model's.
        """

    def is_finite(self) -> bool:
        """Return whether everything trained is a number."""

    def change(self) -> Change:
        """Return what training changed, compared with what it began with."""

    def write_result(self, folder: Path, base_name: str) -> None:
        """Write the result into a folder of its own.

        Args:
            folder: is there, and empty.
            base_name: how the base is named in an adapter.
        """

    def close(self) -> None:
        """Give back what outlives a reference: threads and pinned memory."""


class LoraTrainee:
    """One adapter on a frozen base: a lane of a pack."""

    def __init__(
        self,
        base: Base,
        lane: str,
        optim: OptimSpec,
        seed: int,
        check_stop: Callable[[], None],
        *,
        owns_base: bool = False,
    ) -> None:
        """Bind a lane that has joined the pack.

        Args:
            base: with the pack.
            lane: its name there.
            optim: AdamW's settings.
            seed: of the lane.
            check_stop: may raise to stop an answer.
            owns_base: the base goes with this lane.
        """
        decoder = base.decoder
        self.shape, self.device, self.dtype = decoder.shape, decoder.device, decoder.dtype
        self.attention = base.attention
        self.applies_bad_steps = False
        self.arena = base.pack.lanes[lane]
        self.trainable_params = self.arena.trainable_params
        self.checkpoint_bytes = lane_bytes(self.arena)
        self.result_bytes = self.trainable_params * torch.float32.itemsize
        self._base = base
        self._pack = base.pack
        self._lane = lane
        self._optim = optim
        self._seed = seed
        self._check_stop = check_stop
        self._owns_base = owns_base

    def train_step(
        self, rows: Sequence[EncodedRow], step: int, total_steps: int
    ) -> tuple[LossSum, float]:
        """Do one optimizer step."""
        work = LaneStep(
            rows=rows, optim=self._optim, step=step, total_steps=total_steps, seed=self._seed
        )
        outcome = self._pack.step({self._lane: work})[self._lane]
        return outcome.loss, outcome.grad_norm

    def evaluate(self, rows: Sequence[EncodedRow]) -> LossSum:
        """Return the summed loss of the rows."""
        return self._pack.evaluate({self._lane: rows})[self._lane]

    def answer(
        self,
        prompts: Sequence[Sequence[int]],
        max_new_tokens: int,
        stop_ids: frozenset[int],
        *,
        tuned: bool,
    ) -> list[list[int]]:
        """Continue prompts greedily, with the adapter or without."""
        return generate_greedy(
            self._base.decoder,
            self._pack.adapters((self._lane,)) if tuned else None,
            self.attention,
            prompts,
            max_new_tokens=max_new_tokens,
            stop_ids=stop_ids,
            check_stop=self._check_stop,
        )

    def save(self, folder: Path) -> str:
        """Write parameters and moments."""
        return save_lane(self.arena, folder)

    def load(self, folder: Path, digest: str) -> None:
        """Read parameters and moments."""
        load_lane(self.arena, folder, digest)

    def is_finite(self) -> bool:
        """Return whether the adapter is all numbers."""
        return self.arena.is_finite()

    def change(self) -> Change:
        """Return which B left zero; they begin there."""
        moved = {
            f"layers.{layer}.{target}": bool(pair.b.any())
            for layer, target, pair in self.arena.named_pairs()
        }
        still = tuple(name for name, has_moved in moved.items() if not has_moved)
        return Change(modules=len(moved), still=still, shows=self.arena.has_learned())

    def write_result(self, folder: Path, base_name: str) -> None:
        """Write a PEFT folder."""
        write_peft_folder(self.arena, base_name, folder / "adapter")

    def close(self) -> None:
        """Close the base, where it is this lane's own."""
        if self._owns_base:
            self._base.close()


def load_lora(
    folder: Path,
    method: LoraMethod,
    plan: RunPlan,
    optim: OptimSpec,
    seed: int,
    device: torch.device,
    on_layer: Callable[[int, int], None],
    check_stop: Callable[[], None],
) -> LoraTrainee:
    """Load the base and make a new adapter.

    Raises:
        SlidepackError: the errors of `open_base`.
    """
    base = open_base(folder, plan, device, on_layer, check_stop)
    base.pack.join(_LANE, method, seed)
    return LoraTrainee(base, _LANE, optim, seed, check_stop, owns_base=True)
