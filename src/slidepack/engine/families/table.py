"""What sets one model family apart from another, and the defaults of its `config.json`.

Defaults are those of `transformers`, which leaves out of a config what equals them.
"""

from typing import Final, Literal

import msgspec

__all__ = ["FAMILIES", "Activation", "Family"]

Activation = Literal["silu", "gelu_tanh"]


class Family(msgspec.Struct, frozen=True, kw_only=True):
    """One family of decoders."""

    qkv_bias: bool = False
    """q, k and v have biases, whatever the config says."""
    qk_norm: bool = False
    """Queries and keys are normed, head by head, before the rotation."""
    norm_plus_one: bool = False
    """Norms scale by 1 + weight."""
    sandwich_norms: bool = False
    """The outputs of attention and feed-forward are normed before they are added."""
    scaled_embedding: bool = False
    """The embedding is multiplied by the root of the width."""
    activation: Activation = "silu"
    activation_field: str = "hidden_act"
    query_scalar: float | None = None
    """Default of `query_pre_attn_scalar`; None for a family without it."""
    attention_soft_cap: float | None = None
    """Default of `attn_logit_softcapping`."""
    final_soft_cap: float | None = None
    """Default of `final_logit_softcapping`."""
    windows: Literal["none", "all", "tail", "pattern"] = "none"
    """Which layers have a window: none, all, those from `max_window_layers` on where
    `use_sliding_window` is set, or all but every `sliding_window_pattern`-th."""
    window_pattern: int = 1
    """Default of `sliding_window_pattern`."""
    two_ropes: bool = False
    """Layers with a window have rotary parameters of their own."""
    rope_theta: float = 10_000.0
    kv_heads: int | None = None
    """None: as many as heads."""
    head_dim: int | None = None
    """None: width / heads."""
    max_positions: int = 2048
    tied_head: bool = False


FAMILIES: Final[dict[str, Family]] = {
    "LlamaForCausalLM": Family(),
    "MistralForCausalLM": Family(windows="all", kv_heads=8, max_positions=131_072),
    "Qwen2ForCausalLM": Family(qkv_bias=True, windows="tail", kv_heads=32, max_positions=32_768),
    "Qwen3ForCausalLM": Family(
        qk_norm=True, windows="tail", kv_heads=32, head_dim=128, max_positions=32_768
    ),
    "Gemma2ForCausalLM": Family(
        norm_plus_one=True,
        sandwich_norms=True,
        scaled_embedding=True,
        activation="gelu_tanh",
        activation_field="hidden_activation",
        query_scalar=256.0,
        attention_soft_cap=50.0,
        final_soft_cap=30.0,
        windows="pattern",
        window_pattern=2,
        kv_heads=4,
        head_dim=256,
        max_positions=8192,
        tied_head=True,
    ),
    "Gemma3ForCausalLM": Family(
        qk_norm=True,
        norm_plus_one=True,
        sandwich_norms=True,
        scaled_embedding=True,
        activation="gelu_tanh",
        activation_field="hidden_activation",
        query_scalar=256.0,
        windows="pattern",
        window_pattern=6,
        two_ropes=True,
        rope_theta=1_000_000.0,
        kv_heads=4,
        head_dim=256,
        max_positions=131_072,
        tied_head=True,
    ),
}
"""By the name in a config's `architectures`."""
