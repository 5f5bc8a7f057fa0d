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
    """What a LoRA lane adds to a layer's linears."""

    def delta(self, x: Tensor, target: str) -> Tensor | None:
        """Return what the adapter adds to the output of a linear, or None where it adds nothing.

        Args:
            x: [T, in], the linear's input.
            target: PEFT's name of the linear, e.g. `q_proj`.
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
        adapter: the LoRA lane, or None for the bare base.
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
    fused = torch.nn.functional.linear(normed, weights.qkv, weights.qkv_bias)
    q, k, v = torch.split(fused, [shape.q_width, shape.kv_width, shape.kv_width], dim=-1)
    q = _added(q, adapter, normed, "q_proj").view(-1, shape.num_heads, shape.head_dim)
    k = _added(k, adapter, normed, "k_proj").view(-1, shape.num_kv_heads, shape.head_dim)
    v = _added(v, adapter, normed, "v_proj").view(-1, shape.num_kv_heads, shape.head_dim)
    q, k = rope(_head_norm(q, weights.q_norm, shape), _head_norm(k, weights.k_norm, shape), *table)
    mixed = attend(q, k, v).flatten(-2)
    out = _added(torch.nn.functional.linear(mixed, weights.o), adapter, mixed, "o_proj")
    # With four norms a layer this one belongs here; with two, to the feed-forward's input.
    return _norm(out, weights.post_norm, shape) if shape.sandwich_norms else out


def _feed_forward_block(
    x_TD: Tensor, weights: LayerWeights, shape: ModelShape, adapter: LayerAdapter | None
) -> Tensor:
    before = weights.post_norm if weights.pre_ffn_norm is None else weights.pre_ffn_norm
    normed = _norm(x_TD, before, shape)
    fused = torch.nn.functional.linear(normed, weights.gate_up)
    gate, up = torch.split(fused, shape.ffn, dim=-1)
    gate = _added(gate, adapter, normed, "gate_proj")
    up = _added(up, adapter, normed, "up_proj")
    inner = gated(gate, up, shape.activation)
    out = _added(torch.nn.functional.linear(inner, weights.down), adapter, inner, "down_proj")
    return out if weights.post_ffn_norm is None else _norm(out, weights.post_ffn_norm, shape)


def _norm(x: Tensor, weight: Tensor, shape: ModelShape) -> Tensor:
    return rms_norm(x, weight, shape.rms_eps, plus_one=shape.norm_plus_one)


def _head_norm(x_TNH: Tensor, weight_H: Tensor | None, shape: ModelShape) -> Tensor:
    """Norm each head of queries or keys, where the family does."""
    if weight_H is None:
        return x_TNH
    return _norm(x_TNH.reshape(-1, shape.head_dim), weight_H, shape).view(x_TNH.shape)


def _added(base: Tensor, adapter: LayerAdapter | None, x: Tensor, target: str) -> Tensor:
    delta = adapter.delta(x, target) if adapter is not None else None
    return base if delta is None else base + delta
