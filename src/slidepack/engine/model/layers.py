"""The decoder's parameters: one flat buffer a layer, with named views into it."""

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from slidepack.engine.shape import ModelShape


@dataclass(frozen=True, slots=True)
class LayerWeights:
    """One decoder layer. Every tensor is a view into `flat`.

    Shapes: D model, H head size, Q = heads * H, K = KV heads * H, F feed-forward.
    """

    flat: Tensor
    """[layer parameters], contiguous."""
    input_norm: Tensor
    """[D]"""
    qkv: Tensor
    """[Q + 2K, D]: q, k and v are neighbours, so one product serves all three."""
    o: Tensor
    """[D, Q]"""
    post_norm: Tensor
    """[D], `post_attention_layernorm`: of the feed-forward's input, or of attention's output where
    there are four norms."""
    gate_up: Tensor
    """[2F, D]"""
    down: Tensor
    """[D, F]"""
    named: dict[str, Tensor]
    """The tensors under their Hugging Face names, e.g. `self_attn.q_proj.weight`."""
    qkv_bias: Tensor | None = None
    """[Q + 2K]"""
    q_norm: Tensor | None = None
    """[H]"""
    k_norm: Tensor | None = None
    """[H]"""
    pre_ffn_norm: Tensor | None = None
    """[D], of the feed-forward's input where there are four norms."""
    post_ffn_norm: Tensor | None = None
    """[D], of the feed-forward's output."""


@dataclass(frozen=True, slots=True)
class Decoder:
    """A whole model on one device; frozen."""

    shape: ModelShape
    embedding: Tensor
    """[V, D]"""
    layers: Sequence[LayerWeights]
    final_norm: Tensor
    """[D]"""
    head: Tensor
    """[V, D]; the embedding itself where the head is tied."""

    refetch: Callable[[int, str], Tensor] | None = None
    """Returns the weight of a layer's group of linears (`qkv`, `o`, `gate_up`, `down`) once more,
    where a layer is only valid until the next one is asked for; None where all stay."""

    @property
    def device(self) -> torch.device:
        """Where the model lives."""
        return self.embedding.device

    @property
    def dtype(self) -> torch.dtype:
        """The dtype of weights and activations."""
        return self.embedding.dtype


def layer_over(flat: Tensor, shape: ModelShape) -> LayerWeights:
    """Lay named views over a flat buffer of `shape.layer_params` elements.

    The buffer may be anything contiguous: a slot that is recycled, a slice of a larger buffer, or
    a tensor that wants a gradient (the views then pass theirs on to it).

    Raises:
        ValueError: the buffer has another size, or gaps.
    """
    if flat.shape != (shape.layer_params,) or not flat.is_contiguous():
        raise ValueError(
            f"buffer is {tuple(flat.shape)} with strides {flat.stride()}, "
            f"a layer has {shape.layer_params} elements side by side"
        )
    named: dict[str, Tensor] = {}
    starts: dict[str, int] = {}
    offset = 0
    for name, size in shape.layer_tensor_shapes().items():
        count = math.prod(size)
        starts[name] = offset
        named[name] = flat[offset : offset + count].view(size)
        offset += count

    def rows(first: str, count: int, width: int = 1) -> Tensor:
        """Return the neighbours from `first` on as one, `count` rows of `width` elements."""
        return flat[starts[first] : starts[first] + count * width]

    qkv_width, hidden = shape.q_width + 2 * shape.kv_width, shape.hidden
    return LayerWeights(
        flat=flat,
        input_norm=named["input_layernorm.weight"],
        qkv=rows("self_attn.q_proj.weight", qkv_width, hidden).view(qkv_width, hidden),
        o=named["self_attn.o_proj.weight"],
        post_norm=named["post_attention_layernorm.weight"],
        gate_up=rows("mlp.gate_proj.weight", 2 * shape.ffn, hidden).view(2 * shape.ffn, hidden),
        down=named["mlp.down_proj.weight"],
        named=named,
        qkv_bias=rows("self_attn.q_proj.bias", qkv_width) if shape.qkv_bias else None,
        q_norm=named.get("self_attn.q_norm.weight"),
        k_norm=named.get("self_attn.k_norm.weight"),
        pre_ffn_norm=named.get("pre_feedforward_layernorm.weight"),
        post_ffn_norm=named.get("post_feedforward_layernorm.weight"),
    )
