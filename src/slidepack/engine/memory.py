"""How much memory and disk a LoRA run needs, and the plan that follows. Torch-free.

Bytes are counted from the shape: weights at the run's precision, the adapter's fp32 master,
gradient and two moments, what a layer saves for its backward pass, and the head's chunk of logits.
"""

from typing import Final, Literal

import msgspec

from slidepack.engine.contract.errors import SlidepackError
from slidepack.engine.contract.job import JobSpec, LoraMethod
from slidepack.engine.contract.plan import ActivationPolicy, Residency, RunPlan
from slidepack.engine.shape import ModelShape

GIB: Final = 1 << 30

_HOST_PROCESS_BYTES: Final = 400 << 20
"""Interpreter and the CPU build of torch, before the first weight."""
_DEVICE_HOST_BYTES: Final = 1536 << 20
"""The same with a GPU build and its driver (measured: 1.45 GB with torch 2.11 and CUDA 13.0)."""
_DEVICE_CONTEXT_BYTES: Final = 900 << 20
"""Driver context, libraries and allocator slack on a GPU."""
_HEAD_CHUNK_ELEMENTS: Final = 1 << 25
"""Logits that `kernels.linear_cross_entropy` holds at once."""
_HEAD_BYTES_PER_LOGIT: Final = 8
"""The logit in fp32 and one temporary."""
_ADAPTER_BYTES_PER_PARAM: Final = 16
"""fp32 master, gradient and two moments."""
_HEADROOM: Final = 0.9
"""Share of the free memory that a plan may use."""
_RESULT_COPIES: Final = 3
"""Two checkpoints kept and one being written."""


class Machine(msgspec.Struct, frozen=True, kw_only=True):
    """What a run may use, as probed just before it starts."""

    device: str
    """`cpu` or `cuda:N`."""
    device_free_bytes: int
    """Free VRAM; ignored for `cpu`."""
    ram_available_bytes: int
    cpu_threads: int


def run_precision(spec: JobSpec, device: str) -> Literal["fp32", "bf16"]:
    """Return the precision a run's base is held in.

    Raises:
        SlidepackError: RUN-METHOD-UNSUPPORTED for what no kernel is there for yet.
    """
    if not isinstance(spec.method, LoraMethod):
        raise SlidepackError(
            "RUN-METHOD-UNSUPPORTED",
            "Full fine-tuning is not built yet.",
            why="the job's method is full",
            fix="Use LoRA for now.",
        )
    match spec.method.base_precision:
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


def activation_bytes_per_token(
    shape: ModelShape, policy: ActivationPolicy, width_bytes: int, *, dropout: bool = False
) -> int:
    """Return the bytes one token of a micro-batch holds between forward and backward, all layers.

    `keep` saves what autograd needs of every operation; `recompute` saves each layer's input. With
    dropout, each of the seven linears saves a mask and a dropped copy of its input.
    """
    kept = 7 * shape.hidden + 4 * shape.q_width + 3 * shape.kv_width + 5 * shape.ffn
    # Each norm more holds its input, which nothing else would.
    if shape.sandwich_norms:
        kept += 2 * shape.hidden
    if shape.qk_norm:
        kept += shape.q_width + shape.kv_width
    if dropout:
        kept += 2 * (5 * shape.hidden + shape.q_width + shape.ffn)
    if policy == "keep":
        return kept * shape.num_layers * width_bytes
    return (shape.hidden * shape.num_layers + 2 * kept) * width_bytes


def plan_run(spec: JobSpec, shape: ModelShape, machine: Machine) -> RunPlan:
    """Decide how a LoRA run uses the machine, or say why it cannot.

    Activations are kept where those of a whole step fit; else each layer is recomputed in the
    backward pass, of the whole step at once where that fits, and else of one micro-batch at a time.

    Raises:
        SlidepackError: RUN-METHOD-UNSUPPORTED, RAM-TOO-SMALL or GPU-OUT-OF-MEMORY.
    """
    precision = run_precision(spec, machine.device)
    assert isinstance(spec.method, LoraMethod)
    width_bytes = 4 if precision == "fp32" else 2
    on_cpu = machine.device == "cpu"
    adapter = shape.lora_params(spec.method.rank, spec.method.targets)
    longest = min(spec.max_seq_len, shape.max_positions)
    logits = min(_HEAD_CHUNK_ELEMENTS, spec.batch_size * longest * shape.vocab)
    fixed = (
        shape.total_params * width_bytes
        + adapter * _ADAPTER_BYTES_PER_PARAM
        + logits * _HEAD_BYTES_PER_LOGIT
    )
    fixed += _HOST_PROCESS_BYTES if on_cpu else _DEVICE_CONTEXT_BYTES
    free = machine.ram_available_bytes if on_cpu else machine.device_free_bytes
    budget = int(free * _HEADROOM)
    policy, tokens, needed = _fit(spec, shape, width_bytes, budget - fixed, longest)
    if fixed + needed > budget:
        raise _too_small(on_cpu, fixed + needed, free)
    host = fixed + needed if on_cpu else _DEVICE_HOST_BYTES + shape.total_params * width_bytes // 8
    if not on_cpu and host > int(machine.ram_available_bytes * _HEADROOM):
        raise _too_small(True, host, machine.ram_available_bytes)
    on_device: tuple[Residency, ...] = tuple("device" for _ in range(shape.num_layers))
    return RunPlan(
        device=machine.device,
        precision=precision,
        layer_weights=on_device,
        layer_activations=(policy,) * shape.num_layers,
        optimizer_state="device",
        cpu_threads=machine.cpu_threads,
        micro_batch_tokens=tokens,
        predicted_device_bytes=0 if on_cpu else fixed + needed,
        predicted_host_bytes=host,
        predicted_disk_bytes=adapter * (_RESULT_COPIES * 12 + 4),
        reason=_reason(policy, tokens, fixed + needed, free, on_cpu),
    )


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


def _too_small(on_cpu: bool, needed: int, free: int) -> SlidepackError:
    return SlidepackError(
        "RAM-TOO-SMALL" if on_cpu else "GPU-OUT-OF-MEMORY",
        "The job does not fit this machine's memory.",
        why=f"it needs about {needed / GIB:.1f} GiB, {free / GIB:.1f} GiB are free "
        f"and a tenth of that is held back",
        fix="Choose a smaller model, batch size or max_seq_len, or close other programs.",
    )
