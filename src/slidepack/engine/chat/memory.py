"""How many seats fit, and how large."""

from dataclasses import dataclass
from typing import Final

import psutil
import torch

from slidepack.engine.chat.contract import ChatRequest
from slidepack.engine.contract.errors import SlidepackError
from slidepack.engine.model.kv_cache import seat_bytes
from slidepack.engine.model.layers import Decoder
from slidepack.engine.model.nf4_layers import Nf4Layers

__all__ = ["CacheSize", "cache_size", "decoder_bytes"]

_LEAST_CONTEXT: Final = 64
_WORK_TOKENS: Final = 512
"""Of the largest pass."""
_SHARE: Final = 0.9
"""Of what is free now; others take some too."""


@dataclass(frozen=True, slots=True)
class CacheSize:
    """What a cache is made with."""

    seats: int
    context: int
    """Most tokens of a seat."""


def cache_size(request: ChatRequest, decoder: Decoder) -> CacheSize:
    """Return what fits: fewer seats first, then a smaller context.

    Raises:
        SlidepackError: CHAT-NO-ROOM: not even a short conversation fits.
    """
    shape, dtype = decoder.shape, decoder.dtype
    context = min(request.context, shape.max_positions)
    room = _free_bytes(decoder.device)
    if request.memory_cap_bytes:
        room = min(room, request.memory_cap_bytes - decoder_bytes(decoder))
    room -= _WORK_TOKENS * (4 * shape.hidden + 3 * shape.ffn + 2 * shape.q_width) * dtype.itemsize
    # A card has one seat more, for rows that fill a pass up.
    spare = 1 if decoder.device.type == "cuda" else 0
    seats = min(request.seats, room // seat_bytes(shape, context, dtype) - spare)
    if seats >= 1:
        return CacheSize(seats, context)
    context = room // seat_bytes(shape, 1 + spare, dtype) // _LEAST_CONTEXT * _LEAST_CONTEXT
    if context < _LEAST_CONTEXT:
        raise SlidepackError(
            "CHAT-NO-ROOM",
            "There is not enough memory for a conversation beside the model.",
            why=f"{max(0, room) / 1e6:.0f} MB are left, and {_LEAST_CONTEXT} tokens take "
            f"{seat_bytes(shape, (1 + spare) * _LEAST_CONTEXT, dtype) / 1e6:.0f} MB",
            fix="Close what else uses the memory, raise the cap, or hold the base in nf4.",
        )
    return CacheSize(1, context)


def decoder_bytes(decoder: Decoder) -> int:
    """Return the memory of a model's weights."""
    layers = decoder.layers
    held = (
        layers.num_bytes
        if isinstance(layers, Nf4Layers)
        else sum(layer.flat.nbytes for layer in layers)
    )
    ends = decoder.embedding.nbytes + decoder.final_norm.nbytes
    tied = decoder.head.data_ptr() == decoder.embedding.data_ptr()
    return held + ends + (0 if tied else decoder.head.nbytes)


def _free_bytes(device: torch.device) -> int:
    if device.type == "cuda":
        return int(_SHARE * torch.cuda.mem_get_info(device)[0])
    return int(_SHARE * psutil.virtual_memory().available)
