"""Measures packs of more and more lanes over one base."""

import math
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Final

import torch

from slidepack.engine.bench_packed.device import clear, out_of_memory
from slidepack.engine.bench_packed.options import PackedOptions
from slidepack.engine.bench_packed.steps import StepTimes, time_steps
from slidepack.engine.contract.job import LoraMethod, OptimSpec
from slidepack.engine.data.masking import EncodedRow
from slidepack.engine.lora.pack import LaneStep, Pack, StepOutcome
from slidepack.engine.lora.rows import micro_steps
from slidepack.engine.model.layer_attention import LayerAttention
from slidepack.engine.model.layers import Decoder

__all__ = ["PackResult", "measure_packs", "random_rows"]

_STATE_BYTES: Final = 16
"""Of a parameter: master, gradient and two moments, each fp32."""


@dataclass(frozen=True, kw_only=True, slots=True)
class PackResult:
    """What the steps of some lanes took."""

    lanes: int
    passes: tuple[int, ...]
    """Tokens of each pass of a step."""
    times: StepTimes
    lane_state_bytes: int
    """Adapters, gradients and moments of all lanes."""
    join_peak_bytes: int
    """Device memory while the lanes joined: it is copied as it grows; 0 without a card."""
    loss: float
    """Mean of the lanes in the last step."""
    applied: bool
    """Whether every lane took its last step: one whose gradient is no number would have spared
    itself the optimizer."""


def measure_packs(
    options: PackedOptions, decoder: Decoder, choices: LayerAttention
) -> Iterator[PackResult]:
    """Yield a result for each number of lanes, fewest first; lanes stay as others join them.

    Raises:
        SlidepackError: GPU-OUT-OF-MEMORY, with the number of lanes that did not fit.
    """
    growing = _GrowingPack(options, decoder, choices)
    for count in options.counts:
        try:
            yield growing.measure(count)
        except torch.OutOfMemoryError as error:
            raise out_of_memory("one lane" if count == 1 else f"{count} lanes", error) from error


def random_rows(options: PackedOptions, seed: int) -> list[EncodedRow]:
    """Return a lane's rows: of equal length, every token supervised."""
    generator = torch.Generator().manual_seed(seed)
    size, vocab = (options.batch, options.seq), options.model_shape.vocab
    ids = torch.randint(0, vocab, size, generator=generator).tolist()
    return [EncodedRow(line, tuple(row), (True,) * options.seq) for line, row in enumerate(ids)]


class _GrowingPack:
    """One pack that all measurements share: a fresh adapter costs the host about a second."""

    def __init__(self, options: PackedOptions, decoder: Decoder, choices: LayerAttention) -> None:
        self._options = options
        self._device = decoder.device
        policies = (options.activations,) * decoder.shape.num_layers
        self._pack = Pack(decoder, choices, policies, options.pass_limit(1))
        self._rows: dict[str, list[EncodedRow]] = {}
        self._method = LoraMethod(rank=options.rank, alpha=options.alpha)
        self._optim = OptimSpec(schedule="constant", warmup_fraction=0.0)
        self._done = 0
        self._outcomes: dict[str, StepOutcome] = {}

    def measure(self, count: int) -> PackResult:
        """Let lanes join until there are so many, and time their steps."""
        clear(self._device)
        join_peak_bytes = self._grow(count)
        clear(self._device)
        self._pack.max_tokens = self._options.pass_limit(count)
        times = time_steps(self._step, self._options, self._device)
        outcomes = self._outcomes.values()
        return PackResult(
            lanes=count,
            passes=_passes(list(self._rows.values()), self._pack.max_tokens),
            times=times,
            lane_state_bytes=_STATE_BYTES * sum(lane.size for lane in self._pack.lanes.values()),
            join_peak_bytes=join_peak_bytes,
            loss=sum(outcome.loss.mean for outcome in outcomes) / count,
            applied=all(math.isfinite(outcome.grad_norm) for outcome in outcomes),
        )

    def _grow(self, count: int) -> int:
        on_card = self._device.type == "cuda"
        if on_card:
            torch.cuda.reset_peak_memory_stats(self._device)
        for number in range(len(self._rows), count):
            name = f"lane-{number}"
            self._pack.join(name, self._method, seed=number)
            self._rows[name] = random_rows(self._options, number)
        return torch.cuda.max_memory_allocated(self._device) if on_card else 0

    def _step(self) -> None:
        self._outcomes = self._pack.step(self._work(), self._prepare)
        self._done += 1

    def _prepare(self) -> None:
        """Build the next rows beside the passes, as the worker does."""
        if self._device.type == "cuda":
            self._pack.prepare(self._work(1))

    def _work(self, ahead: int = 0) -> dict[str, LaneStep]:
        # The schedule is constant: how many steps there are in all changes nothing.
        step = self._done + ahead
        return {
            name: LaneStep(rows=rows, optim=self._optim, step=step, total_steps=step + 1, seed=0)
            for name, rows in self._rows.items()
        }


def _passes(rows: Sequence[Sequence[EncodedRow]], max_tokens: int) -> tuple[int, ...]:
    return tuple(
        sum(piece.tokens for piece in pieces if piece is not None)
        for pieces in micro_steps(rows, max_tokens)
    )
