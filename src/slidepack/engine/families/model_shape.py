"""The sizes of a decoder and the names and shapes of its tensors."""

import math

import msgspec

from slidepack.engine.families.rope import RopeShape
from slidepack.engine.families.table import Activation

__all__ = ["ModelShape"]


class ModelShape(msgspec.Struct, frozen=True, kw_only=True):
    """Sizes of a decoder, and which of the families' parts it has.

    All layers have the same tensors; window and rotation alone differ from layer to layer.
    """

    architecture: str
    num_layers: int
    hidden: int
    ffn: int
    num_heads: int
    num_kv_heads: int
    head_dim: int
    vocab: int
    max_positions: int
    rms_eps: float
    rope: RopeShape
    sliding_rope: RopeShape | None = None
    """Of the layers with a window (Gemma 3); None: they rotate as the others do."""
    tied_head: bool
    qkv_bias: bool = False
    qk_norm: bool = False
    """Queries and keys are normed, head by head, before the rotation."""
    norm_plus_one: bool = False
    """Norms scale by 1 + weight."""
    sandwich_norms: bool = False
    """Attention's and feed-forward's outputs are normed before they are added (four norms)."""
    activation: Activation = "silu"
    embed_scale: float = 1.0
    """The embedding is multiplied by this, rounded to its dtype."""
    attention_scale: float | None = None
    """Of the scores; None is 1 / sqrt(head size)."""
    attention_soft_cap: float | None = None
    final_soft_cap: float | None = None
    """Bound of the logits."""
    layer_windows: tuple[int | None, ...] = ()
    """For each layer, tokens that a token sees, itself among them; None is all before it. Empty
    where no layer has a window."""

    @property
    def q_width(self) -> int:
        """Output width of q_proj."""
        return self.num_heads * self.head_dim

    @property
    def kv_width(self) -> int:
        """Output width of k_proj and of v_proj."""
        return self.num_kv_heads * self.head_dim

    def window_of(self, layer: int) -> int | None:
        """Return how many tokens a token sees at a layer, itself among them; None is all."""
        return self.layer_windows[layer] if self.layer_windows else None

    def layer_tensor_shapes(self) -> dict[str, tuple[int, ...]]:
        """Return the tensors of one decoder layer in flat-buffer order, in Hugging Face's names.

        q, k, v (weights, and biases) and gate, up are neighbours, so that one matrix product can
        serve each group. What weight decay spares, biases and norms, comes last.
        """
        hidden, ffn = self.hidden, self.ffn
        projections = {"q": self.q_width, "k": self.kv_width, "v": self.kv_width}
        shapes: dict[str, tuple[int, ...]] = {
            f"self_attn.{letter}_proj.weight": (width, hidden)
            for letter, width in projections.items()
        }
        shapes["self_attn.o_proj.weight"] = (hidden, self.q_width)
        shapes["mlp.gate_proj.weight"] = (ffn, hidden)
        shapes["mlp.up_proj.weight"] = (ffn, hidden)
        shapes["mlp.down_proj.weight"] = (hidden, ffn)
        if self.qkv_bias:
            for letter, width in projections.items():
                shapes[f"self_attn.{letter}_proj.bias"] = (width,)
        if self.qk_norm:
            shapes["self_attn.q_norm.weight"] = (self.head_dim,)
            shapes["self_attn.k_norm.weight"] = (self.head_dim,)
        norms = ["input_layernorm", "post_attention_layernorm"]
        if self.sandwich_norms:
            norms += ["pre_feedforward_layernorm", "post_feedforward_layernorm"]
        return shapes | {f"{norm}.weight": (hidden,) for norm in norms}

    @property
    def layer_decayed_params(self) -> int:
        """Parameters of a layer that weight decay acts on: its matrices, which come first."""
        shapes = self.layer_tensor_shapes().values()
        return sum(math.prod(shape) for shape in shapes if len(shape) == 2)

    def tensor_shapes(self) -> dict[str, tuple[int, ...]]:
        """Return every tensor of the checkpoint, in Hugging Face's names."""
        shapes: dict[str, tuple[int, ...]] = {
            "model.embed_tokens.weight": (self.vocab, self.hidden)
        }
        for layer in range(self.num_layers):
            for name, shape in self.layer_tensor_shapes().items():
                shapes[f"model.layers.{layer}.{name}"] = shape
        shapes["model.norm.weight"] = (self.hidden,)
        if not self.tied_head:
            shapes["lm_head.weight"] = (self.vocab, self.hidden)
        return shapes

    @property
    def layer_params(self) -> int:
        """Parameters of one decoder layer."""
        return sum(math.prod(shape) for shape in self.layer_tensor_shapes().values())

    @property
    def total_params(self) -> int:
        """Parameters of the whole model; a tied head counts once."""
        ends = self.vocab * self.hidden * (1 if self.tied_head else 2) + self.hidden
        return ends + self.num_layers * self.layer_params

    def linear_shape(self, target: str) -> tuple[int, int]:
        """Return (out, in) of a decoder linear by PEFT's name, e.g. `q_proj`."""
        for name, shape in self.layer_tensor_shapes().items():
            if name.endswith(f".{target}.weight"):
                return (shape[0], shape[1])
        raise KeyError(target)

    def lora_params(self, rank: int, targets: tuple[str, ...]) -> int:
        """Trainable parameters of a LoRA adapter of this rank on these linears."""
        return self.num_layers * sum(rank * sum(self.linear_shape(target)) for target in targets)
