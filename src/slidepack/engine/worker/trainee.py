"""What a run trains: adapters on a frozen base, or every weight."""

from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Protocol

import torch

from slidepack.engine.contract.job import LoraMethod, OptimSpec
from slidepack.engine.contract.plan import RunPlan
from slidepack.engine.export.peft import write_peft_folder
from slidepack.engine.lora.arena import LoraArena
from slidepack.engine.lora.optimizer import optimizer_step
from slidepack.engine.model.batch import PackedBatch
from slidepack.engine.model.generate import generate_greedy
from slidepack.engine.model.layer_attention import LayerAttention, layer_attention
from slidepack.engine.model.layers import Decoder
from slidepack.engine.model.loading import load_decoder
from slidepack.engine.shape import ModelShape
from slidepack.engine.sliding.driver import Driver, LossSum
from slidepack.engine.worker.tensor_file import read_tensors, write_tensors

__all__ = ["LoraTrainee", "Trainee", "load_lora"]

_TENSORS = "lane.safetensors"


class Trainee(Protocol):
    """The model of a run, with what is trained of it."""

    shape: ModelShape
    device: torch.device
    dtype: torch.dtype
    """Of weights and activations in the passes."""
    attention: LayerAttention
    trainable_params: int
    micro_batch_tokens: int
    """Most tokens of a micro-batch, unless a single row is longer."""
    applies_bad_steps: bool
    """Whether a step whose gradient is no number changes weights all the same."""

    def train_step(
        self, batches: Sequence[PackedBatch], step: int, total_steps: int
    ) -> tuple[LossSum, float]:
        """Do one optimizer step; return the summed loss and the gradient's norm.

        Args:
            batches: the micro-batches of the step.
            step: steps done before this one.
            total_steps: of the run.
        """

    def evaluate(self, batches: Sequence[PackedBatch]) -> LossSum:
        """Return the summed loss of the batches."""

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

    def has_learned(self) -> bool:
        """Return whether training changed anything."""

    def write_result(self, folder: Path, base_name: str) -> None:
        """Write the result into a folder of its own.

        Args:
            folder: is there, and empty.
            base_name: how the base is named in an adapter.
        """

    def close(self) -> None:
        """Give back what outlives a reference: threads and pinned memory."""


class LoraTrainee:
    """One adapter on a frozen base."""

    def __init__(
        self,
        decoder: Decoder,
        arena: LoraArena,
        plan: RunPlan,
        optim: OptimSpec,
        seed: int,
        check_stop: Callable[[], None],
    ) -> None:
        """Bind base, adapter and plan."""
        self.shape, self.device, self.dtype = decoder.shape, decoder.device, decoder.dtype
        self.attention = layer_attention(decoder.shape, decoder.device, decoder.dtype)
        self.trainable_params = arena.params.numel()
        self.micro_batch_tokens = plan.micro_batch_tokens
        self.applies_bad_steps = False
        self.arena = arena
        self._decoder = decoder
        self._optim = optim
        self._seed = seed
        self._check_stop = check_stop
        self._driver = Driver(decoder, arena, self.attention, plan.layer_activations, check_stop)

    def train_step(
        self, batches: Sequence[PackedBatch], step: int, total_steps: int
    ) -> tuple[LossSum, float]:
        """Do one optimizer step."""
        loss = self._driver.train_step(batches, (self._seed, step))
        return loss, optimizer_step(self.arena, self._optim, step, total_steps)

    def evaluate(self, batches: Sequence[PackedBatch]) -> LossSum:
        """Return the summed loss of the batches."""
        return self._driver.evaluate(batches)

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
            self._decoder,
            self.arena if tuned else None,
            self.attention,
            prompts,
            max_new_tokens=max_new_tokens,
            stop_ids=stop_ids,
            check_stop=self._check_stop,
        )

    def save(self, folder: Path) -> str:
        """Write parameters and moments."""
        tensors = {name: tensor.cpu() for name, tensor in self._tensors().items()}
        return write_tensors(folder / _TENSORS, tensors)

    def load(self, folder: Path, digest: str) -> None:
        """Read parameters and moments."""
        targets = self._tensors()
        read = {name: torch.empty_like(tensor, device="cpu") for name, tensor in targets.items()}
        if read_tensors(folder / _TENSORS, read) != digest:
            raise ValueError(f"{_TENSORS} is damaged (its digest differs)")
        with torch.no_grad():
            for name, target in targets.items():
                target.copy_(read[name])

    def is_finite(self) -> bool:
        """Return whether the adapter is all numbers."""
        return bool(torch.isfinite(self.arena.params).all())

    def has_learned(self) -> bool:
        """Return whether any B left zero."""
        return any(bool(pair.b.any()) for _, _, pair in self.arena.named_pairs())

    def write_result(self, folder: Path, base_name: str) -> None:
        """Write a PEFT folder."""
        write_peft_folder(self.arena, base_name, folder / "adapter")

    def close(self) -> None:
        """Do nothing: everything goes with the last reference."""

    def _tensors(self) -> dict[str, torch.Tensor]:
        return {
            "params": self.arena.params.detach(),
            "exp_avg": self.arena.exp_avg,
            "exp_avg_sq": self.arena.exp_avg_sq,
        }


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
        SlidepackError: the errors of `load_decoder`.
    """
    dtype = torch.float32 if plan.precision == "fp32" else torch.bfloat16
    decoder = load_decoder(folder, device, dtype, on_layer)
    arena = LoraArena(decoder.shape, method, device)
    arena.initialise(seed)
    return LoraTrainee(decoder, arena, plan, optim, seed, check_stop)
