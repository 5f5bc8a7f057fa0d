"""One measurement of packed LoRA lanes, as `slidepack bench packed` prints it."""

import contextlib
from collections.abc import Sequence
from typing import Any

import torch

from slidepack.engine.bench_packed.base import BaseBytes, host_base, nf4_base, resident_base
from slidepack.engine.bench_packed.ceiling import CeilingResult, measure_ceiling
from slidepack.engine.bench_packed.device import (
    clear,
    lift_limit,
    measured_device,
    measured_dtype,
    out_of_memory,
)
from slidepack.engine.bench_packed.machine import machine_of, measured_rates
from slidepack.engine.bench_packed.options import PackedOptions
from slidepack.engine.bench_packed.packs import PackResult, measure_packs
from slidepack.engine.bench_packed.peft_process import PeftResult, measure_peft
from slidepack.engine.bench_packed.progress import tell, tell_rate
from slidepack.engine.bench_packed.report import OurResults, report
from slidepack.engine.bench_packed.slides import ResidentResult, measure_residents, measure_sliding
from slidepack.engine.memory_parts import Machine
from slidepack.engine.model.layer_attention import LayerAttention, layer_attention

__all__ = ["bench_packed"]


def bench_packed(options: PackedOptions) -> dict[str, Any]:
    """Time packs of LoRA lanes with random weights against one lane, PEFT and the bare base.

    One after the other: the packs; over a resident base in bf16 those that slid, and the ceiling;
    and PEFT once nothing of ours is on the card.

    Returns:
        The measurement, see `report`.

    Raises:
        RuntimeError: there is no GPU.
        SlidepackError: GPU-OUT-OF-MEMORY, where the base or a pack does not fit; where what they
            are held against does not, that is its result.
        OSError: the host has no room for a base that slides.
    """
    device = measured_device(options)
    machine = machine_of(options, device)
    try:
        ours = _measure_ours(options, device, machine)
    except torch.OutOfMemoryError as error:
        raise out_of_memory("the base", error) from error
    clear(device)
    peft = PeftResult(answer=None, why="not asked for")
    if options.peft:
        peft = measure_peft(options)
        if peft.answer is not None:
            tell_rate("PEFT, one adapter", peft.answer.times, options.step_tokens(1))
    return report(options, device, ours, peft)


def _measure_ours(options: PackedOptions, device: torch.device, machine: Machine) -> OurResults:
    """Measure the packs, and what they are held against; then nothing refers to a base any more."""
    choices = layer_attention(options.model_shape, device, measured_dtype(device))
    packs, base_bytes = _measure_packs(options, device, choices, machine)
    clear(device)
    if options.slide or options.base == "nf4":
        lift_limit(device)
    residents, ceilings = _measure_yardsticks(options, device, choices, packs)
    return OurResults(
        attention=choices.path,
        base_bytes=base_bytes,
        packs=packs,
        residents=residents,
        ceilings=ceilings,
        rates=measured_rates(machine, device),
    )


def _measure_packs(
    options: PackedOptions, device: torch.device, choices: LayerAttention, machine: Machine
) -> tuple[list[PackResult], BaseBytes]:
    """Measure the packs over the base that is asked for, and forget it."""
    make = host_base if options.slide else nf4_base if options.base == "nf4" else resident_base
    base = make(options.model_shape, device, measured_dtype(device))
    with contextlib.closing(base):
        clear(device)
        tell(f"the base takes {_gb(base.bytes.device)} of VRAM, {_gb(base.bytes.host)} slide")
        if options.slide:
            packs = list(measure_sliding(options, base.decoder, choices, machine))
        else:
            packs = list(measure_packs(options, base.decoder, choices))
        return packs, base.bytes


def _measure_yardsticks(
    options: PackedOptions,
    device: torch.device,
    choices: LayerAttention,
    packs: Sequence[PackResult],
) -> tuple[list[ResidentResult], list[CeilingResult]]:
    """Measure over a resident base what packs that slid, and all packs, are held against."""
    sizes = sorted({tokens for pack in packs for tokens in pack.passes}) if options.ceiling else []
    slid = packs if options.slide else []
    if not sizes and not slid:
        return [], []
    try:
        decoder = resident_base(options.model_shape, device, measured_dtype(device)).decoder
    except torch.OutOfMemoryError as error:
        # A base that slides, or has 4 bits, fits where this one does not.
        why = str(error).partition("\n")[0]
        return (
            [ResidentResult(pack=None, why=why) for _ in slid],
            [CeilingResult(tokens=tokens, times=None, why=why) for tokens in sizes],
        )
    return (
        measure_residents(options, decoder, choices, slid),
        measure_ceiling(options, decoder, choices, sizes),
    )


def _gb(num_bytes: int) -> str:
    return f"{num_bytes / 1e9:.2f} GB"
