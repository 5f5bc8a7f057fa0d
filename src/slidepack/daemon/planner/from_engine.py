"""Jobs and machines in the planner's terms, by what the engine's own predictions say of them."""

from dataclasses import dataclass
from typing import Final

from slidepack.daemon.planner.cost import StepCost
from slidepack.daemon.planner.tasks import BaseOnDevice, FullRun, PassBytes, Task
from slidepack.engine.contract.job import JobSpec, LoraMethod
from slidepack.engine.contract.plan import ActivationPolicy, LaneSlidePlan
from slidepack.engine.memory_lanes import (
    ADAPTER_BYTES_PER_PARAM,
    MOST_PASS_TOKENS,
    LaneSizes,
    lane_slide_need,
)
from slidepack.engine.memory_lora import base_format, frozen_bytes, lora_precision
from slidepack.engine.memory_parts import (
    DEVICE_CONTEXT_BYTES,
    HOST_PROCESS_BYTES,
    Machine,
    activation_bytes_per_token,
    logit_bytes,
    usable_bytes,
)
from slidepack.engine.memory_pass import (
    card_layer_elements,
    head_chunk_elements,
    head_row_elements,
)
from slidepack.engine.rates import Rates
from slidepack.engine.shape import ModelShape
from slidepack.engine.timing import lora_step, work_of

__all__ = [
    "base_on_device",
    "full_task",
    "guessed_startup_seconds",
    "lora_task",
    "memory_to_plan",
    "model_key",
]

_KEEP_TOKENS: Final = 2048
"""Of a pass: the engine's plan recomputes rather than have smaller ones."""
_LANE_SECONDS: Final = 2e-4
"""A guess until it is measured: all lanes are updated at once, and each has rows to build."""
_LIBRARIES_SECONDS: Final = 12.0
_LOAD_BYTES_PER_SECOND: Final = 1.5e9
"""A guess of a worker's start until it is measured."""
_FEWEST_SLOTS: Final = 2
_SLIDE_WIDTH: Final = 2


def model_key(spec: JobSpec, device: str) -> str:
    """Return what tasks must have in common to share a pack: base, and how it is held and read."""
    assert isinstance(spec.method, LoraMethod)
    precision = lora_precision(spec.method, device)
    return f"{spec.base.content_hash}|{precision}|{base_format(spec.method)}"


def guessed_startup_seconds(size: int) -> float:
    """Return the seconds until the first step of a worker that loads so many bytes."""
    return _LIBRARIES_SECONDS + size / _LOAD_BYTES_PER_SECOND


def memory_to_plan(machine: Machine) -> int:
    """Return the bytes of a device that plans may use."""
    on_cpu = machine.device == "cpu"
    return usable_bytes(machine.ram_available_bytes if on_cpu else machine.device_free_bytes)


def lora_task(
    key: str, spec: JobSpec, shape: ModelShape, *, steps: int, row_tokens: float, device: str
) -> Task:
    """Return one lane.

    Args:
        key: of the job.
        spec: of the job.
        shape: of its base.
        steps: that are left.
        row_tokens: of a row, on average; a step has as many as its rows have together.
        device: that says which precision `auto` is, `cpu` or a GPU.
    """
    assert isinstance(spec.method, LoraMethod)
    longest = min(spec.max_seq_len, shape.max_positions)
    return Task(
        key=key,
        model=model_key(spec, device),
        steps=steps,
        tokens=max(1, round(spec.batch_size * min(row_tokens, longest))),
        most_tokens=spec.batch_size * longest,
        params=shape.lora_params(spec.method.rank, spec.method.targets),
        longest=longest,
    )


def full_task(
    key: str, *, steps: int, step_seconds: dict[str, float], startup_seconds: float, refusal: str
) -> Task:
    """Return a full fine-tuning.

    Args:
        key: of the job.
        steps: that are left.
        step_seconds: by device, as `engine.timing.step_time` says; it does not fit the others.
        startup_seconds: until its first step.
        refusal: why it does not fit those.
    """
    run = FullRun(step_seconds=step_seconds, startup_seconds=startup_seconds, refusal=refusal)
    return Task(key=key, steps=steps, full=run)


def base_on_device(
    method: LoraMethod,
    shape: ModelShape,
    machine: Machine,
    rates: Rates,
    *,
    sequence: int,
    cost: StepCost | None = None,
    startup_seconds: float | None = None,
    lane_seconds_once: float | None = None,
) -> BaseOnDevice | None:
    """Return how a base trains on a device, or None where it cannot.

    Args:
        method: that says how the base is held.
        shape: of the base.
        machine: what is free.
        rates: of the machine.
        sequence: tokens of a usual row.
        cost: learned from samples; None takes the engine's prediction.
        startup_seconds: of a worker as measured; None guesses.
        lane_seconds_once: that a lane holds its pack up, as measured; None takes it for nothing.
    """
    on_cpu = machine.device == "cpu"
    stays = _resident(method, shape, machine.device)
    sizes: _Sizes | None = stays
    slides = stays.fixed_bytes + stays.recompute.of(1) > memory_to_plan(machine)
    if slides:
        plain = base_format(method) == "plain"
        may_slide = plain and lora_precision(method, machine.device) == "bf16" and not on_cpu
        sizes = _sliding(shape, machine) if may_slide else None
    if sizes is None:
        return None
    again = _predicted(shape, rates, sequence, keep=False, slides=slides, on_cpu=on_cpu)
    kept = again
    if not slides:
        kept = _predicted(shape, rates, sequence, keep=True, slides=False, on_cpu=on_cpu)
    guess = guessed_startup_seconds(sizes.fixed_bytes)
    return BaseOnDevice(
        cost=cost or kept,
        fixed_bytes=sizes.fixed_bytes,
        bytes_per_param=sizes.bytes_per_param,
        bytes_each=0 if on_cpu else DEVICE_CONTEXT_BYTES,
        recompute=sizes.recompute,
        keep=sizes.keep,
        keep_tokens=_KEEP_TOKENS,
        recompute_slowdown=max(1.0, again.token_seconds / kept.token_seconds),
        most_params=sizes.most_params,
        startup_seconds=guess if startup_seconds is None else startup_seconds,
        lane_seconds_once=lane_seconds_once or 0.0,
    )


@dataclass(frozen=True, kw_only=True, slots=True)
class _Sizes:
    fixed_bytes: int
    bytes_per_param: float
    recompute: PassBytes
    keep: PassBytes | None = None
    most_params: int | None = None


def _resident(method: LoraMethod, shape: ModelShape, device: str) -> _Sizes:
    """Return the sizes of a base that stays on the device (`memory_lora.resident_need`)."""
    on_cpu = device == "cpu"
    width = 4 if lora_precision(method, device) == "fp32" else 2
    beside = HOST_PROCESS_BYTES if on_cpu else DEVICE_CONTEXT_BYTES
    chunk = head_chunk_elements(shape, 1 << 40, on_cpu=on_cpu) // shape.vocab

    def passes(policy: ActivationPolicy) -> PassBytes:
        return PassBytes(
            per_token=activation_bytes_per_token(shape, policy, width, on_cpu=on_cpu),
            logits_per_token=logit_bytes(shape, 1, width, on_cpu=on_cpu),
            logit_tokens=chunk,
        )

    return _Sizes(
        fixed_bytes=frozen_bytes(shape, width, base_format(method)) + beside,
        bytes_per_param=ADAPTER_BYTES_PER_PARAM,
        recompute=passes("recompute"),
        keep=passes("keep"),
    )


def _sliding(shape: ModelShape, machine: Machine) -> _Sizes | None:
    """Return the sizes of a base that slides, with the smallest window; None where the RAM is too
    small for it."""
    slide = LaneSlidePlan(slots=_FEWEST_SLOTS, rows="host", max_tokens=MOST_PASS_TOKENS)
    nobody = LaneSizes(params=0, longest=1, step_tokens=MOST_PASS_TOKENS)
    many = LaneSizes(params=shape.num_layers << 20, longest=1, step_tokens=MOST_PASS_TOKENS)
    none, some = (lane_slide_need(lanes, shape, slide, 1) for lanes in (nobody, many))
    one_pass = none.device["one layer's pass, or the head's"]
    on_their_way = none.device["inputs of layers on their way"]
    per_token = max(head_row_elements(shape, 1), card_layer_elements(shape, 1, trained=False))
    room = usable_bytes(machine.ram_available_bytes) - none.host_bytes
    if room <= 0:
        return None
    sizes = _Sizes(
        fixed_bytes=none.device_bytes - one_pass - on_their_way,
        bytes_per_param=(some.device_bytes - none.device_bytes) / many.params,
        # The head's pass and a layer's never meet; their sum is on the safe side.
        recompute=PassBytes(
            per_token=per_token * _SLIDE_WIDTH + on_their_way,
            logits_per_token=shape.vocab * _SLIDE_WIDTH,
            logit_tokens=head_chunk_elements(shape, 1 << 40, on_cpu=False) // shape.vocab,
        ),
        most_params=room // ADAPTER_BYTES_PER_PARAM,
    )
    fits = sizes.fixed_bytes + sizes.recompute.of(1) <= memory_to_plan(machine)
    return sizes if fits else None


def _predicted(
    shape: ModelShape, rates: Rates, sequence: int, *, keep: bool, slides: bool, on_cpu: bool
) -> StepCost:
    """Return the engine's prediction of a step as one of the planner's lines."""

    def seconds(tokens: int) -> float:
        step = lora_step(
            shape,
            work_of(shape, sequence),
            tokens,
            rates,
            keep=keep,
            slides=slides,
            params=0,
            passes=0 if on_cpu else 1,
        )
        return step.seconds

    many, most = MOST_PASS_TOKENS, 2 * MOST_PASS_TOKENS
    slope = (seconds(most) - seconds(many)) / (most - many)
    return StepCost(
        floor_seconds=seconds(1),
        token_seconds=slope,
        fixed_tokens=max(0.0, seconds(most) / slope - most),
        lane_seconds=_LANE_SECONDS,
    )
