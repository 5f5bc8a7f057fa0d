"""What `slidepack fit` predicts for exactly what was measured, and how far off that is."""

from dataclasses import dataclass
from typing import Any, Final

import msgspec

from slidepack.engine.bench_packed.layout import lane_sizes
from slidepack.engine.bench_packed.options import PackedOptions
from slidepack.engine.bench_packed.packs import PackResult
from slidepack.engine.memory_lanes import LaneSizes, lane_slide_need
from slidepack.engine.memory_lora import resident_need
from slidepack.engine.memory_parts import MemoryNeed
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
        need = lane_slide_need(sizes, shape, pack.slide, pack.pass_limit)
    time = lora_step(
        shape,
        work_of(shape, options.seq),
        sizes.step_tokens,
        rates,
        keep=options.policy == "keep",
        slides=pack.slide is not None,
        params=sizes.params,
        passes=0 if on_cpu else len(pack.passes),
    )
    return Prediction(need=need, step_seconds=time.seconds, why=None)


def _resident_need(
    options: PackedOptions, sizes: LaneSizes, pass_tokens: int, *, on_cpu: bool
) -> MemoryNeed:
    """Return the planner's sum, with the policy and the passes that were measured."""
    need = resident_need(
        sizes,
        options.model_shape,
        "nf4" if options.base == "nf4" else "plain",
        options.policy,
        pass_tokens,
        width_bytes=4 if on_cpu else 2,
        on_cpu=on_cpu,
    )
    if on_cpu:
        return need
    # Nothing is read from files here, so no layers are on their way.
    host = {name: size for name, size in need.host.items() if name != "layers on their way"}
    return msgspec.structs.replace(need, host=host)


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
