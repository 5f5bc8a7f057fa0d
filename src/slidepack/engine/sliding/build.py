"""Puts a full fine-tuning together: memory, streams, engines and the walk, as a plan says."""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from types import MappingProxyType
from typing import Final, Literal

import torch
from torch import Tensor

from slidepack.engine.model.batch import PackedBatch
from slidepack.engine.model.layer_attention import layer_attention
from slidepack.engine.shape import ModelShape
from slidepack.engine.sliding.cpu_adamw import cpu_adamw
from slidepack.engine.sliding.cpu_engine import CpuEngine
from slidepack.engine.sliding.ends import TrainedEnds
from slidepack.engine.sliding.full_driver import FullDriver, Window
from slidepack.engine.sliding.gpu_engine import GpuEngine
from slidepack.engine.sliding.optimizer import AsyncOptimizer, SharedUnit
from slidepack.engine.sliding.resident_weights import ResidentWeights
from slidepack.engine.sliding.rows import DeviceRows, HostRows, Rows
from slidepack.engine.sliding.sharing import (
    BalancedSharing,
    EngineName,
    FixedSharing,
    Sharing,
    assign,
)
from slidepack.engine.sliding.slab import Slab
from slidepack.engine.sliding.slot_pool import SlotPool
from slidepack.engine.sliding.state import TrainState
from slidepack.engine.sliding.streams import Streams
from slidepack.engine.sliding.updates import Updates
from slidepack.engine.sliding.weight_ring import WeightRing, Weights
from slidepack.kernels import ADAMW_BLOCK

__all__ = ["CPU_SHARES", "FullSetup", "FullTrainer", "build_full"]

CPU_SHARES: Final[Mapping[str, float | None]] = MappingProxyType(
    {"cpu": 1.0, "gpu": 0.0, "auto": None}
)
"""`FullSetup.cpu_share` of each engine that a plan may name."""


@dataclass(frozen=True, kw_only=True, slots=True)
class FullSetup:
    """How a full fine-tuning uses the machine."""

    device: torch.device
    weights: Literal["slide", "resident"]
    """`resident` keeps every layer on the card; on a CPU, reads the master itself."""
    weight_slots: int
    grad_slots: int
    host_grad_slots: int
    """Gradients that may wait for the CPU's optimizer."""
    cpu_share: float | None
    """Share of the layers that the CPU's optimizer updates: 0 none, 1 all, the ends too. None
    leaves each layer to the engine that will be done with it first."""
    rows: Literal["device", "host"]
    max_tokens: int
    """Most tokens of a step."""
    max_micro_tokens: int
    accumulate: bool
    """Whether a step may have several micro-batches."""
    clip: bool
    """Whether gradients wait for the global norm."""
    cpu_threads: int
    cache: Path
    """Folder of compiled libraries."""


@dataclass(slots=True)
class FullTrainer:
    """A full fine-tuning that is ready to run."""

    driver: FullDriver
    state: TrainState
    updates: Updates
    optimizer: AsyncOptimizer
    streams: Streams
    cpu_engine: CpuEngine | None
    reason: str
    """Which optimizer engines run, and in what form."""
    slabs: tuple[Slab, ...]

    def close(self) -> None:
        """End the engines, and give their pinned memory back; the state stays as it is."""
        self.optimizer.close()
        for slab in self.slabs:
            slab.close()


def build_full(
    shape: ModelShape,
    state: TrainState,
    setup: FullSetup,
    check_stop: Callable[[], None] = lambda: None,
    *,
    timed: bool = False,
    sharing: Sharing | None = None,
) -> FullTrainer:
    """Allocate everything but the state, start the engines, and return the trainer.

    Args:
        shape: sizes.
        state: master weights, filled, and moments.
        setup: how the machine is used.
        check_stop: called where an evaluation can be abandoned.
        timed: keep the lanes' spans, for a benchmark.
        sharing: chooses the engine of each update, instead of what `setup` says.
    """
    device, form = setup.device, state.form
    streams, updates = Streams.of(device, timed=timed), Updates(len(state.units))
    assignment = None
    if setup.cpu_share is not None and sharing is None:
        assignment = assign(shape.num_layers, len(state.units), setup.cpu_share)
    engines: dict[EngineName, CpuEngine | GpuEngine] = {}
    slabs: list[Slab] = []
    cpu_engine, reasons = None, []
    if assignment is None or "cpu" in assignment:
        adamw = cpu_adamw(setup.cache, setup.cpu_threads)
        cpu_engine = CpuEngine(state, updates, adamw)
        engines["cpu"] = cpu_engine
        reasons.append(f"the CPU ({adamw.reason})")
    if assignment is None or "gpu" in assignment:
        engines["gpu"] = GpuEngine(state, updates, streams, device)
        reasons.append("the card")
    if sharing is None:
        sharing = (
            BalancedSharing(engines, shape.num_layers)
            if assignment is None
            else FixedSharing(assignment)
        )

    def slab(num_bytes: int) -> Slab:
        slabs.append(Slab(num_bytes, pin=device.type == "cuda"))
        return slabs[-1]

    sizes = [
        unit.elements * (form.compute_dtype if index < shape.num_layers else torch.float32).itemsize
        for index, unit in enumerate(state.units)
    ]
    host_slots, waiting = None, None
    if setup.clip:
        waiting = _carve(slab(sum(Slab.padded(size) for size in sizes)), sizes)
    elif "cpu" in engines:
        # Beside the card's engine it gets layers; the ends' gradients are the largest by far.
        largest = max(sizes[: shape.num_layers] if len(engines) == 2 else sizes)
        room = slab(setup.host_grad_slots * Slab.padded(largest))
        host_slots = SlotPool(_carve(room, [largest] * setup.host_grad_slots), updates.check)
    shared = None
    cut = state.units[shape.num_layers].elements // 2 // ADAMW_BLOCK * ADAMW_BLOCK
    if len(engines) == 2 and cut:
        shared = SharedUnit(
            shape.num_layers,
            cut,
            # Where gradients wait for the norm, they have room already.
            torch.empty(0) if setup.clip else slab(cut * 4).take(cut, torch.float32),
        )
    optimizer = AsyncOptimizer(
        updates=updates,
        streams=streams,
        engines=engines,
        sharing=sharing,
        host_slots=host_slots,
        waiting=waiting,
        shared=shared,
    )
    layer = shape.layer_params
    grads = [
        torch.empty(layer, dtype=form.compute_dtype, device=device) for _ in range(setup.grad_slots)
    ]
    wide = None
    if setup.accumulate and form.compute_dtype != torch.float32:
        wide = torch.empty(layer, dtype=torch.float32, device=device)
    window = Window(
        weights=_weights(shape, state, setup, streams, updates, optimizer),
        grads=SlotPool(grads, updates.check),
        wide_grad=wide,
        ends=TrainedEnds(shape, state, streams, updates, optimizer, device),
        optimizer=optimizer,
        updates=updates,
        streams=streams,
        prefetch=max(1, setup.weight_slots - 1),
    )
    rows, row_slabs = _rows(shape, state, setup, streams)
    driver = FullDriver(
        shape, window, layer_attention(shape, device, form.compute_dtype), rows, check_stop
    )
    return FullTrainer(
        driver,
        state,
        updates,
        optimizer,
        streams,
        cpu_engine,
        " and ".join(reasons),
        (*slabs, *row_slabs),
    )


def _weights(
    shape: ModelShape,
    state: TrainState,
    setup: FullSetup,
    streams: Streams,
    updates: Updates,
    optimizer: AsyncOptimizer,
) -> Weights:
    device = setup.device
    if setup.weights == "resident":
        flats = [state.weights(layer) for layer in range(shape.num_layers)]
        if device.type != "cpu":
            flats = [flat.to(device) for flat in flats]

        def on_host(layer: int) -> Tensor | None:
            source = state.weights(layer)[optimizer.on_host(layer)]
            return source if device.type != "cpu" and source.numel() else None

        return ResidentWeights(flats, streams.compute, updates.await_unit, on_host)
    return WeightRing(
        slots=setup.weight_slots,
        elements=shape.layer_params,
        dtype=state.form.compute_dtype,
        device=device,
        streams=streams,
        source=state.weights,
        ready=updates.is_ready,
        await_ready=lambda layer: streams.h2d.wait(updates.await_unit(layer)),
    )


def _rows(
    shape: ModelShape, state: TrainState, setup: FullSetup, streams: Streams
) -> tuple[Callable[[Sequence[PackedBatch]], Rows], tuple[Slab, ...]]:
    if setup.rows == "device":
        return lambda _: DeviceRows(), ()
    keeper = HostRows(
        levels=shape.num_layers,
        max_tokens=setup.max_tokens,
        max_micro_tokens=setup.max_micro_tokens,
        width=shape.hidden,
        dtype=state.form.compute_dtype,
        device=setup.device,
        streams=streams,
    )
    return lambda batches: keeper.begin([batch.num_tokens for batch in batches]), (keeper.slab,)


def _carve(room: Slab, sizes: Sequence[int]) -> list[Tensor]:
    return [room.take(size, torch.uint8) for size in sizes]
