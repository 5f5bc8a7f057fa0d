"""How much memory and disk a LoRA run needs, and the plan that follows. Torch-free.

Bytes are counted from the shape: weights at the run's precision, the adapter's fp32 master,
gradient and two moments, what a layer saves for its backward pass, and the head's chunk of logits.
"""

from typing import Final, Literal

from slidepack.engine.contract.errors import SlidepackError
from slidepack.engine.contract.job import JobSpec, LoraMethod
from slidepack.engine.contract.plan import ActivationPolicy, Residency, RunPlan
from slidepack.engine.memory_parts import (
    DEVICE_CONTEXT_BYTES,
    DEVICE_HOST_BYTES,
    GIB,
    HOST_PROCESS_BYTES,
    RESULT_COPIES,
    Machine,
    MemoryNeed,
    activation_bytes_per_token,
    too_small,
    usable_bytes,
)
from slidepack.engine.shape import ModelShape

__all__ = ["lora_precision", "plan_lora"]

_HEAD_CHUNK_ELEMENTS: Final = 1 << 25
"""Logits that `kernels.linear_cross_entropy` holds at once."""
_HEAD_BYTES_PER_LOGIT: Final = 8
"""The logit in fp32 and one temporary."""
_ADAPTER_BYTES_PER_PARAM: Final = 16
"""fp32 master, gradient and two moments."""
_CHECKPOINT_BYTES_PER_PARAM: Final = 12
_RESULT_BYTES_PER_PARAM: Final = 4


def lora_precision(method: LoraMethod, device: str) -> Literal["fp32", "bf16"]:
    """Return the precision a run's base is held in.

    Raises:
        SlidepackError: RUN-METHOD-UNSUPPORTED for what no kernel is there for yet.
    """
    match method.base_precision:
        case "nf4":
            raise SlidepackError(
                "RUN-METHOD-UNSUPPORTED",
                "A 4-bit base is not built yet.",
                why="base_precision is nf4",
                fix="Use auto, bf16 or fp32.",
            )
        case "auto":
            return "fp32" if device == "cpu" else "bf16"
        case precision:
            return precision


def plan_lora(spec: JobSpec, shape: ModelShape, machine: Machine) -> tuple[RunPlan, MemoryNeed]:
    """Decide how a LoRA run uses the machine, or say why it cannot.

    Activations are kept where those of a whole step fit; else each layer is recomputed in the
    backward pass, of the whole step at once where that fits, and else of one micro-batch at a time.

    Raises:
        SlidepackError: RUN-METHOD-UNSUPPORTED, RAM-TOO-SMALL or GPU-OUT-OF-MEMORY.
    """
    assert isinstance(spec.method, LoraMethod)
    precision = lora_precision(spec.method, machine.device)
    width_bytes = 4 if precision == "fp32" else 2
    on_cpu = machine.device == "cpu"
    adapter = shape.lora_params(spec.method.rank, spec.method.targets)
    longest = min(spec.max_seq_len, shape.max_positions)
    logits = min(_HEAD_CHUNK_ELEMENTS, spec.batch_size * longest * shape.vocab)
    parts = {
        "frozen weights": shape.total_params * width_bytes,
        "adapter, its gradient and moments": adapter * _ADAPTER_BYTES_PER_PARAM,
        "logits of a chunk": logits * _HEAD_BYTES_PER_LOGIT,
    }
    parts |= (
        {"process and libraries": HOST_PROCESS_BYTES}
        if on_cpu
        else {"driver context": DEVICE_CONTEXT_BYTES}
    )
    fixed = sum(parts.values())
    free = machine.ram_available_bytes if on_cpu else machine.device_free_bytes
    budget = usable_bytes(free)
    policy, tokens, needed = _fit(spec, shape, width_bytes, budget - fixed, longest)
    if fixed + needed > budget:
        raise too_small(on_cpu, fixed + needed, free)
    parts["activations"] = needed
    host = {
        "process and libraries": DEVICE_HOST_BYTES,
        "layers on their way": shape.total_params * width_bytes // 8,
    }
    need = MemoryNeed(
        device={} if on_cpu else parts,
        host=parts if on_cpu else host,
        disk={
            "checkpoints": adapter * RESULT_COPIES * _CHECKPOINT_BYTES_PER_PARAM,
            "result": adapter * _RESULT_BYTES_PER_PARAM,
        },
    )
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
        reason=_reason(policy, tokens, fixed + needed, free, on_cpu),
    )
    return plan, need


def _fit(
    spec: JobSpec, shape: ModelShape, width_bytes: int, room: int, longest: int
) -> tuple[ActivationPolicy, int, int]:
    """Return policy, micro-batch tokens and activation bytes that fit into `room`, best first."""
    assert isinstance(spec.method, LoraMethod)
    dropout = spec.method.dropout > 0.0
    whole_step = spec.batch_size * longest
    for policy in ("keep", "recompute"):
        per_token = activation_bytes_per_token(shape, policy, width_bytes, dropout=dropout)
        # The layer walk holds every micro-batch of a step, so cutting a step does not save kept
        # activations; it bounds what one layer's pass holds on top.
        if per_token * whole_step <= room:
            return policy, whole_step, per_token * whole_step
    kept_inputs = shape.hidden * shape.num_layers * width_bytes * whole_step
    live = (
        activation_bytes_per_token(shape, "keep", width_bytes, dropout=dropout)
        * 2
        // shape.num_layers
    )
    tokens = max(longest, (room - kept_inputs) // max(1, live))
    return "recompute", tokens, kept_inputs + live * tokens


def _reason(policy: ActivationPolicy, tokens: int, needed: int, free: int, on_cpu: bool) -> str:
    where = "RAM" if on_cpu else "VRAM"
    sizes = f"{needed / GIB:.1f} of {free / GIB:.1f} GiB free {where}"
    if policy == "keep":
        return f"Everything fits ({sizes}), so activations are kept and nothing is recomputed."
    return (
        f"Kept activations would not fit, so each layer is recomputed in the backward pass, "
        f"{tokens} tokens at a time ({sizes})."
    )
