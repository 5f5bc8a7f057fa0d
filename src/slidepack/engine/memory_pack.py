"""How a pack uses the machine, with room for lanes that join later. Torch-free."""

from collections.abc import Sequence
from typing import Final

import msgspec

from slidepack.engine.contract.errors import SlidepackError
from slidepack.engine.contract.job import JobSpec, LoraMethod
from slidepack.engine.contract.plan import RunPlan
from slidepack.engine.memory_lanes import (
    MOST_PASS_TOKENS,
    LaneSizes,
    lane_slide_need,
)
from slidepack.engine.memory_lora import plan_sizes, resident_need
from slidepack.engine.memory_parts import GIB, Machine, MemoryNeed, usable_bytes
from slidepack.engine.shape import ModelShape

__all__ = ["lane_disk_bytes", "pack_need", "plan_pack", "why_no_lane_fits"]

_CPU_PASS_TOKENS: Final = 2048
"""A CPU gains nothing from larger passes."""
_EXACT_TOKENS: Final = 4096
_EXACT_CPU_TOKENS: Final = 512
"""Of every pass of an exact pack, unless a row is longer: what is missing is filled up, so a pass
must be no larger than steps usually are, and the same whoever is in the pack."""
_SPARE_LANES: Final = 4
"""Lanes nobody has asked for yet, as large as the largest, for which room is left."""


def plan_pack(
    specs: Sequence[JobSpec],
    later: Sequence[JobSpec],
    shape: ModelShape,
    machine: Machine,
    *,
    exact: bool = False,
) -> RunPlan:
    """Decide how a pack uses the machine, or say why it cannot.

    A pass may be as large as more lanes would fill it, and their adapters have room, as long as
    that costs the lanes of now nothing.

    Args:
        specs: of the lanes that begin, at least one, of the same base and precision.
        later: of those that may join.
        shape: of the base.
        machine: what is free.
        exact: rows are filled up, so that no lane depends on the others.

    Raises:
        SlidepackError: RAM-TOO-SMALL or GPU-OUT-OF-MEMORY.
    """
    method = specs[0].method
    assert isinstance(method, LoraMethod)
    on_cpu = machine.device == "cpu"
    fill = _EXACT_CPU_TOKENS if on_cpu else _EXACT_TOKENS
    tokens = _CPU_PASS_TOKENS if on_cpu else MOST_PASS_TOKENS

    def sized(sizes: LaneSizes, least: int) -> LaneSizes:
        wanted = fill if exact else max(sizes.step_tokens, least)
        return msgspec.structs.replace(sizes, step_tokens=wanted)

    alone = plan_sizes(sized(LaneSizes.of(specs, shape), 0), method, shape, machine)[0]
    for count in (len(later), len(later) // 2, len(later) // 4, 0):
        sizes = LaneSizes.of([*specs, *later[:count]], shape)
        spare = _SPARE_LANES * max(LaneSizes.of([spec], shape).params for spec in specs)
        roomy = msgspec.structs.replace(sized(sizes, tokens), params=sizes.params + spare)
        try:
            plan = plan_sizes(roomy, method, shape, machine)[0]
        except SlidepackError:
            continue
        if _costs_nothing(plan, alone):
            return msgspec.structs.replace(plan, predicted_disk_bytes=alone.predicted_disk_bytes)
    return alone


def pack_need(plan: RunPlan, specs: Sequence[JobSpec], shape: ModelShape) -> MemoryNeed:
    """Return the bytes of lanes in a pack whose passes are planned.

    Args:
        plan: of the pack.
        specs: of all its lanes.
        shape: of the base.
    """
    lanes = LaneSizes.of(specs, shape)
    if plan.slide is not None:
        return lane_slide_need(lanes, shape, plan.slide, plan.micro_batch_tokens)
    return resident_need(
        lanes,
        shape,
        plan.base_format,
        plan.layer_activations[0],
        plan.micro_batch_tokens,
        width_bytes=4 if plan.precision == "fp32" else 2,
        on_cpu=plan.device == "cpu",
    )


def why_no_lane_fits(
    plan: RunPlan, specs: Sequence[JobSpec], shape: ModelShape, machine: Machine
) -> str:
    """Return why the last of some lanes cannot join the others; empty where it can.

    Args:
        plan: of the pack.
        specs: of all its lanes, the new one last.
        shape: of the base.
        machine: what was free before the pack began.
    """
    longest = min(specs[-1].max_seq_len, shape.max_positions)
    if longest > plan.micro_batch_tokens:
        return (
            f"its rows may have {longest} tokens, a pass of the pack {plan.micro_batch_tokens} "
            "at most"
        )
    if plan.slide is not None:
        tokens = LaneSizes.of(specs, shape).step_tokens
        if tokens > plan.slide.max_tokens:
            return f"a step of all lanes has {tokens} tokens, {plan.slide.max_tokens} at most"
    need = pack_need(plan, specs, shape)
    device = machine.device_free_bytes
    asked = [("RAM", need.host_bytes, usable_bytes(machine.ram_available_bytes))]
    if plan.device != "cpu":
        asked.append(("VRAM", need.device_bytes, usable_bytes(device)))
    for where, needed, usable in asked:
        if needed > usable:
            return f"the pack would need {needed / GIB:.1f} of {usable / GIB:.1f} GiB {where}"
    return ""


def lane_disk_bytes(spec: JobSpec, shape: ModelShape) -> int:
    """Return the bytes of checkpoints and result of a lane."""
    return sum(LaneSizes.of([spec], shape).disk.values())


def _costs_nothing(plan: RunPlan, alone: RunPlan) -> bool:
    """Return whether a plan with more room is as fast for the lanes of now."""
    if plan.layer_weights != alone.layer_weights:
        return False
    # Rows that wait in RAM hide behind a base that slides anyway.
    same = plan.slide is not None or plan.layer_activations == alone.layer_activations
    return same and plan.micro_batch_tokens >= alone.micro_batch_tokens
