"""How much memory a chat needs, known before its process is started. Torch-free."""

from typing import Final

from slidepack.engine.contract.job import LoraMethod, Precision
from slidepack.engine.memory_lora import base_format, frozen_bytes, lora_precision
from slidepack.engine.memory_parts import (
    DEVICE_CONTEXT_BYTES,
    DEVICE_HOST_BYTES,
    HOST_PROCESS_BYTES,
    MemoryNeed,
)
from slidepack.engine.shape import ModelShape

__all__ = ["LEAST_CONTEXT", "chat_need"]

LEAST_CONTEXT: Final = 512
"""Tokens of a conversation below which a chat is not worth its start."""


def chat_need(
    shape: ModelShape, *, device: str, precision: Precision, adapter_params: int
) -> MemoryNeed:
    """Return the least bytes with which a chat can be held.

    More of it lets conversations be longer, and more answers advance together.

    Args:
        shape: of the base.
        device: `cpu` or `cuda:N`.
        precision: of the base.
        adapter_params: parameters of all its adapters.
    """
    method = LoraMethod(base_precision=precision)
    on_cpu = device == "cpu"
    width = 4 if lora_precision(method, device) == "fp32" else 2
    weights = frozen_bytes(shape, width, base_format(method))
    # A card has one seat more, for rows that fill a pass up.
    seats = 1 if on_cpu else 2
    tokens = min(LEAST_CONTEXT, shape.max_positions)
    parts = {
        "weights": weights,
        "adapters": adapter_params * width,
        "cache of a short conversation": seats * tokens * _cache_bytes(shape, width),
    }
    if on_cpu:
        return MemoryNeed(
            device={}, host=parts | {"process and libraries": HOST_PROCESS_BYTES}, disk={}
        )
    return MemoryNeed(
        device=parts | {"driver context": DEVICE_CONTEXT_BYTES},
        host={"process and libraries": DEVICE_HOST_BYTES, "layers on their way": weights // 8},
        disk={},
    )


def _cache_bytes(shape: ModelShape, width: int) -> int:
    """Return the bytes of one token's keys and values."""
    return 2 * shape.num_layers * shape.kv_width * width
