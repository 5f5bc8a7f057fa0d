"""How a measurement uses the card and the host, with the reasons."""

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Final, Literal

import msgspec

from slidepack.engine.bench_slide.drives import with_drive
from slidepack.engine.bench_slide.options import SlideOptions
from slidepack.engine.contract.plan import FullPlan
from slidepack.engine.memory_full_need import (
    end_sizes,
    engine_for,
    full_need,
    master_bytes,
    moment_bytes,
)
from slidepack.engine.memory_nvme_text import tier_text
from slidepack.engine.memory_parts import DEVICE_CONTEXT_BYTES, MemoryNeed, usable_bytes
from slidepack.engine.shape import ModelShape

__all__ = ["SlidePlan", "plan_slide", "resident_layers"]

_SLOTS: Final = ((5, 4), (4, 3), (3, 2), (2, 2), (2, 1))
"""Slots of weights and of gradients, best first: the first gives both directions of the link two
layers of slack, the last still overlaps a layer's copy with another's pass."""
_HOST_GRAD_SLOTS: Final = 5
_HOST_GRAD_BYTES: Final = 4_000_000_000
"""Most RAM for gradients on their way to the CPU."""
_ROWS_SHARE: Final = 1 / 10
"""Of the cap, for rows on the card."""


@dataclass(frozen=True, kw_only=True, slots=True)
class SlidePlan:
    """The plan of a measurement."""

    full: FullPlan
    micro_tokens: int
    """Most tokens of a micro-batch."""
    predicted_device_bytes: int
    """That the allocator hands out; 0 without a card."""
    predicted_host_bytes: int
    reasons: tuple[str, ...]

    @property
    def accumulate(self) -> bool:
        """Whether a step has several micro-batches."""
        return self.full.max_tokens > self.micro_tokens


def plan_slide(options: SlideOptions, shape: ModelShape, cap_bytes: int | None) -> SlidePlan:
    """Choose slots, and where rows are kept, so that the cap holds where that is possible.

    Args:
        options: of the measurement.
        shape: sizes.
        cap_bytes: device memory that may be used; None where there is no card.
    """
    width = 4 if cap_bytes is None else 2
    row_count = min(options.batch, max(1, options.micro_tokens // options.seq))
    micro_tokens = row_count * options.seq
    rows, rows_reason = _rows(options, shape, width, cap_bytes)
    largest = max(shape.layer_params * width, *_host_ends(options, shape))
    host_slots = max(2, min(_HOST_GRAD_SLOTS, _HOST_GRAD_BYTES // largest))
    clip, on_cpu = options.clip > 0.0, cap_bytes is None
    for slots in _SLOTS:
        weight_slots = options.weight_slots or slots[0]
        grad_slots = options.grad_slots or slots[1]
        full = FullPlan(
            weights="slide",
            weight_slots=weight_slots,
            grad_slots=grad_slots,
            host_grad_slots=host_slots,
            engine=engine_for(options.optimizer, options.moments),
            rows=rows,
            moments=options.moments,
            max_tokens=options.batch * options.seq,
            longest_row=options.seq,
        )
        full = with_drive(options, shape, full, micro_tokens, on_cpu=on_cpu)
        need = full_need(shape, full, micro_tokens, clip=clip, on_cpu=on_cpu)
        if cap_bytes is None or need.device_bytes <= usable_bytes(cap_bytes):
            break
    device_bytes = 0 if on_cpu else need.device_bytes - DEVICE_CONTEXT_BYTES
    host_bytes = need.host_bytes
    if options.alias_layers is not None:
        spared = range(options.alias_layers, shape.num_layers)
        host_bytes -= sum(_ram_of(layer, shape, full, split=not on_cpu) for layer in spared)
    reasons = [
        f"{-(-options.batch // row_count)} micro-batches of at most {micro_tokens} tokens",
        rows_reason,
        f"{weight_slots} slots of weights and {grad_slots} of gradients",
        *_shares(need),
    ]
    if cap_bytes is not None:
        reasons.append(f"{_gb(device_bytes)} of {_gb(cap_bytes)} predicted on the card")
    if full.nvme is not None:
        reasons.append(tier_text(shape, full, full.nvme, on_cpu=on_cpu))
    reasons.append(f"{_gb(host_bytes)} of RAM predicted")
    return SlidePlan(
        full=full,
        micro_tokens=micro_tokens,
        predicted_device_bytes=device_bytes,
        predicted_host_bytes=host_bytes,
        reasons=tuple(reasons),
    )


def _ram_of(layer: int, shape: ModelShape, full: FullPlan, *, split: bool) -> int:
    """Return the bytes of a layer's state that are in RAM."""
    master = master_bytes(shape.layer_params, split=split)
    moments = moment_bytes(shape.layer_params, full.moments)
    if full.nvme is None:
        return master + moments
    return master * (layer not in full.nvme.master) + moments * (layer not in full.nvme.moments)


def resident_layers(
    plan: SlidePlan, shape: ModelShape, cap_bytes: int | None
) -> tuple[int, Literal["device", "host"]]:
    """Return how many layers the ceiling keeps on the card, and where its rows are.

    All layers where they fit; else as many as do, which the others share: a pass takes as long
    over shared weights, as two layers are already larger than any cache.
    """
    if cap_bytes is None:
        return shape.num_layers, "device"
    layer = 2 * shape.layer_params

    def fitting(rows: Literal["device", "host"]) -> int:
        bare = msgspec.structs.replace(
            plan.full, weight_slots=0, grad_slots=1, engine="cpu", rows=rows, nvme=None
        )
        need = full_need(shape, bare, plan.micro_tokens, clip=False, on_cpu=False)
        return (usable_bytes(cap_bytes) - need.device_bytes) // layer

    rows: Literal["device", "host"] = "device" if fitting("device") >= 2 else plan.full.rows
    return max(1, min(shape.num_layers, fitting(rows))), rows


def _rows(
    options: SlideOptions, shape: ModelShape, width: int, cap_bytes: int | None
) -> tuple[Literal["device", "host"], str]:
    """Return where rows are kept, and why."""
    tokens = options.batch * options.seq
    rows_bytes = (shape.num_layers + 1) * tokens * shape.hidden * width
    if options.rows is not None:
        return options.rows, f"rows on the {options.rows}, as asked: they take {_gb(rows_bytes)}"
    if cap_bytes is None or rows_bytes <= cap_bytes * _ROWS_SHARE:
        return "device", f"rows stay on the card: they take {_gb(rows_bytes)}"
    return "host", f"rows wait in host memory: {_gb(rows_bytes)} is much of {_gb(cap_bytes)}"


def _host_ends(options: SlideOptions, shape: ModelShape) -> Iterator[int]:
    """Yield the gradients of the ends that go to host memory: the CPU has the ends only alone."""
    yield 0
    if options.optimizer == "cpu":
        yield from (4 * elements for elements in end_sizes(shape))


def _shares(need: MemoryNeed) -> Iterator[str]:
    for what, num_bytes in need.device.items():
        if num_bytes and what != "driver context":
            yield f"{what}: {_gb(num_bytes)}"


def _gb(num_bytes: int) -> str:
    return f"{num_bytes / 1e9:.2f} GB"
