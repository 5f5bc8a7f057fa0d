"""What a run trains: adapters on a frozen base, or every weight."""

from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Final, Protocol

import torch
from torch import Tensor

from slidepack.engine.contract.job import ContinueRef, LoraMethod, OptimSpec
from slidepack.engine.contract.plan import RunPlan
from slidepack.engine.data.masking import EncodedRow
from slidepack.engine.export.peft import write_peft_folder
from slidepack.engine.lora.pack import LaneStep
from slidepack.engine.model.generate import generate_greedy
from slidepack.engine.model.layer_attention import LayerAttention
from slidepack.engine.model.loss import LossSum
from slidepack.engine.shape import ModelShape
from slidepack.engine.worker.adapter_file import load_adapter
from slidepack.engine.worker.base import Base, open_base
from slidepack.engine.worker.judging_pass import RowScore, score_rows
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
    result_bytes: int
    """What `write_result` writes, but for small files."""
    applies_bad_steps: bool
    """Whether a step whose gradient is no number changes weights all the same."""
    carried_steps: int
    """That AdamW's moments had seen before the run's first step."""
    keeps_exactly: bool
    """Whether there is room for two checkpoints and no more, a healthy one among them."""

    @property
    def checkpoint_bytes(self) -> int:
        """What `save` writes."""

    @property
    def drives(self) -> str:
        """What moves state to drives and back, with its reason; empty where none is there."""

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

    def score(self, rows: Sequence[EncodedRow], *, tuned: bool) -> list[RowScore]:
        """Score rows by the tuned model or, where that is kept, by its base."""

    def save(self, folder: Path) -> str:
        """Write what is trained into a checkpoint folder; return the digest of the files."""

    def load(self, folder: Path, digest: str) -> None:
        """Read a checkpoint's tensors; nothing is changed where that fails.

        Raises:
            ValueError: a file is missing, damaged, or not this model's.
        """

    def begin_from(self, origin: ContinueRef) -> None:
        """Begin with what another job left, in place of the base or a fresh adapter.

        Its moments come with it or are zero, as `origin.taken` says; `change` compares with it.

        Raises:
            ValueError: a file is missing, damaged, or not this model's.
            OSError: the disk refused.
            SlidepackError: RUN-CHECKPOINT-OTHER-JOB, MODEL-PICKLE or MODEL-BROKEN.
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
        self.keeps_exactly = False
        self.drives = ""
        self.carried_steps = 0
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
        # Flat, on the CPU; None where B begins at zero.
        self._began: Tensor | None = None

    def train_step(
        self, rows: Sequence[EncodedRow], step: int, total_steps: int
    ) -> tuple[LossSum, float]:
        """Do one optimizer step."""
        work = LaneStep(
            rows=rows,
            optim=self._optim,
            step=step,
            total_steps=total_steps,
            seed=self._seed,
            carried_steps=self.carried_steps,
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

        def ask() -> list[list[int]]:
            return generate_greedy(
                self._base.decoder,
                self._pack.adapters((self._lane,)) if tuned else None,
                self.attention,
                prompts,
                max_new_tokens=max_new_tokens,
                stop_ids=stop_ids,
                check_stop=self._check_stop,
            )

        if tuned:
            return ask()
        return self._base.memory.answers(prompts, max_new_tokens, stop_ids, ask)

    def score(self, rows: Sequence[EncodedRow], *, tuned: bool) -> list[RowScore]:
        """Score rows, with the adapter or without; nobody else is in the passes."""

        def ask() -> list[RowScore]:
            return score_rows(
                self._base.decoder,
                self._pack.adapters((self._lane,)) if tuned else None,
                self.attention,
                rows,
                max_tokens=self._pack.max_tokens,
                check_stop=self._check_stop,
            )

        return ask() if tuned else self._base.memory.scores(rows, ask)

    def save(self, folder: Path) -> str:
        """Write parameters and moments."""
        return save_lane(self.arena, folder)

    def load(self, folder: Path, digest: str) -> None:
        """Read parameters and moments."""
        load_lane(self.arena, folder, digest)

    def begin_from(self, origin: ContinueRef) -> None:
        """Take the adapter that another job left."""
        folder = Path(origin.path)
        if origin.kind == "checkpoint":
            load_lane(self.arena, folder, origin.digest)
        else:
            load_adapter(self.arena, folder, origin.digest)
        if origin.taken == "weights":
            self.arena.set_moments(*(torch.zeros_like(one) for one in self.arena.moments()))
        self._began = self.arena.master().detach().to("cpu", copy=True)

    def is_finite(self) -> bool:
        """Return whether the adapter is all numbers."""
        return self.arena.is_finite()

    def change(self) -> Change:
        """Return which B left where they began: zero, or what the other job had made of them."""
        moved = {
            f"layers.{layer}.{target}": has_moved
            for layer, target, has_moved in self._moved_pairs()
        }
        still = tuple(name for name, has_moved in moved.items() if not has_moved)
        return Change(modules=len(moved), still=still, shows=len(still) < len(moved))

    def _moved_pairs(self) -> Iterator[tuple[int, str, bool]]:
        pairs = self.arena.named_pairs()
        if self._began is None:
            for layer, target, pair in pairs:
                yield layer, target, bool(pair.b.any())
            return
        for (layer, target, pair), (_, _, began) in zip(
            pairs, self.arena.pairs(self._began), strict=True
        ):
            yield layer, target, not torch.equal(pair.b.cpu(), began.b)

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
