"""The bytes of a full fine-tuning, counted as `engine.sliding` allocates them. Torch-free.

Shapes: `T` tokens of a micro-batch, `D` model width, `F` feed-forward, `V` vocabulary.
"""

from typing import Final, Literal

from slidepack.engine.contract.job import OptimizerEngine
from slidepack.engine.contract.plan import FullPlan
from slidepack.engine.memory_parts import (
    DEVICE_CONTEXT_BYTES,
    DEVICE_HOST_BYTES,
    HOST_PROCESS_BYTES,
    RESULT_COPIES,
    MemoryNeed,
)
from slidepack.engine.memory_pass import (
    card_pass_elements,
    head_chunk_elements,
    head_row_elements,
    largest_matrix,
    layer_kept_elements,
)
from slidepack.engine.shape import ModelShape

__all__ = [
    "ROWS_ON_DRIVES",
    "STATE_ON_DRIVES",
    "Moments",
    "drive_state_bytes",
    "end_sizes",
    "engine_for",
    "full_need",
    "master_bytes",
    "moment_bytes",
    "stage_bytes",
    "state_bytes",
    "unit_bytes",
    "unit_sizes",
]

Moments = Literal["fp32", "bf16", "int8"]

STATE_ON_DRIVES: Final = "state on drives, and its checkpoints"
ROWS_ON_DRIVES: Final = "inputs of layers on drives"
"""Names of what a plan wants of the drives of its state, among what it wants of disks."""

_ALIGNMENT: Final = 256
"""Of tensors in a slab."""
_MOMENT_BYTES: Final[dict[Moments, int]] = {"fp32": 4, "bf16": 2, "int8": 1}
_MOMENT_BLOCK: Final = 1024
"""8-bit moments that share a scale."""
_STAGE_ELEMENTS: Final = 8 << 20
_STAGES: Final = 4
"""Chunks of optimizer state on their way through the card."""
_ROW_BUFFERS: Final = 12
"""Micro-batches of rows on the card on their way in (6) and out (6)."""
_CPU_LOGIT_COPIES: Final = {False: 5, True: 7}
"""Without and with a soft cap."""
_CPU_LAYER_FACTOR: Final = 2
"""Of what plain torch operations keep of a layer: gradients on top, and freed blocks that stay."""


def _padded(num_bytes: int) -> int:
    return -(-num_bytes // _ALIGNMENT) * _ALIGNMENT


def master_bytes(elements: int, *, split: bool) -> int:
    """Return the bytes of a unit's master weights, padding included."""
    return sum(map(_padded, [2 * elements] * 2 if split else [4 * elements]))


def moment_bytes(elements: int, moments: Moments) -> int:
    """Return the bytes of a unit's moments, padding included."""
    parts = [_MOMENT_BYTES[moments] * elements] * 2
    if moments == "int8":
        parts += [4 * -(-elements // _MOMENT_BLOCK)] * 2
    return sum(map(_padded, parts))


def unit_bytes(elements: int, moments: Moments, *, split: bool) -> int:
    """Return the bytes of a unit's master weights and moments, padding included."""
    return master_bytes(elements, split=split) + moment_bytes(elements, moments)


def engine_for(asked: OptimizerEngine, moments: Moments) -> OptimizerEngine:
    """Return which engines run: 8-bit moments are left to one, the card's.

    The CPU may round their scales in another way, and who updates a layer depends on the clock.
    """
    return "gpu" if asked == "auto" and moments == "int8" else asked


def end_sizes(shape: ModelShape) -> tuple[int, ...]:
    """Return the parameters of the ends: the embedding, and the head where it is not tied."""
    table = shape.vocab * shape.hidden
    last = table + shape.hidden
    return (last,) if shape.tied_head else (table, last)


def state_bytes(shape: ModelShape, moments: Moments, *, split: bool) -> int:
    """Return the bytes of the whole trained state."""
    layers = shape.num_layers * unit_bytes(shape.layer_params, moments, split=split)
    return layers + sum(unit_bytes(size, moments, split=split) for size in end_sizes(shape))


def unit_sizes(shape: ModelShape) -> tuple[int, ...]:
    """Return the parameters of every unit, in the order of `sliding.state.units_of`."""
    return (*(shape.layer_params,) * shape.num_layers, *end_sizes(shape))


def drive_state_bytes(shape: ModelShape, full: FullPlan, *, split: bool) -> int:
    """Return the bytes of the trained state that lies on drives."""
    if full.nvme is None:
        return 0
    sizes = unit_sizes(shape)
    moments = sum(moment_bytes(sizes[unit], full.moments) for unit in full.nvme.moments)
    return moments + sum(master_bytes(sizes[unit], split=split) for unit in full.nvme.master)


def stage_bytes(moments: Moments, *, split: bool) -> int:
    """Return what the card's optimizer takes on the card."""
    return _STAGES * (unit_bytes(_STAGE_ELEMENTS, moments, split=split) + 4 * _STAGE_ELEMENTS)


def full_need(
    shape: ModelShape, full: FullPlan, micro_tokens: int, *, clip: bool, on_cpu: bool
) -> MemoryNeed:
    """Return the bytes that a plan takes.

    Args:
        shape: sizes.
        full: where everything is.
        micro_tokens: most tokens of a micro-batch.
        clip: gradients wait in host memory for the global norm.
        on_cpu: the passes run on the CPU, in fp32.
    """
    width = 4 if on_cpu else 2
    layer, ends = shape.layer_params, end_sizes(shape)
    level = full.max_tokens * shape.hidden * width
    rows = (shape.num_layers + 1) * level
    on_drives = drive_state_bytes(shape, full, split=not on_cpu)
    passes = {"gradients of layers": full.grad_slots * layer * width}
    if not on_cpu and full.max_tokens > micro_tokens:
        passes["sum over micro-batches"] = 4 * layer
    if full.rows == "device":
        passes["inputs of layers"] = rows
    passes["one layer's pass, or the head's"] = _working_bytes(shape, micro_tokens, on_cpu)
    state = state_bytes(shape, full.moments, split=not on_cpu) - on_drives
    host = {
        "weights and optimizer state": state,
        **_waiting(shape, full, width, clip=clip),
        **_drive_buffers(shape, full, micro_tokens, width, split=not on_cpu),
    }
    disk = {"checkpoints": RESULT_COPIES * state, "result": shape.total_params * width}
    if full.nvme is not None:
        rows -= len(full.nvme.rows) * level
        disk[STATE_ON_DRIVES] = RESULT_COPIES * on_drives
        if full.nvme.rows:
            disk[ROWS_ON_DRIVES] = len(full.nvme.rows) * level
    if on_cpu:
        passes["gradients of embedding and head"] = 4 * sum(ends)
        if full.rows == "host":
            host["inputs of layers"] = rows
        host |= passes | {"process and libraries": HOST_PROCESS_BYTES}
        return MemoryNeed(device={}, host=host, disk=disk)
    held = shape.num_layers if full.weights == "resident" else full.weight_slots
    device = {
        "weights of layers": held * layer * width,
        "embedding and head, with gradients": (width + 4) * sum(ends),
        **passes,
    }
    if full.engine != "cpu":
        device["optimizer state on its way"] = stage_bytes(full.moments, split=True)
    if full.rows == "host":
        device["inputs of layers on their way"] = _ROW_BUFFERS * micro_tokens * shape.hidden * width
        host["inputs of layers"] = rows
    device["driver context"] = DEVICE_CONTEXT_BYTES
    host["process and libraries"] = DEVICE_HOST_BYTES
    return MemoryNeed(device=device, host=host, disk=disk)


def _waiting(shape: ModelShape, full: FullPlan, width: int, *, clip: bool) -> dict[str, int]:
    """Return the host memory of gradients that wait for their update."""
    layer, ends = shape.layer_params * width, [4 * size for size in end_sizes(shape)]
    if clip:
        waiting = shape.num_layers * _padded(layer) + sum(map(_padded, ends))
        return {"gradients that wait for the global norm": waiting}
    if full.engine == "gpu":
        return {}
    if full.engine == "cpu":
        waiting = full.host_grad_slots * _padded(max(layer, *ends))
    else:
        # Half of the embedding is the CPU's, with a place of its own (`sliding.build`).
        half = end_sizes(shape)[0] // 2 // _MOMENT_BLOCK * _MOMENT_BLOCK
        waiting = full.host_grad_slots * _padded(layer) + _padded(4 * half)
    return {"gradients that wait for the CPU": waiting}


def _drive_buffers(
    shape: ModelShape, full: FullPlan, micro_tokens: int, width: int, *, split: bool
) -> dict[str, int]:
    """Return the host memory that what is on drives passes through."""
    tier = full.nvme
    if tier is None:
        return {}
    stages = tier.state_stages * unit_bytes(tier.chunk_elements, full.moments, split=split)
    weights = tier.weight_stages * width * shape.layer_params
    rows = tier.row_stages * micro_tokens * shape.hidden * width
    # A card has the ends; a CPU's passes read them in the RAM.
    sizes = unit_sizes(shape)
    ends = sum(4 * sizes[unit] for unit in tier.master if unit >= shape.num_layers)
    held = {"embedding and head, of the drives": ends} if ends and not split else {}
    return {"state on its way to and from drives": stages + weights + rows} | held


def _working_bytes(shape: ModelShape, tokens: int, on_cpu: bool) -> int:
    """Return what a micro-batch holds while one layer, or the head, is differentiated."""
    if not on_cpu:
        return 2 * card_pass_elements(shape, tokens, trained=True)
    copies = _CPU_LOGIT_COPIES[shape.final_soft_cap is not None]
    logits = copies * head_chunk_elements(shape, tokens, on_cpu=True)
    layer = _CPU_LAYER_FACTOR * layer_kept_elements(shape) * tokens
    return 4 * max(head_row_elements(shape, tokens) + logits, layer + largest_matrix(shape))
