"""How long a step takes: each phase as long as the busiest of what works beside it. Torch-free.

The passes, the link in each direction, the CPU's optimizer and the memory of the host work at the
same time, as `engine.sliding` lets them. Without clipping, layers are updated beside the backward
pass; with it, beside the next forward pass. The update of the embedding stands between two steps.
"""

from typing import Final, Literal

import msgspec

from slidepack.engine.contract.job import JobSpec, LoraMethod
from slidepack.engine.contract.plan import FullPlan, RunPlan
from slidepack.engine.rates import Rates
from slidepack.engine.shape import ModelShape
from slidepack.engine.timing_loads import Loads, PassName, Phase, Resource

__all__ = ["Phase", "StepTime", "Work", "full_step", "lora_step", "step_time", "work_of"]

_SLIDE_OVERHEAD: Final = 1.015
_SLIDE_FILL_LAYERS: Final = 6
"""What sliding adds to the passes: a share, for the copies' part of the card's memory, and as long
as it takes to bring so many layers, for windows that fill and empty. On an H200 it was 0.029 s at
8k tokens of llama-3b, and 0.069 s at 64k."""
_ADAPTER_UPDATE_BYTES: Final = 28
"""A parameter of an adapter that the CPU updates: its gradient, and its state both ways."""
_LORA_OVERHEAD: Final = 1.17
"""What adapters add to the passes over their base: 1.23 measured with 32 on llama-1b, less on
larger models."""
_PASS_SECONDS_PER_LAYER: Final = 1.5e-4
"""Of a pass that is as short as can be, on a card: its kernels follow each other."""
_ATTENTION_BACKWARD: Final = 2.5
"""Of the forward pass."""


class Work(msgspec.Struct, frozen=True, kw_only=True):
    """Floating-point operations of one token."""

    forward: float
    head: float
    """Forward and backward."""
    backward: float
    """Recompute of the layers and both gradients."""

    @property
    def total(self) -> float:
        """All of a training step."""
        return self.forward + self.head + self.backward


class StepTime(msgspec.Struct, frozen=True, kw_only=True):
    """A step's prediction."""

    seconds: float
    tokens_per_second: float
    compute_seconds: float
    """Of the passes alone, with nothing to wait for."""
    critical_tokens: int | None
    """Tokens a step from which on the passes hide transfers and updates of the layers; None where
    they never do, or there is nothing to hide."""
    bound_by: Resource
    """What the longest phase waits for."""
    cpu_share: float
    """Of the layers, that the CPU updates."""
    phases: tuple[Phase, ...]


def work_of(shape: ModelShape, sequence: int) -> Work:
    """Return the work of one token of a sequence of this length; a matrix counts 2 operations."""
    layers = shape.num_layers * shape.layer_decayed_params
    attention = sum(
        4.0 * shape.q_width * _seen(sequence, shape.window_of(layer))
        for layer in range(shape.num_layers)
    )
    return Work(
        forward=2.0 * layers + attention,
        head=6.0 * shape.vocab * shape.hidden,
        backward=6.0 * layers + (1.0 + _ATTENTION_BACKWARD) * attention,
    )


def _seen(sequence: int, window: int | None) -> float:
    """Return how many tokens a token sees, on average."""
    if window is None or window >= sequence:
        return sequence / 2
    return window * (1.0 - window / (2.0 * sequence))


def step_time(spec: JobSpec, shape: ModelShape, plan: RunPlan, rates: Rates) -> StepTime:
    """Predict a full step of the longest rows, as the plan runs it."""
    longest = min(spec.max_seq_len, shape.max_positions)
    tokens = spec.batch_size * longest
    work = work_of(shape, longest)
    if plan.full is None:
        assert isinstance(spec.method, LoraMethod)
        params = shape.lora_params(spec.method.rank, spec.method.targets)
        keep, slides = "keep" in plan.layer_activations, plan.slide is not None
        return lora_step(
            shape,
            work,
            tokens,
            rates,
            keep=keep,
            slides=slides,
            params=params,
            passes=0 if plan.device == "cpu" else -(-tokens // plan.micro_batch_tokens),
        )
    clip = spec.optim.clip_norm > 0.0
    on_cpu = plan.device == "cpu"
    full = plan.full
    batches = -(-tokens // plan.micro_batch_tokens)

    def step(share: float, tokens: int) -> StepTime:
        return full_step(
            shape,
            full,
            work,
            tokens,
            rates,
            clip=clip,
            on_cpu=on_cpu,
            cpu_share=share,
            batches=batches,
        )

    # The engines are balanced by their own rates, whatever the passes take.
    shares = _shares(full, shape.num_layers)
    return step(min(shares, key=lambda share: step(share, 1).seconds), tokens)


def _shares(full: FullPlan, layers: int) -> list[float]:
    """Return the CPU's shares that the engine may settle on."""
    if full.engine == "auto":
        return [part / layers for part in range(layers + 1)]
    return [1.0 if full.engine == "cpu" else 0.0]


def lora_step(
    shape: ModelShape,
    work: Work,
    tokens: int,
    rates: Rates,
    *,
    keep: bool,
    slides: bool,
    params: int,
    passes: int,
) -> StepTime:
    """Predict a step of adapters: nothing of the base gets a gradient.

    Args:
        shape: sizes.
        work: of one token.
        tokens: of the step.
        rates: of the machine.
        keep: activations are kept instead of recomputed.
        slides: the base comes over the link in each pass, and the CPU updates the adapters beside
            the forward pass.
        params: of the adapters.
        passes: of a card over its layers, forward and backward; 0 on a CPU.
    """
    layers = 2.0 * shape.num_layers * shape.layer_decayed_params
    attention = work.forward - layers
    backward = layers + _ATTENTION_BACKWARD * attention + (0.0 if keep else work.forward)
    flops = _LORA_OVERHEAD * (work.forward + backward) + work.head * 2.0 / 3.0
    floor = passes * shape.num_layers * _PASS_SECONDS_PER_LAYER
    compute = tokens * flops / rates.compute_flops + floor
    if not slides:
        return StepTime(
            seconds=compute,
            tokens_per_second=tokens / compute,
            compute_seconds=compute,
            critical_tokens=None,
            bound_by="compute",
            cpu_share=0.0,
            phases=(),
        )
    copied = 2.0 * (shape.num_layers * shape.layer_params + params) / rates.link_bytes
    updated = _ADAPTER_UPDATE_BYTES * params / rates.cpu_adamw_bytes
    per_token = _SLIDE_OVERHEAD * tokens / rates.compute_flops

    def phase(name: Literal["forward", "head", "backward"], flops: float, **more: float) -> Phase:
        busy: dict[Resource, float] = {"compute": per_token * flops}
        if name != "head":
            busy["compute"] = _LORA_OVERHEAD * per_token * flops + floor / 2.0
        busy |= {"link": more.get("link", 0.0), "cpu": more.get("cpu", 0.0)}
        return Phase(name=name, busy_seconds=busy)

    parts = (
        phase("forward", work.forward, link=copied, cpu=updated),
        phase("head", work.head * 2.0 / 3.0),
        phase("backward", backward, link=copied + 2.0 * params / rates.link_bytes),
    )
    seconds = sum(part.seconds for part in parts)
    return StepTime(
        seconds=seconds,
        tokens_per_second=tokens / seconds,
        compute_seconds=compute,
        critical_tokens=round(copied / (_LORA_OVERHEAD * work.forward / rates.compute_flops)),
        bound_by=max(parts, key=lambda part: part.seconds).bound_by,
        cpu_share=1.0,
        phases=parts,
    )


def full_step(
    shape: ModelShape,
    full: FullPlan,
    work: Work,
    tokens: int,
    rates: Rates,
    *,
    clip: bool,
    on_cpu: bool,
    cpu_share: float,
    batches: int = 1,
) -> StepTime:
    """Predict a step of a full fine-tuning.

    Args:
        shape: sizes.
        full: where everything is.
        work: of one token.
        tokens: of the step.
        rates: of the machine.
        clip: updates wait for the global norm.
        on_cpu: the passes run on the CPU.
        cpu_share: of the layers, that the CPU updates.
        batches: micro-batches that the step is cut into.
    """
    slides = full.weights == "slide"
    flops = rates.compute_flops / (_SLIDE_OVERHEAD if slides else 1.0)
    fill = _SLIDE_FILL_LAYERS * 2.0 * shape.layer_params / rates.link_bytes if slides else 0.0
    loads = Loads(shape, full, clip=clip, on_cpu=on_cpu, cpu_share=cpu_share, batches=batches)

    def phases(step_tokens: float) -> tuple[Phase, ...]:
        passes: dict[PassName, float] = {
            "forward": step_tokens * work.forward / flops + fill / 2.0,
            "head": step_tokens * work.head / flops,
            "backward": step_tokens * work.backward / flops + fill / 2.0,
        }
        if on_cpu:
            return loads.phases_of_cpu(passes, step_tokens, rates)
        return loads.phases(passes, step_tokens, rates)

    parts = phases(tokens)
    seconds = sum(part.seconds for part in parts)
    return StepTime(
        seconds=seconds,
        tokens_per_second=tokens / seconds,
        compute_seconds=tokens * work.total / rates.compute_flops,
        critical_tokens=None if on_cpu else _critical(phases(0.0), phases(1.0)),
        bound_by=max(parts, key=lambda part: part.seconds).bound_by,
        cpu_share=cpu_share,
        phases=parts,
    )


def _critical(none: tuple[Phase, ...], one: tuple[Phase, ...]) -> int | None:
    """Return the tokens from which on compute is the longest in both passes.

    All times are linear in the tokens, so two of them tell the rest.
    """
    most = 1.0
    for idle, busy in zip(none, one, strict=True):
        if idle.name not in ("forward", "backward"):
            continue
        start = idle.busy_seconds["compute"]
        for name, fixed in idle.busy_seconds.items():
            ahead = busy.busy_seconds["compute"] - start - (busy.busy_seconds[name] - fixed)
            if name != "compute" and fixed > start:
                if ahead <= 0.0:
                    return None
                most = max(most, (fixed - start) / ahead)
    return round(most)
