"""One measurement of full fine-tuning by sliding layers, as `slidepack bench slide` prints it."""

import statistics
from pathlib import Path
from typing import Any, Final

import msgspec
import platformdirs
import psutil
import torch
import triton

from slidepack.engine.bench_kernels.measure import current_gpu
from slidepack.engine.bench_slide.drives import bench_tier, cap_ram
from slidepack.engine.bench_slide.measure import (
    Bench,
    CeilingResult,
    SlidingResult,
    measure_ceiling,
    measure_sliding,
)
from slidepack.engine.bench_slide.options import SlideOptions
from slidepack.engine.bench_slide.plan import plan_slide
from slidepack.engine.bench_slide.rates import engine_rate, link_rates
from slidepack.engine.bench_slide.shapes import shape_named
from slidepack.engine.bench_slide.steps import Timing
from slidepack.engine.bench_slide.weights import random_state
from slidepack.engine.contract.errors import SlidepackError
from slidepack.engine.rates import rates_of
from slidepack.engine.sliding.sharing import EngineName
from slidepack.engine.sliding.state import StateFormat
from slidepack.engine.timing import full_step, work_of

__all__ = ["bench_slide", "free_ram"]

_CGROUP: Final = Path("/sys/fs/cgroup")
_ENGINES: Final[tuple[EngineName, ...]] = ("cpu", "gpu")


def bench_slide(options: SlideOptions) -> dict[str, Any]:
    """Time full fine-tuning with random weights, its ceiling, and the limits of the machine.

    Returns:
        The measurement. Seconds are of one step, rates in 1e9 a second.

    Raises:
        RuntimeError: there is no GPU.
        SlidepackError: RAM-TOO-SMALL or GPU-OUT-OF-MEMORY.
    """
    shape = shape_named(options.shape)
    device = torch.device("cpu") if options.device == "cpu" else current_gpu()
    form = StateFormat(split=device.type == "cuda", moments=options.moments)
    cap_bytes = _cap(options, device)
    plan = plan_slide(options, shape, cap_bytes)
    _require_ram(plan.predicted_host_bytes)
    tier = bench_tier(options, plan.full)
    cap_ram(options)
    state = random_state(shape, form, device, options.alias_layers, tier)
    bench = Bench(
        options=options,
        shape=shape,
        state=state,
        plan=plan,
        device=device,
        cap_bytes=cap_bytes,
        cache=platformdirs.user_cache_path("slidepack") / "native",
    )
    try:
        sliding = measure_sliding(bench)
        bench.clear()
        # What an engine does alone with state on a drive is what the drive does.
        alone = (
            {}
            if tier is not None
            else {
                name: engine_rate(name, state, device, options.threads, bench.cache) / 1e9
                for name in _ENGINES
            }
        )
        ceiling = measure_ceiling(bench)
        link = link_rates(device)
        return _report(bench, sliding, ceiling, alone=alone, link=link)
    except torch.OutOfMemoryError as error:
        raise SlidepackError(
            "GPU-OUT-OF-MEMORY",
            "The measurement does not fit the card's memory.",
            why=str(error).partition("\n")[0],
            fix="Use a smaller --micro-tokens, --rows host, or a larger --vram-cap.",
        ) from error
    finally:
        state.close()


def _cap(options: SlideOptions, device: torch.device) -> int | None:
    """Return the device memory that may be used, and make the allocator keep to it."""
    if device.type != "cuda":
        return None
    total = torch.cuda.get_device_properties(device).total_memory
    if options.vram_cap_gb is None:
        return int(total)
    share = min(1.0, options.vram_cap_gb * 1e9 / total)
    torch.cuda.set_per_process_memory_fraction(share, device)
    return int(share * total)


def free_ram() -> int:
    """Return the memory that is free, of the container where there is one."""
    free = int(psutil.virtual_memory().available)
    try:
        # A container has less than the machine. Its page cache is not in the way.
        limit = int((_CGROUP / "memory.max").read_text(encoding="ascii"))
        used = (_CGROUP / "memory.stat").read_text(encoding="ascii").split()
        return min(free, limit - int(used[used.index("anon") + 1]))
    except (OSError, ValueError):
        return free


def _require_ram(needed: int) -> None:
    free = free_ram()
    if needed > free:
        raise SlidepackError(
            "RAM-TOO-SMALL",
            "The measurement does not fit this machine's memory.",
            why=f"it needs {needed / 1e9:.1f} GB, {free / 1e9:.1f} GB are free",
            fix="Use --moments bf16 or int8, or --alias-layers to time it without its whole state.",
        )


def _report(
    bench: Bench,
    sliding: SlidingResult,
    ceiling: CeilingResult,
    *,
    alone: dict[EngineName, float],
    link: dict[str, float] | None,
) -> dict[str, Any]:
    options, plan = bench.options, bench.plan
    tokens = plan.full.max_tokens
    timing = _timing(sliding.timing, tokens)
    top = _timing(ceiling.timing, tokens)
    compute = top["median_step_seconds"]
    return {
        "shape": options.shape,
        "device": torch.cuda.get_device_name(bench.device)
        if bench.device.type == "cuda"
        else "cpu",
        "versions": {"torch": torch.__version__, "triton": triton.__version__},
        "parameters": bench.shape.total_params,
        "batch": options.batch,
        "seq": options.seq,
        "tokens": tokens,
        "micro_batches": -(-tokens // plan.micro_tokens),
        "optimizer": options.optimizer,
        "moments": options.moments,
        "master": "split" if bench.state.form.split else "fp32",
        "clip": options.clip,
        "threads": options.threads,
        "vram_cap_gb": options.vram_cap_gb,
        "alias_layers": options.alias_layers if bench.aliased else None,
        "alias_note": _alias_note(bench),
        "nvme": _nvme(bench),
        "warm_up_steps": options.warm_up,
        **timing,
        "share_of_ceiling": timing["tokens_per_second"] / top["tokens_per_second"],
        "share_of_ceiling_with_tail": timing["tokens_per_second_with_tail"]
        / top["tokens_per_second_with_tail"],
        "split": {
            "compute": compute,
            **sliding.lane_seconds,
            **{f"{name}_optimizer": sliding.engine_seconds.get(name, 0.0) for name in _ENGINES},
            "idle": timing["median_step_seconds"] - compute,
        },
        "ceiling": {**top, "resident_layers": ceiling.resident_layers, "rows": ceiling.rows},
        "optimizer_rates": {
            name: {"beside_the_rest": _billions(sliding.engine_rates.get(name)), "alone": rate}
            for name, rate in alone.items()
        },
        "link": link,
        "memory": _memory(bench, sliding),
        "plan": {
            **msgspec.to_builtins(plan.full),
            "micro_tokens": plan.micro_tokens,
            "cpu_share": sliding.cpu_share,
            "engines": sliding.engines,
            "reasons": list(plan.reasons),
            "predicted_step_seconds": _predicted(bench, sliding, link),
        },
        "loss": sliding.timing.last.loss.mean,
        "grad_norm": sliding.timing.last.grad_norm,
        "applied": sliding.timing.last.applied,
    }


def _predicted(bench: Bench, sliding: SlidingResult, link: dict[str, float] | None) -> float:
    """Return what `fit` would say that a step takes, had it measured the link as was done here."""
    options, on_cpu = bench.options, bench.device.type == "cpu"
    name = "" if on_cpu else torch.cuda.get_device_name(bench.device)
    rates = rates_of(name, cpu_threads=options.threads)
    if link is not None:
        rates = msgspec.structs.replace(
            rates, link_bytes=link["h2d"] * 1e9, duplex_bytes=link["both_each_way"] * 1e9
        )
    return full_step(
        bench.shape,
        bench.plan.full,
        work_of(bench.shape, options.seq),
        bench.plan.full.max_tokens,
        rates,
        clip=options.clip > 0.0,
        on_cpu=on_cpu,
        cpu_share=sliding.cpu_share,
        batches=-(-bench.plan.full.max_tokens // bench.plan.micro_tokens),
    ).seconds


def _timing(timing: Timing, tokens: int) -> dict[str, Any]:
    median = statistics.median(timing.step_seconds)
    return {
        "step_seconds": list(timing.step_seconds),
        "median_step_seconds": median,
        "total_seconds": timing.total_seconds,
        "mean_step_seconds": timing.mean_step_seconds,
        "tokens_per_second": tokens / median,
        "tokens_per_second_with_tail": tokens / timing.mean_step_seconds,
    }


def _memory(bench: Bench, sliding: SlidingResult) -> dict[str, Any]:
    state, peak = bench.state, sliding.host_peak_bytes
    # Units that share their storage are there once.
    homes = state.stored_elements
    stored = sum(homes)
    return {
        "vram_peak_bytes": sliding.device_peak_bytes,
        "vram_reserved_bytes": sliding.device_reserved_bytes,
        "vram_predicted_bytes": bench.plan.predicted_device_bytes,
        "ram_peak_bytes": peak,
        "ram_predicted_bytes": bench.plan.predicted_host_bytes,
        "state_bytes": sum(state.form.unit_bytes(elements) for elements in homes),
        "stored_parameters": stored,
        "ram_bytes_per_parameter": None if peak is None else peak / stored,
    }


def _alias_note(bench: Bench) -> str | None:
    if not bench.aliased:
        return None
    return (
        f"{bench.shape.num_layers} layers share {bench.options.alias_layers} layers of storage and "
        "learn at a rate of 0: times are those of the shape, memory and loss are not"
    )


def _nvme(bench: Bench) -> dict[str, Any] | None:
    tier = bench.state.tier
    if tier is None:
        return None
    return {
        "share": bench.options.nvme_share,
        "transport": f"{tier.transport.name}: {tier.transport.reason}",
        "stored_bytes": tier.bytes,
        "written_bytes": tier.written_bytes,
        "ram_cap_gb": bench.options.ram_cap_gb,
    }


def _billions(rate: float | None) -> float | None:
    return None if rate is None else rate / 1e9
