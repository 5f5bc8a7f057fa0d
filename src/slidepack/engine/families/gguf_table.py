"""What llama.cpp calls the families: their architectures, their tensors, and how it computes them.

Whoever writes GGUF files and whoever reads them look here.
"""

from typing import Final

import msgspec

from slidepack.engine.families.model_shape import ModelShape

__all__ = [
    "GGUF_FAMILIES",
    "LOCAL_THETA",
    "ROPE_FREQS",
    "GgufFamily",
    "scored_size",
    "stores_permuted",
    "stores_plus_one",
    "tensor_name",
]


class GgufFamily(msgspec.Struct, frozen=True, kw_only=True):
    """One of llama.cpp's architectures."""

    name: str
    permuted: bool = False
    """The rows of q and k are stored with rotary partners side by side."""
    long_rope: bool = False
    """It can stretch its rotary frequencies one by one (`rope_freqs.weight`)."""
    window_pattern: int = 0
    """All layers but every so many-th have a window; 0: it knows no windows."""
    scaled_by_width: int = 0
    """Number of layers of the one size whose scores are scaled by width / heads, not by head size.
    """
    attention_soft_cap: bool = False
    final_soft_cap: bool = False
    always_tied: bool = False


GGUF_FAMILIES: Final = {
    "LlamaForCausalLM": GgufFamily(name="llama", permuted=True, long_rope=True),
    # Mistral is a Llama to llama.cpp.
    "MistralForCausalLM": GgufFamily(name="llama", permuted=True, long_rope=True),
    "Qwen2ForCausalLM": GgufFamily(name="qwen2"),
    "Qwen3ForCausalLM": GgufFamily(name="qwen3"),
    "Gemma2ForCausalLM": GgufFamily(
        name="gemma2",
        window_pattern=2,
        scaled_by_width=46,
        attention_soft_cap=True,
        final_soft_cap=True,
        always_tied=True,
    ),
    "Gemma3ForCausalLM": GgufFamily(name="gemma3", window_pattern=6, scaled_by_width=62),
}
"""By Hugging Face's name; of several that share one of llama.cpp's, the first is the plain one."""
ROPE_FREQS: Final = "rope_freqs.weight"
"""By what each rotary frequency is divided."""
LOCAL_THETA: Final = 10_000.0
"""Rotary base of Gemma 3's layers with a window, where a file names none."""
_TOP: Final = {
    "model.embed_tokens.weight": "token_embd.weight",
    "model.norm.weight": "output_norm.weight",
    "lm_head.weight": "output.weight",
}
_MODULES: Final = {
    "input_layernorm": "attn_norm",
    "self_attn.q_proj": "attn_q",
    "self_attn.k_proj": "attn_k",
    "self_attn.v_proj": "attn_v",
    "self_attn.o_proj": "attn_output",
    "self_attn.q_norm": "attn_q_norm",
    "self_attn.k_norm": "attn_k_norm",
    "post_attention_layernorm": "ffn_norm",
    "mlp.gate_proj": "ffn_gate",
    "mlp.up_proj": "ffn_up",
    "mlp.down_proj": "ffn_down",
}
_SANDWICH: Final = _MODULES | {
    "post_attention_layernorm": "post_attention_norm",
    "pre_feedforward_layernorm": "ffn_norm",
    "post_feedforward_layernorm": "post_ffw_norm",
}


def tensor_name(name: str, shape: ModelShape) -> str:
    """Return llama.cpp's name of a tensor, from its Hugging Face name."""
    if name in _TOP:
        return _TOP[name]
    _, _, layer, *middle, leaf = name.split(".")
    modules = _SANDWICH if shape.sandwich_norms else _MODULES
    return f"blk.{layer}.{modules['.'.join(middle)]}.{leaf}"


def stores_permuted(name: str, family: GgufFamily) -> bool:
    """Return whether llama.cpp stores a weight's rows in its own order."""
    return family.permuted and name.endswith((".q_proj.weight", ".k_proj.weight"))


def stores_plus_one(name: str, shape: ModelShape) -> bool:
    """Return whether llama.cpp stores a weight with 1 added to it."""
    return shape.norm_plus_one and name.endswith("norm.weight")


def scored_size(family: GgufFamily, *, layers: int, hidden: int, heads: int, head_dim: int) -> int:
    """Return the size whose inverse root llama.cpp scales a model's scores by."""
    return hidden // heads if layers == family.scaled_by_width else head_dim
