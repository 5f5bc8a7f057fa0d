"""One measurement of packed LoRA lanes, as `slidepack bench packed` prints it."""

from typing import Any

import torch

from slidepack.engine.bench_packed.ceiling import measure_ceiling
from slidepack.engine.bench_packed.device import (
    clear,
    measured_device,
    measured_dtype,
    out_of_memory,
)
from slidepack.engine.bench_packed.options import PackedOptions
from slidepack.engine.bench_packed.packs import measure_packs
from slidepack.engine.bench_packed.peft_process import PeftResult, measure_peft
from slidepack.engine.bench_packed.report import OurResults, report
from slidepack.engine.model.layer_attention import layer_attention
from slidepack.engine.model.loading import random_decoder

__all__ = ["bench_packed"]


def bench_packed(options: PackedOptions) -> dict[str, Any]:
    """Time packs of LoRA lanes with random weights against one lane, PEFT and the bare base.

    One after the other: the packs, the ceiling, and PEFT once nothing of ours is on the card.

    Returns:
        The measurement, see `report`.

    Raises:
        RuntimeError: there is no GPU.
        SlidepackError: GPU-OUT-OF-MEMORY, where the base or a pack does not fit; where the ceiling
            or PEFT does not, that is their result.
    """
    device = measured_device(options)
    try:
        ours = _measure_ours(options, device)
    except torch.OutOfMemoryError as error:
        raise out_of_memory("the base", error) from error
    clear(device)
    peft = measure_peft(options) if options.peft else PeftResult(answer=None, why="not asked for")
    return report(options, device, ours, peft)


def _measure_ours(options: PackedOptions, device: torch.device) -> OurResults:
    """Measure packs and ceiling; when this returns, nothing refers to the base any more."""
    shape, dtype = options.model_shape, measured_dtype(device)
    decoder = random_decoder(shape, device, dtype, seed=0)
    choices = layer_attention(shape, device, dtype)
    packs = list(measure_packs(options, decoder, choices))
    sizes = sorted({tokens for pack in packs for tokens in pack.passes})
    return OurResults(
        attention=choices.path,
        packs=packs,
        ceilings=measure_ceiling(options, decoder, choices, sizes),
    )
