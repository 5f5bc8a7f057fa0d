"""Measures packs over a base that slides, and the same lanes over a resident one."""

import contextlib
from collections.abc import Iterator, Sequence
from dataclasses import dataclass

import platformdirs
import torch

from slidepack.engine.bench_packed.device import clear, out_of_memory
from slidepack.engine.bench_packed.layout import SlideLayout, slide_layout
from slidepack.engine.bench_packed.options import PackedOptions
from slidepack.engine.bench_packed.packs import GrowingPack, PackResult, lanes_named
from slidepack.engine.bench_packed.progress import tell, tell_rate
from slidepack.engine.memory_parts import Machine
from slidepack.engine.model.layer_attention import LayerAttention
from slidepack.engine.model.layers import Decoder
from slidepack.engine.sliding.build_lanes import LaneSlide, build_sliding_lanes

__all__ = ["ResidentResult", "measure_residents", "measure_sliding"]


@dataclass(frozen=True, kw_only=True, slots=True)
class ResidentResult:
    """What the steps of a pack took over a resident base, or why there is no telling."""

    pack: PackResult | None
    why: str | None
    """None where it was measured."""


def measure_sliding(
    options: PackedOptions, decoder: Decoder, choices: LayerAttention, machine: Machine
) -> Iterator[PackResult]:
    """Yield a result for each number of lanes, fewest first, each as the planner lays it out.

    Args:
        options: of the measurement.
        decoder: its layers are in host memory.
        choices: what each layer's attention computes.
        machine: what was free before the base was there.

    Raises:
        SlidepackError: GPU-OUT-OF-MEMORY, with the number of lanes that do not fit.
    """
    for count in options.counts:
        layout = slide_layout(options, count, machine)
        tell(f"{lanes_named(count)}: {layout}")
        try:
            result = _slide(options, decoder, choices, layout, count, machine.cpu_threads)
        except torch.OutOfMemoryError as error:
            raise out_of_memory(f"{lanes_named(count)} over a sliding base", error) from error
        clear(decoder.device)
        tell_rate(f"{lanes_named(count)}, sliding", result.times, options.step_tokens(count))
        yield result


def _slide(
    options: PackedOptions,
    decoder: Decoder,
    choices: LayerAttention,
    layout: SlideLayout,
    count: int,
    cpu_threads: int,
) -> PackResult:
    """Measure lanes of their own; when this returns, nothing refers to them any more."""
    slide = LaneSlide(
        slots=layout.slide.slots,
        rows=layout.slide.rows,
        max_tokens=layout.slide.max_tokens,
        max_micro_tokens=layout.pass_limit,
        cpu_threads=cpu_threads,
        cache=platformdirs.user_cache_path("slidepack") / "native",
    )
    with contextlib.closing(build_sliding_lanes(decoder, slide)) as sliding:
        pack = GrowingPack(options, decoder, choices, sliding.passes)
        return pack.measure(count, layout.pass_limit, layout.slide)


def measure_residents(
    options: PackedOptions,
    decoder: Decoder,
    choices: LayerAttention,
    sliding: Sequence[PackResult],
) -> list[ResidentResult]:
    """Time the same lanes, in the same passes, over a resident base.

    Each pack is a fresh one, as its sliding counterpart was: both do the same steps.
    """
    return [_resident(options, decoder, choices, one) for one in sliding]


def _resident(
    options: PackedOptions, decoder: Decoder, choices: LayerAttention, sliding: PackResult
) -> ResidentResult:
    clear(decoder.device)
    try:
        pack = GrowingPack(options, decoder, choices).measure(sliding.lanes, sliding.pass_limit)
    except torch.OutOfMemoryError as error:
        # What slides may well be too large for the card.
        return ResidentResult(pack=None, why=str(error).partition("\n")[0])
    tell_rate(f"{lanes_named(pack.lanes)}, resident", pack.times, options.step_tokens(pack.lanes))
    return ResidentResult(pack=pack, why=None)
