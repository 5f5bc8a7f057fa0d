"""How a measurement uses the card and the host, with the reasons."""

from dataclasses import dataclass
from typing import Final

from slidepack.engine.bench_slide.options import SlideOptions
from slidepack.engine.contract.plan import FullPlan
from slidepack.engine.memory import activation_bytes_per_token
from slidepack.engine.shape import ModelShape
from slidepack.engine.sliding.gpu_engine import CHUNK_ELEMENTS, STAGES
from slidepack.engine.sliding.slab import Slab
from slidepack.engine.sliding.state import StateFormat, units_of

__all__ = ["SlidePlan", "device_bytes", "host_bytes", "plan_slide", "resident_layers"]

_SLOTS: Final = ((5, 4), (4, 3), (3, 2), (2, 2), (2, 1))
"""Slots of weights and of gradients, best first: the first gives both directions of the link two
layers of slack, the last still overlaps a layer's copy with another's pass."""
_HOST_GRAD_SLOTS: Final = 8
_HOST_GRAD_BYTES: Final = 4_000_000_000
"""Most RAM for gradients on their way to the CPU."""
_USABLE: Final = 0.9
"""Of the cap: the allocator's slack, and what cuBLAS and Triton take."""
_ROWS_SHARE: Final = 1 / 12
"""Of the cap, for rows on the card."""
_LOGIT_BYTES: Final = 1 << 30
"""A chunk of logits with its temporaries."""
_ROW_BUFFERS: Final = 12
"""Micro-batches of rows on their way to and from the host, see `HostRows`."""


@dataclass(frozen=True, kw_only=True, slots=True)
class SlidePlan:
    """The plan of a measurement."""

    full: FullPlan
    micro_tokens: int
    """Most tokens of a micro-batch."""
    reasons: tuple[str, ...]

    @property
    def accumulate(self) -> bool:
        """Whether a step has several micro-batches."""
        return self.full.max_tokens > self.micro_tokens


def plan_slide(
    options: SlideOptions, shape: ModelShape, form: StateFormat, cap_bytes: int | None
) -> SlidePlan:
    """Choose slots, and where rows are kept, so that the cap holds.

    Args:
        options: of the measurement.
        shape: sizes.
        form: how the state is stored.
        cap_bytes: device memory that may be used; None where there is no card.
    """
    tokens = options.batch * options.seq
    rows_of_micro = min(options.batch, max(1, options.micro_tokens // options.seq))
    micro_tokens = rows_of_micro * options.seq
    reasons = [f"{-(-options.batch // rows_of_micro)} micro-batches of up to {micro_tokens} tokens"]
    rows_bytes = (shape.num_layers + 1) * tokens * shape.hidden * form.compute_dtype.itemsize
    rows = options.rows
    if rows is not None:
        reasons.append(f"rows on the {rows}, as asked ({_gb(rows_bytes)})")
    elif cap_bytes is None or rows_bytes <= cap_bytes * _ROWS_SHARE:
        rows = "device"
        reasons.append(f"rows stay on the card: they take {_gb(rows_bytes)}")
    else:
        rows = "host"
        reasons.append(f"rows go to host memory: {_gb(rows_bytes)} is much of {_gb(cap_bytes)}")
    grad_bytes = _host_grad_bytes(options, shape, form)
    host_slots = max(2, min(_HOST_GRAD_SLOTS, _HOST_GRAD_BYTES // grad_bytes))
    for weight_slots, grad_slots in _SLOTS:
        plan = SlidePlan(
            full=FullPlan(
                weights="slide",
                weight_slots=weight_slots,
                grad_slots=grad_slots,
                host_grad_slots=host_slots,
                engine=options.optimizer,
                rows=rows,
                moments=options.moments,
                max_tokens=tokens,
                longest_row=options.seq,
            ),
            micro_tokens=micro_tokens,
            reasons=(*reasons, f"{weight_slots} slots of weights, {grad_slots} of gradients"),
        )
        if cap_bytes is None or device_bytes(plan, shape, form) <= cap_bytes * _USABLE:
            break
    if cap_bytes is None:
        return plan
    predicted = f"{_gb(device_bytes(plan, shape, form))} of {_gb(cap_bytes)} predicted on the card"
    return SlidePlan(
        full=plan.full, micro_tokens=plan.micro_tokens, reasons=(*plan.reasons, predicted)
    )


def device_bytes(plan: SlidePlan, shape: ModelShape, form: StateFormat) -> int:
    """Return the device memory that a plan is predicted to take."""
    full, width = plan.full, form.compute_dtype.itemsize
    slots = (full.weight_slots + full.grad_slots) * shape.layer_params * width
    stages = STAGES * (form.unit_bytes(CHUNK_ELEMENTS) + CHUNK_ELEMENTS * 4)
    return (
        _fixed_bytes(plan, shape, width)
        + slots
        + (0 if full.engine == "cpu" else stages)
        + _rows_bytes(plan, shape, width, on_device=full.rows == "device")
    )


def resident_layers(
    plan: SlidePlan, shape: ModelShape, form: StateFormat, cap_bytes: int | None
) -> tuple[int, bool]:
    """Return how many layers the ceiling keeps on the card, and whether its rows stay there too.

    All layers where they fit; else as many as do, which the others share: a pass takes as long
    over shared weights, as two layers are already larger than any cache.
    """
    if cap_bytes is None:
        return shape.num_layers, True
    width = form.compute_dtype.itemsize
    layer = shape.layer_params * width
    # Its one gradient is a layer more.
    room = int(cap_bytes * _USABLE) - _fixed_bytes(plan, shape, width) - layer
    on_device = True
    if room - _rows_bytes(plan, shape, width, on_device=True) < 2 * layer:
        on_device = plan.full.rows == "device"
    room -= _rows_bytes(plan, shape, width, on_device=on_device)
    return max(1, min(shape.num_layers, room // layer)), on_device


def host_bytes(plan: SlidePlan, shape: ModelShape, form: StateFormat, options: SlideOptions) -> int:
    """Return the host memory that a measurement allocates, beside the process itself."""
    full, width = plan.full, form.compute_dtype.itemsize
    units = units_of(shape)
    layer = form.unit_bytes(shape.layer_params)
    total = (options.alias_layers or shape.num_layers) * layer
    total += sum(form.unit_bytes(unit.elements) for unit in units[shape.num_layers :])
    if options.clip > 0.0:
        total += shape.num_layers * Slab.padded(shape.layer_params * width)
        total += sum(4 * unit.elements for unit in units[shape.num_layers :])
    elif full.engine != "gpu":
        total += full.host_grad_slots * _host_grad_bytes(options, shape, form)
    if full.rows == "host":
        total += (shape.num_layers + 1) * full.max_tokens * shape.hidden * width
    return total


def _host_grad_bytes(options: SlideOptions, shape: ModelShape, form: StateFormat) -> int:
    """Return the largest gradient that the CPU's engine takes: an end's where it has the ends."""
    layer = shape.layer_params * form.compute_dtype.itemsize
    if options.optimizer != "cpu":
        return layer
    return max(layer, *(4 * unit.elements for unit in units_of(shape)[shape.num_layers :]))


def _fixed_bytes(plan: SlidePlan, shape: ModelShape, width: int) -> int:
    """Return what every form of the walk takes: ends, the wide gradient, one layer's pass."""
    ends = shape.total_params - shape.num_layers * shape.layer_params
    wide = 4 * shape.layer_params if plan.accumulate and width < 4 else 0
    per_token = activation_bytes_per_token(shape, "keep", width) // shape.num_layers
    # Weights in the dtype of the passes and gradients in fp32; saved tensors and their gradients.
    return ends * (width + 4) + wide + 2 * per_token * plan.micro_tokens + _LOGIT_BYTES


def _rows_bytes(plan: SlidePlan, shape: ModelShape, width: int, *, on_device: bool) -> int:
    row = shape.hidden * width
    if on_device:
        return (shape.num_layers + 2) * plan.full.max_tokens * row
    return _ROW_BUFFERS * plan.micro_tokens * row


def _gb(num_bytes: int) -> str:
    return f"{num_bytes / 1e9:.1f} GB"
