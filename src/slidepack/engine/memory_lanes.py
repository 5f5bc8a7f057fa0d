"""How much memory LoRA lanes need whose base slides through the card. Torch-free."""

from collections.abc import Iterator, Mapping, Sequence
from typing import Final, Literal, Self

import msgspec

from slidepack.engine.contract.job import JobSpec, LoraMethod
from slidepack.engine.contract.plan import LaneSlidePlan, Residency, RunPlan
from slidepack.engine.memory_parts import (
    DEVICE_CONTEXT_BYTES,
    DEVICE_HOST_BYTES,
    GIB,
    RESULT_COPIES,
    Machine,
    MemoryNeed,
    usable_bytes,
)
from slidepack.engine.memory_pass import card_pass_elements
from slidepack.engine.shape import ModelShape

__all__ = [
    "ADAPTER_BYTES_PER_PARAM",
    "MOST_PASS_TOKENS",
    "LaneSizes",
    "lane_slide_choices",
    "lane_slide_need",
    "plan_lane_slide",
]

ADAPTER_BYTES_PER_PARAM: Final = 16
"""Master in fp32, gradient and two moments."""
MOST_PASS_TOKENS: Final = 16_384
"""Larger passes are no faster."""
_CHECKPOINT_BYTES_PER_PARAM: Final = 12
_RESULT_BYTES_PER_PARAM: Final = 4
_SLOTS: Final = (4, 3, 2)
_SLOT_BYTES_PER_PARAM: Final = 6
"""Of the lanes' layers on the card: what the passes read, and the gradient in fp32."""
_ROW_BUFFERS: Final = 12
"""Micro-batches of rows on the card on their way in and out."""
_WIDTH: Final = 2


class LaneSizes(msgspec.Struct, frozen=True, kw_only=True):
    """What the lanes of a pack add up to."""

    params: int
    """Of all adapters."""
    longest: int
    """Most tokens of a row."""
    step_tokens: int
    """Most tokens of a step of all lanes."""

    @classmethod
    def of(cls, specs: Sequence[JobSpec], shape: ModelShape) -> Self:
        """Add up the lanes of these jobs."""
        methods = [spec.method for spec in specs if isinstance(spec.method, LoraMethod)]
        lengths = [min(spec.max_seq_len, shape.max_positions) for spec in specs]
        return cls(
            params=sum(shape.lora_params(method.rank, method.targets) for method in methods),
            longest=max(lengths),
            step_tokens=sum(
                spec.batch_size * length for spec, length in zip(specs, lengths, strict=True)
            ),
        )

    @property
    def disk(self) -> Mapping[str, int]:
        """Bytes of checkpoints and results."""
        return {
            "checkpoints": self.params * RESULT_COPIES * _CHECKPOINT_BYTES_PER_PARAM,
            "result": self.params * _RESULT_BYTES_PER_PARAM,
        }


def plan_lane_slide(
    lanes: LaneSizes, shape: ModelShape, machine: Machine
) -> tuple[RunPlan, MemoryNeed] | None:
    """Return the best plan in which base and lanes slide through the card, or None if none fits.

    Args:
        lanes: sizes of the pack.
        shape: of the base.
        machine: what is free; its device is a GPU.
    """
    for slide, micro in lane_slide_choices(lanes):
        need = lane_slide_need(lanes, shape, slide, micro)
        if need.device_bytes <= usable_bytes(
            machine.device_free_bytes
        ) and need.host_bytes <= usable_bytes(machine.ram_available_bytes):
            return _plan(shape, machine, slide, micro, need), need
    return None


def lane_slide_choices(lanes: LaneSizes) -> Iterator[tuple[LaneSlidePlan, int]]:
    """Yield slots, places of rows and micro-batches, the best first."""
    micro = max(lanes.longest, min(lanes.step_tokens, MOST_PASS_TOKENS))
    sizes = [micro]
    while sizes[-1] > lanes.longest:
        sizes.append(max(lanes.longest, sizes[-1] // 2))
    places: tuple[Literal["device", "host"], ...] = ("device", "host")
    for size in sizes:
        for slots in _SLOTS:
            for rows in places:
                yield (
                    LaneSlidePlan(slots=slots, rows=rows, max_tokens=max(micro, lanes.step_tokens)),
                    size,
                )


def lane_slide_need(
    lanes: LaneSizes, shape: ModelShape, slide: LaneSlidePlan, micro: int
) -> MemoryNeed:
    """Return the bytes of lanes over a base that slides.

    Args:
        lanes: sizes of the pack.
        shape: of the base.
        slide: slots, and where rows are.
        micro: most tokens of a micro-batch.
    """
    layers = shape.num_layers
    lane_layer = -(-lanes.params // layers)
    ends = shape.total_params - layers * shape.layer_params
    rows = (layers + 1) * slide.max_tokens * shape.hidden * _WIDTH
    device = {
        "weights of layers": slide.slots * shape.layer_params * _WIDTH,
        "lanes of layers": slide.slots * lane_layer * _SLOT_BYTES_PER_PARAM,
        "embedding and head": ends * _WIDTH,
        "one layer's pass, or the head's": _WIDTH * card_pass_elements(shape, micro, trained=False),
        "driver context": DEVICE_CONTEXT_BYTES,
    }
    host = {
        "frozen weights": layers * shape.layer_params * _WIDTH,
        "adapters, their gradients and moments": lanes.params * ADAPTER_BYTES_PER_PARAM,
        "process and libraries": DEVICE_HOST_BYTES,
    }
    if slide.rows == "device":
        device["inputs of layers"] = rows
    else:
        device["inputs of layers on their way"] = _ROW_BUFFERS * micro * shape.hidden * _WIDTH
        host["inputs of layers"] = rows
    return MemoryNeed(device=device, host=host, disk=lanes.disk)


def _plan(
    shape: ModelShape, machine: Machine, slide: LaneSlidePlan, micro: int, need: MemoryNeed
) -> RunPlan:
    layers = shape.num_layers
    in_host: tuple[Residency, ...] = tuple("host" for _ in range(layers))
    where = "stay on the card" if slide.rows == "device" else "wait in RAM"
    reason = (
        f"The base does not fit the card, so a window of {slide.slots} of {layers} layers slides "
        f"over it ({need.device_bytes / GIB:.1f} of {machine.device_free_bytes / GIB:.1f} GiB free "
        f"VRAM), {micro} tokens at a time; layers are recomputed in the backward pass, and their "
        f"inputs {where}; adapters are updated in RAM "
        f"({need.host_bytes / GIB:.1f} of {machine.ram_available_bytes / GIB:.1f} GiB free)."
    )
    return RunPlan(
        device=machine.device,
        precision="bf16",
        layer_weights=in_host,
        layer_activations=("recompute" if slide.rows == "device" else "offload",) * layers,
        optimizer_state="host",
        cpu_threads=machine.cpu_threads,
        micro_batch_tokens=micro,
        predicted_device_bytes=need.device_bytes,
        predicted_host_bytes=need.host_bytes,
        predicted_disk_bytes=need.disk_bytes,
        reason=reason,
        slide=slide,
    )
