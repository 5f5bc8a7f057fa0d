"""What llama.cpp calls a family's architecture and tensors, and what it computes of a family."""

import math
from typing import Final

import msgspec

from slidepack.engine.contract.errors import SlidepackError
from slidepack.engine.shape import ModelShape

__all__ = ["GgufFamily", "context_length", "gguf_family", "tensor_name"]


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


_FAMILIES: Final = {
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
_LOCAL_THETA: Final = 10_000.0


def gguf_family(shape: ModelShape) -> GgufFamily:
    """Return the architecture under which llama.cpp computes exactly this model.

    Raises:
        SlidepackError: MODEL-UNSUPPORTED: another family, or a variant that llama.cpp would compute
            otherwise without a word.
    """
    family = _FAMILIES.get(shape.architecture)
    if family is None:
        raise _unsupported(f"its architecture is {shape.architecture}")
    why = _difference(shape, family)
    if why is not None:
        raise _unsupported(f"{shape.architecture}: {why}")
    return family


def tensor_name(name: str, shape: ModelShape) -> str:
    """Return llama.cpp's name of a tensor, from its Hugging Face name."""
    if name in _TOP:
        return _TOP[name]
    _, _, layer, *middle, leaf = name.split(".")
    modules = _SANDWICH if shape.sandwich_norms else _MODULES
    return f"blk.{layer}.{modules['.'.join(middle)]}.{leaf}"


def context_length(shape: ModelShape, family: GgufFamily) -> int:
    """Return how many tokens the file allows.

    llama.cpp knows no window for some architectures that have one: within as many tokens as the
    window is long, it makes no difference, so that is all that the file allows.
    """
    windows = [window for window in shape.layer_windows if window is not None]
    if windows and not family.window_pattern:
        return min(shape.max_positions, *windows)
    return shape.max_positions


def _difference(shape: ModelShape, family: GgufFamily) -> str | None:
    """Return what llama.cpp would compute otherwise, or None."""
    if shape.rope.kind == "llama3" and not family.long_rope:
        return "llama.cpp stretches rotary frequencies one by one for Llama only"
    if shape.final_soft_cap is not None and not family.final_soft_cap:
        return "llama.cpp knows no soft cap of its logits"
    if shape.final_soft_cap is None and family.final_soft_cap:
        return "llama.cpp always bounds its logits"
    if shape.attention_soft_cap is None and family.attention_soft_cap:
        return "llama.cpp always bounds its scores"
    if family.always_tied and not shape.tied_head:
        return "llama.cpp takes the embedding for its head"
    if family.window_pattern:
        return _windows_differ(shape, family.window_pattern) or _scale_differs(shape, family)
    return None


def _windows_differ(shape: ModelShape, pattern: int) -> str | None:
    windows = [shape.window_of(layer) for layer in range(shape.num_layers)]
    slides = [window is not None for window in windows]
    if slides != [(layer + 1) % pattern != 0 for layer in range(shape.num_layers)]:
        return f"llama.cpp gives a window to all layers but every {pattern}th"
    if len({window for window in windows if window is not None}) > 1:
        return "its windows differ in length"
    local = shape.sliding_rope
    if local is not None and (local.kind != "default" or local.theta != _LOCAL_THETA):
        return f"llama.cpp rotates layers with a window by a base of {_LOCAL_THETA:g}"
    return None


def _scale_differs(shape: ModelShape, family: GgufFamily) -> str | None:
    size = shape.head_dim
    if shape.num_layers == family.scaled_by_width:
        size = shape.hidden // shape.num_heads
    scale = size**-0.5 if shape.attention_scale is None else shape.attention_scale
    if not math.isclose(scale, size**-0.5, rel_tol=1e-6):
        return f"llama.cpp scales its scores by 1 / sqrt({size}) (query_pre_attn_scalar)"
    return None


def _unsupported(why: str) -> SlidepackError:
    return SlidepackError(
        "MODEL-UNSUPPORTED",
        "This model cannot be written as a GGUF file.",
        why=why,
        fix="Export it as merged or peft; GGUF files are written for these architectures, as they "
        f"were published: {', '.join(_FAMILIES)}.",
    )
