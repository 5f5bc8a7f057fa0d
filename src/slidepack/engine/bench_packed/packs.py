"""Measures packs of more and more lanes over one base."""

import math
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any, Final

import torch

from slidepack.engine.bench_packed.device import clear, out_of_memory
from slidepack.engine.bench_packed.options import PackedOptions
from slidepack.engine.bench_packed.progress import tell_rate
from slidepack.engine.bench_packed.steps import StepTimes, time_steps
from slidepack.engine.contract.job import LoraMethod, OptimSpec
from slidepack.engine.contract.plan import LaneSlidePlan
from slidepack.engine.data.masking import EncodedRow
from slidepack.engine.lora.pack import LaneStep, Pack, StepOutcome
from slidepack.engine.lora.passes import Passes
from slidepack.engine.lora.rows import micro_steps
from slidepack.engine.model.layer_attention import LayerAttention
from slidepack.engine.model.layers import Decoder
from slidepack.engine.resident_memory import known_peak_resident_bytes

__all__ = ["GrowingPack", "PackResult", "lanes_named", "measure_packs", "random_rows"]

_STATE_BYTES: Final = 16
"""Of a parameter: master, gradient and two moments, each fp32."""


@dataclass(frozen=True, kw_only=True, slots=True)
class PackResult:
    """What the steps of some lanes took."""

    lanes: int
    pass_limit: int
    """Most tokens that a pass might have had."""
    passes: tuple[int, ...]
    """Tokens of each pass of a step."""
    times: StepTimes
    lane_state_bytes: int
    """Adapters, gradients and moments of all lanes."""
    join_peak_bytes: int
    """Device memory while the lanes joined: it is copied as it grows; 0 without a card."""
    host_peak_bytes: int | None
    """Of the process so far; None where the system does not tell."""
    loss: float
    """Mean of the lanes in the last step."""
    applied: bool
    """Whether every lane took its last step: one whose gradient is no number would have spared
    itself the optimizer."""
    slide: LaneSlidePlan | None = None
    """How the base slid; None where it did not."""


def measure_packs(
    options: PackedOptions, decoder: Decoder, choices: LayerAttention
) -> Iterator[PackResult]:
    """Yield a result for each number of lanes, fewest first; lanes stay as others join them.

    Raises:
        SlidepackError: GPU-OUT-OF-MEMORY, with the number of lanes that did not fit.
    """
    # One pack for all: a fresh adapter costs the host about a second.
    growing = GrowingPack(options, decoder, choices)
    for count in options.counts:
        try:
            result = growing.measure(count, options.pass_limit(count))
        except torch.OutOfMemoryError as error:
            raise out_of_memory(lanes_named(count), error) from error
        tell_rate(lanes_named(count), result.times, options.step_tokens(count))
        yield result


def lanes_named(count: int) -> str:
    """Return a number of lanes in words."""
    return "one lane" if count == 1 else f"{count} lanes"


def random_rows(options: PackedOptions, seed: int) -> list[EncodedRow]:
    """Return a lane's rows: of equal length, every token supervised."""
    generator = torch.Generator().manual_seed(seed)
    size, vocab = (options.batch, options.seq), options.model_shape.vocab
    ids = torch.randint(0, vocab, size, generator=generator).tolist()
    return [EncodedRow(line, tuple(row), (True,) * options.seq) for line, row in enumerate(ids)]


class GrowingPack:
    """A pack that lanes join between two measurements."""

    def __init__(
        self,
        options: PackedOptions,
        decoder: Decoder,
        choices: LayerAttention,
        passes: Passes[Any] | None = None,
    ) -> None:
        """Begin without a lane.

        Args:
            options: of the measurement.
            decoder: the base.
            choices: what each layer's attention computes.
            passes: over a base that slides; None where it is resident.
        """
        self._options = options
        self._device = decoder.device
        policies = (options.policy,) * decoder.shape.num_layers
        limit = options.pass_limit(1)
        self._pack = Pack(decoder, choices, policies, limit, passes=passes)
        self._rows: dict[str, list[EncodedRow]] = {}
        self._method = LoraMethod(rank=options.rank, alpha=options.alpha)
        self._optim = OptimSpec(schedule="constant", warmup_fraction=0.0)
        self._done = 0
        self._outcomes: dict[str, StepOutcome] = {}

    def measure(
        self, count: int, pass_limit: int, slide: LaneSlidePlan | None = None
    ) -> PackResult:
        """Let lanes join until there are so many, and time their steps.

        Args:
            count: lanes.
            pass_limit: most tokens of a pass.
            slide: how the base slides, for the result.

        Raises:
            torch.OutOfMemoryError: they do not fit.
        """
        clear(self._device)
        join_peak_bytes = self._grow(count)
        clear(self._device)
        self._pack.max_tokens = pass_limit
        times = time_steps(self._step, self._options, self._device)
        outcomes = self._outcomes.values()
        return PackResult(
            lanes=count,
            pass_limit=pass_limit,
            passes=_passes(list(self._rows.values()), pass_limit),
            times=times,
            lane_state_bytes=_STATE_BYTES * sum(lane.size for lane in self._pack.lanes.values()),
            join_peak_bytes=join_peak_bytes,
            host_peak_bytes=known_peak_resident_bytes(),
            loss=sum(outcome.loss.mean for outcome in outcomes) / count,
            applied=all(math.isfinite(outcome.grad_norm) for outcome in outcomes),
            slide=slide,
        )

    def _grow(self, count: int) -> int:
        on_card = self._device.type == "cuda"
        if on_card:
            torch.cuda.reset_peak_memory_stats(self._device)
        self._pack.expect([self._method] * (count - len(self._rows)))
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
