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
from slidepack.engine.nvme.files import padded
from slidepack.engine.shape import ModelShape
from slidepack.engine.sliding.cpu_adamw import cpu_adamw
from slidepack.engine.sliding.cpu_engine import CpuEngine
from slidepack.engine.sliding.ends import TrainedEnds
from slidepack.engine.sliding.full_driver import FullDriver, Window
from slidepack.engine.sliding.gpu_engine import GpuEngine
from slidepack.engine.sliding.optimizer import AsyncOptimizer, SharedUnit
from slidepack.engine.sliding.read_ahead import make_stages
from slidepack.engine.sliding.resident_weights import ResidentWeights
from slidepack.engine.sliding.rows import ROW_BUFFERS, DeviceRows, HostRows, Rows
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
from slidepack.engine.sliding.tier_chunks import TierChunks
from slidepack.engine.sliding.tier_rows import TierRows, rows_file_bytes
from slidepack.engine.sliding.tier_weights import DirectWeights, StagedWeights, TierWeights
from slidepack.engine.sliding.updates import Updates
from slidepack.engine.sliding.weight_ring import WeightRing, Weights
from slidepack.kernels import ADAMW_BLOCK

_FEWEST_SLOTS: Final = 2
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
    state_stages: int = 6
    """Chunks of state that is on drives, in RAM at once, for each engine."""
    weight_stages: int = 8
    """Pieces of a layer's weights on their way from a drive to the card."""
    tier_rows: frozenset[int] = frozenset()
    """Layers whose inputs are on a drive, of rows that are in host memory."""
    row_stages: int = 2 * ROW_BUFFERS
    """Micro-batches of those in RAM at once."""


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
    tier_weights: TierWeights | None
    rows: HostRows | None

    def close(self) -> None:
        """End the engines, and give their pinned memory back; the state stays as it is."""
        self.optimizer.close()
        if self.tier_weights is not None:
            self.tier_weights.close()
        if self.rows is not None:
            self.rows.close()
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
        cpu_engine = CpuEngine(
            state, updates, adamw, _chunks(state, updates, setup), streams.update_h2d
        )
        engines["cpu"] = cpu_engine
        reasons.append(f"the CPU ({adamw.reason})")
    if assignment is None or "gpu" in assignment:
        on_card = device.type == "cuda"
        chunks = _chunks(state, updates, setup, on_card=on_card)
        engines["gpu"] = GpuEngine(state, updates, streams, device, chunks)
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
    layout = state.layout(shape.num_layers)
    grain = ADAMW_BLOCK if layout is None else layout.chunk
    cut = state.units[shape.num_layers].elements // 2 // grain * grain
    if len(engines) == 2 and cut:
        shared = SharedUnit(
            shape.num_layers,
            cut,
            # Where gradients wait for the norm, they have room already.
            torch.empty(0) if setup.clip else slab(cut * 4).take(cut, torch.float32),
            grain,
        )
    optimizer = AsyncOptimizer(
        updates=updates,
        streams=streams,
        engines=engines,
        sharing=sharing,
        host_slots=host_slots,
        waiting=waiting,
        shared=shared,
        on_tier=frozenset(filter(state.master_on_tier, range(len(state.units)))),
    )
    layer = shape.layer_params
    grads = [
        torch.empty(layer, dtype=form.compute_dtype, device=device) for _ in range(setup.grad_slots)
    ]
    wide = None
    if setup.accumulate and form.compute_dtype != torch.float32:
        wide = torch.empty(layer, dtype=torch.float32, device=device)
    tier_weights = _tier_weights(shape, state, setup, streams, updates)
    window = Window(
        weights=_weights(shape, state, setup, streams, updates, optimizer, tier_weights),
        grads=SlotPool(grads, updates.check),
        wide_grad=wide,
        ends=TrainedEnds(shape, state, streams, updates, optimizer, device),
        optimizer=optimizer,
        updates=updates,
        streams=streams,
        prefetch=max(1, setup.weight_slots - 1),
    )
    keeper = _host_rows(shape, state, setup, streams) if setup.rows == "host" else None
    driver = FullDriver(
        shape,
        window,
        layer_attention(shape, device, form.compute_dtype),
        _rows(keeper, kept=True),
        check_stop,
        _rows(keeper, kept=False),
    )
    return FullTrainer(
        driver,
        state,
        updates,
        optimizer,
        streams,
        cpu_engine,
        " and ".join(reasons),
        tuple(slabs) if keeper is None else (*slabs, keeper.slab),
        tier_weights,
        keeper,
    )


def _chunks(
    state: TrainState, updates: Updates, setup: FullSetup, *, on_card: bool = False
) -> TierChunks | None:
    """Return what brings state from the drives to an engine; None where none is there."""
    if state.tier is None or not state.tier.bytes:
        return None
    return TierChunks(
        state,
        updates,
        stages=setup.state_stages,
        device=setup.device,
        on_card=on_card and state.tier.transport.takes_device_memory,
    )


def _tier_weights(
    shape: ModelShape, state: TrainState, setup: FullSetup, streams: Streams, updates: Updates
) -> TierWeights | None:
    """Return what brings layers' weights from the drives to the ring; None where none is there."""
    tier, device = state.tier, setup.device
    if tier is None or not any(map(state.master_on_tier, range(shape.num_layers))):
        return None
    if device.type == "cpu" or tier.transport.takes_device_memory:
        return DirectWeights(tier)
    piece = padded(tier.chunk * state.form.compute_dtype.itemsize)
    stages = make_stages(setup.weight_stages, piece, pin=True, device=None)
    return StagedWeights(tier, stages, streams.h2d, updates.fail, device)


def _weights(
    shape: ModelShape,
    state: TrainState,
    setup: FullSetup,
    streams: Streams,
    updates: Updates,
    optimizer: AsyncOptimizer,
    tier_weights: TierWeights | None,
) -> Weights:
    device = setup.device
    # Where the passes would read the master's own memory, it must be there.
    sliding = setup.weights == "slide" or (device.type == "cpu" and tier_weights is not None)
    if not sliding:
        flats = [state.weights(layer) for layer in range(shape.num_layers)]
        if device.type != "cpu":
            flats = [flat.to(device) for flat in flats]

        def on_host(layer: int) -> Tensor | None:
            part = optimizer.on_host(layer)
            if device.type == "cpu" or part == slice(0, 0):
                return None
            return state.weights(layer)[part]

        return ResidentWeights(flats, streams.compute, updates.await_unit, on_host)
    return WeightRing(
        slots=setup.weight_slots if setup.weights == "slide" else _FEWEST_SLOTS,
        elements=shape.layer_params,
        dtype=state.form.compute_dtype,
        device=device,
        streams=streams,
        source=state.weights,
        ready=updates.is_ready,
        await_ready=lambda layer: streams.h2d.wait(updates.await_unit(layer)),
        tier=tier_weights,
    )


def _rows(keeper: HostRows | None, *, kept: bool) -> Callable[[Sequence[PackedBatch]], Rows]:
    if keeper is None:
        return lambda _: DeviceRows()
    return lambda batches: keeper.begin([batch.num_tokens for batch in batches], kept=kept)


def _host_rows(
    shape: ModelShape, state: TrainState, setup: FullSetup, streams: Streams
) -> HostRows:
    return HostRows(
        levels=shape.num_layers,
        max_tokens=setup.max_tokens,
        max_micro_tokens=setup.max_micro_tokens,
        width=shape.hidden,
        dtype=state.form.compute_dtype,
        device=setup.device,
        streams=streams,
        tier=_tier_rows(shape, state, setup),
    )


def _tier_rows(shape: ModelShape, state: TrainState, setup: FullSetup) -> TierRows | None:
    if not setup.tier_rows:
        return None
    assert state.tier is not None
    levels, row_bytes = sorted(setup.tier_rows), shape.hidden * state.form.compute_dtype.itemsize
    sizes = setup.max_tokens, setup.max_micro_tokens
    return TierRows(
        levels,
        state.tier.extra("rows", rows_file_bytes(len(levels), *sizes, row_bytes)),
        state.tier.transport,
        max_tokens=setup.max_tokens,
        max_micro_tokens=setup.max_micro_tokens,
        row_bytes=row_bytes,
        readers=ROW_BUFFERS,
        writers=max(2, setup.row_stages - ROW_BUFFERS),
        pin=setup.device.type == "cuda",
    )


def _carve(room: Slab, sizes: Sequence[int]) -> list[Tensor]:
    return [room.take(size, torch.uint8) for size in sizes]
