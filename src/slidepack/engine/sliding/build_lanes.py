"""Puts a packed LoRA over a sliding base together: memory, streams, engine and the passes."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Literal

from slidepack.engine.model.layer_attention import layer_attention
from slidepack.engine.model.layers import Decoder
from slidepack.engine.sliding.cpu_adamw import cpu_adamw
from slidepack.engine.sliding.lane_engine import LaneEngine
from slidepack.engine.sliding.lane_passes import SlidingPasses
from slidepack.engine.sliding.lane_slots import HostLanePool, LaneSlots
from slidepack.engine.sliding.rows import DeviceRows, HostRows, Rows
from slidepack.engine.sliding.sliding_layers import SlidingLayers
from slidepack.engine.sliding.streams import Streams
from slidepack.engine.sliding.updates import Updates
from slidepack.engine.sliding.weight_ring import WeightRing

__all__ = ["LaneSlide", "SlidingLanes", "build_sliding_lanes"]


@dataclass(frozen=True, kw_only=True, slots=True)
class LaneSlide:
    """How a packed LoRA slides."""

    slots: int
    """Layers on the card at once, of the base and of the lanes; two at least."""
    rows: Literal["device", "host"]
    """Where the inputs of the layers wait for the backward pass."""
    max_tokens: int
    """Most tokens of a step."""
    max_micro_tokens: int
    cpu_threads: int
    """Of the optimizer."""
    cache: Path
    """Folder of compiled libraries."""


@dataclass(slots=True)
class SlidingLanes:
    """A packed LoRA that slides, ready to run."""

    passes: SlidingPasses
    decoder: Decoder
    """The base for answers: its layers are brought to the card as they are asked for."""
    reason: str
    """Who updates the lanes."""
    _engine: LaneEngine
    _rows: HostRows | None
    _streams: Streams

    def close(self) -> None:
        """End the engine, and give pinned memory back."""
        self._engine.close()
        try:
            self._streams.settle()
        finally:
            if self._rows is not None:
                self._rows.slab.close()


def build_sliding_lanes(
    decoder: Decoder, slide: LaneSlide, check_stop: Callable[[], None] = lambda: None
) -> SlidingLanes:
    """Allocate everything but the base, and start the engine.

    Args:
        decoder: its ends are where the passes run, its layers in host memory.
        slide: how the machine is used.
        check_stop: may raise to abandon a pass.
    """
    shape, device, dtype = decoder.shape, decoder.device, decoder.dtype
    streams, updates = Streams.of(device), Updates(shape.num_layers)
    adamw = cpu_adamw(slide.cache, slide.cpu_threads)
    pools = [HostLanePool(dtype, pin=device.type == "cuda") for _ in range(shape.num_layers)]
    base = WeightRing(
        slots=slide.slots,
        elements=shape.layer_params,
        dtype=dtype,
        device=device,
        streams=streams,
        source=lambda layer: decoder.layers[layer].flat,
        ready=lambda _: True,
        await_ready=lambda _: None,
    )
    slots = LaneSlots(pools, updates, streams, device, slide.slots)
    engine = LaneEngine(pools, updates, adamw)
    keeper = None
    if slide.rows == "host":
        keeper = HostRows(
            levels=shape.num_layers,
            max_tokens=slide.max_tokens,
            max_micro_tokens=slide.max_micro_tokens,
            width=shape.hidden,
            dtype=dtype,
            device=device,
            streams=streams,
        )

    def rows(tokens: Sequence[int]) -> Rows:
        return DeviceRows() if keeper is None else keeper.begin(tokens)

    passes = SlidingPasses(
        decoder,
        base,
        slots,
        engine,
        layer_attention(shape, device, dtype),
        rows,
        streams,
        slide.slots - 1,
        slide.max_tokens,
        check_stop,
    )
    answering = Decoder(
        shape,
        decoder.embedding,
        SlidingLayers(base, shape, slide.slots - 1),
        decoder.final_norm,
        decoder.head,
    )
    reason = f"lanes are updated on the CPU ({adamw.reason})"
    return SlidingLanes(passes, answering, reason, engine, keeper, streams)
