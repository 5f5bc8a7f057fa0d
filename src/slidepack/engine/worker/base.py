"""The frozen base of LoRA lanes: on the device, or sliding through it, as the plan says."""

from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Final

import platformdirs
import torch
from torch import Tensor

from slidepack.engine.contract.plan import LaneSlidePlan, RunPlan
from slidepack.engine.lora.pack import Pack
from slidepack.engine.model.layer_attention import LayerAttention, layer_attention
from slidepack.engine.model.layers import Decoder
from slidepack.engine.model.loading import load_decoder
from slidepack.engine.shape import read_shape
from slidepack.engine.sliding.build_lanes import LaneSlide, SlidingLanes, build_sliding_lanes
from slidepack.engine.sliding.slab import Slab
from slidepack.engine.worker.base_memory import BaseMemory

__all__ = ["Base", "open_base"]

_EXACT_MULTIPLE: Final = 64


@dataclass(slots=True)
class Base:
    """A base, and the pack of lanes over it."""

    decoder: Decoder
    """For answers."""
    attention: LayerAttention
    pack: Pack
    memory: BaseMemory
    _sliding: SlidingLanes | None
    _slab: Slab | None

    def close(self) -> None:
        """Give back what outlives a reference: threads and pinned memory."""
        if self._sliding is not None:
            self._sliding.close()
        if self._slab is not None:
            self._slab.close()


def open_base(
    folder: Path,
    plan: RunPlan,
    device: torch.device,
    on_layer: Callable[[int, int], None],
    check_stop: Callable[[], None],
    *,
    exact: bool = False,
) -> Base:
    """Load a base, with an empty pack over it.

    Args:
        folder: of the model.
        plan: of the passes.
        device: the plan's, ready.
        on_layer: called with (layers done, layers in all); may raise to stop the load.
        check_stop: may raise to abandon a pass.
        exact: fill every row up to the same number of tokens.

    Raises:
        SlidepackError: the errors of `load_decoder`.
        OSError: the host's memory is not there.
    """
    dtype = torch.float32 if plan.precision == "fp32" else torch.bfloat16
    slab, room = None, None
    if plan.slide is not None:
        shape = read_shape(folder)
        layer_bytes = Slab.padded(shape.layer_params * dtype.itemsize)
        slab = Slab(shape.num_layers * layer_bytes, pin=device.type == "cuda")
        room = _taking(slab, dtype)
    nf4 = plan.base_format == "nf4"
    decoder = load_decoder(folder, device, dtype, on_layer, room, nf4=nf4)
    attention = layer_attention(decoder.shape, device, dtype)
    sliding = None
    if plan.slide is not None:
        sliding = build_sliding_lanes(decoder, _slide(plan, plan.slide), check_stop)
    pack = Pack(
        decoder,
        attention,
        plan.layer_activations,
        plan.micro_batch_tokens,
        check_stop,
        exact_tokens=_padded(plan.micro_batch_tokens) if exact else 0,
        passes=None if sliding is None else sliding.passes,
    )
    return Base(
        decoder if sliding is None else sliding.decoder,
        attention,
        pack,
        BaseMemory(),
        sliding,
        slab,
    )


def _taking(slab: Slab, dtype: torch.dtype) -> Callable[[int], Tensor]:
    return lambda elements: slab.take(elements, dtype)


def _slide(plan: RunPlan, slide: LaneSlidePlan) -> LaneSlide:
    return LaneSlide(
        slots=slide.slots,
        rows=slide.rows,
        max_tokens=slide.max_tokens,
        max_micro_tokens=plan.micro_batch_tokens,
        cpu_threads=plan.cpu_threads,
        cache=platformdirs.user_cache_path("slidepack") / "native",
    )


def _padded(tokens: int) -> int:
    """Return the tokens of every row in exact mode: room for one of padding, a round number."""
    return -(-(tokens + 1) // _EXACT_MULTIPLE) * _EXACT_MULTIPLE
