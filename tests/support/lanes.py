"""LoRA lanes on a tiny model: their work, their state after a step, and the same lane alone."""

import itertools
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Final

import torch
from torch import Tensor

from slidepack.engine.contract.job import LoraMethod, OptimSpec
from slidepack.engine.contract.plan import ActivationPolicy
from slidepack.engine.data.masking import EncodedRow
from slidepack.engine.lora.arena import LoraArena, derive_seed
from slidepack.engine.lora.driver import LaneDriver
from slidepack.engine.lora.pack import LaneStep, Pack, StepOutcome
from slidepack.engine.lora.pool import LanePool
from slidepack.engine.model.layer_attention import layer_attention
from slidepack.engine.model.layers import Decoder
from slidepack.engine.model.loading import load_decoder
from support.judges import tiny_llama
from support.packing import packed, random_rows

WHOLE: Final = 1 << 20
"""Tokens of a micro-batch that takes any step whole."""
_OPTIM: Final = OptimSpec()


@dataclass(frozen=True, kw_only=True, slots=True)
class TinyLane:
    """A lane and everything that its run depends on."""

    name: str
    method: LoraMethod
    optim: OptimSpec = _OPTIM
    lengths: tuple[int, ...]
    """Of the rows of every step."""
    total_steps: int

    @property
    def seed(self) -> int:
        """Of its first values and its dropout."""
        return derive_seed("tiny lane", self.name)

    def work(self, step: int, vocab: int) -> LaneStep:
        """Return a step; its rows differ from step to step."""
        return LaneStep(
            rows=random_rows(self.lengths, vocab, seed=derive_seed(self.name, step)),
            optim=self.optim,
            step=step,
            total_steps=self.total_steps,
            seed=self.seed,
        )


class FullPool(LanePool):
    """Has no room, while `missing` names one, for that tensor of a larger pool."""

    missing = ""

    def _empty(self, name: str, elements: int) -> Tensor:
        if name == self.missing:
            raise torch.OutOfMemoryError
        return super()._empty(name, elements)


@dataclass(frozen=True, slots=True)
class LaneRecord:
    """What a lane is after a step, and what the step measured."""

    master: Tensor
    exp_avg: Tensor
    exp_avg_sq: Tensor
    outcome: StepOutcome

    @property
    def tensors(self) -> tuple[Tensor, ...]:
        """Master and moments."""
        return self.master, self.exp_avg, self.exp_avg_sq

    @property
    def numbers(self) -> tuple[float, float]:
        """Loss and gradient norm."""
        return self.outcome.loss.total, self.outcome.grad_norm


def tiny_decoder(folder: Path, dtype: torch.dtype) -> Decoder:
    """Save the tiny Llama of the lane tests into `folder` and load it on the CPU."""
    tiny_llama(folder, kv_heads=2, tied=False)
    return load_decoder(folder, torch.device("cpu"), dtype)


def pack_on(
    decoder: Decoder,
    lanes: Iterable[TinyLane] = (),
    *,
    activations: Sequence[ActivationPolicy] = ("keep", "recompute", "keep"),
    max_tokens: int = WHOLE,
    exact_tokens: int = 0,
    check_stop: Callable[[], None] = lambda: None,
) -> Pack:
    """Return a pack with some fresh lanes."""
    attention = layer_attention(decoder.shape, decoder.device, decoder.dtype)
    pack = Pack(decoder, attention, activations, max_tokens, check_stop, exact_tokens=exact_tokens)
    for lane in lanes:
        pack.join(lane.name, lane.method, lane.seed)
    return pack


def shake(arena: LoraArena, size: float = 0.05) -> None:
    """Move an adapter away from its start: B is zero there, which hides every gradient of A."""
    generator = torch.Generator().manual_seed(0)
    noise = torch.rand(arena.size, generator=generator, dtype=torch.float64).to(arena.master())
    arena.set_master(arena.master() + size * noise)


def record(arena: LoraArena, outcome: StepOutcome) -> LaneRecord:
    """Copy what a step left behind."""
    first, second = arena.moments()
    return LaneRecord(arena.master().clone(), first.clone(), second.clone(), outcome)


def step_all(pack: Pack, lanes: Sequence[TinyLane], step: int, vocab: int) -> list[LaneRecord]:
    """Do one step of some lanes of a pack."""
    outcomes = pack.step({lane.name: lane.work(step, vocab) for lane in lanes})
    return [record(pack.lanes[lane.name], outcomes[lane.name]) for lane in lanes]


def steps_alone(
    decoder: Decoder, lane: TinyLane, *, max_tokens: int = WHOLE, exact_tokens: int = 0
) -> list[LaneRecord]:
    """Run a lane in a pack of its own; return a record of each step."""
    pack = pack_on(decoder, [lane], max_tokens=max_tokens, exact_tokens=exact_tokens)
    vocab = decoder.shape.vocab
    return [step_all(pack, [lane], step, vocab)[0] for step in range(lane.total_steps)]


def largest_difference(ours: LaneRecord, theirs: LaneRecord) -> float:
    """Return the largest difference of two records, tensors and numbers; NaN where one is."""
    pairs = zip(ours.tensors, theirs.tensors, strict=True)
    tensors = [(mine - its).abs().max().double() for mine, its in pairs]
    numbers = torch.tensor(ours.numbers, dtype=torch.float64) - torch.tensor(
        theirs.numbers, dtype=torch.float64
    )
    return float(torch.stack([*tensors, *numbers.abs()]).max())


def lone_arena(decoder: Decoder, method: LoraMethod, *, seed: int = 1) -> LoraArena:
    """Return a fresh adapter in a pool of its own."""
    arena = LoraArena(decoder.shape, method, LanePool(decoder.device, decoder.dtype))
    arena.initialise(seed)
    return arena


def packed_logits(
    decoder: Decoder, rows: list[EncodedRow], pack: Pack | None = None
) -> list[Tensor]:
    """Return each row's logits, [T, V], from one packed row.

    Args:
        decoder: the base.
        rows: all of one lane.
        pack: of that lane alone; None for the bare base.
    """
    attention = layer_attention(decoder.shape, decoder.device, decoder.dtype)
    policies: list[ActivationPolicy] = ["keep"] * decoder.shape.num_layers
    driver = LaneDriver(decoder, attention, policies)
    (batch,) = packed(decoder, rows)
    lanes = None
    if pack is not None:
        bounds = (0, batch.num_tokens, batch.num_tokens)
        lanes = pack.adapters(tuple(pack.lanes)).lane_pass(bounds)
    logits = driver.logits(batch, lanes)
    return [logits[start:end] for start, end in itertools.pairwise(batch.segments.bounds)]
