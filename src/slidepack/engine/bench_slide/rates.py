"""What the link and the optimizer's engines do alone."""

import statistics
import time
from collections.abc import Callable
from pathlib import Path
from typing import Final

import torch

from slidepack.engine.sliding.cpu_adamw import cpu_adamw
from slidepack.engine.sliding.cpu_engine import CpuEngine
from slidepack.engine.sliding.gpu_engine import GpuEngine
from slidepack.engine.sliding.sharing import EngineName
from slidepack.engine.sliding.slab import Slab
from slidepack.engine.sliding.state import TrainState
from slidepack.engine.sliding.streams import Streams
from slidepack.engine.sliding.updates import Job, StepSettings, Updates
from slidepack.kernels import adamw_scalars

__all__ = ["engine_rate", "link_rates"]

_LINK_BYTES: Final = 256_000_000
_COPIES: Final = 4
"""Queued at once, so that neither direction waits for the host."""
_ROUNDS: Final = 7
_UNITS: Final = 4
"""Units queued at once for the card: the first chunk, which nothing overlaps, counts little."""
_ENGINE_ROUNDS: Final = 3


def link_rates(device: torch.device) -> dict[str, float] | None:
    """Return GB/s between pinned host memory and a card: each way alone, and each way at once.

    None where there is no card.
    """
    if device.type != "cuda":
        return None
    slab = Slab(2 * Slab.padded(_LINK_BYTES), pin=True)
    host_in, host_out = (slab.take(_LINK_BYTES, torch.uint8) for _ in range(2))
    there_in, there_out = (torch.empty_like(host_in, device=device) for _ in range(2))
    streams = Streams.of(device)

    def h2d() -> None:
        with streams.h2d.on():
            there_in.copy_(host_in, non_blocking=True)

    def d2h() -> None:
        with streams.d2h.on():
            host_out.copy_(there_out, non_blocking=True)

    def rate(*copies: Callable[[], None]) -> float:
        seconds = []
        for _ in range(_ROUNDS + 1):
            torch.cuda.synchronize(device)
            begun = time.perf_counter()
            for _ in range(_COPIES):
                for copy in copies:
                    copy()
            torch.cuda.synchronize(device)
            seconds.append(time.perf_counter() - begun)
        return _COPIES * _LINK_BYTES / statistics.median(seconds[1:]) / 1e9

    rates = {"h2d": rate(h2d), "d2h": rate(d2h), "both_each_way": rate(h2d, d2h)}
    slab.close()
    return rates


def engine_rate(
    name: EngineName, state: TrainState, device: torch.device, threads: int, cache: Path
) -> float:
    """Return the elements a second of an engine alone, on units of a layer's size.

    The state's first layers take steps of no length.
    """
    streams, updates = Streams.of(device), Updates(len(state.units))
    engine: CpuEngine | GpuEngine
    if name == "cpu":
        engine = CpuEngine(state, updates, cpu_adamw(cache, threads))
    else:
        engine = GpuEngine(state, updates, streams, device)
    scalars = adamw_scalars(
        torch.tensor(1), torch.tensor(1.0), lr=0.0, beta1=0.9, beta2=0.999, weight_decay=0.0
    )
    settings = StepSettings(
        scalars_host=scalars,
        scalars_device=scalars.to(device),
        beta1=0.9,
        beta2=0.999,
        eps=1e-8,
    )
    elements = state.units[0].elements
    place = torch.device("cpu") if name == "cpu" else device
    grad = torch.full((elements,), 1e-3, dtype=state.form.compute_dtype, device=place)
    landed = streams.compute.mark()
    layers = sum(unit.elements == elements for unit in state.units)
    units = range(1 if name == "cpu" else min(_UNITS, layers))
    seconds = []
    try:
        for _ in range(_ENGINE_ROUNDS + 1):
            updates.drain()
            begun = time.perf_counter()
            for unit in units:
                updates.begin(unit)
                engine.put(Job(unit, unit, grad, landed, settings, lambda _: None))
            updates.drain()
            seconds.append(time.perf_counter() - begun)
    finally:
        engine.close()
    return len(units) * elements / statistics.median(seconds[1:])
