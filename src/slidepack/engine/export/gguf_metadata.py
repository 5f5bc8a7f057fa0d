"""The sizes and settings that llama.cpp reads from a GGUF file's header."""

from typing import Final

from gguf import GGUFWriter, LlamaFileType, RopeScalingType

from slidepack.engine.export.contract import Quant
from slidepack.engine.export.gguf_family import context_length
from slidepack.engine.families.gguf_table import GgufFamily
from slidepack.engine.shape import ModelShape

__all__ = ["add_metadata"]

_FILE_TYPES: Final = {
    "f16": LlamaFileType.MOSTLY_F16,
    "q8_0": LlamaFileType.MOSTLY_Q8_0,
}
_QUANTIZATION_VERSION: Final = 2


def add_metadata(
    writer: GGUFWriter,
    shape: ModelShape,
    family: GgufFamily,
    name: str,
    quant: Quant,
    license_name: str = "",
) -> None:
    """Add everything but the tokenizer.

    Args:
        writer: of a file of `family`'s architecture.
        shape: the model's sizes.
        family: how llama.cpp computes it.
        name: how the model is called.
        quant: how matrices are stored.
        license_name: as the base states it; "" where it states none.
    """
    writer.add_type("model")
    writer.add_name(name)
    if license_name:
        writer.add_license(license_name)
    writer.add_file_type(_FILE_TYPES[quant])
    if quant != "f16":
        writer.add_quantization_version(_QUANTIZATION_VERSION)
    writer.add_vocab_size(shape.vocab)
    writer.add_context_length(context_length(shape, family))
    writer.add_embedding_length(shape.hidden)
    writer.add_block_count(shape.num_layers)
    writer.add_feed_forward_length(shape.ffn)
    _add_attention(writer, shape, family)
    _add_rope(writer, shape)


def _add_attention(writer: GGUFWriter, shape: ModelShape, family: GgufFamily) -> None:
    writer.add_head_count(shape.num_heads)
    writer.add_head_count_kv(shape.num_kv_heads)
    writer.add_key_length(shape.head_dim)
    writer.add_value_length(shape.head_dim)
    writer.add_layer_norm_rms_eps(shape.rms_eps)
    if family.window_pattern:
        (window,) = {window for window in shape.layer_windows if window is not None}
        writer.add_sliding_window(window)
        writer.add_sliding_window_pattern(family.window_pattern)
    if shape.attention_soft_cap is not None:
        writer.add_attn_logit_softcapping(shape.attention_soft_cap)
    if shape.final_soft_cap is not None:
        writer.add_final_logit_softcapping(shape.final_soft_cap)


def _add_rope(writer: GGUFWriter, shape: ModelShape) -> None:
    writer.add_rope_dimension_count(shape.head_dim)
    writer.add_rope_freq_base(shape.rope.theta)
    if shape.sliding_rope is not None:
        writer.add_rope_freq_base_swa(shape.sliding_rope.theta)
    if shape.rope.kind == "linear":
        writer.add_rope_scaling_type(RopeScalingType.LINEAR)
        writer.add_rope_scaling_factor(shape.rope.factor)
