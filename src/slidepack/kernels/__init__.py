"""The operations of the engine."""

from slidepack.kernels.attention import AttentionChoice, Segments, attention, choose_attention
from slidepack.kernels.linear_cross_entropy import linear_cross_entropy
from slidepack.kernels.reference import (
    adamw_ref,
    lora_ref,
    rms_norm_ref,
    rope_ref,
    swiglu_ref,
)

__all__ = [
    "AttentionChoice",
    "Segments",
    "adamw_ref",
    "attention",
    "choose_attention",
    "linear_cross_entropy",
    "lora_ref",
    "rms_norm_ref",
    "rope_ref",
    "swiglu_ref",
]
