"""How a measured base slides: the planner's best choice among those that the options leave."""

from dataclasses import dataclass

import msgspec

from slidepack.engine.bench_packed.options import PackedOptions
from slidepack.engine.contract.errors import SlidepackError
from slidepack.engine.contract.job import LORA_TARGETS
from slidepack.engine.contract.plan import LaneSlidePlan
from slidepack.engine.memory_lanes import LaneSizes, lane_slide_choices, lane_slide_need
from slidepack.engine.memory_parts import Machine, MemoryNeed, usable_bytes

__all__ = ["SlideLayout", "lane_sizes", "slide_layout"]


@dataclass(frozen=True, kw_only=True, slots=True)
class SlideLayout:
    """What slides, and how much of a step passes at a time."""

    slide: LaneSlidePlan
    pass_limit: int
    """Most tokens of a pass."""

    def __str__(self) -> str:
        """Say it in words."""
        slots, rows = self.slide.slots, self.slide.rows
        return f"{slots} slots, rows on the {rows}, passes of at most {self.pass_limit:,} tokens"


def lane_sizes(options: PackedOptions, lanes: int) -> LaneSizes:
    """Return what so many lanes of the measurement add up to."""
    return LaneSizes(
        params=lanes * options.model_shape.lora_params(options.rank, LORA_TARGETS),
        longest=options.seq,
        step_tokens=options.step_tokens(lanes),
    )


def slide_layout(options: PackedOptions, lanes: int, machine: Machine) -> SlideLayout:
    """Choose slots, the place of the rows and the size of passes, as the planner would.

    What the options name is taken; where they name all three, whether or not that is predicted to
    fit.

    Raises:
        SlidepackError: GPU-OUT-OF-MEMORY, where nothing that is left fits.
    """
    sizes = lane_sizes(options, lanes)
    least = None
    for choice, micro in lane_slide_choices(sizes):
        if options.rows not in (None, choice.rows):
            continue
        layout = SlideLayout(
            slide=msgspec.structs.replace(choice, slots=options.weight_slots or choice.slots),
            pass_limit=min(options.max_tokens or micro, choice.max_tokens),
        )
        need = lane_slide_need(sizes, options.model_shape, layout.slide, layout.pass_limit)
        if options.lays_out_everything or _fits(need, machine):
            return layout
        least = need
    assert least is not None
    raise SlidepackError(
        "GPU-OUT-OF-MEMORY",
        "The measurement is not predicted to fit.",
        why=f"{lanes} lanes need {_gb(least.device_bytes)} of VRAM and {_gb(least.host_bytes)} of "
        f"RAM at least, {_gb(machine.device_free_bytes)} and {_gb(machine.ram_available_bytes)} "
        "may be used, less a tenth",
        fix="Use fewer --lanes, a larger --vram-cap, or name --weight-slots, --rows and "
        "--max-tokens to try it all the same.",
    )


def _fits(need: MemoryNeed, machine: Machine) -> bool:
    return need.device_bytes <= usable_bytes(
        machine.device_free_bytes
    ) and need.host_bytes <= usable_bytes(machine.ram_available_bytes)


def _gb(num_bytes: int) -> str:
    return f"{num_bytes / 1e9:.1f} GB"
