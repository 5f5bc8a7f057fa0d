"""How much memory and disk LoRA lanes on one base need, and the plan that follows. Torch-free.

Bytes are counted from the shape: weights at the run's precision, each adapter's fp32 master,
gradient and two moments, what a layer saves for its backward pass, and the head's chunk of logits.
A micro-batch passes both ways before the next one begins, so what is kept follows from its size,
which the plan chooses.
"""

import math
from collections.abc import Sequence
from typing import Final, Literal

from slidepack.engine.contract.errors import SlidepackError
from slidepack.engine.contract.job import LORA_TARGETS, JobSpec, LoraMethod
from slidepack.engine.contract.plan import ActivationPolicy, Residency, RunPlan
from slidepack.engine.memory_lanes import (
    ADAPTER_BYTES_PER_PARAM,
    MOST_PASS_TOKENS,
    LaneSizes,
    plan_lane_slide,
)
from slidepack.engine.memory_parts import (
    DEVICE_CONTEXT_BYTES,
    DEVICE_HOST_BYTES,
    GIB,
    HOST_PROCESS_BYTES,
    Machine,
    MemoryNeed,
    activation_bytes_per_token,
    logit_bytes,
    too_small,
    usable_bytes,
)
from slidepack.engine.shape import ModelShape

__all__ = [
    "base_format",
    "frozen_bytes",
    "lora_precision",
    "plan_lanes",
    "plan_lora",
    "plan_sizes",
    "resident_need",
]

BaseFormat = Literal["plain", "nf4"]

_NF4_BLOCK: Final = 64
"""Elements that share a scale."""

_FEW_TOKENS: Final = 2048
"""Recomputing costs a third more work; smaller passes than this would cost more than that."""


def lora_precision(method: LoraMethod, device: str) -> Literal["fp32", "bf16"]:
    """Return the precision of a run's passes; a 4-bit base is widened to it."""
    match method.base_precision:
        case "auto" | "nf4":
            return "fp32" if device == "cpu" else "bf16"
        case precision:
            return precision


def base_format(method: LoraMethod) -> BaseFormat:
    """Return how a run's base is held."""
    return "nf4" if method.base_precision == "nf4" else "plain"


def frozen_bytes(shape: ModelShape, width_bytes: int, form: BaseFormat) -> int:
    """Return what a frozen base takes where the passes run."""
    if form == "plain":
        return shape.total_params * width_bytes
    ends = shape.total_params - shape.num_layers * shape.layer_params
    linears = sum(math.prod(shape.linear_shape(target)) for target in LORA_TARGETS)
    small = shape.layer_params - linears
    # Half a byte an element and a scale for 64; one layer is widened at a time.
    narrow = linears // 2 + 4 * -(-linears // _NF4_BLOCK)
    layers = shape.num_layers * (narrow + small * width_bytes)
    return ends * width_bytes + layers + shape.layer_params * width_bytes


def plan_lora(spec: JobSpec, shape: ModelShape, machine: Machine) -> tuple[RunPlan, MemoryNeed]:
    """Decide how a run of one lane uses the machine, or say why it cannot.

    Raises:
        SlidepackError: RAM-TOO-SMALL or GPU-OUT-OF-MEMORY.
    """
    return plan_lanes([spec], shape, machine)


def plan_lanes(
    specs: Sequence[JobSpec], shape: ModelShape, machine: Machine
) -> tuple[RunPlan, MemoryNeed]:
    """Decide how lanes over one base use the machine together, or say why they cannot.

    Activations are kept where a pass that is large enough fits with them; else each layer is
    recomputed in the backward pass. Where not even the base fits the card, it slides.

    Args:
        specs: of the lanes, at least one, of the same base and precision.
        shape: of the base.
        machine: what is free.

    Raises:
        SlidepackError: RAM-TOO-SMALL or GPU-OUT-OF-MEMORY.
    """
    methods = [spec.method for spec in specs if isinstance(spec.method, LoraMethod)]
    return plan_sizes(LaneSizes.of(specs, shape), methods[0], shape, machine)


def plan_sizes(
    lanes: LaneSizes, method: LoraMethod, shape: ModelShape, machine: Machine
) -> tuple[RunPlan, MemoryNeed]:
    """Decide as `plan_lanes` does, by what the lanes add up to.

    Args:
        lanes: sizes of the pack.
        method: that says how the base is held.
        shape: of the base.
        machine: what is free.

    Raises:
        SlidepackError: RAM-TOO-SMALL or GPU-OUT-OF-MEMORY.
    """
    precision = lora_precision(method, machine.device)
    form = base_format(method)
    try:
        return _resident(lanes, precision, form, shape, machine)
    except SlidepackError as error:
        if machine.device == "cpu" or error.report.code != "GPU-OUT-OF-MEMORY":
            raise
        if (precision, form) != ("bf16", "plain"):
            raise
        sliding = plan_lane_slide(lanes, shape, machine)
        if sliding is None:
            raise
        return sliding


def resident_need(
    lanes: LaneSizes,
    shape: ModelShape,
    form: BaseFormat,
    policy: ActivationPolicy,
    tokens: int,
    *,
    width_bytes: int,
    on_cpu: bool,
) -> MemoryNeed:
    """Return the bytes of lanes over a base that stays where the passes run.

    Args:
        lanes: sizes of the pack.
        shape: of the base.
        form: how the base is held.
        policy: of the activations.
        tokens: most of a micro-batch.
        width_bytes: of an element of the passes.
        on_cpu: whether they run there.
    """
    parts = _fixed_parts(lanes, shape, form, width_bytes=width_bytes, on_cpu=on_cpu)
    parts["logits of a chunk"] = logit_bytes(shape, tokens, width_bytes, on_cpu=on_cpu)
    per_token = activation_bytes_per_token(shape, policy, width_bytes, on_cpu=on_cpu)
    parts["activations"] = tokens * per_token
    host = {
        "process and libraries": DEVICE_HOST_BYTES,
        "layers on their way": shape.total_params * width_bytes // 8,
    }
    return MemoryNeed(
        device={} if on_cpu else parts, host=parts if on_cpu else host, disk=lanes.disk
    )


def _fixed_parts(
    lanes: LaneSizes, shape: ModelShape, form: BaseFormat, *, width_bytes: int, on_cpu: bool
) -> dict[str, int]:
    """Return what does not depend on the micro-batch."""
    beside = (
        {"process and libraries": HOST_PROCESS_BYTES}
        if on_cpu
        else {"driver context": DEVICE_CONTEXT_BYTES}
    )
    return {
        "frozen weights": frozen_bytes(shape, width_bytes, form),
        "adapters, their gradients and moments": lanes.params * ADAPTER_BYTES_PER_PARAM,
    } | beside


def _resident(
    lanes: LaneSizes,
    precision: Literal["fp32", "bf16"],
    form: BaseFormat,
    shape: ModelShape,
    machine: Machine,
) -> tuple[RunPlan, MemoryNeed]:
    width_bytes = 4 if precision == "fp32" else 2
    on_cpu = machine.device == "cpu"
    most = max(lanes.longest, min(lanes.step_tokens, MOST_PASS_TOKENS))
    fixed = _fixed_parts(lanes, shape, form, width_bytes=width_bytes, on_cpu=on_cpu)
    free = machine.ram_available_bytes if on_cpu else machine.device_free_bytes
    room = usable_bytes(free) - sum(fixed.values())
    policy, tokens = _fit(shape, width_bytes, room, lanes.longest, most, on_cpu=on_cpu)
    need = resident_need(lanes, shape, form, policy, tokens, width_bytes=width_bytes, on_cpu=on_cpu)
    needed = need.host_bytes if on_cpu else need.device_bytes
    if needed > usable_bytes(free):
        raise too_small(on_cpu, needed, free)
    if need.host_bytes > usable_bytes(machine.ram_available_bytes):
        raise too_small(True, need.host_bytes, machine.ram_available_bytes)
    on_device: tuple[Residency, ...] = tuple("device" for _ in range(shape.num_layers))
    plan = RunPlan(
        device=machine.device,
        precision=precision,
        layer_weights=on_device,
        layer_activations=(policy,) * shape.num_layers,
        optimizer_state="device",
        cpu_threads=machine.cpu_threads,
        micro_batch_tokens=tokens,
        predicted_device_bytes=need.device_bytes,
        predicted_host_bytes=need.host_bytes,
        predicted_disk_bytes=need.disk_bytes,
        reason=_reason(policy, tokens, lanes.step_tokens, needed, free, on_cpu=on_cpu),
        base_format=form,
    )
    return plan, need


def _fit(
    shape: ModelShape, width_bytes: int, room: int, longest: int, most: int, *, on_cpu: bool
) -> tuple[ActivationPolicy, int]:
    """Return policy and tokens of a micro-batch that fit into `room`, the best, or the least."""
    enough = max(longest, min(most, _FEW_TOKENS))
    choices: tuple[tuple[ActivationPolicy, int], ...] = (("keep", enough), ("recompute", longest))
    for policy, least in choices:
        fitting = _fitting_tokens(shape, policy, width_bytes, room, on_cpu=on_cpu)
        if fitting >= least:
            return policy, min(most, fitting)
    return "recompute", longest


def _fitting_tokens(
    shape: ModelShape, policy: ActivationPolicy, width_bytes: int, room: int, *, on_cpu: bool
) -> int:
    """Return how many tokens' activations and logits fit into `room`; not more than matter."""
    per_token = activation_bytes_per_token(shape, policy, width_bytes, on_cpu=on_cpu)
    all_logits = logit_bytes(shape, MOST_PASS_TOKENS, width_bytes, on_cpu=on_cpu)
    fitting = (room - all_logits) // per_token
    # Fewer tokens than a chunk of logits takes have fewer logits.
    with_each = room // (per_token + logit_bytes(shape, 1, width_bytes, on_cpu=on_cpu))
    return max(fitting, with_each)


def _reason(
    policy: ActivationPolicy, tokens: int, step: int, needed: int, free: int, *, on_cpu: bool
) -> str:
    where = "RAM" if on_cpu else "VRAM"
    sizes = f"{needed / GIB:.1f} of {free / GIB:.1f} GiB free {where}"
    passes = f", at most {tokens} of a step's {step} tokens at a time" if tokens < step else ""
    if policy == "keep":
        return f"Activations are kept and nothing is recomputed{passes} ({sizes})."
    return (
        f"Kept activations would not fit, so each layer is recomputed in the backward pass{passes} "
        f"({sizes})."
    )
