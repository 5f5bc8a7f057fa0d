"""What `slidepack fit` predicts for exactly what was measured, and how far off that is."""

from dataclasses import dataclass
from typing import Any, Final, Literal

from slidepack.engine.bench_packed.layout import lane_sizes
from slidepack.engine.bench_packed.options import PackedOptions
from slidepack.engine.bench_packed.packs import PackResult
from slidepack.engine.memory_lanes import (
    ADAPTER_BYTES_PER_PARAM,
    HEAD_BYTES_PER_LOGIT,
    HEAD_CHUNK_ELEMENTS,
    LaneSizes,
    _need,
)
from slidepack.engine.memory_lora import frozen_bytes
from slidepack.engine.memory_parts import (
    DEVICE_CONTEXT_BYTES,
    DEVICE_HOST_BYTES,
    HOST_PROCESS_BYTES,
    MemoryNeed,
    activation_bytes_per_token,
)
from slidepack.engine.rates import Rates
from slidepack.engine.timing import lora_step, work_of

__all__ = ["Prediction", "compared", "predict"]

_NO_CARD: Final = "the planner lets no base slide without a card"


@dataclass(frozen=True, kw_only=True, slots=True)
class Prediction:
    """Of one pack."""

    need: MemoryNeed | None
    """None where the planner has no such plan."""
    step_seconds: float | None
    why: str | None
    """Why there is none; None where there is."""


def predict(options: PackedOptions, pack: PackResult, rates: Rates, *, on_cpu: bool) -> Prediction:
    """Predict memory and time of a pack in the passes that it had.

    Args:
        options: of the measurement.
        pack: that was measured.
        rates: of the machine.
        on_cpu: the passes run there.
    """
    shape, sizes = options.model_shape, lane_sizes(options, pack.lanes)
    if pack.slide is None:
        need = _resident_need(options, sizes, max(pack.passes), on_cpu=on_cpu)
    elif on_cpu:
        return Prediction(need=None, step_seconds=None, why=_NO_CARD)
    else:
        need = _need(sizes, shape, pack.slide, pack.pass_limit)
    time = lora_step(
        shape,
        work_of(shape, options.seq),
        sizes.step_tokens,
        rates,
        keep=options.policy == "keep",
        slides=pack.slide is not None,
        params=sizes.params,
    )
    return Prediction(need=need, step_seconds=time.seconds, why=None)


def _resident_need(
    options: PackedOptions, sizes: LaneSizes, pass_tokens: int, *, on_cpu: bool
) -> MemoryNeed:
    """Return the planner's sum, with the policy and the passes that were measured.

    A test holds it against the planner's own.
    """
    shape, width_bytes = options.model_shape, 4 if on_cpu else 2
    form: Literal["plain", "nf4"] = "nf4" if options.base == "nf4" else "plain"
    logits = min(HEAD_CHUNK_ELEMENTS, pass_tokens * shape.vocab)
    parts = {
        "frozen weights": frozen_bytes(shape, width_bytes, form),
        "adapters, their gradients and moments": sizes.params * ADAPTER_BYTES_PER_PARAM,
        "logits of a chunk": logits * HEAD_BYTES_PER_LOGIT,
        "activations": pass_tokens * activation_bytes_per_token(shape, options.policy, width_bytes),
    }
    if on_cpu:
        host = parts | {"process and libraries": HOST_PROCESS_BYTES}
        return MemoryNeed(device={}, host=host, disk=sizes.disk)
    # Nothing is read from files here, so no layers are on their way.
    return MemoryNeed(
        device=parts | {"driver context": DEVICE_CONTEXT_BYTES},
        host={"process and libraries": DEVICE_HOST_BYTES},
        disk=sizes.disk,
    )


def compared(pack: PackResult, prediction: Prediction) -> dict[str, Any]:
    """Return the prediction, and its ratios to what was measured.

    Returns:
        `predicted`, and `error`: predicted by measured. Of the device it is what the allocator
        hands out: the driver's context, which is beside that, is named alone.
    """
    device = host = context = None
    if prediction.need is not None:
        parts = dict(prediction.need.device)
        context = parts.pop("driver context", None)
        device = sum(parts.values()) if parts else None
        host = prediction.need.host_bytes
    return {
        "predicted": {
            "device_bytes": device,
            "driver_context_bytes": context,
            "host_bytes": host,
            "step_seconds": prediction.step_seconds,
            "why": prediction.why,
        },
        "error": {
            "device_bytes": _ratio(device, pack.times.device_peak_bytes),
            "host_bytes": _ratio(host, pack.host_peak_bytes),
            "step_seconds": _ratio(prediction.step_seconds, pack.times.median_seconds),
        },
    }


def _ratio(predicted: float | None, measured: float | None) -> float | None:
    return predicted / measured if predicted is not None and measured else None
