"""Puts a full fine-tuning together: memory, streams, engines and the walk, as a plan says."""

import contextlib
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
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
from slidepack.engine.sliding.tier_weights import (
    DirectWeights,
    StagedWeights,
    TierWeights,
    weight_pieces,
)
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
    stages_on_card: bool = True
    """Whether the card has room for those of its engine, where the transport reaches it."""
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
        try:
            self.streams.settle()
        finally:
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
    on_progress: Callable[[], None] = lambda: None,
) -> FullTrainer:
    """Allocate everything but the state, start the engines, and return the trainer.

    Args:
        shape: sizes.
        state: master weights, filled, and moments.
        setup: how the machine is used.
        check_stop: called where an evaluation can be abandoned.
        timed: keep the lanes' spans, for a benchmark.
        sharing: chooses the engine of each update, instead of what `setup` says.
        on_progress: called, by any thread, when a step or its updates have got on.

    Raises:
        torch.OutOfMemoryError: the card has not so much; nothing of it is held then.
        OSError: nor has the system.
        SlidepackError: DISK-FULL, DISK-UNWRITABLE or DISK-FAILED.
    """
    if state.tier is not None:
        # Only one thread may do it, and from here on there are several.
        state.tier.settle()
    streams = Streams.of(setup.device, timed=timed)
    updates = Updates(len(state.units), on_progress)
    with contextlib.ExitStack() as made:
        engines = _engines(shape, state, setup, updates, streams, made, alone=sharing is None)
        slabs = _Slabs(made, pin=setup.device.type == "cuda")
        optimizer = _optimizer(shape, state, setup, updates, streams, engines, sharing, slabs)
        tier_weights = _tier_weights(shape, state, setup, streams, updates)
        if tier_weights is not None:
            made.callback(tier_weights.close)
        window = _window(shape, state, setup, updates, streams, optimizer, tier_weights)
        keeper = None
        if setup.rows == "host":
            keeper = _host_rows(shape, state, setup, streams, updates, made)
        driver = FullDriver(
            shape,
            window,
            layer_attention(shape, setup.device, state.form.compute_dtype),
            _rows(keeper, kept=True),
            check_stop,
            _rows(keeper, kept=False),
        )
        made.pop_all()
    return FullTrainer(
        driver,
        state,
        updates,
        optimizer,
        streams,
        engines.cpu,
        engines.reason,
        tuple(slabs.made) if keeper is None else (*slabs.made, keeper.slab),
        tier_weights,
        keeper,
    )


@dataclass(slots=True)
class _Engines:
    """The engines of a run, and what each unit is assigned to."""

    assignment: Sequence[EngineName] | None
    """None leaves it to the clock."""
    named: dict[EngineName, CpuEngine | GpuEngine] = field(default_factory=dict)
    cpu: CpuEngine | None = None
    reasons: list[str] = field(default_factory=list)

    @property
    def reason(self) -> str:
        return " and ".join(self.reasons)

    def sharing(self, layers: int) -> Sharing:
        if self.assignment is None:
            return BalancedSharing(self.named, layers)
        return FixedSharing(self.assignment)


class _Slabs:
    """Host memory of a trainer."""

    def __init__(self, closed_by: contextlib.ExitStack, *, pin: bool) -> None:
        self.made: list[Slab] = []
        self._closed_by = closed_by
        self._pin = pin

    def take(self, num_bytes: int) -> Slab:
        self.made.append(Slab(num_bytes, pin=self._pin))
        self._closed_by.callback(self.made[-1].close)
        return self.made[-1]


def _engines(
    shape: ModelShape,
    state: TrainState,
    setup: FullSetup,
    updates: Updates,
    streams: Streams,
    made: contextlib.ExitStack,
    *,
    alone: bool,
) -> _Engines:
    """Start the engines that `setup` names; both where something else shares the work out."""
    assignment = None
    if setup.cpu_share is not None and alone:
        assignment = assign(shape.num_layers, len(state.units), setup.cpu_share)
    found = _Engines(assignment)
    if assignment is None or "cpu" in assignment:
        adamw = cpu_adamw(setup.cache, setup.cpu_threads)
        chunks = _chunks(state, updates, setup, made)
        found.cpu = CpuEngine(state, updates, adamw, chunks, streams.update_h2d)
        made.callback(found.cpu.close)
        found.named["cpu"] = found.cpu
        found.reasons.append(f"the CPU ({adamw.reason})")
    if assignment is None or "gpu" in assignment:
        on_card = setup.device.type == "cuda" and setup.stages_on_card
        chunks = _chunks(state, updates, setup, made, on_card=on_card)
        engine = GpuEngine(state, updates, streams, setup.device, chunks)
        made.callback(engine.close)
        found.named["gpu"] = engine
        found.reasons.append("the card")
    return found


def _optimizer(
    shape: ModelShape,
    state: TrainState,
    setup: FullSetup,
    updates: Updates,
    streams: Streams,
    engines: _Engines,
    sharing: Sharing | None,
    slabs: _Slabs,
) -> AsyncOptimizer:
    layers, dtype = shape.num_layers, state.form.compute_dtype
    sizes = [
        unit.elements * (dtype if index < layers else torch.float32).itemsize
        for index, unit in enumerate(state.units)
    ]
    both = len(engines.named) == 2
    host_slots, waiting = None, None
    if setup.clip:
        waiting = _carve(slabs.take(sum(Slab.padded(size) for size in sizes)), sizes)
    elif "cpu" in engines.named:
        # Beside the card's engine it gets layers; the ends' gradients are the largest by far.
        largest = max(sizes[:layers] if both else sizes)
        room = slabs.take(setup.host_grad_slots * Slab.padded(largest))
        host_slots = SlotPool(_carve(room, [largest] * setup.host_grad_slots), updates.check)
    return AsyncOptimizer(
        updates=updates,
        streams=streams,
        engines=engines.named,
        sharing=engines.sharing(layers) if sharing is None else sharing,
        host_slots=host_slots,
        waiting=waiting,
        shared=_shared(layers, state, slabs, clip=setup.clip) if both else None,
        on_tier=frozenset(filter(state.master_on_tier, range(len(state.units)))),
    )


def _shared(layers: int, state: TrainState, slabs: _Slabs, *, clip: bool) -> SharedUnit | None:
    """Return how both engines share the embedding; None where it is too small for that."""
    layout = state.layout(layers)
    grain = ADAMW_BLOCK if layout is None else layout.chunk
    cut = state.units[layers].elements // 2 // grain * grain
    if not cut:
        return None
    # Where gradients wait for the norm, they have room already.
    room = torch.empty(0) if clip else slabs.take(cut * 4).take(cut, torch.float32)
    return SharedUnit(layers, cut, room, grain)


def _window(
    shape: ModelShape,
    state: TrainState,
    setup: FullSetup,
    updates: Updates,
    streams: Streams,
    optimizer: AsyncOptimizer,
    tier_weights: TierWeights | None,
) -> Window:
    layer, dtype, device = shape.layer_params, state.form.compute_dtype, setup.device
    grads = [torch.empty(layer, dtype=dtype, device=device) for _ in range(setup.grad_slots)]
    wide = None
    if setup.accumulate and dtype != torch.float32:
        wide = torch.empty(layer, dtype=torch.float32, device=device)
    return Window(
        weights=_weights(shape, state, setup, streams, updates, optimizer, tier_weights),
        grads=SlotPool(grads, updates.check),
        wide_grad=wide,
        ends=TrainedEnds(shape, state, streams, updates, optimizer, device),
        optimizer=optimizer,
        updates=updates,
        streams=streams,
        prefetch=max(1, setup.weight_slots - 1),
    )


def _chunks(
    state: TrainState,
    updates: Updates,
    setup: FullSetup,
    made: contextlib.ExitStack,
    *,
    on_card: bool = False,
) -> TierChunks | None:
    """Return what brings state from the drives to an engine; None where none is there."""
    if state.tier is None or not state.tier.bytes:
        return None
    chunks = TierChunks(
        state,
        updates,
        stages=setup.state_stages,
        device=setup.device,
        on_card=on_card and state.tier.transport.takes_device_memory,
    )
    # Its engine, once there is one, closes it first.
    made.callback(chunks.close)
    return chunks


def _tier_weights(
    shape: ModelShape, state: TrainState, setup: FullSetup, streams: Streams, updates: Updates
) -> TierWeights | None:
    """Return what brings layers' weights from the drives to the ring; None where none is there."""
    tier, device = state.tier, setup.device
    if tier is None or not any(map(state.master_on_tier, range(shape.num_layers))):
        return None
    if device.type == "cpu" or tier.transport.takes_device_memory:
        return DirectWeights(tier)
    width = state.form.compute_dtype.itemsize
    _, piece = weight_pieces(shape.layer_params * width, tier.chunk * width)
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
    shape: ModelShape,
    state: TrainState,
    setup: FullSetup,
    streams: Streams,
    updates: Updates,
    made: contextlib.ExitStack,
) -> HostRows:
    tier = _tier_rows(shape, state, setup, updates, made)
    rows = HostRows(
        levels=shape.num_layers,
        max_tokens=setup.max_tokens,
        max_micro_tokens=setup.max_micro_tokens,
        width=shape.hidden,
        dtype=state.form.compute_dtype,
        device=setup.device,
        streams=streams,
        tier=tier,
    )
    made.callback(rows.close)
    return rows


def _tier_rows(
    shape: ModelShape,
    state: TrainState,
    setup: FullSetup,
    updates: Updates,
    made: contextlib.ExitStack,
) -> TierRows | None:
    if not setup.tier_rows:
        return None
    assert state.tier is not None
    levels, row_bytes = sorted(setup.tier_rows), shape.hidden * state.form.compute_dtype.itemsize
    sizes = setup.max_tokens, setup.max_micro_tokens
    file = state.tier.extra("rows", rows_file_bytes(len(levels), *sizes, row_bytes))
    made.callback(file.close)
    rows = TierRows(
        levels,
        file,
        state.tier.transport,
        max_tokens=setup.max_tokens,
        max_micro_tokens=setup.max_micro_tokens,
        row_bytes=row_bytes,
        readers=ROW_BUFFERS,
        writers=max(2, setup.row_stages - ROW_BUFFERS),
        pin=setup.device.type == "cuda",
        on_progress=updates.advance,
    )
    made.callback(rows.close)
    return rows


def _carve(room: Slab, sizes: Sequence[int]) -> list[Tensor]:
    return [room.take(size, torch.uint8) for size in sizes]
