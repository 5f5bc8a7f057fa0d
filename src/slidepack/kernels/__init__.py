"""The operations of the engine: fused on a GPU, plain PyTorch on the CPU."""

from slidepack.kernels.adamw import (
    ADAMW_BLOCK,
    AdamWState,
    adamw,
    adamw_scalars,
    join_master,
    split_master,
    squared_norm,
)
from slidepack.kernels.attention import AttentionChoice, Segments, attention, choose_attention
from slidepack.kernels.gated import gated
from slidepack.kernels.lane_adamw import block_squares, lane_adamw
from slidepack.kernels.linear_cross_entropy import HeadLoss, linear_cross_entropy
from slidepack.kernels.lora.dropout import LoraDropout, dropout_tables
from slidepack.kernels.lora.layout import LoraLayout, LoraWeights
from slidepack.kernels.lora.linear import lora_linear
from slidepack.kernels.lora.padding import padded_tables
from slidepack.kernels.lora.tables import LoraTables, lora_tables
from slidepack.kernels.nf4 import dequantise_nf4, quantise_nf4
from slidepack.kernels.readback import Readback
from slidepack.kernels.reference import adamw_ref, lora_ref
from slidepack.kernels.rms_norm import add_rms_norm, rms_norm
from slidepack.kernels.rope import rope
from slidepack.kernels.upload import upload

__all__ = [
    "ADAMW_BLOCK",
    "AdamWState",
    "AttentionChoice",
    "HeadLoss",
    "LoraDropout",
    "LoraLayout",
    "LoraTables",
    "LoraWeights",
    "Readback",
    "Segments",
    "adamw",
    "adamw_ref",
    "adamw_scalars",
    "add_rms_norm",
    "attention",
    "block_squares",
    "choose_attention",
    "dequantise_nf4",
    "dropout_tables",
    "gated",
    "join_master",
    "lane_adamw",
    "linear_cross_entropy",
    "lora_linear",
    "lora_ref",
    "lora_tables",
    "padded_tables",
    "quantise_nf4",
    "rms_norm",
    "rope",
    "split_master",
    "squared_norm",
    "upload",
]
