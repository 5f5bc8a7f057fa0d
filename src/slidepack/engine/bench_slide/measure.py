"""Measures the sliding walk and its ceiling, one after the other on the same state."""

import gc
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

import torch

from slidepack.engine.bench_slide.ceiling import Ceiling
from slidepack.engine.bench_slide.options import SlideOptions
from slidepack.engine.bench_slide.plan import SlidePlan, resident_layers
from slidepack.engine.bench_slide.steps import Stepper, Timing, random_batches, time_steps
from slidepack.engine.model.batch import PackedBatch
from slidepack.engine.resident_memory import known_peak_resident_bytes
from slidepack.engine.shape import ModelShape
from slidepack.engine.sliding.build import CPU_SHARES, FullSetup, FullTrainer, build_full
from slidepack.engine.sliding.rows import HostRows
from slidepack.engine.sliding.sharing import CountedEngine, EngineName
from slidepack.engine.sliding.state import TrainState
from slidepack.engine.sliding.streams import Streams
from slidepack.engine.sliding.tier_options import tier_options

__all__ = ["LANES", "Bench", "CeilingResult", "SlidingResult", "measure_ceiling", "measure_sliding"]

LANES: Final = ("h2d", "d2h", "rows_h2d", "rows_d2h", "update_h2d", "update", "update_d2h")


@dataclass(frozen=True, kw_only=True, slots=True)
class Bench:
    """What both measurements share."""

    options: SlideOptions
    shape: ModelShape
    state: TrainState
    plan: SlidePlan
    device: torch.device
    cap_bytes: int | None
    cache: Path
    """Folder of compiled libraries."""

    @property
    def aliased(self) -> bool:
        """Whether layers share their storage."""
        layers = self.options.alias_layers
        return layers is not None and layers < self.shape.num_layers

    def batches(self) -> list[PackedBatch]:
        """Return the micro-batches of a step, the same every time."""
        return random_batches(
            self.shape,
            self.device,
            self.state.form.compute_dtype,
            batch=self.options.batch,
            seq=self.options.seq,
            micro_tokens=self.plan.micro_tokens,
        )

    def synchronize(self) -> None:
        """Wait for the card."""
        if self.device.type == "cuda":
            torch.cuda.synchronize(self.device)

    def clear(self) -> None:
        """Give back the device memory that nothing holds any more."""
        gc.collect()
        if self.device.type == "cuda":
            torch.cuda.empty_cache()


@dataclass(frozen=True, kw_only=True, slots=True)
class SlidingResult:
    """What the sliding walk took. Seconds of lanes and engines are of one step."""

    timing: Timing
    lane_seconds: dict[str, float]
    engine_seconds: dict[str, float]
    engine_rates: dict[str, float | None]
    """Elements a second at work, beside everything else; None for an engine without work."""
    device_peak_bytes: int
    device_reserved_bytes: int
    host_peak_bytes: int | None
    """Of the whole process so far; None where the system does not tell."""
    cpu_share: float
    """Of the parameters, in the measured steps."""
    engines: str
    """Which optimizer engines ran, in words."""


@dataclass(frozen=True, kw_only=True, slots=True)
class CeilingResult:
    """What the ceiling took."""

    timing: Timing
    resident_layers: int
    rows: str


def measure_sliding(bench: Bench) -> SlidingResult:
    """Build the trainer, let it settle, and time its steps. The state stays pinned."""
    bench.clear()
    if bench.device.type == "cuda":
        torch.cuda.reset_peak_memory_stats(bench.device)
    trainer = build_full(bench.shape, bench.state, _setup(bench), timed=True)
    try:
        return _measure(bench, trainer)
    finally:
        trainer.close()


def _setup(bench: Bench) -> FullSetup:
    full = bench.plan.full
    return FullSetup(
        device=bench.device,
        weights=full.weights,
        weight_slots=full.weight_slots,
        grad_slots=full.grad_slots,
        host_grad_slots=full.host_grad_slots,
        cpu_share=CPU_SHARES[full.engine],
        rows=full.rows,
        max_tokens=full.max_tokens,
        max_micro_tokens=bench.plan.micro_tokens,
        accumulate=bench.plan.accumulate,
        clip=bench.options.clip > 0.0,
        cpu_threads=bench.options.threads,
        cache=bench.cache,
        **tier_options(full, bench.shape),
    )


def _measure(bench: Bench, trainer: FullTrainer) -> SlidingResult:
    engines: Mapping[EngineName, Any] = trainer.optimizer.engines
    options, device, steps = bench.options, bench.device, bench.options.steps
    stepper = Stepper(trainer.driver, bench.batches(), device, options.clip, frozen=bench.aliased)
    before: dict[str, tuple[float, int]] = {}

    def finish() -> None:
        """Wait for everything; at the first call, forget what the lanes and engines did so far."""
        trainer.updates.drain()
        bench.synchronize()
        if not before:
            _lane_seconds(trainer.streams, 1)
            before.update(_worked(engines))

    timing = time_steps(stepper.step, finish, steps, bench.options.warm_up)
    worked = _worked(engines)
    seconds = {name: worked[name][0] - before[name][0] for name in engines}
    elements = {name: worked[name][1] - before[name][1] for name in engines}
    on_card = device.type == "cuda"
    return SlidingResult(
        timing=timing,
        lane_seconds=_lane_seconds(trainer.streams, steps),
        engine_seconds={name: seconds[name] / steps for name in engines},
        engine_rates={
            name: elements[name] / seconds[name] if seconds[name] > 0.0 else None
            for name in engines
        },
        device_peak_bytes=torch.cuda.max_memory_allocated(device) if on_card else 0,
        device_reserved_bytes=torch.cuda.max_memory_reserved(device) if on_card else 0,
        host_peak_bytes=known_peak_resident_bytes(),
        cpu_share=elements.get("cpu", 0) / sum(elements.values()),
        engines=trainer.reason,
    )


def _worked(engines: Mapping[EngineName, CountedEngine]) -> dict[str, tuple[float, int]]:
    return {name: engine.worked for name, engine in engines.items()}


def _lane_seconds(streams: Streams, steps: int) -> dict[str, float]:
    return {name: getattr(streams, name).busy_seconds() / steps for name in LANES}


def measure_ceiling(bench: Bench) -> CeilingResult:
    """Time the same steps over resident layers, once nothing of the sliding walk is left."""
    bench.clear()
    plan, shape, form = bench.plan, bench.shape, bench.state.form
    layers, place = resident_layers(plan, shape, bench.cap_bytes)
    streams = Streams.of(bench.device)
    rows = None
    if place == "host":
        rows = HostRows(
            levels=shape.num_layers,
            max_tokens=plan.full.max_tokens,
            max_micro_tokens=plan.micro_tokens,
            width=shape.hidden,
            dtype=form.compute_dtype,
            device=bench.device,
            streams=streams,
        )
    ceiling = Ceiling(
        shape,
        bench.state,
        bench.device,
        layers=layers,
        rows=rows,
        streams=streams,
        accumulate=plan.accumulate,
    )
    # Clipping belongs to the optimizer, which is not here.
    stepper = Stepper(ceiling.driver, bench.batches(), bench.device, 0.0, frozen=True)
    try:
        with ceiling.optimizer.rehearsal():
            timing = time_steps(
                stepper.step, bench.synchronize, bench.options.steps, bench.options.warm_up
            )
    finally:
        if rows is not None:
            bench.synchronize()
            rows.slab.close()
    return CeilingResult(timing=timing, resident_layers=layers, rows=place)
