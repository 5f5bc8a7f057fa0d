"""The forward pass of one decoder layer, of any family, over a packed row."""

from collections.abc import Callable
from typing import Protocol

import torch
from torch import Tensor

from slidepack.engine.model.layers import LayerWeights
from slidepack.engine.shape import ModelShape
from slidepack.kernels import gated, rms_norm, rope

AttentionFunction = Callable[[Tensor, Tensor, Tensor], Tensor]
"""(q [T, N, H], k [T, K, H], v [T, K, H]) -> [T, N, H]."""


class LayerAdapter(Protocol):
    """What LoRA lanes add to a layer's linears."""

    def linear(self, x: Tensor, weight: Tensor, group: str) -> Tensor:
        """Return x · weightᵀ and what the adapters add to it.

        Args:
            x: [T, in], the linear's input.
            weight: [out, in], without its bias.
            group: which linears it holds side by side: `qkv`, `o`, `gate_up` or `down`.
        """


def decoder_layer(
    x_TD: Tensor,
    weights: LayerWeights,
    shape: ModelShape,
    table: tuple[Tensor, Tensor],
    attend: AttentionFunction,
    adapter: LayerAdapter | None,
) -> Tensor:
    """Return the layer's output, [T, D]; depends on nothing but its arguments.

    Equivalent to transformers' decoder layers of the families in `engine.families.table`.

    Args:
        x_TD: the layer's input.
        weights: its weights; they may want gradients.
        shape: sizes, and which parts the family has.
        table: cos and sin of the positions, each [T, H], of the layer's kind.
        attend: causal attention with the layer's window, scale and soft cap; given rotated q and k.
        adapter: the LoRA lanes, or None for the bare base.
    """
    x_TD = x_TD + _attention_block(x_TD, weights, shape, table, attend, adapter)
    return x_TD + _feed_forward_block(x_TD, weights, shape, adapter)


def _attention_block(
    x_TD: Tensor,
    weights: LayerWeights,
    shape: ModelShape,
    table: tuple[Tensor, Tensor],
    attend: AttentionFunction,
    adapter: LayerAdapter | None,
) -> Tensor:
    normed = _norm(x_TD, weights.input_norm, shape)
    fused = _linear(normed, weights.qkv, "qkv", adapter, weights.qkv_bias)
    q, k, v = torch.split(fused, [shape.q_width, shape.kv_width, shape.kv_width], dim=-1)
    q = q.view(-1, shape.num_heads, shape.head_dim)
    k = k.view(-1, shape.num_kv_heads, shape.head_dim)
    v = v.view(-1, shape.num_kv_heads, shape.head_dim)
    q, k = rope(_head_norm(q, weights.q_norm, shape), _head_norm(k, weights.k_norm, shape), *table)
    mixed = attend(q, k, v).flatten(-2)
    out = _linear(mixed, weights.o, "o", adapter)
    # With four norms a layer this one belongs here; with two, to the feed-forward's input.
    return _norm(out, weights.post_norm, shape) if shape.sandwich_norms else out


def _feed_forward_block(
    x_TD: Tensor, weights: LayerWeights, shape: ModelShape, adapter: LayerAdapter | None
) -> Tensor:
    before = weights.post_norm if weights.pre_ffn_norm is None else weights.pre_ffn_norm
    normed = _norm(x_TD, before, shape)
    gate, up = torch.split(_linear(normed, weights.gate_up, "gate_up", adapter), shape.ffn, dim=-1)
    inner = gated(gate, up, shape.activation)
    out = _linear(inner, weights.down, "down", adapter)
    return out if weights.post_ffn_norm is None else _norm(out, weights.post_ffn_norm, shape)


def _norm(x: Tensor, weight: Tensor, shape: ModelShape) -> Tensor:
    return rms_norm(x, weight, shape.rms_eps, plus_one=shape.norm_plus_one)


def _head_norm(x_TNH: Tensor, weight_H: Tensor | None, shape: ModelShape) -> Tensor:
    """Norm each head of queries or keys, where the family does."""
    if weight_H is None:
        return x_TNH
    return _norm(x_TNH.reshape(-1, shape.head_dim), weight_H, shape).view(x_TNH.shape)


def _linear(
    x: Tensor, weight: Tensor, group: str, adapter: LayerAdapter | None, bias: Tensor | None = None
) -> Tensor:
    if adapter is None:
        return torch.nn.functional.linear(x, weight, bias)
    y = adapter.linear(x, weight, group)
    return y if bias is None else y + bias
